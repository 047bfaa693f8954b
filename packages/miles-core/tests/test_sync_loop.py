"""A step's rollouts against a real session server."""

import asyncio
import json
import threading

import pytest

from miles_core.data.jsonl import JsonlConfig, JsonlSource
from miles_core.errors import PluginError, RolloutError
from miles_core.protocols import Verdict
from miles_core.rewards.score import RewardConfig, RewardRunner
from miles_core.rollout.rollout_config import FilterConfig, RolloutConfig
from miles_core.rollout.step_metrics import step_metrics
from miles_core.rollout.sync_loop import RolloutLoop
from miles_core.sample import Group


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": f"q{i}", "label": i % 10}) for i in range(7)))
    return lambda: JsonlSource(JsonlConfig(path=path), seed=5)


def config(**fields):
    given = {"prompts_per_step": 4, "samples_per_prompt": 3, "generate": "single_turn", "timeout_s": 10.0, **fields}
    return RolloutConfig(**given)


def run(server, source, loop_config, *, step=0, steps=1, reward="f1", **options):
    async def main():
        async with RewardRunner(RewardConfig(name=reward)) as judge:
            loop = RolloutLoop(loop_config, session_url=server.url, seed=11, judge=judge, **options)
            return [await loop.run(step + i, source) for i in range(steps)]

    return asyncio.run(main())


def digit(record, body):
    """An answer that depends on the session's seed alone."""
    return str(record.spec["seed"] % 10)


def test_a_step_has_its_prompts_and_samples_in_order(session_server, source):
    session_server.reply = digit
    (step,) = run(session_server, source(), config(), step=2)
    expected = [p.prompt_id for p in source().next(4)]
    assert [g.prompt_id for g in step.groups] == expected
    ids = [[s.rollout_id for s in g.samples] for g in step.groups]
    assert ids == [[f"2/{name}/{i}" for i in range(3)] for name in expected]
    assert session_server.sessions == {}
    assert len(session_server.deleted) == 12
    assert len({spec["seed"] for spec in session_server.specs}) == 12


def test_concurrency_changes_no_number(session_server, source):
    session_server.reply = digit
    found = [run(session_server, source(), config(max_concurrency=n), steps=3) for n in (1, 12)]
    assert found[0] == found[1]


def test_at_most_so_many_rollouts_are_in_flight(session_server, source):
    session_server.chat_delay_s = 0.03
    run(session_server, source(), config(max_concurrency=3))
    assert session_server.most_in_flight == 3


def test_the_figures_of_a_step(session_server, source):
    session_server.reply = digit
    calls = []
    (step,) = run(session_server, source(), config(), on_progress=lambda *args: calls.append(args))
    rewards = [reward for group in step.groups for reward in group.rewards.values()]
    mean = sum(rewards) / 12
    assert step.metrics["reward_mean"] == pytest.approx(mean)
    assert step.metrics["reward_std"] == pytest.approx((sum((r - mean) ** 2 for r in rewards) / 12) ** 0.5)
    del_keys = {"reward_mean", "reward_std"}
    assert {k: v for k, v in step.metrics.items() if k not in del_keys} == {
        "response_length_mean": 1.0,
        "turns_mean": 1.0,
        "samples_trained": 12.0,
        "samples_aborted": 0.0,
        "groups_dropped": 0.0,
        "rollout_tokens": 12.0,
        "tito_hard_mismatches": 0.0,
        "tito_soft_mismatches": 12.0,
    }
    assert [done for done, _, _ in calls] == list(range(1, 13))
    assert calls[-1] == (12, 12, 12)


def test_equal_rewards_deviate_by_exactly_zero_and_aborted_samples_count_apart(make_sample):
    tenths = [make_sample(rollout_id=f"r{i}", reward=0.1, turns=i) for i in range(3)]
    group = Group(prompt_id="0-0", samples=(*tenths, make_sample(rollout_id="r9").aborted("x")))
    found = step_metrics([group], [group])
    assert found["reward_std"] == 0.0
    assert found["reward_mean"] == 0.1
    assert (found["samples_trained"], found["samples_aborted"], found["turns_mean"]) == (3.0, 1.0, 1.0)
    assert found["rollout_tokens"] == 16.0


