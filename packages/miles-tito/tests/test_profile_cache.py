"""Profiles that are derived once: in the process, and in a folder that may be damaged, foreign or forbidden."""

import os
import threading
from pathlib import Path

import pytest

from miles_tito import profile_cache
from miles_tito.profile_cache import ProfileCache
from miles_tito.render import ChatTemplate
from miles_tito.verify.vocabulary import default_vocabulary


@pytest.fixture
def derived(monkeypatch) -> list[str]:
    """The templates that were derived rather than found."""
    seen: list[str] = []
    real = profile_cache.derive_profile

    def counted(template, vocabulary):
        seen.append(template.source)
        return real(template, vocabulary)

    monkeypatch.setattr(profile_cache, "derive_profile", counted)
    return seen


@pytest.fixture
def case(template_file):
    template = ChatTemplate(template_file("arguments_as_string").read_text())
    return template, default_vocabulary(template)


def test_a_template_is_derived_once_and_then_found_in_memory(case, derived):
    cache = ProfileCache()
    first, template = cache.profile_of(*case, folder=None)
    assert cache.profile_of(*case, folder=None)[0] is first
    assert len(derived) == 1
    assert template.arguments == first.arguments == "string"


def test_another_process_finds_it_on_disk(case, derived, tmp_path):
    first, _ = ProfileCache().profile_of(*case, folder=tmp_path / "profiles")
    second, template = ProfileCache().profile_of(*case, folder=tmp_path / "profiles")
    assert (second, len(derived)) == (first, 1)
    assert template.arguments == "string"


@pytest.mark.parametrize(
    "damage", [lambda text: "", lambda text: text[:-9], lambda text: text.replace("string", "object", 1)]
)
def test_a_damaged_file_is_derived_again_and_written_anew(case, derived, tmp_path, damage):
    first, _ = ProfileCache().profile_of(*case, folder=tmp_path)
    (file,) = tmp_path.iterdir()
    whole = file.read_text()
    assert damage(whole) != whole
    file.write_text(damage(whole))
    assert ProfileCache().profile_of(*case, folder=tmp_path)[0] == first
    assert (len(derived), file.read_text(), list(tmp_path.iterdir())) == (2, whole, [file])


def test_the_profile_of_another_template_under_this_name_is_not_believed(case, derived, tmp_path, template_file):
    ProfileCache().profile_of(*case, folder=tmp_path)
    (file,) = tmp_path.iterdir()
    other = ChatTemplate(template_file("chatml").read_text())
    ProfileCache().profile_of(other, default_vocabulary(other), folder=tmp_path)
    (foreign,) = set(tmp_path.iterdir()) - {file}
    file.write_text(foreign.read_text())
    assert ProfileCache().profile_of(*case, folder=tmp_path)[0].arguments == "string"
    assert len(derived) == 3


def test_what_other_code_derived_is_derived_again(case, derived, tmp_path, monkeypatch):
    ProfileCache().profile_of(*case, folder=tmp_path)
    monkeypatch.setattr(profile_cache, "derivation_digest", lambda: "other code")
    ProfileCache().profile_of(*case, folder=tmp_path)
    assert (len(derived), len(list(tmp_path.iterdir()))) == (2, 2)


def test_other_arguments_are_another_profile(case, derived):
    cache = ProfileCache()
    template, vocabulary = case
    prints = {
        cache.profile_of(one, vocabulary, folder=None)[0].fingerprint
        for one in (template, template.with_kwargs({"flag": 1}), template.with_special_tokens({"bos_token": "<s>"}))
    }
    assert (len(prints), len(derived)) == (3, 3)


def test_a_folder_that_cannot_be_written_changes_nothing(case, derived, tmp_path):
    (tmp_path / "file").write_text("")
    profile, _ = ProfileCache().profile_of(*case, folder=tmp_path / "file" / "profiles")
    assert profile.arguments == "string"


def test_memory_and_folder_are_bounded(case, derived, tmp_path):
    template, vocabulary = case
    cache = ProfileCache(capacity=2, max_files=3)
    for number in range(6):
        cache.profile_of(template.with_kwargs({"n": number}), vocabulary, folder=tmp_path)
    assert len(list(tmp_path.iterdir())) <= 3
    cache.profile_of(template.with_kwargs({"n": 5}), vocabulary, folder=None)
    assert len(derived) == 6
    cache.profile_of(template.with_kwargs({"n": 0}), vocabulary, folder=None)
    assert len(derived) == 7


def test_threads_that_ask_at_once_get_equal_profiles(case, tmp_path):
    cache, found = ProfileCache(capacity=1), []
    threads = [
        threading.Thread(target=lambda: found.append(cache.profile_of(*case, folder=tmp_path)[0])) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert all(profile == found[0] for profile in found)


def test_a_tokenizer_writes_its_profile_there_and_off_writes_nothing(case, monkeypatch, tmp_path):
    from miles_tito import ChatTokenizer

    template, vocabulary = case
    monkeypatch.setattr(profile_cache, "_SHARED", ProfileCache())
    monkeypatch.setenv("MILES_CACHE", "off")
    ChatTokenizer(template, vocabulary)
    monkeypatch.setattr(profile_cache, "_SHARED", ProfileCache())
    monkeypatch.setenv("MILES_CACHE", str(tmp_path))
    ChatTokenizer(template, vocabulary)
    assert [path.parent.name for path in tmp_path.rglob("*.json")] == ["profiles"]


@pytest.mark.parametrize("put", [os.mkfifo, Path.mkdir])
def test_what_is_no_file_is_not_read(case, derived, tmp_path, put):
    first, _ = ProfileCache().profile_of(*case, folder=tmp_path)
    (file,) = tmp_path.iterdir()
    file.unlink()
    put(file)
    assert ProfileCache().profile_of(*case, folder=tmp_path)[0] == first
    assert len(derived) == 2
