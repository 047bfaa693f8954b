"""Conversations that show the form of solving a problem, with operations that are often wrong.

The demonstrator writes well-formed calls with the right numbers and tries another operation after an error. Two things
it does badly, and reinforcement learning has them left to learn: it sometimes confuses the two operations that let a
number grow, or shrink, and half of the time it answers with a number of the story instead of the calculator's result.
"""

import json
import random
from collections.abc import Iterator, Mapping
from typing import Any

from miles_cli.recipes.quickstart.agent import calculate
from miles_cli.recipes.quickstart.problems import Problem

OPERATORS = "+-*/"
LOOKALIKE = {"+": "*", "*": "+", "-": "/", "/": "-"}
CONFUSION = 0.25
"""How often the demonstrator first tries the other operation that grows, or shrinks, the number."""
INATTENTION = 0.5
"""How often it answers with the story's last number."""


def demonstrate(rng: random.Random, problem: Problem) -> list[Mapping[str, Any]]:
    """The messages of one demonstration, from the question to the answer."""
    messages: list[Mapping[str, Any]] = [{"role": "user", "content": problem.question}]
    number = str(problem.start)
    for step in problem.steps:
        for operator in _picks(rng, step.operator):
            expression = f"{number} {operator} {step.operand}"
            result = calculate(expression)
            messages += _call(expression, result, number=len(messages))
            if not result.startswith("error"):
                number = result
                break
    answer = str(problem.steps[-1].operand) if rng.random() < INATTENTION else number
    return [*messages, {"role": "assistant", "content": answer}]


def _picks(rng: random.Random, right: str) -> Iterator[str]:
    """Every operation once: what is tried first, and what after an error."""
    first = LOOKALIKE[right] if rng.random() < CONFUSION else right
    yield first
    rest = OPERATORS.replace(first, "")
    yield from rng.sample(rest, len(rest))


def _call(expression: str, result: str, *, number: int) -> list[Mapping[str, Any]]:
    arguments = json.dumps({"expression": expression})
    call = {"id": f"call_{number}", "type": "function", "function": {"name": "calculator", "arguments": arguments}}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"call_{number}", "content": result},
    ]
