"""What sessions are counted to hold is about what they hold."""

import tracemalloc

import pytest

from miles_router.sessions.config import SessionServerConfig
from miles_router.sessions.context import limits_of
from miles_router.sessions.generation import Generation
from miles_router.sessions.matchers import MATCHERS
from miles_router.sessions.plan import plan_turn
from miles_router.sessions.request import TurnRequest
from miles_router.sessions.session import SessionSpec
from miles_router.sessions.sizes import turn_bytes
from miles_router.sessions.store import SessionStore
from miles_router.sessions.turns import build_turn


@pytest.mark.parametrize(("text", "sampled"), [("short", 10), ("a longer result of a tool " * 40, 10), ("short", 2000)])
def test_a_turn_is_counted_within_a_factor_of_two_of_what_it_takes(chat, model_dir, text, sampled):
    config = SessionServerConfig(engine_url="http://x", model_dir=model_dir)
    session = SessionStore(ttl_s=1.0, max_sessions=9, matcher=MATCHERS["loose_tool_call"]).create(SessionSpec())
    counted, turns = 0, 30
    messages = [{"role": "user", "content": "go"}]
    for number in range(turns + 1):
        if number == 1:  # the first turn also proves the template
            tracemalloc.start()
            before = tracemalloc.get_traced_memory()[0]
            counted = 0
        request = TurnRequest(
            messages=tuple(messages), tools=None, temperature=None, top_p=None, top_k=None, max_tokens=None, seed=None,
            stream=False, fingerprint=str(number),
        )  # fmt: skip
        plan = plan_turn(session, request, chat, config, limits=limits_of(1 << 20))
        ids = tuple(int(f"1{n % 90:02d}") for n in range(sampled))
        generation = Generation(
            ids=ids, logprobs=tuple(-n / 7 for n in range(sampled)), weight_versions=(3,) * sampled, finish="stop"
        )
        turn = build_turn(session, plan, generation, delivered=True)
        session.tree.record(turn)
        counted += turn_bytes(turn)
        messages += [dict(turn.message), {"role": "user", "content": text + str(number)}]
    taken = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert counted / 2 < taken < counted * 2
