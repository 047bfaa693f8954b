"""One rollout through a session: what an agent gets, and every way in which it can fail."""

import asyncio
import json
import sys
import threading
import time
from dataclasses import replace

import httpx
import pytest

from miles_core.errors import SessionError
from miles_core.prompt import SamplingConfig
from miles_core.rollout import deadline, episode
from miles_core.rollout.agent import agent
from miles_core.rollout.group import judge_rollout, run_group, run_rollout
from miles_core.rollout.session_client import SessionClient
from miles_core.rollout.single_turn import single_turn
from miles_core.sample import Finish

TOOL = {"type": "function", "function": {"name": "add", "parameters": {}}}


async def two_turns(*, base_url, prompt, request_kwargs, metadata):
    """Ordinary agent code over httpx: asks twice."""
    messages = list(prompt["messages"])
    headers = request_kwargs["extra_headers"]
    async with httpx.AsyncClient(base_url=base_url, headers=headers, verify=False, trust_env=False) as client:
        for _ in range(2):
            body = {"model": request_kwargs["model"], "messages": messages}
            answer = (await client.post("/chat/completions", json=body)).raise_for_status().json()
            messages += [answer["choices"][0]["message"], {"role": "user", "content": "go on"}]
    return {"reward": 0.5, "note": metadata.get("note")}


def play(prompt, context):
    return asyncio.run(agent(prompt, context))


def play_with(run, prompt, make_context, **fields):
    (sample,) = play(prompt, make_context(options={"agent": run}, **fields))
    return sample


def test_an_agent_plays_its_turns_and_becomes_a_sample(session_server, make_prompt, make_context):
    prompt = make_prompt("secret label", tools=(TOOL,), metadata={"note": "n"})
    sample = play_with(two_turns, prompt, make_context, token="t")
    assert (sample.finish, sample.error, sample.reward) == (Finish.STOP, None, None)
    assert sample.ids.tolist() == [1, 2, *b"four", 1, 2, *b"four"]
    assert sample.loss_mask.sum() == 8
    assert sample.metadata == {
        "turns": 2, "tito": {"hard": 0, "soft": 1}, "agent": {"reward": 0.5, "note": "n"},
    }  # fmt: skip
    assert session_server.sessions == {}
    assert session_server.deleted == ["s0"]
    assert all(headers["Authorization"] == "Bearer t" for headers in session_server.headers)
    assert "secret" not in json.dumps([session_server.specs, sample.metadata])


def test_the_session_pins_sampling_seed_length_and_tools(session_server, make_prompt, make_context):
    play_with(two_turns, make_prompt(tools=(TOOL,)), make_context)
    (spec,) = session_server.specs
    assert spec == {
        "sampling": {"temperature": 0.8, "top_p": 1.0, "top_k": -1, "max_tokens": 9},
        "seed": 7,
        "max_seq_len": 100,
        "tools": [TOOL],
        "metadata": {"rollout_id": "0/0-0/0"},
    }


def test_an_agent_in_a_file_beside_the_recipe_is_found(session_server, tmp_path, make_prompt, make_context):
    (tmp_path / "mine.py").write_text(
        "import json, urllib.request\n"
        "def run(*, base_url, prompt, request_kwargs, metadata):\n"
        "    body = json.dumps({'messages': prompt['messages']}).encode()\n"
        "    with urllib.request.urlopen(base_url + '/chat/completions', data=body) as answer:\n"
        "        return {'answer': json.load(answer)['choices'][0]['message']['content']}\n"
    )
    (sample,) = play(make_prompt(), make_context(options={"agent": "mine.py:run", "base": str(tmp_path)}))
    assert sample.metadata["agent"] == {"answer": "four"}
    for name in [n for n in sys.modules if n.startswith("miles_plugin_")]:
        del sys.modules[name]


async def raises(**_):
    raise ValueError("tool broke")


async def leaves(**_):
    sys.exit(3)


async def cancels_itself(**_):
    raise asyncio.CancelledError


def plain_raises(**_):
    raise KeyError("k")


def plain_leaves(**_):
    sys.exit(3)


async def silent(**_):
    return {"reward": 1.0}


async def returns_text(*, base_url, prompt, request_kwargs, metadata):
    await two_turns(base_url=base_url, prompt=prompt, request_kwargs=request_kwargs, metadata=metadata)
    return "done"


async def returns_an_object(*, base_url, prompt, request_kwargs, metadata):
    await two_turns(base_url=base_url, prompt=prompt, request_kwargs=request_kwargs, metadata=metadata)
    return {"x": object()}


