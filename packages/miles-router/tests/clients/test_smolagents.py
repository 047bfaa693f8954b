"""smolagents: it writes its calls into text, which is another history; every answer is trained once all the same."""

from importlib.util import find_spec

import pytest

pytestmark = [
    pytest.mark.filterwarnings("default"),
    pytest.mark.skipif(find_spec("smolagents") is None, reason="smolagents is not installed; `nox -s clients` has it"),
]


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_calling_agent_makes_a_branch_of_every_step(library, stage, add, stream):
    smolagents = library("smolagents")

    class Add(smolagents.Tool):
        name = "add"
        description = "Add."
        inputs = {  # noqa: RUF012 - the library reads it from the class
            "a": {"type": "integer", "description": "one"},
            "b": {"type": "integer", "description": "other"},
        }
        output_type = "integer"

        def forward(self, a: int, b: int) -> int:
            return add(a, b)

    # Its own default asks for a forced call, which would sample from another distribution than training sees.
    model = smolagents.OpenAIModel(
        model_id="policy", api_base=f"{stage.url}/v1", api_key=stage.token, tool_choice="auto"
    )
    agent = smolagents.ToolCallingAgent(
        tools=[Add()], model=model, max_steps=3, verbosity_level=0, stream_outputs=stream
    )
    assert agent.run("What is 2 + 3?") == "The sum is 5."
    assert add.calls == [(2, 3)]
    one, two = sorted(stage.check(turns=2, samples=2), key=lambda sample: sample.metadata["leaf"])
    assert [one.metadata["turns"], two.metadata["turns"]] == [1, 1]
    assert stage.state()["tree"] == {"0": None, "1": None}
    rewritten = next(message for message in two.messages if message["role"] == "assistant")
    assert "tool_calls" not in rewritten
    assert "add" in str(rewritten["content"])
