"""LiteLLM, against each of the three dialects, whole and streamed."""

import json
from importlib.util import find_spec

import pytest

pytestmark = [
    pytest.mark.filterwarnings("default"),
    pytest.mark.skipif(find_spec("litellm") is None, reason="litellm is not installed; `nox -s clients` has it"),
]

QUESTIONS = ("What is 2 + 3?", "And 4 + 5?")
TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    },
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("provider", ["openai", "anthropic"])
def test_two_tool_rounds_of_completions_are_one_trajectory(library, stage, call_add, provider, stream):
    litellm = library("litellm")
    base = f"{stage.url}/v1" if provider == "openai" else stage.url

    def ask(messages):
        answer = litellm.completion(
            model=f"{provider}/policy", messages=messages, tools=[TOOL], api_base=base, api_key=stage.token,
            stream=stream, max_tokens=400,
        )  # fmt: skip
        if stream:
            answer = litellm.stream_chunk_builder(list(answer), messages=messages)
        return answer.choices[0].message

    messages, said = [{"role": "system", "content": "You add numbers."}], []
    for question in QUESTIONS:
        messages.append({"role": "user", "content": question})
        while True:
            message = ask(messages)
            messages.append(message.model_dump())
            if not message.tool_calls:
                break
            for call in message.tool_calls:
                result = call_add(call.function.name, call.function.arguments)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        said.append(message.content)
    assert said == ["The sum is 5.", "The sum is 9."]
    stage.check_chain(turns=4)


def test_a_response_is_reached_by_its_responses_call(library, stage, call_add):
    litellm = library("litellm")
    flat = {"type": "function", **TOOL["function"]}
    rest = {"model": "openai/policy", "tools": [flat], "api_base": f"{stage.url}/v1", "api_key": stage.token}
    items = [{"role": "user", "content": QUESTIONS[0]}]
    response = litellm.responses(input=items, **rest)
    (call,) = [item for item in response.output if item.type == "function_call"]
    assert json.loads(call.arguments) == {"a": 2, "b": 3}
    items += [item.model_dump(exclude_none=True) for item in response.output]
    items.append({"type": "function_call_output", "call_id": call.call_id, "output": call_add("add", call.arguments)})
    response = litellm.responses(input=items, **rest)
    assert response.output[-1].content[0].text == "The sum is 5."
    stage.check_chain(turns=2)
