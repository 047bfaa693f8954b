"""Derived profiles, kept in the process and on disk, so that a template is derived once per machine."""

import contextlib
import logging
import os
import tempfile
import threading
from collections import OrderedDict
from pathlib import Path

import xxhash

from miles_core import env
from miles_core.errors import TokenError
from miles_tito.derivation import derivation_digest
from miles_tito.profile import Profile, derive_profile, fingerprint
from miles_tito.render import ChatTemplate
from miles_tito.vocabulary import Vocabulary

_log = logging.getLogger(__name__)


class ProfileCache:
    """Profiles by the hash of template, arguments, tokenizer and deriving code. Safe to share between threads.

    capacity: profiles kept in memory, the least recently used goes first. max_files: files kept in a folder; when there
    are more the older half is removed.
    """

    def __init__(self, *, capacity: int = 256, max_files: int = 2000) -> None:
        self._capacity = capacity
        self._max_files = max_files
        self._lock = threading.Lock()
        self._known: OrderedDict[str, Profile] = OrderedDict()

    def profile_of(
        self, template: ChatTemplate, vocabulary: Vocabulary, *, folder: Path | None
    ) -> tuple[Profile, ChatTemplate]:
        """What `derive_profile` returns, from memory, else from a file in `folder`, else derived and kept in both.

        folder: None keeps nothing on disk. A file that is damaged, of other code, or cannot be read is derived again
        and written anew; a folder that cannot be written is left alone.
        """
        key = fingerprint(template, vocabulary)
        with self._lock:
            profile = self._known.get(key)
            if profile is not None:
                self._known.move_to_end(key)
        if profile is None:
            profile = self._stored_or_derived(key, template, vocabulary, folder)
            with self._lock:
                self._known[key] = profile
                while len(self._known) > self._capacity:
                    self._known.popitem(last=False)
        return profile, profile.prepared(template)

    def _stored_or_derived(
        self, key: str, template: ChatTemplate, vocabulary: Vocabulary, folder: Path | None
    ) -> Profile:
        if folder is None:
            return derive_profile(template, vocabulary)[0]
        name = xxhash.xxh3_128_hexdigest(f"{key}\n{derivation_digest()}".encode())
        file = folder / f"{name}.json"
        stored = _read(file)
        if stored is not None and stored.fingerprint == key:
            return stored
        profile, _ = derive_profile(template, vocabulary)
        try:
            _write(file, profile)
            _prune(folder, self._max_files)
        except OSError as error:
            _log.debug("the profile is not kept in %s: %s", folder, error)
        return profile


_SHARED = ProfileCache()
"""The process's own: bounded, and a pure function of its keys, so that who filled it makes no difference."""


def cached_profile(template: ChatTemplate, vocabulary: Vocabulary) -> tuple[Profile, ChatTemplate]:
    """`derive_profile` through the process's cache and the folder that `MILES_CACHE` names (`off`: no folder)."""
    root = env.cache_folder()
    return _SHARED.profile_of(template, vocabulary, folder=root / "profiles" if root else None)


def _digest(text: str) -> str:
    return xxhash.xxh3_128_hexdigest(text.encode())


def _read(file: Path) -> Profile | None:
    """The profile in the file, or None when there is none or its digest does not match."""
    try:
        if not file.is_file():  # a pipe in its place would keep its reader waiting
            return None
        digest, _, text = file.read_text(encoding="utf-8").partition("\n")
        return Profile.from_json(text) if digest == _digest(text) else None
    except (OSError, UnicodeDecodeError, TokenError):
        return None


def _write(file: Path, profile: Profile) -> None:
    """Write the file so that a reader sees all of it or none."""
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    text = profile.to_json()
    handle, unfinished = tempfile.mkstemp(dir=file.parent, prefix=".", suffix=".unfinished")
    try:
        with open(handle, "w", encoding="utf-8") as stream:
            stream.write(f"{_digest(text)}\n{text}")
        os.replace(unfinished, file)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(unfinished)
        raise


def _prune(folder: Path, max_files: int) -> None:
    """Remove the older half when there are more files than allowed."""
    with os.scandir(folder) as entries:
        files = [entry for entry in entries if entry.name.endswith(".json")]
    if len(files) <= max_files:
        return
    for entry in sorted(files, key=lambda entry: entry.stat().st_mtime)[: len(files) // 2]:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(entry.path)