@pytest.mark.parametrize(
    ("run", "told"),
    [
        (raises, "the agent raised ValueError: tool broke"),
        (leaves, "the agent raised SystemExit: 3"),
        (cancels_itself, "the agent raised CancelledError: "),
        (plain_raises, "the agent raised KeyError: 'k'"),
        (plain_leaves, "the agent raised RuntimeError: SystemExit(3)"),
        (silent, "the agent never called the model."),
        (returns_text, "the agent returned str; expected a mapping or None."),
        (returns_an_object, "the agent returned a mapping that is not JSON: "),
        ("no.such:thing", "plug-in module 'no.such' cannot be imported"),
        ("miles_core.rewards.f1:f1_reward", "expected (*, base_url, prompt, request_kwargs, metadata)"),
        (None, "expected the option 'agent' to name a plug-in"),
    ],
)
def test_an_agent_that_fails_is_an_aborted_sample_with_the_reason(session_server, make_prompt, make_context, run, told):
    sample = play_with(run, make_prompt(), make_context)
    assert (sample.finish, sample.reward) == (Finish.ABORTED, 0.0)
    assert told in sample.error
    assert not sample.loss_mask.any()
    assert session_server.sessions == {}


async def one_turn_then_raises(*, base_url, prompt, request_kwargs, metadata):
    await two_turns(base_url=base_url, prompt=prompt, request_kwargs=request_kwargs, metadata=metadata)
    raise ValueError("after two turns")


def test_the_tokens_before_a_failure_are_kept_and_masked(session_server, make_prompt, make_context):
    sample = play_with(one_turn_then_raises, make_prompt(), make_context)
    assert sample.error == "the agent raised ValueError: after two turns"
    assert sample.num_tokens == 12
    assert not sample.loss_mask.any()


async def sleeps(**_):
    await asyncio.sleep(60)


async def swallows_its_cancellation(**_):
    for _ in range(300):
        try:
            await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            continue


def plain_sleeps(**_):
    time.sleep(3)


@pytest.mark.parametrize("run", [sleeps, swallows_its_cancellation, plain_sleeps])
def test_an_agent_past_its_deadline_is_left_behind(session_server, make_prompt, make_context, monkeypatch, run):
    monkeypatch.setattr(deadline, "GRACE_S", 0.1)

    async def main():
        start = time.monotonic()
        (sample,) = await agent(make_prompt(), make_context(options={"agent": run}, timeout_s=0.3))
        seconds = time.monotonic() - start
        if run is swallows_its_cancellation:
            await asyncio.sleep(3.2)
        return sample, seconds

    sample, seconds = asyncio.run(main())
    assert sample.error == "the agent ran past its deadline of 0.3 s."
    assert seconds < 2.5
    assert session_server.sessions == {}


def test_many_plain_agents_wait_side_by_side(session_server, make_prompt, make_context):
    ready = threading.Barrier(12, timeout=20)

    def meets(*, base_url, prompt, request_kwargs, metadata):
        ready.wait()
        httpx.post(f"{base_url}/chat/completions", json={"messages": prompt["messages"]}, trust_env=False)

    async def main():
        context = make_context(options={"agent": meets}, timeout_s=20.0)
        return await asyncio.gather(*(agent(make_prompt(), context) for _ in range(12)))

    assert [sample.error for (sample,) in asyncio.run(main())] == [None] * 12


def test_samples_that_cannot_be_assembled_are_told(session_server, make_prompt, make_context):
    session_server.samples_status = 422
    sample = play_with(two_turns, make_prompt(), make_context)
    assert sample.error == (
        "the samples could not be collected: POST /sessions/{id}/samples: expected 200, "
        "found 422: the tokens do not fit"
    )
    assert session_server.deleted == ["s0"]


def test_a_collection_past_its_deadline_is_told(session_server, make_prompt, make_context, monkeypatch):
    monkeypatch.setattr(episode, "COLLECT_TIMEOUT_S", 0.2)
    session_server.samples_delay_s = 1.0
    sample = play_with(two_turns, make_prompt(), make_context)
    assert "could not be collected" in sample.error
    assert "0.2 s" in sample.error
    assert session_server.deleted == ["s0"]


def test_a_conversation_without_room_for_an_answer_is_no_failure(
    session_server, make_sample, make_prompt, make_context
):
    cut = replace(make_sample(""), spans=(), finish=Finish.LENGTH)
    session_server.assembled = [cut]
    sample = play_with(two_turns, make_prompt(), make_context)
    assert (sample.finish, sample.error, sample.num_tokens) == (Finish.LENGTH, None, 0)


def test_no_session_is_told(session_server, make_prompt, make_context):
    session_server.create_status = 503
    sample = play_with(two_turns, make_prompt(), make_context)
    assert sample.error == (
        "no session could be opened: POST /sessions: expected 200, found 503: no room"
    )  # fmt: skip
    nowhere = play_with(two_turns, make_prompt(), make_context, session_url="http://127.0.0.1:1")
    assert "expected a session server at http://127.0.0.1:1" in nowhere.error


def test_a_cancelled_rollout_deletes_its_session(session_server, make_prompt, make_context):
    async def main():
        task = asyncio.create_task(agent(make_prompt(), make_context(options={"agent": sleeps})))
        while not session_server.sessions:  # noqa: ASYNC110 - the server runs in threads
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert session_server.deleted == ["s0"]


