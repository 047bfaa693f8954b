"""History matching and the choice of leaves, against plain restatements of the rules."""

import copy
import json
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from miles_core.sample import Origin
from miles_router.sessions.config import SessionServerConfig
from miles_router.sessions.context import limits_of
from miles_router.sessions.dialects.openai_chat.request import parse_request
from miles_router.sessions.generation import Generation
from miles_router.sessions.matchers import MATCHERS
from miles_router.sessions.pickers import all_leaves, leaves
from miles_router.sessions.plan import plan_turn
from miles_router.sessions.samples import Naming, assemble
from miles_router.sessions.session import SessionSpec
from miles_router.sessions.store import SessionStore
from miles_router.sessions.tree import Turn
from miles_router.sessions.turns import build_turn

CALLS = [{"id": "a1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1, "y": [1.0, null]}'}}]
ANSWER = {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": CALLS}


def changed(**fields):
    return {**copy.deepcopy(ANSWER), **fields}


def recalled(arguments, identity="a1"):
    return [{"id": identity, "type": "function", "function": {"name": "f", "arguments": arguments}}]


@pytest.mark.parametrize(
    ("sent", "strict", "loose", "role_content"),
    [
        (changed(), True, True, True),
        (changed(content=""), True, True, True),
        (changed(content=[]), True, True, True),
        (changed(refusal=None, audio=None, annotations=[]), True, True, True),
        (changed(tool_calls=[{**CALLS[0], "index": 0}]), True, True, True),
        (changed(tool_calls=recalled('{"y":[1,null],"x":1.0}')), False, True, True),
        (changed(tool_calls=recalled({"x": 1, "y": [1, None]})), False, True, True),
        (changed(tool_calls=recalled('{"x": true, "y": [1.0, null]}')), False, False, True),
        (changed(tool_calls=recalled('{"x": 2}')), False, False, True),
        (changed(tool_calls=recalled("not json")), False, False, True),
        (changed(reasoning_content=None), False, True, True),
        (changed(reasoning_content="other"), False, False, True),
        (changed(tool_calls=[]), False, False, True),
        (changed(content="text"), False, False, False),
        (changed(content=[{"type": "text", "text": "text"}]), False, False, False),
        (changed(role="user"), False, False, False),
    ],
)
def test_what_counts_as_the_same_answer(sent, strict, loose, role_content):
    for name, expected in (("strict", strict), ("loose_tool_call", loose), ("role_content", role_content)):
        matcher = MATCHERS[name]
        same = matcher.key(ANSWER) == matcher.key(sent) and matcher.agreement(ANSWER, sent) is not None
        assert same is expected, name


def test_content_in_parts_is_the_same_as_its_text():
    parts = {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
    for matcher in MATCHERS.values():
        assert matcher.key(parts) == matcher.key({"role": "user", "content": "ab"})


class Player:
    """Plays requests against a session without HTTP: plan, sample, record."""

    def __init__(self, chat, model_dir, **spec) -> None:
        self.chat = chat
        self.config = SessionServerConfig(engine_url="http://x", model_dir=model_dir)
        store = SessionStore(ttl_s=1.0, max_sessions=9, matcher=MATCHERS["loose_tool_call"])
        self.session = store.create(SessionSpec(**spec))

    def play(self, messages, answer="ok", *, finish="stop", delivered=True, context=4096) -> Turn:
        request = parse_request(json.dumps({"messages": messages}).encode()).turn
        plan = plan_turn(self.session, request, self.chat, self.config, limits=limits_of(context))
        ids, _ = self.chat.vocabulary.encode(answer)
        if finish == "stop":
            ids = [*ids, self.chat.vocabulary.id_of("<|im_end|>")]
        generation = Generation(
            ids=tuple(ids), logprobs=(-0.5,) * len(ids), weight_versions=(2,) * len(ids), finish=finish
        )
        turn = build_turn(self.session, plan, generation, delivered=delivered)
        self.session.tree.record(turn)
        return turn

    def samples(self, picker=leaves, **options):
        turns = self.session.tree.turns
        naming = Naming(prompt_id="p", rollout_id="r", metadata={})
        return assemble(turns, picker(turns), self.chat, naming, **options)


@pytest.fixture
def player(chat, model_dir):
    return lambda **spec: Player(chat, model_dir, **spec)


def user(text):
    return {"role": "user", "content": text}


def test_a_request_hangs_on_the_deepest_turn_whose_whole_conversation_it_begins_with(player):
    game = player()
    first = game.play([user("a")], "one")
    second = game.play([user("a"), first.message, user("b")], "two")
    deep = game.play([user("a"), first.message, user("b"), second.message, user("c")])
    beside = game.play([user("a"), first.message, user("d")])
    fresh = game.play([user("x")])
    assert [turn.parent for turn in (first, second, deep, beside, fresh)] == [None, first, second, first, None]
    assert [turn.turn_id for turn in (deep, beside, fresh)] == ["0.0.0", "0.1", "1"]


def test_a_request_that_ends_in_a_recorded_answer_does_not_hang_on_it(player):
    game = player()
    first = game.play([user("a")], "one")
    second = game.play([user("a"), first.message, user("b")], "two")
    again = game.play([user("a"), first.message, user("b"), second.message])
    assert again.parent is first


def test_of_two_equal_answers_the_later_is_continued(player):
    game = player()
    one = game.play([user("a")], "same")
    two = game.play([user("a")], "same")
    assert game.play([user("a"), one.message, user("b")]).parent is two


def test_the_echoed_call_id_tells_equal_answers_apart(player):
    game = player()
    call = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    one = game.play([user("a")], call)
    two = game.play([user("a")], call)
    one.message["tool_calls"][0]["id"] = "first"
    two.message["tool_calls"][0]["id"] = "second"
    result = {"role": "tool", "tool_call_id": "first", "content": "r"}
    assert game.play([user("a"), one.message, result]).parent is one


def test_a_hard_mismatch_masks_from_the_divergence_on_and_is_counted(player, chat, monkeypatch):
    game = player()
    first = game.play([user("a")], "one")
    second = game.play([user("a"), first.message, user("b")], "two")
    game.play([user("a"), first.message, user("b"), second.message, user("c")], "three")
    # The record of the second user message is changed after the fact: its tokens are not those of the text any more.
    piece = second.transcript.parent.last
    object.__setattr__(piece, "text", piece.text.replace("b", "z"))
    (sample,) = game.samples()
    assert sample.metadata["tito"]["hard"] >= 1
    assert chat.vocabulary.decode(sample.ids[sample.loss_mask].tolist()) == "one<|im_end|>"
    sampled = [span for span in sample.spans if span.origin is Origin.SAMPLED]
    assert [span.trained for span in sampled] == [True, False, False]
    assert all(len(span.logprobs) == len(span.ids) for span in sampled)


STEPS = st.lists(
    st.tuples(
        st.integers(0, 30),
        st.sampled_from(["continue", "retry", "rewrite", "new"]),
        st.sampled_from(["stop", "stop", "stop", "length"]),
        st.sampled_from([True, True, True, False]),
        st.integers(0, 2),
    ),
    min_size=1,
    max_size=9,
)


@settings(max_examples=60, deadline=None)
@given(STEPS, st.booleans())
def test_over_random_trees_every_sampled_token_is_trained_at_most_once(chat, model_dir, steps, keep_retries):
    game = Player(chat, model_dir)
    requests, turns = [], []
    for number, (which, what, finish, delivered, word) in enumerate(steps):
        if not turns or what == "new":
            messages = [user(f"start {word}")]
        elif what == "retry":
            messages = requests[which % len(requests)]
        else:
            parent = turns[which % len(turns)]
            parent.delivered = True
            shown = parent.message if what == "continue" else {**parent.message, "content": "rewritten"}
            messages = [*requests[which % len(turns)], shown, user(f"go on {word}")]
        requests.append(messages)
        # Every answer is a word of its own, so that its tokens can be found again.
        turns.append(game.play(messages, f"answer{number}!", finish=finish, delivered=delivered))
    if not any(turn.delivered for turn in turns):
        return
    samples = game.samples(all_leaves if keep_retries else leaves)
    trained = Counter()
    for sample in samples:
        text = chat.vocabulary.decode(sample.ids[sample.loss_mask].tolist())
        trained.update(part for part in text.replace("<|im_end|>", "").split("!") if part)
        position = 0
        for span in sample.spans:
            if span.origin is Origin.SAMPLED:
                assert set(span.logprobs) <= {-0.5}
                assert set(span.weight_versions) <= {2}
            else:
                assert not sample.loss_mask[position : position + len(span.ids)].any()
            position += len(span.ids)
        assert sample.metadata["tito"]["hard"] == 0
    assert all(count == 1 for count in trained.values())
    # An answer that somebody took and nobody repeated is trained, and exactly once.
    continued = {turn.parent for turn in turns}
    asked = Counter((turn.parent, turn.keys) for turn in turns)
    for number, turn in enumerate(turns):
        if turn in continued or (turn.delivered and (keep_retries or asked[turn.parent, turn.keys] == 1)):
            assert trained[f"answer{number}"] == 1, turn.turn_id
    assert len({sample.metadata["leaf"] for sample in samples}) == len(samples)
