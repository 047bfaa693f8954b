"""Weights from a trainer to inference engines: staged, verified by digest, committed all or nothing."""

__version__ = "0.1.0"
