"""A small agent that solves word problems with a calculator: ordinary code around the `openai` client."""

import json
import re
import ssl
from collections.abc import Mapping
from typing import Any

from openai import AsyncOpenAI, DefaultAsyncHttpxClient

CALCULATOR: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "calculator",
        "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}},
    },
}
MAX_TURNS = 5
MAX_TOKENS = 40
CERTIFICATES = ssl.create_default_context()
"""Reading the certificates takes longer than a turn of a small model: once, not in every rollout."""
EXPRESSION = re.compile(r"\s*(-?\d{1,9})\s*([-+*/])\s*(-?\d{1,9})\s*")


async def run(
    *,
    base_url: str,
    prompt: Mapping[str, Any],
    request_kwargs: Mapping[str, Any],
    metadata: Mapping[str, Any],
) -> Mapping[str, Any] | None:
    """Talk to the model until it answers without a tool call; the answer is the last assistant message."""
    messages: list[Any] = list(prompt["messages"])
    calls = errors = 0
    http_client = DefaultAsyncHttpxClient(verify=CERTIFICATES)
    async with AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0, http_client=http_client) as client:
        for _ in range(MAX_TURNS):
            completion = await client.chat.completions.create(
                messages=messages, tools=[CALCULATOR], max_tokens=MAX_TOKENS, **request_kwargs
            )
            choice = completion.choices[0]
            messages.append(choice.message.model_dump(exclude_none=True))
            if choice.finish_reason == "length" or not choice.message.tool_calls:
                break
            for call in choice.message.tool_calls:
                result = use_tool(call.function.name, call.function.arguments)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
                calls += 1
                errors += result.startswith("error")
    return {"tool_calls": calls, "tool_errors": errors}


def use_tool(name: str, arguments: str) -> str:
    """The tool's answer; what is wrong with a call is an answer too, starting with `error`, for the model to read."""
    if name != "calculator":
        return "error: no such tool"
    try:
        expression = json.loads(arguments)["expression"]
    except (ValueError, TypeError, KeyError):
        return "error: no expression"
    return calculate(expression)


def calculate(expression: object) -> str:
    """One operation on two whole numbers, written `A + B`."""
    match = EXPRESSION.fullmatch(expression) if isinstance(expression, str) else None
    if match is None:
        return "error: not an operation"
    left, operator, right = int(match[1]), match[2], int(match[3])
    if operator == "/":
        if right == 0 or left % right:
            return "error: not a whole number"
        return str(left // right)
    return str({"+": left + right, "-": left - right, "*": left * right}[operator])
