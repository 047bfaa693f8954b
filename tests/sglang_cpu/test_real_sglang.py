"""The session server in front of SGLang itself: what is recorded is what the engine sampled."""

import time
from pathlib import Path

import httpx
import pytest
from openai import OpenAI

from miles_core import sample_codec
from miles_core.sample import Origin

pytestmark = pytest.mark.slow
CONTEXT = 512


def open_session(url: str, **spec: object) -> str:
    return str(httpx.post(f"{url}/sessions", json=spec, timeout=30, trust_env=False).json()["session_id"])


def samples_of(url: str, session: str):
    names = {"prompt_id": "p", "rollout_id": "r"}
    answer = httpx.post(f"{url}/sessions/{session}/samples", json=names, timeout=60, trust_env=False)
    assert answer.status_code == 200, answer.text
    return sample_codec.decode(answer.content)


def rescored(engine: str, ids: list[int]) -> list[float]:
    """The engine's own log-probability of each id after the first, given those before it."""
    body = {
        "input_ids": ids, "return_logprob": True, "logprob_start_len": 0,
        "sampling_params": {"max_new_tokens": 1, "temperature": 1.0},
    }  # fmt: skip
    answer = httpx.post(f"{engine}/generate", json=body, timeout=60, trust_env=False).json()
    entries = answer["meta_info"]["input_token_logprobs"]
    # SGLang reports the vocabulary's last id, which it takes for padding, as 0.
    assert all(found in (number, 0) for (_, found, *_), number in zip(entries, ids, strict=True))
    return [entry[0] for entry in entries[1:]]


@pytest.mark.parametrize("stream", [False, True])
def test_a_conversation_is_recorded_as_the_engine_sampled_it(sessions_url, sglang_url, stream):
    session = open_session(sessions_url, seed=3, sampling={"temperature": 1.0})
    messages = [{"role": "user", "content": "hello"}]
    with OpenAI(base_url=f"{sessions_url}/sessions/{session}/v1", api_key="none", max_retries=0) as client:
        for turn in range(3):
            asked = {"model": "policy", "messages": messages, "max_tokens": 20}
            if stream:
                chunks = client.chat.completions.create(stream=True, **asked)
                text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
            else:
                text = client.chat.completions.create(**asked).choices[0].message.content or ""
            messages += [{"role": "assistant", "content": text}, {"role": "user", "content": f"go on {turn}"}]
    state = httpx.get(f"{sessions_url}/sessions/{session}", timeout=30, trust_env=False).json()
    assert len(state["turns"]) == 3
    trained = []
    for sample in samples_of(sessions_url, session):
        ids = [number for span in sample.spans for number in span.ids]
        scores = rescored(sglang_url, ids)
        place = 0
        for span in sample.spans:
            if span.origin is Origin.SAMPLED and span.trained:
                again = scores[place - 1 : place - 1 + len(span.ids)]
                assert span.logprobs == pytest.approx(again, abs=0.05)
                assert set(span.weight_versions) == {0}
                trained.append(span.ids)
            place += len(span.ids)
        assert sample.metadata["tito"]["hard"] == 0
    assert len(trained) == 3
    assert sorted(trained) == sorted(tuple(turn["ids"]) for turn in state["turns"])


def test_no_prompt_length_around_the_context_is_an_error(sessions_url):
    session = open_session(sessions_url, seed=1)
    outcomes = []
    for length in range(CONTEXT - 40, CONTEXT + 3):
        body = {"messages": [{"role": "user", "content": "x" * length}], "max_tokens": 4}
        url = f"{sessions_url}/sessions/{session}/v1/chat/completions"
        answer = httpx.post(url, json=body, timeout=60, trust_env=False)
        assert answer.status_code == 200, (length, answer.text)
        usage = answer.json()["usage"]
        outcomes.append((usage["prompt_tokens"], usage["completion_tokens"]))
        if not usage["completion_tokens"]:
            assert answer.json()["choices"][0]["finish_reason"] == "length"
    assert outcomes[0][1] > 0
    assert outcomes[-1][1] == 0
    full = [prompt for prompt, sampled in outcomes if not sampled]
    assert CONTEXT - 10 <= min(full) <= CONTEXT


def test_a_caller_that_leaves_ends_the_engines_work(sessions_url, sglang_url):
    session = open_session(sessions_url, seed=2)
    body = {"messages": [{"role": "user", "content": "a long story"}], "max_tokens": 400, "stream": True}
    url = f"{sessions_url}/sessions/{session}/v1/chat/completions"
    with httpx.stream("POST", url, json=body, timeout=60, trust_env=False) as answer:
        next(answer.iter_lines())
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        loads = httpx.get(f"{sglang_url}/v1/loads", timeout=10, trust_env=False).json()
        if all(load["num_running_reqs"] == 0 for load in loads["loads"]):
            break
        time.sleep(0.2)
    else:
        raise AssertionError(f"the engine still works after 60 s: {loads}")
    listed = httpx.get(f"{sessions_url}/list_workers", timeout=10, trust_env=False).json()["workers"]
    assert [worker["active"] for worker in listed] == [0]


def test_a_run_trains_on_what_sglang_sampled(sglang_config, tmp_path: Path, runs):
    recipe = runs.write_recipe(steps=2)
    engines = [
        'engines.type="sglang"', f'engines.python="{sglang_config.python}"', 'weights.type="disk"',
        f'weights.folder="{tmp_path / "versions"}"', f'weights.files_from="{tmp_path / "model"}"',
        f"engines.extra_args={list(sglang_config.extra_args)!r}", "run.start_timeout_s=600.0",
        *(f'engines.extra_env.{name}="{value}"' for name, value in sglang_config.extra_env.items()),
    ]  # fmt: skip
    out = tmp_path / "run"
    code, said = runs.run(str(recipe), "--out", str(out), *(part for item in engines for part in ("--set", item)))
    assert code == 0, said
    records = runs.records(out)
    assert [record["weight_version"] for record in records] == [1, 2]
    assert all(record["samples_aborted"] == 0 for record in records)
    assert all(record["tito_hard_mismatches"] == 0 for record in records)
    assert all(record["logprob_abs_diff_max"] < 0.05 for record in records)
