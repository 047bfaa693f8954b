"""Weight versions as engines write them."""

LARGEST = (1 << 63) - 1
"""Versions are kept in 64 bits, with a sign."""
MOST_DIGITS = 20


def weight_version(value: object) -> int | None:
    """The version as a number; SGLang's `"default"`, the weights an engine was started with, is 0.

    None for anything else, and for a number that 64 bits do not hold.
    """
    if value == "default":
        return 0
    if isinstance(value, str) and len(value) <= MOST_DIGITS and value.removeprefix("-").isdecimal():
        value = int(value)
    return value if type(value) is int and -LARGEST - 1 <= value <= LARGEST else None
