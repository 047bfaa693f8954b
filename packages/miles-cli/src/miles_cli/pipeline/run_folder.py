"""The folder of one run: what lies where, who may write to it."""

import fcntl
import json
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Literal, Self

from miles_core.errors import ConfigError

Mode = Literal["new", "resume", "overwrite"]
LOCK = ".lock"
ENTRIES = (
    "config.toml",
    "processes.json",
    "metrics.jsonl",
    "summary.json",
    "report.html",
    "samples",
    "checkpoints",
    "weights",
    "model",
    "logs",
)
LOCK_WAIT_S = 15.0


class RunFolder:
    """A run folder that this process holds alone.

    The lock is a file lock (`flock`) on `.lock`; it is passed on to the process that cleans up after a killed run, so
    that it is free only when nothing of the earlier run is left.
    """

    def __init__(self, path: Path, lock: IO[str]) -> None:
        self.path = path
        self._lock = lock

    @classmethod
    def open(cls, path: Path, *, mode: Mode) -> Self:
        """Create or take over the folder.

        `new` wants a folder that is absent or empty, `overwrite` deletes the run that is there (and refuses a folder
        that holds anything else), `resume` wants a run. Raises ConfigError.
        """
        path = path.absolute()
        check_folder(path, mode)
        try:
            path.mkdir(parents=True, exist_ok=True)
            (path / LOCK).touch()
        except OSError as error:
            raise _unusable(path, error) from None
        lock = _lock(path / LOCK, wait_s=0.0 if mode == "new" else LOCK_WAIT_S)
        if mode == "overwrite":
            for name in ENTRIES:
                _delete(path / name)
        folder = cls(path, lock)
        for sub in (folder.samples, folder.checkpoints, folder.logs):
            sub.mkdir(exist_ok=True)
        return folder

    @property
    def lock_fd(self) -> int:
        """Descriptor of the lock, for a child that keeps it."""
        return self._lock.fileno()

    @property
    def config(self) -> Path:
        """The resolved recipe."""
        return self.path / "config.toml"

    @property
    def metrics(self) -> Path:
        """A line per step."""
        return self.path / "metrics.jsonl"

    @property
    def samples(self) -> Path:
        """Trajectories, a file per step."""
        return self.path / "samples"

    @property
    def checkpoints(self) -> Path:
        """`step-N` folders and the Hugging Face `export`."""
        return self.path / "checkpoints"

    @property
    def export(self) -> Path:
        """The trained model as a Hugging Face folder."""
        return self.checkpoints / "export"

    @property
    def logs(self) -> Path:
        """Output of each process, a file per role."""
        return self.path / "logs"

    def write_config(self, toml: str) -> None:
        """Keep the resolved recipe."""
        write_atomically(self.config, toml)

    def write_processes(self, roles: Mapping[str, int]) -> None:
        """Keep role -> process id of everything that runs."""
        write_atomically(self.path / "processes.json", json.dumps(dict(sorted(roles.items())), indent=2) + "\n")

    def close(self) -> None:
        """Give the folder up."""
        self._lock.close()


def write_atomically(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old or the new text, whole."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def read_json(path: Path) -> Any:
    """The JSON of a file."""
    return json.loads(path.read_text(encoding="utf-8"))


def check_folder(path: Path, mode: Mode) -> None:
    """Raise ConfigError when `RunFolder.open` would refuse the folder; nothing is created or changed."""
    path = path.absolute()
    try:
        _check_contents(path, mode)
        above = next(place for place in (path, *path.parents) if place.exists())
        if not above.is_dir():
            raise ConfigError(f"expected a folder for the run at {path}, found the file {above}; give another --out.")
        if not os.access(above, os.W_OK | os.X_OK):
            raise ConfigError(f"expected to write the run to {path}, found no right to in {above}; give another --out.")
    except OSError as error:
        raise _unusable(path, error) from None


def _unusable(path: Path, error: OSError) -> ConfigError:
    shown = str(path) if len(str(path)) <= 200 else f"{str(path)[:200]}..."
    return ConfigError(f"cannot use {shown} as a run folder: {error.strerror or error}; give another --out.")


def _check_contents(path: Path, mode: Mode) -> None:
    if path.exists() and not path.is_dir():
        raise ConfigError(f"expected a folder for the run at {path}, found a file; give another --out.")
    present = {entry.name for entry in path.iterdir() if not _is_void(entry)} if path.exists() else set()
    if mode == "new" and present:
        if (path / LOCK).exists():
            _lock(path / LOCK, wait_s=0.0).close()
        raise ConfigError(
            f"expected an empty run folder at {path}, found {_few(present)}; "
            "use --resume to continue that run, --overwrite to delete it, or another --out."
        )
    strangers = {name for name in present - set(ENTRIES) if not name.startswith(".")}
    if mode == "overwrite" and strangers:
        raise ConfigError(f"--overwrite deletes runs only; found {_few(strangers)} in {path}: give another --out.")
    if mode == "resume" and "config.toml" not in present:
        raise ConfigError(f"--resume: expected a run in {path}, found none; start it without --resume.")


def _is_void(entry: Path) -> bool:
    """The lock, or a folder without anything in it: what a run that never began leaves."""
    return entry.name == LOCK or (entry.is_dir() and not any(entry.iterdir()))


def _few(names: set[str]) -> str:
    shown = sorted(names)[:3]
    return ", ".join(shown) + (" and more" if len(names) > len(shown) else "")


def _lock(path: Path, *, wait_s: float) -> IO[str]:
    handle = path.open("a", encoding="utf-8")
    deadline = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                handle.close()
                raise ConfigError(
                    f"another run works in {path.parent}; wait for it, end it, or give another --out."
                ) from None
            time.sleep(0.1)
        else:
            return handle


def _delete(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
