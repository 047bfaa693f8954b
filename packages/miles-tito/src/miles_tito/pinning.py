"""A pinned profile: what was derived once, kept in a file, and an error when it is derived otherwise later."""

from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from miles_core.errors import TokenError
from miles_tito.profile import Profile

LEARNED = ("proofs",)
"""Fields that fill up while a tokenizer is used: two profiles that differ in them describe the same template."""


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
    """Fields whose facts differ, in the order of the class; proofs only where both have one for the same kind."""
    found = [
        Changed(field.name, getattr(old, field.name), getattr(new, field.name))
        for field in fields(Profile)
        if field.name not in LEARNED and getattr(old, field.name) != getattr(new, field.name)
    ]
    shared = [kind for kind in old.proofs if kind in new.proofs]
    found += [
        Changed(f"proofs[{kind}]", old.proofs[kind], new.proofs[kind])
        for kind in shared
        if old.proofs[kind] != new.proofs[kind]
    ]
    return found


def pinned(pin: Profile | str | Path, derived: Profile) -> Profile:
    """The derived profile with the pin's proofs; TokenError with the fields that differ when it is not the pinned one.

    pin: a profile, or the file that `Profile.save` wrote. A proof that the pin records is used as it stands, for the
    fingerprint says that template, arguments and vocabulary are those it was found for.
    """
    old = pin if isinstance(pin, Profile) else Profile.load(pin)
    changed = differences(old, derived)
    if changed:
        where = "the pinned profile" if isinstance(pin, Profile) else f"the profile pinned in {pin}"
        raise TokenError(f"expected {where}, but these are derived otherwise now: {listed(changed)}. {_CURE}")
    return replace(derived, proofs={**derived.proofs, **old.proofs})


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
