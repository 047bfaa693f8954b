"""The official client, unmodified, against a session behind a router."""

import asyncio
import json

import pytest

openai = pytest.importorskip("openai", reason="the official client is not installed")

TOOL = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}},
}


@pytest.fixture
def base_url(bench, Reply, caller):
    """A session that first calls a tool, then answers; through a router that asks for a token, as do the sessions."""

    def script(prompt, body):
        if "<tool_response>" in prompt:
            return Reply("The sum is 5.")
        return Reply('Adding.\n<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 3}}\n</tool_call>')

    _, engine = bench.engine(script)
    _, router = bench.router(engine, token="r")
    _app, sessions = bench.sessions(router, token="t", engine_token="r")
    http = bench.client(sessions, headers={"Authorization": "Bearer t"})
    session = http.post("/sessions", json={"seed": 3}).json()["session_id"]
    return http, session, f"{sessions}/sessions/{session}/v1"


def test_a_tool_loop_with_the_official_client_is_one_trajectory(base_url, chat):
    http, session, url = base_url

    async def agent():
        async with openai.AsyncOpenAI(base_url=url, api_key="t") as client:
            messages = [{"role": "user", "content": "What is 2 + 3?"}]
            while True:
                answer = await client.chat.completions.create(model="policy", messages=messages, tools=[TOOL])
                message = answer.choices[0].message
                messages.append(message.model_dump(exclude_none=True))
                if not message.tool_calls:
                    return message.content
                for call in message.tool_calls:
                    total = sum(json.loads(call.function.arguments).values())
                    messages.append({"role": "tool", "tool_call_id": call.id, "content": str(total)})

    assert asyncio.run(agent()) == "The sum is 5."
    state = http.get(f"/sessions/{session}").json()
    assert state["tree"] == {"0": None, "0.0": "0"}
    assert [turn["extends"] for turn in state["turns"]] == [False, True]
    assert state["mismatch"]["0.0"]["hard"] == 0


def test_the_official_client_reads_the_stream(base_url):
    _, _, url = base_url

    async def read():
        async with openai.AsyncOpenAI(base_url=url, api_key="t") as client:
            stream = await client.chat.completions.create(
                model="policy",
                messages=[{"role": "user", "content": "What is 2 + 3?"}],
                tools=[TOOL],
                stream=True,
                stream_options={"include_usage": True},
            )
            return [chunk async for chunk in stream]

    chunks = asyncio.run(read())
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    calls = [call for c in chunks if c.choices for call in c.choices[0].delta.tool_calls or []]
    assert text == "Adding."
    assert [(call.index, call.function.name) for call in calls] == [(0, "add")]
    assert json.loads(calls[0].function.arguments) == {"a": 2, "b": 3}
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "tool_calls"
    assert chunks[-1].usage.completion_tokens > 0


def test_the_official_client_raises_its_own_error_types(base_url):
    _, _, url = base_url
    with (
        openai.OpenAI(base_url=url, api_key="wrong", max_retries=0) as client,
        pytest.raises(openai.AuthenticationError),
    ):
        client.chat.completions.create(model="policy", messages=[{"role": "user", "content": "x"}])
    with openai.OpenAI(base_url=url, api_key="t") as client:
        with pytest.raises(openai.BadRequestError, match="n: only 1"):
            client.chat.completions.create(model="policy", messages=[{"role": "user", "content": "x"}], n=2)
        assert [model.id for model in client.models.list()] == ["policy"]
