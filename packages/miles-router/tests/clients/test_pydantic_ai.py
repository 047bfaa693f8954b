"""Pydantic AI's agent over each dialect, run whole and streamed."""

import asyncio
from importlib.util import find_spec

import pytest

pytestmark = [
    pytest.mark.filterwarnings("default"),
    pytest.mark.skipif(
        find_spec("pydantic_ai") is None, reason="pydantic_ai is not installed; `nox -s clients` has it"
    ),
]

QUESTIONS = ("What is 2 + 3?", "And 4 + 5?")


def model_of(library, stage, dialect):
    url, key = stage.url, stage.token
    if dialect == "anthropic":
        provider = library("pydantic_ai.providers.anthropic").AnthropicProvider(
            anthropic_client=library("anthropic").AsyncAnthropic(base_url=url, api_key=key)
        )
        return library("pydantic_ai.models.anthropic").AnthropicModel("policy", provider=provider)
    provider = library("pydantic_ai.providers.openai").OpenAIProvider(base_url=f"{url}/v1", api_key=key)
    models = library("pydantic_ai.models.openai")
    kind = models.OpenAIChatModel if dialect == "openai_chat" else models.OpenAIResponsesModel
    return kind("policy", provider=provider)


async def ask(agent, question, history, *, stream):
    if not stream:
        return await agent.run(question, message_history=history)
    async with agent.iter(question, message_history=history) as run:
        async for node in run:
            if type(node).__name__ == "ModelRequestNode":
                async with node.stream(run.ctx) as events:
                    async for _ in events:
                        pass
    return run.result


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dialect", ["openai_chat", "openai_responses", "anthropic"])
def test_two_runs_of_an_agent_with_a_tool_are_one_trajectory(library, stage, add, dialect, stream):
    library("pydantic_ai").models.ALLOW_MODEL_REQUESTS = True

    async def converse():
        agent = library("pydantic_ai").Agent(model_of(library, stage, dialect), system_prompt="You add numbers.")

        @agent.tool_plain(name="add")
        def tool(a: int, b: int) -> int:
            """Add."""
            return add(a, b)

        history, said = None, []
        for question in QUESTIONS:
            result = await ask(agent, question, history, stream=stream)
            history = result.all_messages()
            said.append(result.output)
        return said

    assert asyncio.run(converse()) == ["The sum is 5.", "The sum is 9."]
    assert add.calls == [(2, 3), (4, 5)]
    stage.check_chain(turns=4)
