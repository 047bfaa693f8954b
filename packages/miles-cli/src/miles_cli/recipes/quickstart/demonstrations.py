"""Conversations that show the form of solving a problem, with operations picked blindly.

The demonstrator writes well-formed calls with the right numbers, tries another operation after an error and answers
with the last result, but it does not read the story: each operation is drawn at random. Reinforcement learning has that
choice left to learn.
"""

import json
import random
from collections.abc import Mapping
from typing import Any

from miles_cli.recipes.quickstart.agent import calculate
from miles_cli.recipes.quickstart.problems import Problem

OPERATORS = "+-*/"


def demonstrate(rng: random.Random, problem: Problem) -> list[Mapping[str, Any]]:
    """The messages of one demonstration, from the question to the answer."""
    messages: list[Mapping[str, Any]] = [{"role": "user", "content": problem.question}]
    number = str(problem.start)
    for step in problem.steps:
        for operator in rng.sample(OPERATORS, len(OPERATORS)):
            expression = f"{number} {operator} {step.operand}"
            result = calculate(expression)
            messages += _call(expression, result, number=len(messages))
            if not result.startswith("error"):
                number = result
                break
    return [*messages, {"role": "assistant", "content": number}]


def _call(expression: str, result: str, *, number: int) -> list[Mapping[str, Any]]:
    arguments = json.dumps({"expression": expression})
    call = {"id": f"call_{number}", "type": "function", "function": {"name": "calculator", "arguments": arguments}}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"call_{number}", "content": result},
    ]
