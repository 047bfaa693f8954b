"""Back-off, figures, log lines, filters and the environment."""

import asyncio
import io
import logging
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from miles_core import env, logs
from miles_core.errors import DeadlineError, RecordError
from miles_core.filters.chain import Chain
from miles_core.filters.reward_varies import reward_varies
from miles_core.metrics import Figure, Metrics, Reduction
from miles_core.protocols import Verdict
from miles_core.retry import Backoff, retry
from miles_core.sample import Group


def flaky(failures, error=ConnectionError):
    """A call that fails so many times, then counts its calls."""
    calls = []

    async def call():
        calls.append(1)
        if len(calls) <= failures:
            raise error("refused")
        return len(calls)

    return call


def again(error):
    return isinstance(error, ConnectionError)


def test_waits_grow_up_to_the_longest():
    waits = Backoff(first_s=1.0, factor=3.0, longest_s=5.0, attempts=5).waits()
    assert list(waits) == [1.0, 3.0, 5.0, 5.0]


@pytest.mark.parametrize("fields", [{"attempts": 0}, {"first_s": -1.0}, {"factor": 0.5}, {"longest_s": 0.01}])
def test_waits_that_cannot_grow_are_refused(fields):
    with pytest.raises(ValueError, match="expected at least one attempt"):
        Backoff(**fields)


def test_the_first_success_is_the_answer():
    quick = Backoff(first_s=0.001, attempts=3)
    assert asyncio.run(retry(flaky(2), what="x", deadline_s=5, again=again, backoff=quick)) == 3


def test_the_last_failure_is_raised_as_it_is():
    quick = Backoff(first_s=0.001, attempts=3)
    with pytest.raises(ConnectionError):
        asyncio.run(retry(flaky(3), what="x", deadline_s=5, again=again, backoff=quick))


@pytest.mark.parametrize("error", [ValueError, TimeoutError])
def test_a_failure_that_is_not_to_be_repeated_is_raised_at_once(error):
    call = flaky(1, error)
    with pytest.raises(error, match="refused"):
        asyncio.run(retry(call, what="x", deadline_s=5, again=again))
    assert asyncio.run(call()) == 2


def test_the_deadline_names_what_was_waited_for_and_the_last_failure():
    with pytest.raises(
        DeadlineError, match=r"the engine did not succeed within 0\.2 s; the last failure was Connection"
    ):
        asyncio.run(retry(flaky(99), what="the engine", deadline_s=0.2, again=again, backoff=Backoff(attempts=99)))


def test_the_deadline_bounds_a_call_that_hangs():
    with pytest.raises(DeadlineError, match=r"x did not succeed within 0\.05 s\."):
        asyncio.run(retry(lambda: asyncio.sleep(60), what="x", deadline_s=0.05, again=again))


values = st.lists(st.integers(-1000, 1000).map(float), max_size=12)


@given(values, st.integers(0, 12), st.sampled_from(Reduction))
def test_a_figure_merged_from_parts_equals_the_whole(observations, cut, reduction):
    def collect(part):
        metrics = Metrics()
        for value in part:
            metrics.observe("x", value, reduction=reduction)
        return metrics

    whole = collect(observations)
    parts = collect(observations[:cut]).merge([collect(observations[cut:])])
    assert whole.values() == parts.values()


def test_reductions_by_hand():
    found = {}
    for reduction in Reduction:
        metrics = Metrics()
        for value, count in ((2.0, 1), (5.0, 3)):
            metrics.observe("x", value, count=count, reduction=reduction)
        found[reduction.value] = metrics.values()["x"]
    assert found == {"mean": 17 / 4, "sum": 17.0, "max": 5.0, "min": 2.0, "count": 4.0}


def test_a_mean_of_nothing_is_no_number_and_a_sum_of_nothing_is_zero():
    assert math.isnan(Figure(reduction=Reduction.MEAN).value)
    assert math.isnan(Figure(reduction=Reduction.MAX).value)
    assert Figure(reduction=Reduction.SUM).value == 0.0


