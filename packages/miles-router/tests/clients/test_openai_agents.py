"""The OpenAI agents library over chat completions and responses, run whole and streamed."""

import asyncio
from importlib.util import find_spec

import pytest

pytestmark = [
    pytest.mark.filterwarnings("default"),
    pytest.mark.skipif(find_spec("agents") is None, reason="agents is not installed; `nox -s clients` has it"),
]

QUESTIONS = ("What is 2 + 3?", "And 4 + 5?")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dialect", ["openai_chat", "openai_responses"])
def test_two_runs_of_an_agent_with_a_tool_are_one_trajectory(library, stage, add, dialect, stream):
    agents = library("agents")
    agents.set_tracing_disabled(True)

    async def converse():
        client = library("openai").AsyncOpenAI(base_url=f"{stage.url}/v1", api_key=stage.token)
        kind = agents.OpenAIChatCompletionsModel if dialect == "openai_chat" else agents.OpenAIResponsesModel

        @agents.function_tool(name_override="add")
        def tool(a: int, b: int) -> int:
            """Add."""
            return add(a, b)

        agent = agents.Agent(
            name="adder", instructions="You add numbers.", model=kind("policy", openai_client=client), tools=[tool]
        )
        items, said = [], []
        for question in QUESTIONS:
            items.append({"role": "user", "content": question})
            if stream:
                result = agents.Runner.run_streamed(agent, items)
                async for _ in result.stream_events():
                    pass
            else:
                result = await agents.Runner.run(agent, items)
            items = result.to_input_list()
            said.append(result.final_output)
        await client.close()
        return said

    assert asyncio.run(converse()) == ["The sum is 5.", "The sum is 9."]
    assert add.calls == [(2, 3), (4, 5)]
    stage.check_chain(turns=4)
