"""`miles config`: the resolved configuration and its schema."""

from typing import Annotated

import typer

from miles_cli.recipes import DEFAULT

app = typer.Typer(help="Show a resolved recipe, or the schema of recipes.", no_args_is_help=True)


@app.command("show")
def show(
    recipe: Annotated[str, typer.Argument(help="A built-in recipe or a TOML file.", metavar="[RECIPE|FILE.toml]")] = (
        DEFAULT
    ),
    overrides: Annotated[list[str] | None, typer.Option("--set", help="section.key=value; repeat for several.")] = None,
) -> None:
    """Print the resolved tree; each value carries where it came from."""
    from miles_cli.load_config import lines_with_origin, load

    for line in lines_with_origin(load(recipe, overrides or ())):
        typer.echo(line)


@app.command("schema")
def schema() -> None:
    """Print the JSON schema of recipe files."""
    import json

    from miles_cli.load_config import json_schema

    typer.echo(json.dumps(json_schema(), indent=2))
