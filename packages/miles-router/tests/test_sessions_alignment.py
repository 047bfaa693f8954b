"""The cursor over a sample's ids: worked examples, and whatever is changed in them is refused."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from miles_core import sample_codec
from miles_core.errors import SessionError
from miles_core.sample import Origin
from miles_router.sessions.alignment import Output, Placed, align, digest_of
from miles_tito import ChatTokenizer

STOP, OTHER = 90, 91
P1, A1, T1, A2 = (1, 2, 3), (11, 12), (STOP, 21, 22), (13, STOP)


def output(before, ids) -> Output:
    return Output(start=len(before), ids=tuple(ids), prompt_digest=digest_of(before))


@pytest.mark.parametrize(
    ("first", "placed"),
    [
        # The template's T1 begins with the stop: sampled or not, it is counted once.
        ((*A1, STOP), [Placed(3, 6, 0), Placed(8, 10, 0)]),
        (A1, [Placed(3, 5, 0), Placed(8, 10, 0)]),
        # Another stop gave way to the template's.
        ((*A1, OTHER), [Placed(3, 5, 1), Placed(8, 10, 0)]),
    ],
)
def test_the_worked_example(first, placed):
    ids = (*P1, *A1, *T1, *A2)
    outputs = [output(P1, first), output((*P1, *A1, *T1), A2)]
    assert align(ids, outputs, may_trim={STOP, OTHER}) == placed


@pytest.mark.parametrize(
    ("ids", "outputs", "says"),
    [
        ((*P1, *A1, *T1, *A2, 99), [output(P1, A1), output((*P1, *A1, *T1), A2)], "1 ids follow the last output"),
        ((*P1, *A1, *T1), [output(P1, A1)], "3 ids follow the last output"),
        ((*P1, *A1), [output((1, 2, 4), A1)], "not those that the engine was given"),
        ((*P1, *A1), [output(P1, (*A1, 77))], "1 ids of output 0 are not in the sequence"),
        ((*P1, *A1), [output(P1, (*A1, STOP, STOP))], "2 ids of output 0 are not in the sequence"),
        ((*P1, 11), [output(P1, (11, 12, 13))], "2 ids of output 0"),
        ((*P1, *A1), [output((*P1, *A1, 5), A2)], "begins at 6, expected 0 to 5"),
        ((*P1, *A1, *A2), [output(P1, (*A1, *A2)), output((*P1, *A1), A2)], "begins at 5, expected 7"),
    ],
)
def test_what_does_not_fit_is_an_error_and_no_guess(ids, outputs, says):
    with pytest.raises(SessionError, match=says) as refused:
        align(ids, outputs, may_trim={STOP, OTHER})
    assert refused.value.status == 422


TURNS = st.lists(
    st.tuples(
        st.lists(st.integers(0, 50), min_size=1, max_size=5),
        st.lists(st.integers(0, 50), min_size=1, max_size=5),
        st.booleans(),
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=100, deadline=None)
@given(TURNS, st.data())
def test_conversations_align_and_one_changed_id_is_always_found(turns, data):
    ids: tuple[int, ...] = ()
    outputs = []
    for number, (prompt, answer, gave_way) in enumerate(turns):
        ids += tuple(prompt)
        last = number == len(turns) - 1
        trimmed = gave_way and not last
        outputs.append(output(ids, (*answer, OTHER) if trimmed else answer))
        ids += (*answer, STOP) if trimmed else tuple(answer)
    assert align(ids, outputs, may_trim={OTHER})[-1].end == len(ids)
    place = data.draw(st.integers(0, len(ids) - 1))
    changed = (*ids[:place], ids[place] + 1, *ids[place + 1 :])
    with pytest.raises(SessionError):
        align(changed, outputs, may_trim={OTHER})


@pytest.fixture
def two_stops(bench, model_dir, tmp_path):
    """A bench whose model ends its turns by either of two tokens."""
    for path in model_dir.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    ids = [bench.chat.vocabulary.id_of(mark) for mark in ("<|im_end|>", "<|endoftext|>")]
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": ids}))
    chat = ChatTokenizer.from_pretrained(tmp_path)
    assert set(ids) <= set(chat.stop_token_ids)
    return type(bench)(bench._stack, chat, tmp_path), *ids


def test_a_stop_is_counted_once_and_trained_only_when_it_was_sampled(two_stops, Reply):
    user = {"role": "user", "content": "a"}
    bench, end, other = two_stops
    word = bench.chat.vocabulary.encode("hello")[0]
    for sampled, trained in (([*word, end], [*word, end]), ([*word, other], list(word))):
        replies = iter([Reply(ids=sampled), Reply("b")])
        _, url = bench.engine(lambda prompt, body, replies=replies: next(replies))
        client = bench.client(bench.sessions(url)[1])
        path = f"/sessions/{client.post('/sessions').json()['session_id']}"
        asked = {"messages": [user]}
        first = client.post(f"{path}/v1/chat/completions", json=asked).json()["choices"][0]["message"]
        client.post(f"{path}/v1/chat/completions", json={"messages": [user, first, user]})
        body = {"prompt_id": "p", "rollout_id": "r"}
        (sample,) = sample_codec.decode(client.post(f"{path}/samples", json=body).content)
        spans = [span for span in sample.spans if span.origin is Origin.SAMPLED]
        assert list(spans[0].ids) == trained
        text = bench.chat.vocabulary.decode(sample.ids.tolist())
        assert text.count("hello<|im_end|>\n<|im_start|>user") == 1
