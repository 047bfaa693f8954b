"""Template arguments that a caller may choose: those known in the field, and every condition that the source reads."""

from collections.abc import Iterator, Mapping
from itertools import islice, product
from typing import Any

from miles_tito.render import ChatTemplate, mentions

KEEPS_REASONING: tuple[Mapping[str, Any], ...] = (
    {"preserve_thinking": True},
    {"clear_thinking": False},
    {"truncate_history_thinking": False},
    {"drop_thinking": False},
    {"keep_past_thinking": True},
)
"""Template arguments known to keep reasoning in history."""

TURNS_REASONING_ON: tuple[Mapping[str, Any], ...] = ({"enable_thinking": True}, {"thinking": True})
"""Template arguments without which some templates write no reasoning, whatever is kept."""

_GIVEN = {
    "messages", "tools", "documents", "add_generation_prompt", "raise_exception", "strftime_now",
    "bos_token", "eos_token", "unk_token", "pad_token",
}  # fmt: skip
"""Names that every render defines; they are no arguments to choose."""
_MOST = 16


def switches(template: ChatTemplate) -> Iterator[dict[str, Any]]:
    """Arguments to try one at a time, the known ones first, then True and False for each name the template asks about.

    A name that is also joined, filtered or printed takes a text, and no truth value is tried for it.
    What is set already is not tried again, another value for it is. At most sixteen: a template that reads more names
    than that is understood by its author, not by trying.
    """
    new = (switch for switch in _every_switch(template) if _is_new(template, switch))
    yield from islice(new, _MOST)


def keepers(template: ChatTemplate) -> Iterator[dict[str, Any]]:
    """Arguments to try where reasoning is to be kept: `switches`, then what keeps it with what turns it on."""
    yield from switches(template)
    for keeps, turns_on in product(KEEPS_REASONING, TURNS_REASONING_ON):
        pair = {**keeps, **turns_on}
        if pair.keys() <= template.reads and _is_new(template, pair):
            yield pair


def _is_new(template: ChatTemplate, arguments: Mapping[str, Any]) -> bool:
    return any(template.kwargs.get(name) != value for name, value in arguments.items())


def _every_switch(template: ChatTemplate) -> Iterator[dict[str, Any]]:
    seen = {*_GIVEN, *template.special_tokens}
    for known in KEEPS_REASONING:
        if all(mentions(template.source, name) for name in known):
            seen |= set(known)
            yield dict(known)
    for name in sorted(template.asks - seen):
        yield {name: True}
        yield {name: False}
