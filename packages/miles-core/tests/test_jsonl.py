"""Prompts from a file: order, epochs, cursor, faults."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from miles_core.data.jsonl import JsonlConfig, JsonlSource
from miles_core.errors import DataError
from miles_core.protocols import DataSource


@pytest.fixture
def make_source(tmp_path):
    def make(rows=5, *, seed=0, text=None, **options):
        path = tmp_path / "prompts.jsonl"
        lines = [json.dumps({"prompt": f"q{i}", "label": i}) for i in range(rows)]
        path.write_text("\n".join(lines) if text is None else text)
        return JsonlSource(JsonlConfig(path=path, **options), seed=seed)

    return make


def ids(prompts):
    return [p.prompt_id for p in prompts]


def test_a_string_prompt_is_one_user_message(make_source):
    (prompt,) = make_source(1).next(1)
    assert prompt.messages == ({"role": "user", "content": "q0"},)
    assert (prompt.prompt_id, prompt.label, prompt.tools, prompt.metadata) == ("0-0", 0, (), {})


def test_messages_tools_metadata_and_keys_of_ones_own_are_read(make_source):
    tool = {"type": "function", "function": {"name": "add"}}
    row = {"chat": [{"role": "user", "content": "hi"}], "gold": "x", "fns": [tool], "more": {"k": 1}}
    keys = {"prompt_key": "chat", "label_key": "gold", "tools_key": "fns", "metadata_key": "more"}
    (prompt,) = make_source(text=json.dumps(row), system="Be brief.", **keys).next(1)
    assert [m["role"] for m in prompt.messages] == ["system", "user"]
    assert (prompt.label, prompt.tools, prompt.metadata) == ("x", (tool,), {"k": 1})


def test_a_prompt_with_a_system_message_keeps_its_own(make_source):
    row = {"prompt": [{"role": "system", "content": "Mine."}, {"role": "user", "content": "hi"}]}
    (prompt,) = make_source(text=json.dumps(row), system="Be brief.").next(1)
    assert [m["content"] for m in prompt.messages] == ["Mine.", "hi"]


def test_without_shuffle_the_order_is_the_files(make_source):
    source = make_source(3, shuffle=False)
    assert ids(source.next(7)) == ["0-0", "0-1", "0-2", "1-0", "1-1", "1-2", "2-0"]


def test_each_epoch_has_every_row_once_in_an_order_of_its_own(make_source):
    source = make_source(20)
    epochs = [[int(p.prompt_id.split("-")[1]) for p in source.next(20)] for _ in range(3)]
    assert all(sorted(epoch) == list(range(20)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_the_seed_alone_fixes_the_order(make_source):
    assert ids(make_source(20, seed=1).next(45)) == ids(make_source(20, seed=1).next(45))
    assert ids(make_source(20, seed=1).next(20)) != ids(make_source(20, seed=2).next(20))


def test_more_than_the_data_set_holds_goes_on_into_the_next_epochs(make_source):
    prompts = make_source(3).next(8)
    assert [p.split("-")[0] for p in ids(prompts)] == ["0"] * 3 + ["1"] * 3 + ["2"] * 2
    assert len(set(ids(prompts))) == 8


@given(st.lists(st.integers(0, 9), max_size=6), st.integers(0, 9))
def test_however_it_is_drawn_and_wherever_it_is_restored_the_prompts_are_the_same(tmp_path_factory, counts, last):
    path = tmp_path_factory.getbasetemp() / "shared.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": f"q{i}"}) for i in range(4)))
    config = JsonlConfig(path=path)
    whole = ids(JsonlSource(config, seed=3).next(sum(counts) + last))
    source, drawn = JsonlSource(config, seed=3), []
    for count in counts:
        drawn += ids(source.next(count))
        state = json.loads(json.dumps(source.state()))
        source = JsonlSource(config, seed=3)
        source.restore(state)
    assert drawn + ids(source.next(last)) == whole


def test_it_is_a_data_source(make_source):
    source = make_source()
    assert isinstance(source, DataSource)
    assert source.next(0) == []
    assert len(source) == 5
    with pytest.raises(ValueError, match="at least 0"):
        source.next(-1)


def test_the_limit_takes_the_first_rows(make_source):
    assert {p.label for p in make_source(5, limit=2).next(4)} == {0, 1}


def test_a_relative_path_starts_at_the_base(tmp_path):
    (tmp_path / "p.jsonl").write_text('{"prompt": "hi"}\n\n')
    config = JsonlConfig.model_validate_json('{"path": "p.jsonl"}')
    assert len(JsonlSource(config, seed=0, base=tmp_path)) == 1


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("{", "expected one JSON object, found text that is not JSON"),
        ("[1]", "expected one JSON object, found a list"),
        ('{"question": "hi"}', "expected the key 'prompt', found 'question'"),
        ('{"prompt": 3}', "expected 'prompt' as a string or a list of messages, found a number"),
        ('{"prompt": []}', "expected at least one message"),
        ('{"prompt": [{"role": "robot"}]}', "message 0: expected a role among"),
        ('{"prompt": "hi", "tools": {}}', "expected 'tools' as a list of objects, found an object"),
        ('{"prompt": "hi", "tools": [{}]}', "function.name as a string"),
        ('{"prompt": "hi", "metadata": "x"}', "expected 'metadata' as an object, found a string"),
    ],
)
def test_a_bad_line_is_told_with_file_and_line_when_the_file_is_opened(make_source, line, told):
    with pytest.raises(DataError, match=rf"prompts\.jsonl:3: .*{told}"):
        make_source(text=f'{{"prompt": "fine"}}\n\n{line}\n')


def test_an_empty_or_missing_file_is_told(make_source, tmp_path):
    with pytest.raises(DataError, match="found an empty file"):
        make_source(text="\n\n")
    with pytest.raises(DataError, match=r"none\.jsonl: expected a JSONL file of prompts, found nothing there"):
        JsonlSource(JsonlConfig(path=tmp_path / "none.jsonl"), seed=0)
    with pytest.raises(DataError, match="expected a readable JSONL file"):
        JsonlSource(JsonlConfig(path=tmp_path), seed=0)


@pytest.mark.parametrize(
    ("change", "told"),
    [({"rows": 6}, "digest"), ({"seed": 1}, "seed"), ({"shuffle": False}, "options"), ({"limit": 4}, "rows")],
)
def test_a_cursor_of_other_data_is_refused(make_source, change, told):
    source = make_source(5)
    source.next(3)
    state = source.state()
    with pytest.raises(DataError, match=f"expected the {told} of the checkpoint"):
        make_source(**{"rows": 5, **change}).restore(state)


@pytest.mark.parametrize("change", [{"epoch": -1}, {"position": 6}, {"position": "1"}, {"epoch": None}])
def test_a_cursor_outside_the_data_is_refused(make_source, change):
    source = make_source(5)
    with pytest.raises(DataError, match="expected a cursor within 5 rows"):
        source.restore({**source.state(), **change})
