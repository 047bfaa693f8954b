"""The command `miles`: runs on Ray, engines, recipes, reports."""

__version__ = "0.1.0"
