"""Advantages, losses, packing, training backends and the core of the local engine of Miles."""

__version__ = "0.1.0"
