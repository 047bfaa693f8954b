"""Template arguments that a caller may choose: those known in the field, and every switch that the source reads."""

from collections.abc import Iterator, Mapping
from itertools import islice
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

_GIVEN = {
    "messages", "tools", "documents", "add_generation_prompt", "raise_exception", "strftime_now",
    "bos_token", "eos_token", "unk_token", "pad_token",
}  # fmt: skip
"""Names that every render defines; they are no arguments to choose."""
_MOST = 16


def switches(template: ChatTemplate) -> Iterator[dict[str, Any]]:
    """Arguments to try one at a time, the known ones first, then True and False for each name the template reads.

    What is set already is not tried again, another value for it is. At most sixteen: a template that reads more names
    than that is understood by its author, not by trying.
    """
    new = (switch for switch in _every_switch(template) if any(template.kwargs.get(n) != v for n, v in switch.items()))
    yield from islice(new, _MOST)


def _every_switch(template: ChatTemplate) -> Iterator[dict[str, Any]]:
    seen = {*_GIVEN, *template.special_tokens}
    for known in KEEPS_REASONING:
        if all(mentions(template.source, name) for name in known):
            seen |= set(known)
            yield dict(known)
    for name in sorted(template.reads - seen):
        yield {name: True}
        yield {name: False}
