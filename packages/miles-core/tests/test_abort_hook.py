"""What an agent holds elsewhere is released when its rollout fails; a prompt may have a deadline of its own."""

import asyncio
import logging

import httpx
import pytest

from miles_core.errors import RecordError
from miles_core.rollout import episode
from miles_core.rollout.agent import agent


async def answers(*, base_url, prompt, request_kwargs, metadata):
    async with httpx.AsyncClient(base_url=base_url, verify=False, trust_env=False) as client:
        await client.post("/chat/completions", json={"messages": prompt["messages"]})


async def raises(**_):
    raise ValueError("tool broke")


async def sleeps(**_):
    await asyncio.sleep(60)


async def silent(**_):
    return None


class Hook:
    """Remembers what it was called with."""

    def __init__(self):
        self.calls = []

    async def __call__(self, *, prompt, metadata, reason):
        self.calls.append((prompt["prompt_id"], metadata, reason))


def play(make_prompt, make_context, run, hook, **fields):
    context = make_context(options={"agent": run, "on_abort": hook}, **fields)
    (sample,) = asyncio.run(agent(make_prompt(metadata={"box": 7}), context))
    return sample


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (raises, "the agent raised ValueError: tool broke"),
        (sleeps, "the agent ran past its deadline of 0.3 s."),
        (silent, "the agent never called the model."),
    ],
)
def test_the_hook_learns_why_the_rollout_failed(session_server, make_prompt, make_context, run, reason):
    hook = Hook()
    sample = play(make_prompt, make_context, run, hook, timeout_s=0.3)
    assert sample.error == reason
    assert [(metadata, told) for _, metadata, told in hook.calls] == [({"box": 7}, reason)]
    assert session_server.sessions == {}


def test_a_rollout_that_succeeds_calls_no_hook(session_server, make_prompt, make_context):
    hook = Hook()
    assert play(make_prompt, make_context, answers, hook).error is None
    assert hook.calls == []


def test_a_cancelled_rollout_calls_the_hook(session_server, make_prompt, make_context):
    hook = Hook()

    async def main():
        task = asyncio.create_task(agent(make_prompt(), make_context(options={"agent": sleeps, "on_abort": hook})))
        while not session_server.sessions:  # noqa: ASYNC110 - the server runs in threads
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert [reason for _, _, reason in hook.calls] == ["the agent was cancelled."]
    assert session_server.deleted == ["s0"]


def test_a_hook_that_fails_or_hangs_changes_nothing(session_server, make_prompt, make_context, monkeypatch, caplog):
    monkeypatch.setattr(episode, "ABORT_TIMEOUT_S", 0.2)

    def broken(*, prompt, metadata, reason):
        raise OSError("no such box")

    async def hangs(*, prompt, metadata, reason):
        await asyncio.sleep(60)

    with caplog.at_level(logging.WARNING):
        for hook in (broken, hangs):
            assert play(make_prompt, make_context, raises, hook).error == "the agent raised ValueError: tool broke"
    assert "the abort hook of 0/0-0/0 raised OSError('no such box')" in caplog.text
    assert "did not end within 0.2 s" in caplog.text
    assert session_server.deleted == ["s0", "s1"]


@pytest.mark.parametrize("wrong", [0, -1, "soon", True, float("inf"), float("nan")])
def test_a_prompts_own_deadline_is_a_positive_number(make_prompt, wrong):
    with pytest.raises(RecordError, match=r"metadata\.timeout_s: expected a positive number of seconds"):
        make_prompt(metadata={"timeout_s": wrong})


def test_a_prompts_own_deadline_is_read(make_prompt):
    assert make_prompt(metadata={"timeout_s": 4}).timeout_s == 4.0
    assert make_prompt().timeout_s is None
