"""LangChain's chat models over each dialect, whole and streamed."""

from importlib.util import find_spec

import pytest

pytestmark = [
    pytest.mark.filterwarnings("default"),
    pytest.mark.skipif(
        find_spec("langchain_openai") is None, reason="langchain_openai is not installed; `nox -s clients` has it"
    ),
]

QUESTIONS = ("What is 2 + 3?", "And 4 + 5?")


def model_of(library, stage, dialect):
    if dialect == "anthropic":
        return library("langchain_anthropic").ChatAnthropic(
            model="policy", base_url=stage.url, api_key=stage.token, max_tokens=400
        )
    return library("langchain_openai").ChatOpenAI(
        model="policy",
        base_url=f"{stage.url}/v1",
        api_key=stage.token,
        use_responses_api=dialect == "openai_responses",
    )


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dialect", ["openai_chat", "openai_responses", "anthropic"])
def test_two_tool_rounds_are_one_trajectory(library, stage, call_add, dialect, stream):
    said_by = library("langchain_core.messages")

    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    model = model_of(library, stage, dialect).bind_tools([add])

    def ask(messages):
        if not stream:
            return model.invoke(messages)
        whole = None
        for chunk in model.stream(messages):
            whole = chunk if whole is None else whole + chunk
        return whole

    messages, said = [said_by.SystemMessage("You add numbers.")], []
    for question in QUESTIONS:
        messages.append(said_by.HumanMessage(question))
        while True:
            message = ask(messages)
            messages.append(message)
            if not message.tool_calls:
                break
            for call in message.tool_calls:
                result = call_add(call["name"], call["args"])
                messages.append(said_by.ToolMessage(result, tool_call_id=call["id"]))
        said.append(message.text if isinstance(message.text, str) else message.text())
    assert said == ["The sum is 5.", "The sum is 9."]
    stage.check_chain(turns=4)
