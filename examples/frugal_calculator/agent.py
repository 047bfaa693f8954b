"""An agent of one's own: a calculator that knows only sums, and a conversation that is cut after three calls."""

import json
import re
import ssl
from collections.abc import Mapping
from typing import Any

from openai import AsyncOpenAI, DefaultAsyncHttpxClient

TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "calculator",
        "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}},
    },
}
CERTIFICATES = ssl.create_default_context()
"""Reading the certificates takes longer than a turn of a small model: once, not in every rollout."""
SUM = re.compile(r"(\d{1,6}) \+ (\d{1,6})")


async def solve(
    *,
    base_url: str,
    prompt: Mapping[str, Any],
    request_kwargs: Mapping[str, Any],
    metadata: Mapping[str, Any],
) -> Mapping[str, Any]:
    """Ask, execute calls, stop at the first answer; what is returned reaches the reward as `metadata["agent"]`."""
    messages: list[Any] = list(prompt["messages"])
    wasted = 0
    http_client = DefaultAsyncHttpxClient(verify=CERTIFICATES)
    async with AsyncOpenAI(base_url=base_url, api_key="none", http_client=http_client) as client:
        for _ in range(3):
            completion = await client.chat.completions.create(
                messages=messages, tools=[TOOL], max_tokens=40, **request_kwargs
            )
            message = completion.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                break
            for call in message.tool_calls:
                result = add(call.function.arguments)
                wasted += result.startswith("error")
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    return {"wasted_calls": wasted}


def add(arguments: str) -> str:
    """The sum that the JSON arguments ask for; anything else is an error that the model gets to read."""
    try:
        match = SUM.fullmatch(json.loads(arguments)["expression"])
    except (ValueError, TypeError, KeyError):
        match = None
    return str(int(match[1]) + int(match[2])) if match else "error: not an operation"
