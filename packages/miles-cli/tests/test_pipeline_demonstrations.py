"""Demonstrations as training sequences: which tokens are trained, in which order, and what is refused."""

import json
from pathlib import Path

import pytest

from miles_cli.pipeline.demonstrations import Demonstrations, encode
from miles_cli.run_config import SftSection
from miles_core.errors import DataError
from miles_tito.tokenizer import ChatTokenizer

TALK = [
    {"role": "user", "content": "one"},
    {"role": "assistant", "content": "1"},
    {"role": "user", "content": "two"},
    {"role": "assistant", "content": "2"},
]


@pytest.fixture(scope="module")
def chat(tiny_model: Path) -> ChatTokenizer:
    """The tiny model's tokenizer."""
    return ChatTokenizer.from_pretrained(tiny_model)


def test_the_ids_are_those_of_the_whole_render_and_only_assistant_turns_are_trained(chat: ChatTokenizer):
    sequence = encode(chat, TALK)
    text = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in TALK).removesuffix("\n")
    assert chat.vocabulary.decode(sequence.ids.tolist()) == text
    trained = [chat.vocabulary.decode([i]) for i, on in zip(sequence.ids, sequence.loss_mask, strict=True) if on]
    assert trained == ["1", "<|im_end|>", "2", "<|im_end|>"]


def test_what_follows_the_last_assistant_turn_is_left_out(chat: ChatTokenizer):
    longer = encode(chat, [*TALK, {"role": "user", "content": "three"}])
    assert longer.ids.tolist() == encode(chat, TALK).ids.tolist()


@pytest.mark.parametrize("messages", [TALK[:1], TALK[1:2]])
def test_a_conversation_without_a_turn_to_train_is_refused(chat: ChatTokenizer, messages):
    with pytest.raises(DataError, match="expected an assistant turn"):
        encode(chat, messages)


@pytest.fixture
def demonstrations(chat: ChatTokenizer, tmp_path: Path):
    """Opens five demonstrations of different lengths in batches of two."""
    lines = [{"messages": [{"role": "user", "content": "x" * n}, TALK[1]]} for n in range(1, 6)]
    path = tmp_path / "talks.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))

    def open_them(**changes: int) -> Demonstrations:
        return Demonstrations(SftSection(path=path, batch_size=2, **changes), chat, seed=3)

    return open_them


def names(batches: Demonstrations, steps: range) -> list[str]:
    """Rows of the batches of some steps."""
    return [sequence.rollout_id for step in steps for sequence in batches.next(step).sequences]


def test_every_epoch_has_every_row_once_and_orders_differ(demonstrations):
    rows = names(demonstrations(), range(5))
    assert sorted(rows[:5]) == sorted(rows[5:]) == ["0", "1", "2", "3", "4"]
    assert rows[:5] != rows[5:]


def test_a_restored_cursor_goes_on_where_it_was_taken(demonstrations):
    whole = names(demonstrations(), range(6))
    first = demonstrations()
    assert names(first, range(3)) == whole[:6]
    second = demonstrations()
    second.restore(json.loads(json.dumps(first.state())))
    assert names(second, range(3, 6)) == whole[6:]


def test_a_demonstration_that_is_too_long_is_named_with_its_length(demonstrations):
    with pytest.raises(DataError, match=r"demonstration \d: expected at most 5 tokens, found \d+"):
        names(demonstrations(max_seq_len=5), range(5))
