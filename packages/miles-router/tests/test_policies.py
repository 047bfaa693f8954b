"""Policies: who gets a call, and the properties that each one promises."""

import random
from array import array
from collections import Counter
from itertools import pairwise

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from miles_core.errors import ConfigError, PluginError
from miles_router.facts import RequestFacts
from miles_router.policies.bounded_load import within_bound
from miles_router.policies.cache_aware import CacheAwareConfig
from miles_router.policies.plugin import PluginPolicyConfig
from miles_router.policies.policy import Policy
from miles_router.policies.power_of_two import PowerOfTwoConfig
from miles_router.policies.round_robin import RoundRobinConfig
from miles_router.policies.session_affinity import SessionAffinityConfig
from miles_router.policies.table import POLICY_NAMES, policy_of
from miles_router.pool import Pool


def pool_of(policy, *names: str, **options) -> Pool:
    pool = Pool(policy=policy, **options)
    for name in names:
        pool.probe_succeeded(pool.add(name), 0)
    return pool


def keyed(key: str) -> RequestFacts:
    return RequestFacts(headers=[(b"x-smg-routing-key", key.encode())])


def prompt(ids) -> RequestFacts:
    facts = RequestFacts()
    facts._prefix = array("I", ids).tobytes()  # what the body {"input_ids": ids} comes to, see below
    return facts


def chosen(pool: Pool, facts: RequestFacts = RequestFacts()) -> str:  # noqa: B008 - it never changes
    """Where one call goes when it ends at once."""
    lease = pool.try_acquire(facts=facts)
    lease.release()
    return lease.worker.url


def test_round_robin_takes_turns_whatever_the_load():
    pool = pool_of(RoundRobinConfig().build(), "a", "b", "c")
    held = [pool.try_acquire() for _ in range(2)]
    assert [lease.worker.url for lease in held] == ["a", "b"]
    assert [chosen(pool) for _ in range(5)] == ["c", "a", "b", "c", "a"]
    pool.quarantine("b", "test")
    assert [chosen(pool) for _ in range(4)] == ["c", "a", "c", "a"]


def test_power_of_two_draws_all_workers_and_never_the_busiest_of_three():
    pool = pool_of(PowerOfTwoConfig(seed=1).build(), "a", "b", "c")
    busy = [pool.try_acquire(exclude=("b", "c")) for _ in range(3)]
    seen = Counter(chosen(pool) for _ in range(300))
    assert set(seen) == {"b", "c"}
    assert min(seen.values()) > 100
    assert len(busy) == 3


@given(st.lists(st.integers(0, 50), min_size=1, max_size=8), st.floats(1.0, 3.0), st.integers(0, 5))
def test_some_worker_is_always_within_its_bound_and_none_over_it_but_the_least_active(loads, factor, slack):
    pool = pool_of(RoundRobinConfig().build(), *map(str, range(len(loads))))
    for worker, load in zip(pool.workers, loads, strict=True):
        worker.active = load
    allowed = within_bound(pool.workers, factor=factor, slack=slack)
    assert allowed
    mean = (sum(loads) + 1) / len(loads)
    assert all(w.active + 1 <= factor * mean + slack or w.active == min(loads) for w in allowed)


KEYS = [f"session-{n}" for n in range(200)]


@given(st.integers(2, 8), st.data())
@settings(max_examples=10, deadline=None)
def test_when_a_worker_goes_only_its_own_keys_move_and_they_come_back_with_it(count, data):
    names = [f"http://w{n}" for n in range(count)]
    gone = data.draw(st.sampled_from(names))
    pool = pool_of(SessionAffinityConfig().build(), *names)
    before = {key: chosen(pool, keyed(key)) for key in KEYS}
    pool.quarantine(gone, "test")
    without = {key: chosen(pool, keyed(key)) for key in KEYS}
    assert all(without[key] == before[key] for key in KEYS if before[key] != gone)
    assert gone not in without.values()
    pool.probe_succeeded(next(w for w in pool.workers if w.url == gone), 0)
    pool.call_succeeded(next(w for w in pool.workers if w.url == gone))
    assert {key: chosen(pool, keyed(key)) for key in KEYS} == before
    pool.remove(gone)
    assert {key: chosen(pool, keyed(key)) for key in KEYS} == without


