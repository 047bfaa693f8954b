"""Middleware of the user's own."""

from typing import Any, Literal

from pydantic import Field

from miles_core import plugins
from miles_core.config import Config
from miles_core.errors import PluginError


class PluginMiddlewareConfig(Config):
    """An ASGI middleware class of your own: called with the app it stands around, it returns an ASGI app."""

    type: Literal["plugin"] = "plugin"
    name: str
    """`module:attribute`, `file.py:attribute`, or an entry point of the group `miles.router_middleware`."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments it is called with, beside the app."""

    def build(self, app: Any) -> Any:
        """The middleware around `app`; PluginError when it cannot be loaded."""
        made = plugins.load("router_middleware", self.name, options=self.options)(app, **self.options)
        if not callable(made):
            raise PluginError(
                f"router_middleware plug-in {self.name!r}: expected an ASGI app, found {type(made).__name__}."
            )
        return made
