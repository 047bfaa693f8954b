"""Where chat templates lie: beside a tokenizer under several names, or in a file of their own."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from miles_core.errors import TokenError

PREFERRED = ("tool_use", "default")
"""Of several named templates the first of these is used: the one for tools can do what the default one does."""


def read_templates(folder: Path) -> dict[str, str]:
    """Every chat template of a tokenizer folder by name; the unnamed one is "default".

    Read are `tokenizer_config.json`, `processor_config.json` and `chat_template.json` (one text, or several by name),
    and, before them, `chat_template.jinja` and `additional_chat_templates/NAME.jinja`.
    """
    found: dict[str, str] = {}
    for name in ("tokenizer_config.json", "processor_config.json", "chat_template.json"):
        found |= named_templates(read_json(folder / name).get("chat_template"))
    file = folder / "chat_template.jinja"
    if file.is_file():
        found["default"] = read_text(file)
    for extra in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        found[extra.stem] = read_text(extra)
    return found


def named_templates(value: Any) -> dict[str, str]:
    """Templates by name from a configuration's `chat_template`: a text, a list of named texts, or a mapping."""
    if isinstance(value, str):
        return {"default": value}
    if isinstance(value, Mapping):
        pairs = list(value.items())
    elif isinstance(value, list):
        pairs = [(entry.get("name"), entry.get("template")) for entry in value if isinstance(entry, Mapping)]
    else:
        return {}
    return {name: text for name, text in pairs if isinstance(name, str) and isinstance(text, str)}


def choose_template(templates: Mapping[str, str], wanted: str | Path | None) -> str:
    """The template to use: `wanted` as the name of one of `templates`, as a file, or as the text of a template.

    Without `wanted`, the only one or the preferred one; TokenError when there is none, or none that is meant.
    """
    if wanted is None:
        return _preferred(templates)
    if isinstance(wanted, str) and wanted in templates:
        return templates[wanted]
    if isinstance(wanted, str) and any(sign in wanted for sign in ("{", "\n")):
        return wanted
    file = Path(wanted)
    if file.is_file():
        return read_text(file)
    known = f"a name among {', '.join(map(repr, templates))}, " if templates else ""
    raise TokenError(f"expected {known}a template's file or its text as chat_template, found {str(wanted)!r}.")


def _preferred(templates: Mapping[str, str]) -> str:
    if not templates:
        raise TokenError("expected a chat template with the tokenizer, found none; pass chat_template.")
    names = [name for name in PREFERRED if name in templates] or list(templates)
    if len(names) > 1 and names[0] not in PREFERRED:
        raise TokenError(
            f"expected a template named default, found {', '.join(map(repr, templates))}; "
            "pass one of the names as chat_template."
        )
    return templates[names[0]]


def read_text(file: Path) -> str:
    """The text of a template's file; TokenError when it is not UTF-8."""
    try:
        return file.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise TokenError(f"expected UTF-8 text in {file}, found byte {error.start} that is not.") from None


def read_json(file: Path) -> dict[str, Any]:
    """The JSON object in a configuration file, empty when there is none; TokenError for text that is no JSON."""
    if not file.is_file():
        return {}
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise TokenError(f"expected JSON in {file}, found {error}; download the file again.") from error
    return found if isinstance(found, dict) else {}
