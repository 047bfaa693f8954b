"""Base URLs of workers, in one spelling."""

import re
from ipaddress import AddressValueError, IPv6Address
from urllib.parse import SplitResult, urlsplit

from miles_core.errors import ConfigError

LONGEST = 2048
_PLAIN = re.compile(r"[!-~]+")
"""Printable ASCII without blanks; other names of hosts have a spelling in it."""
_HOST = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)(\.(?!-)[a-z0-9_-]{1,63}(?<!-))*\.?")
_BRACKETS = re.compile(r"\[[^\[\]]*\](:[0-9]*)?")
_HOST_CHARS = 254


def worker_url(url: str) -> str:
    """The base URL without a trailing slash; ConfigError unless it is http(s) with a host and no query.

    A `/v1` at its end, as OpenAI clients write base URLs, is dropped: the paths of calls bring it.
    """
    text = url.strip()
    if len(text) > LONGEST:
        raise ConfigError(f"worker {url[:60]!r}...: expected a base URL of at most {LONGEST} characters.")
    if _PLAIN.fullmatch(text) is None:
        raise ConfigError(f"worker {url!r}: expected a base URL of printable ASCII without blanks.")
    try:
        parts = urlsplit(text)
    except ValueError as error:  # brackets that do not match, or hold no address
        raise ConfigError(f"worker {url!r}: expected a base URL such as http://127.0.0.1:30000 ({error}).") from None
    try:
        parts.port  # noqa: B018 - reading it is what checks it
    except ValueError:
        raise ConfigError(f"worker {url!r}: expected a port between 0 and 65535.") from None
    if parts.scheme not in ("http", "https") or not _has_host(parts) or parts.query or parts.fragment:
        raise ConfigError(f"worker {url!r}: expected a base URL such as http://127.0.0.1:30000.")
    if "@" in parts.netloc:
        raise ConfigError("a worker's URL: expected one without a user name; MILES_ENGINE_TOKEN authorizes calls.")
    path = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
    return f"{parts.scheme}://{parts.netloc.lower()}{path}"


def _has_host(parts: SplitResult) -> bool:
    host = parts.hostname or ""
    if _BRACKETS.fullmatch(parts.netloc) is None:
        return len(host) < _HOST_CHARS and _HOST.fullmatch(host) is not None
    try:
        IPv6Address(host)
    except AddressValueError:
        return False
    return True
