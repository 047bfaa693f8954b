"""The built-in recipes, as package data: every TOML file in this folder or one of its direct subfolders is one.

A recipe is called by its file's name with dashes; `NAME/recipe.toml` is called by its folder.
"""

import difflib
import tomllib
from dataclasses import dataclass
from pathlib import Path

from miles_core.errors import ConfigError

DEFAULT = "quickstart"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Where a built-in recipe lies and what it says about itself."""

    name: str
    path: Path
    kind: str
    description: str


def all_recipes(folder: Path | None = None) -> dict[str, Recipe]:
    """Every built-in recipe by name, sorted."""
    root = Path(__file__).parent if folder is None else folder
    files = [*root.glob("*.toml"), *root.glob("*/*.toml")]
    found = (_read(path) for path in files if path.name != "pyproject.toml")
    return {recipe.name: recipe for recipe in sorted(found, key=lambda recipe: recipe.name)}


def find(target: str) -> Path:
    """The file of a recipe: a path to a TOML file, or the name of a built-in recipe.

    Raises ConfigError that names the nearest recipes.
    """
    if target.endswith(".toml") or "/" in target:
        path = Path(target)
        try:
            found = "" if path.is_file() else "a folder" if path.is_dir() else "none"
            resolved = path.resolve()
        except (OSError, RuntimeError, ValueError) as error:  # a name too long, a link to itself, a null byte
            raise ConfigError(f"cannot look for a recipe file at {_short(target)}: {_why(error)}.") from None
        if found:
            raise ConfigError(f"expected a recipe file at {target}, found {found}.")
        return resolved
    known = all_recipes()
    if target not in known:
        near = difflib.get_close_matches(target, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}."
        raise ConfigError(
            f"no built-in recipe is called {_short(target)!r}; {hint} A file of your own is given by its path, which "
            "ends in .toml."
        )
    return known[target].path


def _short(text: str) -> str:
    return text if len(text) <= 100 else f"{text[:100]}..."


def _why(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


def _read(path: Path) -> Recipe:
    stem = path.parent.name if path.stem == "recipe" else path.stem
    tree = tomllib.loads(path.read_text(encoding="utf-8"))
    return Recipe(
        name=stem.replace("_", "-"),
        path=path,
        kind=str(tree.get("kind", "rl")),
        description=str(tree.get("run", {}).get("description", "")),
    )
