"""`miles check-template`: is a chat template safe for token-in-token-out sessions?"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

SOUND, UNSOUND, UNUSABLE = 0, 1, 2


def check_template(
    target: Annotated[Path, typer.Argument(help="A model folder, or a .jinja file.", metavar="MODEL_DIR|FILE.jinja")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    timeout_s: Annotated[float, typer.Option(min=1.0, help="Longest the whole check may take, in seconds.")] = 120.0,
) -> int:
    """Render the conversation shapes and say, for each kind of append, whether the template is sound.

    Exit code 0: sound; 1: some append is not; 2: the template cannot be read or rendered.
    """
    from miles_core.errors import ConfigError, TokenError
    from miles_tito.verify import check_template as check

    try:
        if not (target.is_dir() or target.is_file()):
            raise ConfigError(f"expected a model folder or a .jinja file at {target}, found nothing of the kind there.")
        with _deadline(timeout_s, target):
            report = check(target)
    except TokenError as error:
        raise ConfigError(f"{target}: {error}") from error
    except OSError as error:
        raise ConfigError(f"cannot read {target}: {error.strerror or error}.") from error
    except (RecursionError, MemoryError) as error:
        raise ConfigError(f"{target}: expected a template that ends, found {type(error).__name__}.") from error
    if not any(verdict.tried for verdict in report.verdicts):
        why = next((finding.what for finding in report.findings), "no conversation could be rendered")
        raise ConfigError(f"{target}: expected a template that renders a user turn, found that {why}.")
    typer.echo(report.to_json() if as_json else report.to_text())
    return SOUND if report.sound else UNSOUND


class _Late(BaseException):
    """The deadline: passes through whatever takes an error of a template for its answer."""


@contextmanager
def _deadline(seconds: float, target: Path) -> Iterator[None]:
    """End the work inside after this long, whatever a template does."""
    from miles_core.errors import ConfigError

    def late(_signal: int, _frame: object) -> None:
        raise _Late

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    except _Late:
        raise ConfigError(
            f"{target}: waited {seconds:g} s for its check to end; a template that loops never does, otherwise raise "
            "--timeout-s."
        ) from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
