"""A whole run of the verifier: targets, outcomes, the report in its format, and the exit code."""

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from miles_core.errors import ConfigError, TokenError
from miles_tito.verify.formats import FORMATS
from miles_tito.verify.formats.text import text
from miles_tito.verify.options import Options
from miles_tito.verify.pin import pinned
from miles_tito.verify.report import Outcome, Unusable
from miles_tito.verify.targets import Target, targets_in
from miles_tito.verify.workers import check_all

SOUND, UNSOUND, UNUSABLE = 0, 1, 2


def run(options: Options) -> int:
    """Check everything and report: 0 all sound, 1 one is not, 2 one could not be checked (a sentence on stderr each).

    ConfigError for options that cannot be used.
    """
    targets = _targets(options)
    if options.pin and len(targets) > 1:
        raise ConfigError(f"expected one template with --pin, found {len(targets)}.")
    settings = options.settings
    if options.output is not None:
        _writable(options.output)
    outcomes: list[Outcome] = []
    for outcome in check_all(targets, settings, jobs=options.num_jobs, timeout_s=options.timeout_s):
        if isinstance(outcome, Unusable):
            print(f"miles: {outcome.path}: {outcome.why}", file=sys.stderr)
        elif options.pin is not None:
            outcome, said = pinned(outcome, options.pin)
            print(f"miles: {options.pin}: {said}", file=sys.stderr)
        outcomes.append(outcome)
    _report(outcomes, options)
    return max(exit_code(outcome, options) for outcome in outcomes)


def exit_code(outcome: Outcome, options: Options) -> int:
    """What one outcome means for the run."""
    if isinstance(outcome, Unusable):
        return UNUSABLE
    return SOUND if outcome.passes(options.fail_on) else UNSOUND


def _targets(options: Options) -> list[Target]:
    found = []
    try:
        for path in options.paths:
            found += targets_in(path, tokenizer=options.tokenizer)
    except TokenError as error:
        raise ConfigError(str(error)) from error
    except OSError as error:
        raise ConfigError(f"cannot read {error.filename or 'the path'}: {error.strerror or error}.") from error
    once = {(target.path.resolve(), target.name): target for target in reversed(found)}
    return _told_apart(list(once.values())[::-1])


def _told_apart(targets: Sequence[Target]) -> list[Target]:
    """The targets, those that share a name named by their paths."""
    counts = Counter(target.name for target in targets)
    return [
        replace(target, name=f"{target.path.parent}/{target.name}") if counts[target.name] > 1 else target
        for target in targets
    ]


def _report(outcomes: Sequence[Outcome], options: Options) -> None:
    report = FORMATS[options.format](outcomes, options)
    if options.output is None:
        _print(report)
        return
    _print(text(outcomes, options))
    _write(options.output, report)


def _print(report: str) -> None:
    if report:
        print(report)


def _writable(file: Path) -> None:
    """ConfigError, before anything is checked, for a report that could not be written."""
    try:
        with file.open("a", encoding="utf-8"):
            pass
    except OSError as error:
        raise ConfigError(f"cannot write {file}: {error.strerror or error}.") from error


def _write(file: Path, report: str) -> None:
    try:
        file.write_text(f"{report}\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {file}: {error.strerror or error}.") from error
