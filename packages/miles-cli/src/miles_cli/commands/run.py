"""`miles run`: a whole run, from a recipe to a run folder."""

from pathlib import Path
from typing import Annotated

import typer

from miles_cli.recipes import DEFAULT


def run(
    recipe: Annotated[
        str | None,
        typer.Argument(
            help=f"A built-in recipe (`miles recipes`) or a TOML file; {DEFAULT} when not given.",
            metavar="[RECIPE|FILE.toml]",
            show_default=False,
        ),
    ] = None,
    overrides: Annotated[list[str] | None, typer.Option("--set", help="section.key=value; repeat for several.")] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; runs/NAME when not given.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the folder's last checkpoint.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Delete the run that is in the folder.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything, print the recipe, start nothing.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per event; with --dry-run, the recipe as one.")
    ] = False,
) -> None:
    """Train: prompts to agent, agent to samples, samples to trainer, weights back to the engines."""
    import json
    import time

    from miles_cli.checks import check
    from miles_cli.load_config import load, load_resumed
    from miles_cli.pipeline.process import age_s
    from miles_cli.pipeline.run_folder import Mode, check_folder
    from miles_core.config import dump_toml
    from miles_core.errors import ConfigError

    origin = time.monotonic() - age_s()
    if resume and overwrite:
        raise ConfigError("--resume continues a run and --overwrite deletes it; expected at most one of them.")
    values = overrides or ()
    resolved = load_resumed(recipe, values, out) if resume else load(DEFAULT if recipe is None else recipe, values)
    config = resolved.config
    mode: Mode = "resume" if resume else "overwrite" if overwrite else "new"
    folder = Path("runs") / config.run.name if out is None else out
    check(config, thorough=dry_run)
    check_folder(folder, mode)
    if dry_run:
        typer.echo(json.dumps(config.model_dump(mode="json")) if as_json else dump_toml(config))
        return
    from miles_cli.pipeline.environment import prepare

    prepare()
    from miles_cli.pipeline.launch import launch

    launch(config, out=folder, mode=mode, as_json=as_json, origin=origin)