def test_a_step_of_nothing_has_finite_figures():
    assert set(step_metrics([], []).values()) == {0.0}


def drop_first_two():
    """A filter that drops the first two groups it sees."""
    seen = []

    def judge(group):
        seen.append(group.prompt_id)
        return Verdict(len(seen) > 2, "too early" if len(seen) <= 2 else "")

    return judge


@pytest.mark.parametrize(("refill", "kept", "drawn"), [(0, 2, 4), (1, 3, 5), (2, 4, 6), (9, 4, 6)])
def test_dropped_groups_are_counted_and_replaced_up_to_a_bound(session_server, source, refill, kept, drawn):
    (step,) = run(session_server, source(), config(refill=refill), filters=[drop_first_two()])
    assert len(step.groups) == kept
    assert step.dropped == {"too early": 2}
    assert [g.prompt_id for g in (*step.dropped_groups, *step.groups)] == [p.prompt_id for p in source().next(drawn)]
    assert (step.metrics["groups_dropped"], step.metrics["samples_trained"]) == (2.0, 3.0 * kept)


def test_filters_of_the_recipe_are_loaded_by_name(session_server, source):
    filters = (FilterConfig(name="reward_varies"),)
    (step,) = run(session_server, source(), config(filters=filters))
    assert step.groups == ()
    assert step.dropped == {"every reward is the same": 4}
    with pytest.raises(PluginError, match="called with the options x"):
        run(session_server, source(), config(filters=(FilterConfig(name="reward_varies", options={"x": 1}),)))


def fails_for(prompts):
    """A policy that cannot answer some prompts: the connection is cut."""

    def reply(record, body):
        if body["messages"][0]["content"] in prompts:
            raise ConnectionAbortedError
        return "4"

    return reply


@pytest.fixture
def quiet_server(session_server):
    session_server._http.handle_error = lambda request, address: None
    return session_server


def test_failed_rollouts_are_counted_and_a_group_of_them_is_dropped(quiet_server, source):
    first = source().next(1)[0].messages[0]["content"]
    quiet_server.reply = fails_for({first})
    (step,) = run(quiet_server, source(), config())
    assert len(step.groups) == 3
    assert step.dropped == {"every rollout was aborted": 1}
    ((reason, count),) = step.aborted.items()
    assert count == 3
    assert "chat/completions" in reason
    assert (step.metrics["samples_aborted"], step.metrics["samples_trained"]) == (3.0, 9.0)


def test_too_many_failures_stop_the_step_with_the_commonest_reason(quiet_server, source):
    quiet_server.reply = fails_for({f"q{i}" for i in range(7)})
    with pytest.raises(RolloutError, match=r"at most 25% of 12 rollouts to fail, found 4 .*commonest \(4 times\)"):
        run(quiet_server, source(), config(max_aborted_fraction=0.25, max_concurrency=1))
    assert quiet_server.sessions == {}


def test_an_agent_that_never_calls_the_model_is_told_by_the_step(session_server, source, tmp_path):
    (tmp_path / "mine.py").write_text("async def run(*, base_url, prompt, request_kwargs, metadata): return None\n")
    silent = config(generate="agent", agent="mine.py:run")
    with pytest.raises(RolloutError, match="the agent never called the model"):
        run(session_server, source(), silent, base=tmp_path)
    with pytest.raises(PluginError, match="has no 'walk'"):
        run(session_server, source(), config(generate="agent", agent="mine.py:walk"), base=tmp_path)


def test_a_cancelled_step_leaves_no_session_no_task_and_no_thread(session_server, source):
    session_server.chat_delay_s = 0.2
    before = threading.active_count()

    async def main():
        loop = RolloutLoop(config(max_concurrency=4), session_url=session_server.url, seed=1, judge=None)
        task = asyncio.create_task(loop.run(0, source()))
        while session_server.most_in_flight < 4:  # noqa: ASYNC110 - the server runs in threads
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())
    assert session_server.sessions == {}
    assert len(session_server.specs) == len(session_server.deleted)
    assert threading.active_count() <= before + 8
