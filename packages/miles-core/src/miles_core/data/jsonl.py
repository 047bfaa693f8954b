"""Prompts from a JSONL file: seeded order, endless epochs, a cursor that a checkpoint holds."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import orjson
import xxhash
from pydantic import Field

from miles_core.config import Config
from miles_core.errors import DataError, RecordError
from miles_core.prompt import Prompt
from miles_core.seeds import derive


class JsonlConfig(Config):
    """A file with one JSON object a line."""

    type: Literal["jsonl"] = "jsonl"
    path: Path
    """The file; a relative path starts at the recipe's folder."""
    shuffle: bool = True
    """A new seeded order each epoch; off keeps the order of the file."""
    prompt_key: str = "prompt"
    """Holds a string (one user message) or a list of messages."""
    label_key: str = "label"
    """Holds the expected answer, any JSON value; may be absent."""
    tools_key: str = "tools"
    """Holds OpenAI tool schemas; may be absent."""
    metadata_key: str = "metadata"
    """Holds an object that the agent and the reward get; may be absent."""
    system: str | None = None
    """Put before the messages of a prompt that has no system message."""
    limit: int | None = Field(None, gt=0)
    """Use only the first rows."""


class JsonlSource:
    """A `DataSource` over a JSONL file, checked whole when it is opened.

    The prompt of row r (from 0, blank lines not counted) in epoch e is called `"{e}-{r}"`. The order of an epoch is a
    function of the seed and the epoch alone.
    """

    def __init__(self, config: JsonlConfig, *, seed: int, base: Path | None = None) -> None:
        self._config = config
        self._seed = seed
        self._path = (base or Path.cwd()) / config.path
        data = _read(self._path)
        self._digest = xxhash.xxh3_128_hexdigest(data)
        numbered = [(n, line) for n, line in enumerate(data.splitlines(), start=1) if line.strip()]
        self._lines = numbered[: config.limit]
        if not self._lines:
            raise DataError(f"{self._path}: expected at least one line with a JSON object, found an empty file.")
        for row in range(len(self._lines)):
            self._prompt(0, row)
        self._epoch = 0
        self._position = 0
        self._order = self._shuffled(0)

    def __len__(self) -> int:
        """Rows of one epoch."""
        return len(self._lines)

    def next(self, count: int) -> list[Prompt]:
        """Exactly `count` prompts, going on into the next epoch where one ends."""
        if count < 0:
            raise ValueError(f"expected a count of at least 0, found {count}.")
        prompts = []
        for _ in range(count):
            if self._position == len(self._lines):
                self._epoch, self._position = self._epoch + 1, 0
                self._order = self._shuffled(self._epoch)
            prompts.append(self._prompt(self._epoch, self._order[self._position]))
            self._position += 1
        return prompts

    def state(self) -> dict[str, Any]:
        """The cursor, and what must be the same for it to mean the same."""
        return {"epoch": self._epoch, "position": self._position, "identity": self._identity()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a cursor; DataError when the file, the seed or the options are not those it was taken with."""
        identity = state.get("identity")
        for what, ours in self._identity().items():
            theirs = identity.get(what) if isinstance(identity, Mapping) else None
            if theirs != ours:
                raise DataError(
                    f"{self._path}: expected the {what} of the checkpoint ({theirs!r}), found {ours!r}; "
                    f"restore what it was, or start a new run."
                )
        epoch, position = state.get("epoch"), state.get("position")
        if type(epoch) is not int or epoch < 0 or type(position) is not int or not 0 <= position <= len(self._lines):
            raise DataError(f"{self._path}: expected a cursor within {len(self._lines)} rows, found {dict(state)}.")
        self._epoch, self._position = epoch, position
        self._order = self._shuffled(epoch)

    def _identity(self) -> dict[str, Any]:
        options = self._config.model_dump(mode="json", exclude={"path"})
        return {"digest": self._digest, "rows": len(self._lines), "seed": self._seed, "options": options}

    def _shuffled(self, epoch: int) -> list[int]:
        rows = list(range(len(self._lines)))
        # Sorting by seeds of the tree depends on no library's shuffle, so a new version of one changes no run.
        return sorted(rows, key=lambda row: derive(self._seed, "data", epoch, row)) if self._config.shuffle else rows

    def _prompt(self, epoch: int, row: int) -> Prompt:
        number, line = self._lines[row]
        where = f"{self._path}:{number}"
        try:
            record = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise DataError(f"{where}: expected one JSON object, found text that is not JSON ({error}).") from None
        if not isinstance(record, dict):
            raise DataError(f"{where}: expected one JSON object, found {_kind(record)}.")
        try:
            return Prompt(
                prompt_id=f"{epoch}-{row}",
                messages=self._messages(record),
                label=record.get(self._config.label_key),
                tools=tuple(_entries(record, self._config.tools_key)),
                metadata=_object(record, self._config.metadata_key),
            )
        except RecordError as error:
            raise DataError(f"{where}: {error}") from None

    def _messages(self, record: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
        key = self._config.prompt_key
        if key not in record:
            raise RecordError(f"expected the key {key!r}, found {', '.join(map(repr, record)) or 'no key'}.")
        value = record[key]
        if isinstance(value, str):
            value = [{"role": "user", "content": value}]
        if not isinstance(value, list):
            raise RecordError(f"expected {key!r} as a string or a list of messages, found {_kind(value)}.")
        starts_with_system = bool(value) and isinstance(value[0], dict) and value[0].get("role") == "system"
        if self._config.system is not None and not starts_with_system:
            value = [{"role": "system", "content": self._config.system}, *value]
        return tuple(value)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise DataError(f"{path}: expected a JSONL file of prompts, found nothing there; check the path.") from None
    except OSError as error:
        raise DataError(f"{path}: expected a readable JSONL file, found {error.strerror or error}.") from None


def _entries(record: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    value = record.get(key)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise RecordError(f"expected {key!r} as a list of objects, found {_kind(value)}.")
    for entry in value:
        function = entry.get("function")
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise RecordError(f"expected each of {key!r} with function.name as a string, found {entry!r}.")
    return value


def _object(record: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = record.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise RecordError(f"expected {key!r} as an object, found {_kind(value)}.")
    return value


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
