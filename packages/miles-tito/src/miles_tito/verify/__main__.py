"""`python -m miles_tito.verify MODEL_DIR|FILE.jinja`."""

import argparse
import json
import sys
from collections.abc import Sequence

from miles_core.errors import TokenError
from miles_tito.verify.check import KINDS, check_template


def main(argv: Sequence[str] | None = None) -> int:
    """Check templates and print the reports; 0 when all are sound, 1 when one is not, 2 for what cannot be checked."""
    parser = argparse.ArgumentParser(prog="python -m miles_tito.verify", description=__doc__)
    parser.add_argument("paths", nargs="+", metavar="MODEL_DIR|FILE.jinja")
    parser.add_argument("--kwargs", default="{}", metavar="JSON", help="template arguments")
    parser.add_argument("--no-tools", action="store_true", help="check conversations without tools")
    parser.add_argument("--thinking", choices=("on", "off", "both"), default="both", help="turns with reasoning")
    parser.add_argument("--require", nargs="+", choices=KINDS, metavar="KIND", help="kinds whose failure is an error")
    parser.add_argument("--format", choices=("text", "json"), default="text")
    parser.add_argument("--explain", action="store_true", help="show every conversation that fails")
    options = parser.parse_args(argv)
    worst = 0
    for path in options.paths:
        try:
            report = check_template(
                path,
                template_kwargs=json.loads(options.kwargs),
                tools=not options.no_tools,
                thinking={"on": True, "off": False, "both": None}[options.thinking],
                required=options.require,
            )
        except (TokenError, ValueError) as error:
            print(f"{path}: {error}", file=sys.stderr)
            return 2
        print(report.to_json() if options.format == "json" else report.to_text(explain=options.explain))
        worst = max(worst, 0 if report.sound else 1)
    return worst


if __name__ == "__main__":
    sys.exit(main())
