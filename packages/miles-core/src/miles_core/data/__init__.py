"""Prompts in a reproducible order."""
