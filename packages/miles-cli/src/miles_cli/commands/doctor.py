"""`miles doctor`: what is installed, what a recipe would use, what is missing."""

from typing import Annotated

import typer

from miles_cli.recipes import DEFAULT


def doctor(
    recipe: Annotated[str, typer.Argument(help="A built-in recipe or a TOML file.", metavar="[RECIPE|FILE.toml]")] = (
        DEFAULT
    ),
) -> int:
    """Say what is installed, what the recipe would use and what is missing. Exit code 1 when something is missing."""
    from rich.console import Console
    from rich.table import Table

    from miles_cli.diagnosis import diagnose

    findings = diagnose(recipe)
    table = Table("", "what", "found", box=None)
    for finding in findings:
        table.add_row("[green]ok[/]" if finding.ok else "[red]missing[/]", finding.what, finding.found)
    Console().print(table)
    return 0 if all(finding.ok for finding in findings) else 1
