"""A profile pinned in a file: what it refuses, and what it brings along."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest

from miles_core.errors import TokenError
from miles_tito import ChatTokenizer, Profile, Transcript
from miles_tito.pinning import differences, pinned
from miles_tito.profile_json import SCHEMA, dumped, values_in
from miles_tito.proof import Prover
from miles_tito.vocabulary import Vocabulary


def test_a_profile_survives_its_file(chat_for, tmp_path):
    profile = chat_for("chatml").profile.with_proof("text>user", "bounded")
    profile.save(tmp_path / "profile.json")
    assert Profile.load(tmp_path / "profile.json") == profile


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"schema": 99}, "schema 99"),
        ({"colour": "red", "taste": 1}, "unknown fields colour, taste"),
        ({"stops": "<|im_end|>"}, "'<|im_end|>' as field stops"),
        ({"stop_ids": [True]}, r"\[True\] as field stop_ids"),
        ({"proofs": {"text>user": 1}}, "as field proofs"),
        ({"reasoning_kept": []}, "as field reasoning_kept"),
    ],
)
def test_a_file_that_is_no_profile_of_this_version_is_refused(chat_for, tmp_path, change, found):
    text = json.dumps({**json.loads(chat_for("chatml").profile.to_json()), **change})
    (tmp_path / "profile.json").write_text(text)
    with pytest.raises(TokenError, match=f"profile.json: .*{found}.*derive it again"):
        Profile.load(tmp_path / "profile.json")


@pytest.mark.parametrize("text", ["", "[]", "{", '{"schema": 1}'])
def test_other_text_is_no_profile(text):
    with pytest.raises(TokenError, match="derive it again"):
        Profile.from_json(text)


@dataclass(frozen=True, kw_only=True)
class Shapes:
    """Every type that a profile's fields may have."""

    number: int
    flag: bool | None
    texts: tuple[str, ...]
    lists: Mapping[str, list[str]]
    anything: Mapping[str, Any] | None


WHOLE = {"number": 1, "flag": None, "texts": ["a"], "lists": {"k": ["a", "b"]}, "anything": {"k": [1, None]}}


def test_every_type_of_field_comes_back_as_it_was():
    found = Shapes(**values_in(json.dumps({"schema": SCHEMA, **WHOLE}), Shapes))
    assert found == Shapes(**{**WHOLE, "texts": ("a",)})
    assert Shapes(**values_in(dumped(found), Shapes)) == found


@pytest.mark.parametrize(
    "wrong",
    [{"number": True}, {"number": "1"}, {"flag": 1}, {"texts": [1]}, {"lists": {"k": "ab"}}, {"lists": {"k": [1]}}],
)
def test_a_field_of_another_type_is_refused(wrong):
    with pytest.raises(TokenError, match=f"as field {next(iter(wrong))}"):
        values_in(json.dumps({"schema": SCHEMA, **WHOLE, **wrong}), Shapes)


def test_differences_name_the_fields_with_both_values(chat_for):
    profile = chat_for("chatml").profile
    assert differences(profile, profile) == []
    other = replace(profile, stops=("<|end|>",), roles=("user",))
    assert differences(profile, other) == [
        ("stops", profile.stops, ("<|end|>",)),
        ("roles", profile.roles, ("user",)),
    ]


def test_proofs_found_so_far_are_no_difference_but_contrary_ones_are(chat_for):
    bare = replace(chat_for("chatml").profile, proofs={})
    old, new = bare.with_proof("text>user", "bounded"), bare.with_proof("1>tool", "history")
    assert differences(old, new) == []
    contrary = old.with_proof("1>tool", "bounded")
    assert differences(contrary, new) == [("proofs[1>tool]", "bounded", "history")]


def test_a_pin_brings_its_proofs(chat_for, tmp_path):
    derived = replace(chat_for("chatml").profile, proofs={})
    pin = derived.with_proof("text>user", "bounded")
    pin.save(tmp_path / "profile.json")
    assert pinned(pin, derived) == pinned(tmp_path / "profile.json", derived) == pin


def test_a_pin_that_no_longer_holds_is_refused_with_what_changed(chat_for, tmp_path):
    old, new = chat_for("chatml").profile, chat_for("trims").profile
    old.save(tmp_path / "profile.json")
    with pytest.raises(
        TokenError, match=r"profile.json, but .*fingerprint of the template and the .*; stops .*save it"
    ):
        pinned(tmp_path / "profile.json", new)
    flagged = chat_for("chatml", flag=1).profile
    with pytest.raises(TokenError, match="fingerprint of the arguments"):
        pinned(old, flagged)
    with pytest.raises(TokenError, match=r"stops \(pinned .*, now \('x',\)\)"):
        pinned(old, replace(old, stops=("x",)))


def test_a_pin_that_is_not_there_is_refused(chat_for, tmp_path):
    with pytest.raises(TokenError, match="cannot be read"):
        pinned(tmp_path / "missing.json", chat_for("chatml").profile)


@pytest.fixture
def folder(tmp_path, template_file):
    Vocabulary.of_bytes(["<|im_start|>", "<|im_end|>"]).save(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(template_file("chatml").read_text())
    return tmp_path


def turned(chat: ChatTokenizer) -> Transcript:
    transcript = chat.begin([{"role": "user", "content": "u"}]).sampled([97, *chat.stop_token_ids])
    return chat.append(transcript, [{"role": "user", "content": "v"}])


def test_a_tokenizer_with_a_pin_uses_its_proofs_and_gives_the_same_ids(folder, monkeypatch):
    first = ChatTokenizer.from_pretrained(folder)
    ids = turned(first).ids
    assert first.profile.proofs
    first.profile.save(folder / "profile.json")

    def refuse(*_: object, **__: object) -> str:
        raise AssertionError("proved again what the pin has proved")

    monkeypatch.setattr(Prover, "prove", refuse)
    for pin in (folder / "profile.json", str(folder / "profile.json"), first.profile):
        second = ChatTokenizer.from_pretrained(folder, profile=pin)
        assert (turned(second).ids, second.profile) == (ids, first.profile)
    with pytest.raises(AssertionError, match="proved again"):
        turned(ChatTokenizer.from_pretrained(folder))


def test_proofs_of_other_code_are_found_anew(folder):
    first = ChatTokenizer.from_pretrained(folder)
    turned(first)
    (kind,) = first.profile.proofs
    doubtful = replace(first.profile, code="other code", proofs={kind: "doubtful"})
    second = ChatTokenizer.from_pretrained(folder, profile=doubtful)
    assert second.profile.proofs == {}
    assert turned(second).ids == turned(first).ids
    assert second.profile == first.profile


def test_a_tokenizer_whose_files_changed_is_refused_under_its_pin(folder):
    ChatTokenizer.from_pretrained(folder).profile.save(folder / "profile.json")
    with pytest.raises(TokenError, match=r"profile.json, but .* fingerprint of the arguments\. Use the template"):
        ChatTokenizer.from_pretrained(folder, profile=folder / "profile.json", template_kwargs={"flag": 1})
    (folder / "generation_config.json").write_text('{"eos_token_id": [256]}')
    with pytest.raises(TokenError, match=r"fingerprint of the tokenizer; stops .*; stop_ids \(pinned .*257"):
        ChatTokenizer.from_pretrained(folder, profile=folder / "profile.json")
