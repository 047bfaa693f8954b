"""The official OpenAI client: chat completions and responses, whole and streamed, over two rounds of tool calls."""

from importlib.util import find_spec

import pytest

pytestmark = [
    pytest.mark.filterwarnings("default"),
    pytest.mark.skipif(find_spec("openai") is None, reason="openai is not installed; `nox -s clients` has it"),
]

QUESTIONS = ("What is 2 + 3?", "And 4 + 5?")
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
}
CHAT_TOOL = {"type": "function", "function": {"name": "add", "description": "Add.", "parameters": SCHEMA}}
FLAT_TOOL = {"type": "function", "name": "add", "description": "Add.", "parameters": SCHEMA, "strict": True}


@pytest.fixture
def client(library, stage):
    with library("openai").OpenAI(base_url=f"{stage.url}/v1", api_key=stage.token) as client:
        yield client


def whole_chat(client, messages):
    answer = client.chat.completions.create(model="policy", messages=messages, tools=[CHAT_TOOL])
    return answer.choices[0].message


def streamed_chat(client, messages):
    with client.chat.completions.stream(model="policy", messages=messages, tools=[CHAT_TOOL]) as stream:
        for _ in stream:
            pass
        return stream.get_final_completion().choices[0].message


@pytest.mark.parametrize("ask", [whole_chat, streamed_chat])
def test_two_tool_rounds_of_chat_completions_are_one_trajectory(client, stage, call_add, ask):
    messages, said = [{"role": "system", "content": "You add numbers."}], []
    for question in QUESTIONS:
        messages.append({"role": "user", "content": question})
        while True:
            message = ask(client, messages)
            messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                break
            for call in message.tool_calls:
                result = call_add(call.function.name, call.function.arguments)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        said.append(message.content)
    assert said == ["The sum is 5.", "The sum is 9."]
    stage.check_chain(turns=4)


def whole_response(client, **fields):
    return client.responses.create(model="policy", tools=[FLAT_TOOL], instructions="You add numbers.", **fields)


def streamed_response(client, **fields):
    with client.responses.stream(
        model="policy", tools=[FLAT_TOOL], instructions="You add numbers.", **fields
    ) as stream:
        for _ in stream:
            pass
        return stream.get_final_response()


def outputs(response, call_add):
    return [
        {"type": "function_call_output", "call_id": item.call_id, "output": call_add(item.name, item.arguments)}
        for item in response.output
        if item.type == "function_call"
    ]


@pytest.mark.parametrize("ask", [whole_response, streamed_response])
def test_two_tool_rounds_of_responses_are_one_trajectory(client, stage, call_add, ask):
    items, said = [], []
    for question in QUESTIONS:
        items.append({"role": "user", "content": question})
        while True:
            response = ask(client, input=items)
            items += [item.model_dump(exclude_none=True) for item in response.output]
            results = outputs(response, call_add)
            items += results
            if not results:
                break
        said.append(response.output_text)
    assert said == ["The sum is 5.", "The sum is 9."]
    stage.check_chain(turns=4)


@pytest.mark.parametrize("ask", [whole_response, streamed_response])
def test_responses_that_name_the_one_before_are_one_trajectory(client, stage, call_add, ask):
    previous, said = None, []
    for question in QUESTIONS:
        response = ask(client, input=question, **({"previous_response_id": previous} if previous else {}))
        while results := outputs(response, call_add):
            response = ask(client, input=results, previous_response_id=response.id)
        previous = response.id
        said.append(response.output_text)
    assert said == ["The sum is 5.", "The sum is 9."]
    assert client.responses.retrieve(previous).output_text == "The sum is 9."
    stage.check_chain(turns=4)
