"""Messages whose text is replaced by unique words, so that a render shows where each message went."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from miles_core.messages import text_of
from miles_tito.render import REASONING, reasoning_of


@dataclass(frozen=True, slots=True)
class Placed:
    """A message with sentinels for its text; needed are those that a template may not drop.

    Beside tool calls the text may be dropped: it is the calls that must survive. Reasoning may always be.
    originals: what each sentinel of the message stands for.
    """

    message: dict[str, Any]
    words: tuple[str, ...]
    originals: Mapping[str, str]

    @property
    def needed(self) -> tuple[str, ...]:
        """The sentinels of the calls, or that of the content where there are none."""
        return self.call_words or self.words

    @property
    def call_words(self) -> tuple[str, ...]:
        """The sentinels of the calls' arguments."""
        calls = len(self.message.get("tool_calls") or ())
        return self.words[len(self.words) - calls :]


def sentinel(name: str, number: int) -> str:
    """A word that no template writes, survives trimming and JSON, and is no part of another sentinel."""
    digits = "".join(chr(ord("a") + int(digit)) for digit in str(number))
    return f"{sentinel_stem(name)}{digits}qz"


def sentinel_stem(name: str) -> str:
    """What the sentinels of that name begin with."""
    return f"zq{name}"


def with_sentinels(message: Mapping[str, Any], name: str, number: int) -> Placed:
    """The message with its content, its reasoning and each tool call's arguments as sentinels.

    An assistant message that only calls tools keeps its content empty: templates treat the two kinds differently.
    Names, ids and the number of calls stay real, because templates print, look up and count them.
    """
    plain = {key: value for key, value in message.items() if key not in (*REASONING, "tool_calls")}
    words: list[str] = []
    originals: dict[str, str] = {}
    reasoning = reasoning_of(message)
    if reasoning:
        plain["reasoning_content"] = sentinel(f"{name}why".translate(_LETTERS), number)
        originals[plain["reasoning_content"]] = reasoning
    calls = [call for call in message.get("tool_calls") or () if not call.get("invalid")]
    if text_of(message.get("content")) or not calls:
        words.append(sentinel(name, number))
        originals[words[0]] = text_of(message.get("content"))
        plain["content"] = words[0]
    else:
        plain["content"] = ""
    if calls:
        plain["tool_calls"] = []
        for place, call in enumerate(calls):
            words.append(sentinel(f"{name}{number}call".translate(_LETTERS), place))
            originals[words[-1]] = str(call["function"].get("arguments"))
            function = {**call["function"], "arguments": {"zq": words[-1]}}
            plain["tool_calls"].append({**call, "function": function})
    return Placed(plain, tuple(words), originals)


_LETTERS = str.maketrans("0123456789", "abcdefghij")


def all_with_sentinels(messages: Sequence[Mapping[str, Any]], name: str) -> list[Placed]:
    """`with_sentinels` for each message, numbered."""
    return [with_sentinels(message, name, number) for number, message in enumerate(messages)]
