"""Middleware by name, and how a command line writes it."""

from miles_router.middleware.plugin import PluginMiddlewareConfig

MiddlewareConfig = PluginMiddlewareConfig
