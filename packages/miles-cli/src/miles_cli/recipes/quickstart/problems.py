"""Word problems of one or two operations, drawn from a seed."""

import random
from dataclasses import dataclass

NAMES = ("Mia", "Ben", "Zoe", "Sam", "Ada", "Leo", "Eva", "Max")
THINGS = ("apples", "coins", "books", "shells", "cards", "nuts", "pens", "eggs")
PHRASES = {
    "+": ("finds {n} more", "buys {n} more", "wins {n} more"),
    "-": ("gives away {n}", "throws away {n}", "takes away {n}"),
    "*": ("makes it {n} times as many", "needs {n} times that", "ends up with {n} times the number"),
    "/": ("keeps one of {n} equal piles", "makes {n} equal piles", "splits all into {n} equal parts"),
}
LARGEST = 400
"""No number of a problem goes beyond this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One operation of a problem: apply `operator` to what there is so far and `operand`."""

    operator: str
    operand: int

    def apply(self, number: int) -> int:
        """The number after this step; divisions of a problem have no remainder."""
        if self.operator == "/":
            return number // self.operand
        return {"+": number + self.operand, "-": number - self.operand, "*": number * self.operand}[self.operator]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A question, the numbers behind it and its answer."""

    question: str
    start: int
    steps: tuple[Step, ...]

    @property
    def answer(self) -> int:
        """The number after all steps."""
        number = self.start
        for step in self.steps:
            number = step.apply(number)
        return number


def draw(rng: random.Random, *, num_steps: int) -> Problem:
    """A problem of `num_steps` operations, each operation equally likely."""
    operators = [rng.choice("+-*/") for _ in range(num_steps)]
    while True:
        start = rng.randint(2, 60)
        steps = _draw_steps(rng, start, operators)
        if steps is not None:
            return Problem(question=_tell(rng, start, steps), start=start, steps=steps)


def draw_many(rng: random.Random, count: int, *, two_step_share: float) -> list[Problem]:
    """`count` problems with different questions, of which about `two_step_share` need two operations."""
    found: dict[str, Problem] = {}
    while len(found) < count:
        problem = draw(rng, num_steps=2 if rng.random() < two_step_share else 1)
        found[problem.question] = problem
    return list(found.values())


def _draw_steps(rng: random.Random, start: int, operators: list[str]) -> tuple[Step, ...] | None:
    steps: list[Step] = []
    number = start
    for operator in operators:
        operand = rng.randint(2, 9) if operator in "*/" else rng.randint(2, 40)
        if (operator == "/" and number % operand) or (operator == "-" and operand >= number):
            return None
        steps.append(Step(operator=operator, operand=operand))
        number = steps[-1].apply(number)
        if number > LARGEST:
            return None
    return tuple(steps)


def _tell(rng: random.Random, start: int, steps: tuple[Step, ...]) -> str:
    events = [rng.choice(PHRASES[step.operator]).format(n=step.operand) for step in steps]
    return f"{rng.choice(NAMES)} has {start} {rng.choice(THINGS)}, {', then '.join(events)}. How many now?"
