"""What a run shows while it runs: a live display, plain lines, or JSON lines."""

from miles_cli.display.choose import choose
from miles_cli.display.display import Display

__all__ = ["Display", "choose"]
