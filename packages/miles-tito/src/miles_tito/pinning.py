"""A pinned profile: what was derived once, kept in a file, and an error when it is derived otherwise later."""

from collections.abc import Sequence
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from miles_core.errors import TokenError
from miles_tito.profile import Profile

_NO_FACTS = ("code",)
LEARNED = tuple(field.name for field in fields(Profile) if field.default_factory is not MISSING)
"""Mappings by kind of append that fill up while a tokenizer is used; two profiles may differ in what they know yet."""


class Changed(NamedTuple):
    """A field of a profile whose value is another one now. old is of the pinned profile, new of the derived one."""

    field: str
    old: Any
    new: Any

    def __str__(self) -> str:
        if self.field == "fingerprint":
            return f"fingerprint of the {' and the '.join(_parts(self.old, self.new)) or 'files'}"
        return f"{self.field} (pinned {self.old!r:.200}, now {self.new!r:.200})"


def differences(old: Profile, new: Profile) -> list[Changed]:
    """Fields whose facts differ, in the order of the class; what was learned only where both know the same kind."""
    found = [
        Changed(field.name, getattr(old, field.name), getattr(new, field.name))
        for field in fields(Profile)
        if field.name not in (*LEARNED, *_NO_FACTS) and getattr(old, field.name) != getattr(new, field.name)
    ]
    for name in LEARNED:
        before, after = getattr(old, name), getattr(new, name)
        shared = [kind for kind in before if kind in after and before[kind] != after[kind]]
        found += [Changed(f"{name}[{kind}]", before[kind], after[kind]) for kind in shared]
    return found


def pinned(pin: Profile | str | Path, derived: Profile) -> Profile:
    """The derived profile with what the pin has learned; TokenError with the fields that differ when it is another one.

    pin: a profile, or the file that `Profile.save` wrote. What it has learned is used as it stands, for the fingerprint
    says that template, arguments and vocabulary are those it was found for; but not what other code found, which may
    have proved less.
    """
    old = pin if isinstance(pin, Profile) else Profile.load(pin)
    changed = differences(old, derived)
    if changed:
        where = "the pinned profile" if isinstance(pin, Profile) else f"the profile pinned in {pin}"
        raise TokenError(f"expected {where}, but these are derived otherwise now: {listed(changed)}. {_CURE}")
    if old.code != derived.code:
        return derived
    learned: dict[str, Any] = {name: {**getattr(derived, name), **getattr(old, name)} for name in LEARNED}
    return replace(derived, **learned)


def listed(changed: Sequence[Changed]) -> str:
    """The changes as one line."""
    return "; ".join(map(str, changed))


_CURE = (
    "Use the template, arguments and tokenizer of the pin, or, where the change is meant, derive the profile "
    "again and save it."
)


def _parts(old: str, new: str) -> list[str]:
    """Names of the parts of two fingerprints that differ."""
    before, after = (dict(part.split(":", 1) for part in text.split() if ":" in part) for text in (old, new))
    return [name for name in after if before.get(name) != after[name]]
