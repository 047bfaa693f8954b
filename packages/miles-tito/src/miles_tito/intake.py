"""What callers hand in, checked before anything is made of it, so that nothing later fails on its form."""

import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from miles_core.errors import RecordError, TokenError
from miles_core.messages import check_messages, text_of
from miles_core.sample import Finish
from miles_tito.render import MAX_DEPTH, REASONING

_UNUSABLE = re.compile("[\ud800-\udfff\ufdd0\ufdd1]")


def check_conversation(messages: Sequence[Any], tools: Any = None) -> None:
    """TokenError unless the messages (RecordError for a wrong role, part or call) and schemas have OpenAI's shape.

    Beyond that shape any JSON is let through, nested to at most `MAX_DEPTH` levels, in text that has a UTF-8 form.
    """
    check_messages(messages)
    for place, message in enumerate(messages):
        _check_fields(message, f"message {place}")
    _check_tools(tools)
    check_json([*messages, *(tools or ())])


def check_json(value: Any) -> None:
    """TokenError for text without a UTF-8 form, for the two noncharacters that marks are made of, for deep nesting."""
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        inner: list[Any] = []
        for item in level:
            if isinstance(item, str):
                if not item.isascii() and _UNUSABLE.search(item):
                    raise _unusable(item)
            elif isinstance(item, Mapping):
                inner.extend(item.keys())
                inner.extend(item.values())
            elif isinstance(item, list | tuple):
                inner.extend(item)
        if not inner:
            return
        level = inner
    raise TokenError(f"expected messages and tools nested at most {MAX_DEPTH} levels deep, found more; flatten them.")


def _unusable(text: str) -> TokenError:
    found = _UNUSABLE.search(text)
    if found and found[0] in "\ufdd0\ufdd1":
        return TokenError(
            "expected text without the noncharacters U+FDD0 and U+FDD1, found one in a message; remove it."
        )
    at = found.start() if found else 0
    return TokenError(
        f"expected text that has a UTF-8 form, found the lone surrogate {text[at]!r} at offset {at}; "
        "decode the text again, or replace it with U+FFFD."
    )


def _check_fields(message: Mapping[str, Any], where: str) -> None:
    try:
        text_of(message.get("content"))
    except RecordError as error:
        raise RecordError(f"{where}: {error}") from None
    for key in ("tool_call_id", "name", *REASONING):
        if not isinstance(message.get(key), str | None):
            raise _wrong(f"{where}: expected {key} as a string or null", message[key])
    for number, call in enumerate(message.get("tool_calls") or ()):
        at = f"{where}, tool call {number}"
        if not isinstance(call.get("id"), str | None):
            raise _wrong(f"{at}: expected id as a string or null", call["id"])
        if not isinstance(call.get("raw"), str | None):
            raise _wrong(f"{at}: expected raw as a string or null", call["raw"])


def _check_tools(tools: Any) -> None:
    if tools is None:
        return
    if not isinstance(tools, list | tuple):
        raise _wrong("expected tools as a list of schemas", tools)
    for place, tool in enumerate(tools):
        if not isinstance(tool, Mapping):
            raise _wrong(f"tool {place}: expected a schema as an object", tool)
        if not isinstance(tool.get("function", {}), Mapping):
            raise _wrong(f"tool {place}: expected function as an object", tool["function"])


def _wrong(expected: str, found: Any) -> TokenError:
    return TokenError(f"{expected}, found {type(found).__name__}.")


def token_ids(ids: Any) -> tuple[int, ...]:
    """The ids as integers; TokenError for anything else, and for negative ones.

    Ids above the vocabulary pass: a model's embedding may be larger than its tokenizer, and what it sampled is kept.
    """
    found = integers(ids, "token ids")
    if found and min(found) < 0:
        raise TokenError(f"expected token ids of at least 0, found {min(found)}.")
    if found and max(found) >= 2**31:
        raise TokenError(f"expected token ids below 2**31, found {max(found)}.")
    return found


def integers(values: Any, what: str) -> tuple[int, ...]:
    """The values as integers; TokenError where one is no integer (a float is none, nor is a truth value)."""
    found = _listed(values, what)
    if set(map(type, found)) <= {int}:
        return found
    numbers = []
    for value in found:
        try:
            number = None if isinstance(value, bool) else operator.index(value)
        except TypeError:
            number = None
        if number is None:
            raise TokenError(f"expected {what} as integers, found {value!r:.60}.")
        numbers.append(number)
    return tuple(numbers)


def log_probabilities(values: Any) -> tuple[float, ...]:
    """The values as floats; TokenError where one is no number."""
    found = _listed(values, "log-probabilities")
    if set(map(type, found)) <= {float}:
        return found
    numbers = []
    for value in found:
        try:
            number = None if isinstance(value, str | bytes | bool) else float(value)
        except (TypeError, ValueError, OverflowError):
            number = None
        if number is None:
            raise TokenError(f"expected log-probabilities as numbers, found {value!r:.60}.")
        numbers.append(number)
    return tuple(numbers)


def finish_named(name: Any) -> Finish:
    """How a turn ended; TokenError for another name."""
    try:
        return Finish(name)
    except ValueError:
        raise TokenError(f"expected finish as one of {', '.join(Finish)}, found {name!r:.60}.") from None


def _listed(values: Any, what: str) -> tuple[Any, ...]:
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise TokenError(f"expected {what} as a list, found {type(values).__name__}.")
    return tuple(values)
