"""One tool call from its text; what cannot be read is kept and marked."""

import json
from typing import Any

import xxhash

INVALID_NAME = "invalid_tool_call"
"""Function name of a call that could not be read; no tool has it."""
_ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789"


def call_id(seed: int | str, index: int) -> str:
    """Nine alphanumerics (the strictest rule templates have), fixed by the seed and the call's place in its turn."""
    number = xxhash.xxh3_64_intdigest(f"{seed}/{index}".encode())
    letters = []
    for _ in range(9):
        number, digit = divmod(number, len(_ALPHABET))
        letters.append(_ALPHABET[digit])
    return "".join(letters)


def read_call(body: str, *, identity: str, raw: str) -> dict[str, Any]:
    """The call that a JSON body holds, in OpenAI's shape; `arguments` is a JSON string of an object.

    A body that is no object with a `name` and an object of `arguments` gives an `invalid_call`.
    """
    try:
        found = json.loads(body)
    except ValueError as error:
        return invalid_call(identity, body, raw, f"expected JSON, found {error}")
    if not isinstance(found, dict) or not isinstance(found.get("name"), str) or not found["name"]:
        return invalid_call(identity, body, raw, 'expected an object with a "name"')
    arguments = found.get("arguments", found.get("parameters"))
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError as error:
            return invalid_call(identity, body, raw, f"expected arguments as a JSON object, found {error}")
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        return invalid_call(identity, body, raw, f"expected arguments as an object, found {type(arguments).__name__}")
    text = json.dumps(arguments, ensure_ascii=False)
    return {"id": identity, "type": "function", "function": {"name": found["name"], "arguments": text}}


def invalid_call(identity: str, body: str, raw: str, error: str) -> dict[str, Any]:
    """A call that could not be read: marked, with its text, in a shape that lets a harness answer with an error."""
    return {
        "id": identity,
        "type": "function",
        "function": {"name": INVALID_NAME, "arguments": body},
        "invalid": True,
        "raw": raw,
        "error": error,
    }
