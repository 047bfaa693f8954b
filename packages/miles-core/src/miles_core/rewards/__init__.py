"""Judging samples: one reward a file, and the runner that gives each its deadline."""
