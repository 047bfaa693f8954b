"""The HTTP client that everything in core uses, and what an answer's body says about a failure."""

import ssl

import httpx


def tls_of(url: str) -> ssl.SSLContext:
    """What a client of this address trusts; loaded for https alone, for it costs more than many calls over loopback."""
    return httpx.create_ssl_context(verify=url.startswith("https:"), trust_env=False)


def open_client(
    url: str, *, token: str | None = None, timeout_s: float, tls: ssl.SSLContext | None = None
) -> httpx.AsyncClient:
    """A client for one server. Every call has the timeout; the process's proxy settings are not used.
    tls: of `tls_of`, for those who open many clients.
    """
    return httpx.AsyncClient(
        base_url=url.rstrip("/"),
        headers={"Authorization": f"Bearer {token}"} if token else {},
        timeout=timeout_s,
        verify=tls or tls_of(url),
        trust_env=False,
        # Shorter than the 5 s after which uvicorn closes idle connections, so that none is closed while it is reused.
        limits=httpx.Limits(max_connections=1000, max_keepalive_connections=1000, keepalive_expiry=3.0),
    )


def reason_of(response: httpx.Response) -> str:
    """The message of an OpenAI-shaped error body, or the first 300 characters of any other body."""
    try:
        body = response.json()
    except ValueError:
        body = None
    error = body.get("error") if isinstance(body, dict) else None
    if isinstance(error, dict) and isinstance(error.get("message"), str):
        return error["message"]
    if isinstance(error, str):
        return error
    return response.text[:300].strip() or "no reason given"