@given(st.integers(1, 8))
@settings(max_examples=8, deadline=None)
def test_a_worker_that_joins_takes_keys_for_itself_and_moves_none_between_others(count):
    pool = pool_of(SessionAffinityConfig().build(), *[f"http://w{n}" for n in range(count)])
    before = {key: chosen(pool, keyed(key)) for key in KEYS}
    pool.probe_succeeded(pool.add("http://new"), 0)
    after = {key: chosen(pool, keyed(key)) for key in KEYS}
    moved = [key for key in KEYS if after[key] != before[key]]
    assert {after[key] for key in moved} == {"http://new"}
    # Its fair share is 200 / (count + 1); virtual nodes keep it within a factor of two of that.
    assert 0.5 * 200 / (count + 1) < len(moved) < 2 * 200 / (count + 1)


def test_a_key_that_is_asked_for_too_often_spills_over_and_the_load_stays_bounded():
    pool = pool_of(SessionAffinityConfig(load_factor=1.25, slack=0).build(), *"abcd")
    for _ in range(400):
        pool.try_acquire(facts=keyed("hot"))
    assert max(w.active for w in pool.workers) <= 1.25 * 400 / 4 + 1
    assert sum(w.active for w in pool.workers) == 400


def test_with_little_load_a_key_stays_although_the_others_are_idle():
    pool = pool_of(SessionAffinityConfig().build(), *"abcd")
    held = [pool.try_acquire(facts=keyed("one")) for _ in range(4)]
    assert len({lease.worker.url for lease in held}) == 1


def test_calls_without_a_key_go_to_the_least_active():
    pool = pool_of(SessionAffinityConfig().build(), "a", "b")
    held = [pool.try_acquire() for _ in range(4)]
    assert Counter(lease.worker.url for lease in held) == {"a": 2, "b": 2}


def test_another_header_may_hold_the_key():
    pool = pool_of(SessionAffinityConfig(header="X-Session").build(), *"abcdefgh")
    facts = RequestFacts(headers=[(b"x-session", b"s1")])
    assert len({chosen(pool, facts) for _ in range(20)}) == 1


# Cache-aware.


def test_a_conversation_stays_where_its_beginning_is():
    pool = pool_of(CacheAwareConfig().build(), *"abcd")
    draw = random.Random(3)
    sessions = [[draw.randrange(50_000) for _ in range(400)] for _ in range(24)]
    home: dict[int, str] = {}
    for _ in range(6):
        for number, ids in enumerate(sessions):
            place = chosen(pool, prompt(ids))
            assert home.setdefault(number, place) == place
            ids += [draw.randrange(50_000) for _ in range(100)]
    assert max(Counter(home.values()).values()) <= 24 / 4 + 2


@given(st.integers(2, 6), st.integers(0, 2**32 - 1), st.integers(0, 40))
@settings(max_examples=15, deadline=None)
def test_a_widely_shared_prefix_does_not_collapse_onto_one_worker(count, seed, in_flight):
    """Nine tenths of every prompt are the same; calls end in any order while `in_flight` are open."""
    draw = random.Random(seed)
    pool = pool_of(CacheAwareConfig().build(), *[f"http://w{n}" for n in range(count)])
    shared = [draw.randrange(50_000) for _ in range(900)]
    open_calls = []
    for _ in range(400):
        ids = shared + [draw.randrange(50_000) for _ in range(100)]
        open_calls.append(pool.try_acquire(facts=prompt(ids)))
        bound = 1.5 * len(open_calls) / count + 4 + 1
        assert max(w.active for w in pool.workers) <= bound
        while len(open_calls) > in_flight:
            open_calls.pop(draw.randrange(len(open_calls))).release()
    picks = [worker.picks for worker in pool.workers]
    # Within the bound on recent traffic, and what may go to the first one before that binds.
    assert max(picks) <= 1.5 * 400 / count + 4 + 8
    assert min(picks) >= 0.3 * 400 / count


def test_sessions_on_top_of_a_shared_prefix_still_stay_on_their_workers():
    draw = random.Random(1)
    pool = pool_of(CacheAwareConfig().build(), *"abcd")
    shared = [draw.randrange(50_000) for _ in range(2000)]
    sessions = [shared + [draw.randrange(50_000) for _ in range(300)] for _ in range(32)]
    places: list[list[str]] = [[] for _ in sessions]
    for _ in range(8):
        for number, ids in enumerate(sessions):
            places[number].append(chosen(pool, prompt(ids)))
            ids += [draw.randrange(50_000) for _ in range(200)]
    stayed = sum(a == b for row in places for a, b in pairwise(row))
    assert stayed / (32 * 7) > 0.9
    assert max(w.picks for w in pool.workers) <= 1.5 * 256 / 4


