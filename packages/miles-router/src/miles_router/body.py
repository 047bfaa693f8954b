"""Limits on the body of a request."""

from miles_core.errors import MilesError


class BodyTooLargeError(MilesError):
    """A body that passed the limit while it was read."""
