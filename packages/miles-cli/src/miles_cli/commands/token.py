"""The bearer token that a service asks for."""

import typer


def usable(token: str | None) -> str | None:
    """The token, as a typer callback; refuses one that no HTTP header can carry, for it would keep everyone out."""
    if token is not None and not (token and token.isascii() and token.isprintable() and " " not in token):
        raise typer.BadParameter("expected printable ASCII characters without spaces, as an HTTP header carries them.")
    return token
