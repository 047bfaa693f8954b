"""`miles recipes`: the built-in recipes."""


def recipes() -> None:
    """List the built-in recipes; the first column is what `miles run` takes."""
    from rich.console import Console
    from rich.table import Table

    from miles_cli.recipes import all_recipes

    table = Table("recipe", "kind", "what it does", box=None)
    for recipe in all_recipes().values():
        table.add_row(recipe.name, recipe.kind, recipe.description)
    Console().print(table)
