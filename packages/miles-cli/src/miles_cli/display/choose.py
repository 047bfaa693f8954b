"""Which display fits a stream."""

from typing import TextIO

from miles_cli.display.display import Display
from miles_cli.display.json_lines import JsonLinesDisplay
from miles_cli.display.plain import PlainDisplay


def choose(stream: TextIO, json: bool, *, title: str = "miles", steps: int | None = None) -> Display:
    """JSON lines where asked for, a live display on a terminal that can move its cursor, plain lines elsewhere.

    title: of the live display; steps: of the whole run, for "step 3/60".
    """
    if json:
        return JsonLinesDisplay(stream)
    if stream.isatty():
        from rich.console import Console

        console = Console(file=stream)
        if console.is_terminal and not console.is_dumb_terminal:
            from miles_cli.display.live import LiveDisplay

            return LiveDisplay(console, title=title, steps=steps).start()
    return PlainDisplay(stream)