def test_a_figure_has_one_reduction():
    metrics = Metrics()
    metrics.observe("x", 1.0, reduction=Reduction.MAX)
    with pytest.raises(RecordError, match="expected the reduction max, found mean"):
        metrics.observe("x", 1.0)
    other = Metrics()
    other.observe("x", 1.0)
    with pytest.raises(RecordError, match="one reduction, found max and mean"):
        metrics.merge([other])


def group(make_sample, rewards):
    samples = []
    for i, reward in enumerate(rewards):
        sample = make_sample(rollout_id=f"r{i}")
        samples.append(sample.aborted("x") if reward is None else sample.with_reward(reward))
    return Group(prompt_id="0-0", samples=tuple(samples))


@pytest.mark.parametrize(
    ("rewards", "keep"),
    [
        ([0.0, 1.0], True),
        ([0.1] * 8, False),
        ([0.1, math.nextafter(0.1, 1)], True),
        ([1.0], False),
        ([], False),
        ([1.0, None], False),
        ([0.0, 1.0, None], True),
        ([None, None], False),
    ],
)
def test_a_group_is_kept_when_two_rewards_differ_in_any_bit(make_sample, rewards, keep):
    verdict = reward_varies(group(make_sample, rewards))
    assert verdict.keep is keep
    assert bool(verdict.reason) is not keep


def test_siblings_of_one_rollout_do_not_vary(make_sample):
    twins = tuple(make_sample(text, reward=1.0) for text in ("a", "bb"))
    assert not reward_varies(Group(prompt_id="0-0", samples=twins)).keep


def test_the_first_filter_that_drops_gives_the_reason(make_sample):
    one = group(make_sample, [0.0, 1.0])
    first, second = (lambda g: Verdict(False, "first")), (lambda g: Verdict(False, "second"))
    assert Chain([lambda g: Verdict(True), first, second])(one) == Verdict(False, "first")
    assert Chain([])(one) == Verdict(True)


def test_every_line_says_who_speaks():
    stream = io.StringIO()
    root = logging.getLogger()
    before = root.level
    logs.configure("engine", stream=io.StringIO())
    handler = logs.configure("router", rank=1, stream=stream)
    try:
        logging.getLogger("miles_router.pool").warning("worker %s\nquarantined", "a")
        logging.getLogger("x").debug("not at this level")
    finally:
        root.removeHandler(handler)
        root.setLevel(before)
    lines = stream.getvalue().splitlines()
    assert [line.split(" ", 1)[1] for line in lines] == [
        "W router/1 miles_router.pool: worker a",
        "W router/1 miles_router.pool: quarantined",
    ]


def test_an_exception_keeps_its_traceback_under_the_role():
    record = logging.LogRecord("n", logging.ERROR, "f", 1, "it failed", None, None)
    record.exc_text = "Traceback\n  ValueError"
    lines = logs.RoleFormatter("trainer").format(record).splitlines()
    assert [line.split(" ", 1)[1] for line in lines] == [
        "E trainer n: it failed", "E trainer n: Traceback", "E trainer n:   ValueError",
    ]  # fmt: skip


def test_an_empty_variable_counts_as_unset(monkeypatch):
    monkeypatch.setenv("MILES_TEST_X", "")
    assert env.get("MILES_TEST_X", "d") == "d"
    env.export("MILES_TEST_X", "1")
    env.export("MILES_TEST_X", "2")
    assert env.get("MILES_TEST_X") == "1"
    assert env.child_environment({"MILES_TEST_X": "3"})["MILES_TEST_X"] == "3"


def test_the_cache_folder_is_named_by_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("MILES_CACHE", str(tmp_path / "named"))
    assert env.cache_folder() == tmp_path / "named"
    monkeypatch.setenv("MILES_CACHE", "off")
    assert env.cache_folder() is None
    monkeypatch.delenv("MILES_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert env.cache_folder() == tmp_path / "xdg" / "miles"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert env.cache_folder() == tmp_path / "home" / ".cache" / "miles"
