"""`python -m miles_tito.verify PATH...`: is a chat template safe for multi-turn training?"""

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from miles_core.errors import MilesError
from miles_tito.verify.command import UNUSABLE, run
from miles_tito.verify.options import FailOn, Format, Options, Thinking
from miles_tito.verify.shapes import KINDS


def main(argv: Sequence[str] | None = None) -> int:
    """Check templates and report; 0 when all are sound, 1 when one is not, 2 for what cannot be used."""
    parsed = vars(_parser().parse_args(argv))
    given: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in parsed.items()}
    try:
        return run(Options(**given))
    except MilesError as error:
        print(f"miles: {error}", file=sys.stderr)
        return UNUSABLE
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m miles_tito.verify", description=__doc__)
    add = parser.add_argument
    add("paths", nargs="+", type=Path, metavar="PATH", help="a model folder, a .jinja file, or a folder of these")
    add("--tokenizer", type=Path, metavar="DIR", help="take the vocabulary from this folder")
    add("--kwargs", default="{}", metavar="JSON", help="template arguments as a JSON object")
    add("--arg", action="append", default=[], metavar="NAME=VALUE", help="one template argument; may be repeated")
    add("--tools", action=argparse.BooleanOptionalAction, default=True, help="check conversations with tools")
    add("--thinking", choices=get_args(Thinking), default="both", help="turns with reasoning")
    add("--require", action="append", default=[], metavar="KIND", help=f"kinds that must be sound: {', '.join(KINDS)}")
    add("--roles", action="append", default=[], metavar="ROLE", help="roles whose every append must be sound")
    add("--format", choices=get_args(Format), default="text", help="form of the report")
    add("--output", type=Path, metavar="FILE", help="write the report here; the text goes to the terminal")
    add("--fail-on", choices=get_args(FailOn), default="error", help="what makes the exit code 1")
    add("--explain", action="store_true", help="show every conversation that fails, and what was derived")
    add("--pin", type=Path, metavar="FILE", help="write the derived profile, or compare with the one written before")
    add("--timeout-s", type=float, default=120.0, metavar="SECONDS", help="longest for one template")
    add("--jobs", type=int, metavar="N", help="processes at once; as many as there are cores by default")
    return parser


if __name__ == "__main__":
    # Processes that check are ended on the way out, rather than when they notice that this one is gone.
    for name in {"SIGTERM", "SIGHUP"} & set(signal.Signals.__members__):
        signal.signal(signal.Signals[name], lambda number, _: sys.exit(128 + number))
    sys.exit(main())
