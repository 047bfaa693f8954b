"""Words that occur once in a conversation, so that a render shows which text went where, and which was lost."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from miles_tito.marks import strings_of

Message = Mapping[str, Any]

_MEANT = {
    "schema": "the tools block",
    "rule": "the system message",
    "ask": "the user message",
    "found": "the tool result",
    "shot": "the injected assistant message",
    "answer": "the text of the turn",
    "seek": "the tool call",
    "note": "the text beside a tool call",
    "thought": "the reasoning",
}
_WORD = re.compile(rf"(?:{'|'.join(_MEANT)})[a-j]{{4}}")
SOFT = ("note", "thought")
"""Text of sampled turns that a template may drop from history without harm to what is appended."""
TOOLS_WORD = "schemaaaaa"


@dataclass(frozen=True, slots=True)
class Word:
    """A sentinel, as it stands in a message."""

    text: str

    @property
    def stem(self) -> str:
        """What kind of text it stands in."""
        return self.text[:-4]

    @property
    def soft(self) -> bool:
        """True when a template may drop it."""
        return self.stem in SOFT

    def __str__(self) -> str:
        return f"{_MEANT[self.stem]} ({self.text!r})"


def words_of(messages: Sequence[Message]) -> Iterator[Word]:
    """The sentinels of the messages in the order in which a template writes them: reasoning, content, calls."""
    for message in messages:
        for key in ("reasoning_content", "content", "tool_calls"):
            for text in strings_of(message.get(key)):
                for found in _WORD.finditer(text):
                    yield Word(found[0])


def words_in(text: str) -> list[Word]:
    """The sentinels that a rendered text holds, in order."""
    return [Word(found[0]) for found in _WORD.finditer(text)]


class Words:
    """Makes messages around sentinels. reasoning: turns of the policy think first."""

    def __init__(self, *, reasoning: bool) -> None:
        self._reasoning = reasoning
        self._count = 0

    def word(self, stem: str) -> str:
        """A sentinel never given before."""
        self._count += 1
        return f"{stem}{''.join(chr(ord('a') + int(digit)) for digit in f'{self._count:04d}')}"

    def user(self, more: str = "") -> Message:
        """A user message with a text after its sentinel."""
        return {"role": "user", "content": f"Please {self.word('ask')}.{more}"}

    def lines(self, message: Message, stem: str) -> Message:
        """The message with several paragraphs for its text: a sentinel in the first, the last and between."""
        first, between, last = (self.word(stem) for _ in range(3))
        filler = "and so on, for as long as it takes to say it all. " * 3
        return {**message, "content": f"{first} {filler}\n{between} {filler}\n\n{filler * 8}\n    {last}"}

    def system(self) -> Message:
        """A system message."""
        return {"role": "system", "content": f"Always {self.word('rule')}."}

    def answer(self) -> Message:
        """A turn of text."""
        return self._thinking({"role": "assistant", "content": f"So {self.word('answer')}."})

    def empty(self) -> Message:
        """A turn without a text."""
        return self._thinking({"role": "assistant", "content": ""})

    def shot(self) -> Message:
        """An assistant message that was not sampled."""
        return {"role": "assistant", "content": f"As {self.word('shot')}.", "injected": True}

    def long(self, message: Message, stem: str, num_chars: int) -> Message:
        """The message with a long text: a sentinel at its start, in its middle and at its end."""
        first, between, last = (self.word(stem) for _ in range(3))
        filler = (" and so on" * (num_chars // 20 + 1))[: num_chars // 2]
        return {**message, "content": f"{first}{filler} {between}{filler} {last}"}

    def calls(
        self, count: int = 1, *, content: str | None = "", as_string: bool = True, name: str = "look_up"
    ) -> Message:
        """A turn of tool calls. content: its text, with a sentinel where there is one. name: of the tool."""
        made = []
        for _ in range(count):
            word = self.word("seek")
            arguments: Any = f'{{"word": "{word}", "limit": 3}}' if as_string else {"word": word, "limit": 3}
            function = {"name": name, "arguments": arguments}
            made.append({"id": f"call{self._count:05d}", "type": "function", "function": function})
        text = f"{content} {self.word('note')}." if content else content
        return self._thinking({"role": "assistant", "content": text, "tool_calls": made})

    def results(self, calls: Message, more: str = "") -> tuple[Message, ...]:
        """A tool result for each call; with more text, a second sentinel stands behind it."""
        return tuple(
            {
                "role": "tool",
                "tool_call_id": call["id"],
                "name": call["function"]["name"],
                "content": self._found(more),
            }
            for call in calls["tool_calls"]
        )

    def _found(self, more: str) -> str:
        return f"{self.word('found')}{more}{self.word('found')}" if more else self.word("found")

    def _thinking(self, message: dict[str, Any]) -> Message:
        if self._reasoning:
            message["reasoning_content"] = f"Consider {self.word('thought')}."
        return message
