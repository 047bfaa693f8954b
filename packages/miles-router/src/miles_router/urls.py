"""Base URLs of workers, in one spelling."""

from urllib.parse import urlsplit

from miles_core.errors import ConfigError


def worker_url(url: str) -> str:
    """The base URL without a trailing slash; ConfigError unless it is http(s) with a host and no query.

    A `/v1` at its end, as OpenAI clients write base URLs, is dropped: the paths of calls bring it.
    """
    parts = urlsplit(url.strip())
    try:
        parts.port  # noqa: B018 - reading it is what checks it
    except ValueError:
        raise ConfigError(f"worker {url!r}: expected a port between 0 and 65535.") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ConfigError(f"worker {url!r}: expected a base URL such as http://127.0.0.1:30000.")
    path = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
    return f"{parts.scheme}://{parts.netloc.lower()}{path}"
