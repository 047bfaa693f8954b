"""What goes wrong with tokens, with the place where it shows."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from miles_core.errors import TokenError


def shared_prefix(one: str, other: str) -> int:
    """Number of characters with which both texts begin."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[low:middle] == other[low:middle] else (low, middle - 1)
    return low


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """Where two texts part. `before` is what both share just before, `expected` and `found` what follows in each."""

    offset: int
    before: str
    expected: str
    found: str

    @classmethod
    def between(cls, expected: str, found: str, *, width: int = 60) -> "Divergence":
        """The first difference of the two texts, with up to `width` characters around it."""
        place = shared_prefix(expected, found)
        return cls(
            offset=place,
            before=expected[max(0, place - width) : place],
            expected=expected[place : place + width],
            found=found[place : place + width],
        )

    def __str__(self) -> str:
        where = f"after {self.before!r}: " if self.before else ""
        return f"{where}expected {self.expected!r}, found {repr(self.found) if self.found else 'nothing'}"


class TemplateError(TokenError):
    """The chat template refused the conversation, or failed on it."""


class NotExtendable(TokenError):  # noqa: N818 (the public name says what the transcript is)
    """The new messages cannot be appended with a proof that the ids are those of a whole render.

    reason: one sentence. role: role of the first new message. divergence: the first difference, between what was to be
    written and what is. help: what would make it possible. arguments: the template arguments that would, if any do.
    """

    def __init__(
        self,
        reason: str,
        *,
        role: str,
        divergence: Divergence | None = None,
        help: str = "",
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        self.reason = reason
        self.role = role
        self.divergence = divergence
        self.help = help
        self.arguments = dict(arguments or {})
        self._rebuilt: dict[str, Any] = {
            "role": role,
            "divergence": divergence,
            "help": help,
            "arguments": self.arguments,
        }
        super().__init__(
            " ".join(filter(None, (f"cannot append a {role} message: {reason.rstrip('.')}.", self._where(), help)))
        )

    def _where(self) -> str:
        """The divergence as a sentence of its own, or nothing where the reason has said it."""
        if self.divergence is None or (self.divergence.found and self.reason in self.divergence.found):
            return ""
        shown = str(self.divergence)[:400]
        return f"{shown[0].upper()}{shown[1:]}."

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(NotExtendable, self.reason, **self._rebuilt), ()

    def with_help(self, help: str, arguments: Mapping[str, Any]) -> "NotExtendable":
        """The same refusal with another way out."""
        return NotExtendable(
            self.reason, role=self.role, divergence=self.divergence, help=help, arguments=arguments or self.arguments
        )
