"""Middleware by name, and how a command line writes it."""

from typing import Annotated

from pydantic import Field

from miles_core.config import Config, build
from miles_router.choices import choice_of
from miles_router.middleware.plugin import PluginMiddlewareConfig
from miles_router.middleware.prefix_tokens import PrefixTokensConfig

MiddlewareConfig = Annotated[PrefixTokensConfig | PluginMiddlewareConfig, Field(discriminator="type")]
"""One line a middleware."""


class _Chosen(Config):
    middleware: MiddlewareConfig


def middleware_of(text: str) -> MiddlewareConfig:
    """The middleware that `NAME[,option=value...]` means; ConfigError otherwise. See `choice_of`."""
    return build(_Chosen, [("the command line", {"middleware": choice_of(text)})]).config.middleware
