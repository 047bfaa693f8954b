"""Weight versions as engines write them."""


def weight_version(value: object) -> int | None:
    """The version as a number; SGLang's `"default"`, the weights an engine was started with, is 0. None otherwise."""
    if value == "default":
        return 0
    if isinstance(value, str) and value.lstrip("-").isdecimal():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
