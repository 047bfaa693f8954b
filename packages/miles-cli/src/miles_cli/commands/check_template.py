"""`miles check-template`: is a chat template safe for token-in-token-out sessions?"""

from pathlib import Path
from typing import Annotated

import typer

SOUND, UNSOUND, UNUSABLE = 0, 1, 2


def check_template(
    target: Annotated[Path, typer.Argument(help="A model folder, or a .jinja file.", metavar="MODEL_DIR|FILE.jinja")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> int:
    """Render the conversation shapes and say, for each kind of append, whether the template is sound.

    Exit code 0: sound; 1: some append is not; 2: the template cannot be read or rendered.
    """
    from miles_core.errors import ConfigError, TokenError
    from miles_tito.verify import check_template as check

    if not target.exists():
        raise ConfigError(f"expected a model folder or a .jinja file at {target}, found nothing there.")
    try:
        report = check(target)
    except TokenError as error:
        raise ConfigError(f"{target}: {error}") from error
    typer.echo(report.to_json() if as_json else report.to_text())
    return SOUND if report.sound else UNSOUND
