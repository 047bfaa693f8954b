"""The official Anthropic client: messages, whole and streamed, over two rounds of tool calls."""

from importlib.util import find_spec

import pytest

pytestmark = [
    pytest.mark.filterwarnings("default"),
    pytest.mark.skipif(find_spec("anthropic") is None, reason="anthropic is not installed; `nox -s clients` has it"),
]

QUESTIONS = ("What is 2 + 3?", "And 4 + 5?")
TOOL = {
    "name": "add",
    "description": "Add.",
    "input_schema": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
    },
}
REST = {"model": "policy", "max_tokens": 400, "system": "You add numbers.", "tools": [TOOL]}


@pytest.fixture
def client(library, stage):
    with library("anthropic").Anthropic(base_url=stage.url, api_key=stage.token) as client:
        yield client


def whole(client, messages):
    return client.messages.create(messages=messages, **REST)


def streamed(client, messages):
    with client.messages.stream(messages=messages, **REST) as stream:
        for _ in stream:
            pass
        return stream.get_final_message()


def bearer(client, messages):
    other = client.with_options(api_key=None, auth_token="s3cret")
    return other.messages.create(messages=messages, **REST)


@pytest.mark.parametrize("ask", [whole, streamed, bearer])
def test_two_tool_rounds_of_messages_are_one_trajectory(client, stage, call_add, ask):
    messages, said = [], []
    for question in QUESTIONS:
        messages.append({"role": "user", "content": question})
        while True:
            answer = ask(client, messages)
            messages.append({"role": "assistant", "content": [b.model_dump(exclude_none=True) for b in answer.content]})
            results = [
                {"type": "tool_result", "tool_use_id": block.id, "content": call_add(block.name, block.input)}
                for block in answer.content
                if block.type == "tool_use"
            ]
            assert answer.stop_reason == ("tool_use" if results else "end_turn")
            if not results:
                break
            messages.append({"role": "user", "content": results})
        said.append("".join(block.text for block in answer.content if block.type == "text"))
    assert said == ["The sum is 5.", "The sum is 9."]
    stage.check_chain(turns=4)


def test_counted_tokens_are_those_of_the_prompt(client, stage):
    messages = [{"role": "user", "content": QUESTIONS[0]}]
    rest = {name: value for name, value in REST.items() if name != "max_tokens"}
    counted = client.messages.count_tokens(messages=messages, **rest).input_tokens
    usage = client.messages.create(messages=messages, **REST).usage
    assert counted == usage.input_tokens + usage.cache_read_input_tokens
    stage.check_chain(turns=1)