def test_a_rollout_cancelled_while_its_session_opens_deletes_it(session_server, make_prompt, make_context):
    session_server.create_delay_s = 0.3

    async def main():
        task = asyncio.create_task(agent(make_prompt(), make_context(options={"agent": sleeps})))
        await asyncio.sleep(0.15)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert session_server.sessions == {}
    assert len(session_server.specs) == len(session_server.deleted)


def test_single_turn_asks_once_with_the_prompts_tools(session_server, make_prompt, make_context):
    seen = []

    def reply(record, body):
        seen.append(body)
        return "4"

    session_server.reply = reply
    (sample,) = asyncio.run(single_turn(make_prompt(tools=(TOOL,)), make_context()))
    assert sample.ids.tolist() == [1, 2, *b"4"]
    assert seen == [
        {"model": "policy", "messages": [{"role": "user", "content": "2+2?"}], "max_tokens": 9, "tools": [TOOL]}
    ]
    assert session_server.sessions == {}


def test_single_turn_past_its_deadline_is_told(session_server, make_prompt, make_context):
    session_server.chat_delay_s = 1.0
    (sample,) = asyncio.run(single_turn(make_prompt(), make_context(timeout_s=0.3)))
    assert sample.finish is Finish.ABORTED
    assert "0.3 s" in sample.error


def test_deleting_a_session_twice_is_fine_and_other_refusals_have_their_status(session_server):
    async def main():
        async with SessionClient(session_server.url) as client:
            name = await client.create(sampling=SamplingConfig(), seed=1, max_seq_len=9)
            assert client.base_url(name) == f"{session_server.url}/sessions/{name}/v1"
            await client.delete(name)
            await client.delete(name)
            with pytest.raises(SessionError) as caught:
                await client.samples(name, prompt_id="p", rollout_id="r")
            return caught.value.status

    assert asyncio.run(main()) == 404


class Half:
    """Gives every sample the reward 0.5, or fails those of one rollout."""

    def __init__(self, fails=""):
        self.fails, self.judged = fails, []

    async def score(self, sample, prompt):
        self.judged.append(sample)
        return sample.aborted("no reward") if sample.rollout_id == self.fails else sample.with_reward(0.5)


def test_siblings_share_the_reward_of_the_last_live_one(make_sample, make_prompt):
    judge = Half()
    siblings = [make_sample("a"), make_sample("b"), make_sample("c").aborted("cut")]
    first, second, third = asyncio.run(judge_rollout(siblings, make_prompt(), judge))
    assert [s.messages[-1]["content"] for s in judge.judged] == ["b"]
    assert (first.reward, second.reward, third.error) == (0.5, 0.5, "cut")
    failed = asyncio.run(judge_rollout(siblings, make_prompt(), Half("0/0-0/0")))
    assert [s.error for s in failed] == ["no reward", "no reward", "cut"]


@pytest.mark.parametrize(
    ("answer", "told"),
    [(None, "returned None; expected samples"), ([], "returned"), (["x"], "returned"), ("stranger", "samples of")],
)
def test_a_generate_function_that_answers_wrongly_costs_one_rollout(
    make_sample, make_prompt, make_context, answer, told
):
    async def generate(prompt, context):
        return make_sample(rollout_id="other") if answer == "stranger" else answer

    (sample,) = asyncio.run(run_rollout(make_prompt(), make_context(), generate=generate))
    assert told in sample.error


def test_a_generate_function_that_raises_or_hangs_costs_one_rollout(make_prompt, make_context, monkeypatch):
    async def generate(prompt, context):
        if context.timeout_s > 1:
            raise TimeoutError("mine")
        await asyncio.sleep(60)

    monkeypatch.setattr("miles_core.rollout.group.MARGIN_S", 0.1)
    (raised,) = asyncio.run(run_rollout(make_prompt(), make_context(), generate=generate))
    assert raised.error == "the generate function raised TimeoutError: mine"
    (late,) = asyncio.run(run_rollout(make_prompt(), make_context(timeout_s=0.1), generate=generate))
    assert late.error == "the generate function did not return within 0.2 s."


def test_a_group_keeps_the_order_of_its_rollouts(make_sample, make_prompt, make_context):
    async def generate(prompt, context):
        await asyncio.sleep(0.01 * (5 - context.step))
        return make_sample(rollout_id=context.rollout_id)

    contexts = [make_context(rollout_id=f"r{i}", step=i) for i in range(5)]
    ended = []

    async def main():
        gate = asyncio.Semaphore(5)
        return await run_group(
            make_prompt(), contexts, generate=generate, judge=Half(), gate=gate,
            on_rollout=lambda samples: ended.append(samples[0].rollout_id),
        )  # fmt: skip

    group = asyncio.run(main())
    assert [s.rollout_id for s in group.samples] == ["r0", "r1", "r2", "r3", "r4"]
    assert ended == ["r4", "r3", "r2", "r1", "r0"]
    assert group.rewards == dict.fromkeys(["r0", "r1", "r2", "r3", "r4"], 0.5)