def test_conversations_and_texts_are_prefixes_too():
    def chat(*contents):
        turns = [{"role": "user", "content": content} for content in contents]
        return RequestFacts(body=orjson.dumps({"tools": [{"t": 1}], "messages": turns}))

    assert chat("a", "b").prefix.startswith(chat("a").prefix)
    assert not chat("a", "b").prefix.startswith(chat("c").prefix)
    assert RequestFacts(body=b'{"text": "hello"}').prefix == b"hello"
    assert RequestFacts(body=b'{"prompt": ["one", "two"]}').prefix == b"one"
    assert RequestFacts(body=b'{"input_ids": [[7, 8], [9]]}').prefix == array("I", [7, 8]).tobytes()
    assert RequestFacts(body=b'{"input": "hi", "instructions": "be kind"}').prefix.endswith(b"hi")


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b"3", b'{"input_ids": "x"}', b'{"input_ids": [1.5]}', b"{}"])
def test_a_body_without_a_prompt_goes_to_the_least_active(body):
    facts = RequestFacts(body=body)
    assert facts.prefix in (b"", b"x")
    pool = pool_of(CacheAwareConfig().build(), "a", "b")
    held = [pool.try_acquire(facts=RequestFacts(body=b"{}")) for _ in range(2)]
    assert {lease.worker.url for lease in held} == {"a", "b"}


def test_a_removed_worker_is_forgotten_and_one_that_returns_begins_anew():
    policy = CacheAwareConfig().build()
    pool = pool_of(policy, "a", "b")
    ids = list(range(1000))
    home = chosen(pool, prompt(ids))
    pool.remove(home)
    other = chosen(pool, prompt(ids))
    assert other != home
    pool.probe_succeeded(pool.add(home), 0)
    assert chosen(pool, prompt(ids)) == other


# Plug-ins and names.


class LastOne(Policy):
    """Test policy."""

    def __init__(self, *, skip: int = 0) -> None:
        self.skip = skip
        self.events: list[tuple[str, str]] = []

    def choose(self, candidates, facts):
        return candidates[-1 - self.skip]

    def picked(self, worker, facts):
        self.events.append(("picked", worker.url))

    def released(self, worker):
        self.events.append(("released", worker.url))

    def added(self, worker):
        self.events.append(("added", worker.url))

    def removed(self, worker):
        self.events.append(("removed", worker.url))


class Wrong(Policy):
    """Chooses a worker that is none of the candidates."""

    def choose(self, candidates, facts):
        return object()


class Failing(Policy):
    """Raises."""

    def choose(self, candidates, facts):
        raise KeyError("lost")


def test_a_plug_in_is_asked_and_told(tmp_path):
    (tmp_path / "own.py").write_text(
        "from miles_router.policies.policy import Policy\n"
        "class Last(Policy):\n"
        "    def __init__(self, *, skip=0): self.skip = skip\n"
        "    def choose(self, candidates, facts): return candidates[-1 - self.skip]\n"
    )
    policy = policy_of(f"{tmp_path}/own.py:Last,skip=1").build()
    assert chosen(pool_of(policy, "a", "b", "c")) == "b"


def test_a_policy_hears_of_every_event_once():
    policy = LastOne()
    pool = pool_of(policy, "a", "b")
    lease = pool.try_acquire()
    pool.remove("b")
    lease.release()
    lease.release()
    assert policy.events == [
        ("added", "a"),
        ("added", "b"),
        ("picked", "b"),
        ("released", "b"),
        ("removed", "b"),
    ]


@pytest.mark.parametrize(("policy", "says"), [(Wrong(), "one of the candidates"), (Failing(), "KeyError\\('lost'\\)")])
def test_a_policy_that_fails_is_an_error_with_its_name_and_takes_no_place(policy, says):
    pool = pool_of(policy, "a")
    with pytest.raises(PluginError, match=says):
        pool.try_acquire()
    assert pool.workers[0].active == 0


def test_what_is_no_policy_is_refused():
    with pytest.raises(PluginError, match=r"expected a miles_router\.policies\.policy\.Policy, found dict"):
        PluginPolicyConfig(name="builtins:dict").build()


@pytest.mark.parametrize("name", POLICY_NAMES)
def test_every_name_is_a_policy(name):
    assert policy_of(name).type == name
    assert chosen(pool_of(policy_of(name).build(), "a")) == "a"


def test_options_stand_behind_the_name():
    assert policy_of("session_affinity,load_factor=2.0,slack=1").load_factor == 2.0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("least_activ", "expected one of .*least_active"),
        ("session_affinity,load=2", "load_factor"),
        ("session_affinity,load_factor=0.5", "at least 1"),
        ("round_robin,3", "NAME,option=value"),
    ],
)
def test_a_policy_that_cannot_be_is_one_sentence(text, says):
    with pytest.raises(ConfigError, match=says):
        policy_of(text)
