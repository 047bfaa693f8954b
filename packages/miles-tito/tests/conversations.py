"""Random conversations in which every text holds a word of its own."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Message = Mapping[str, Any]
KINDS = ("tool", "tools", "user", "system", "assistant", "tools+user")
ODD = [
    "",
    " ",
    "é 🤖 東京",
    '{"a": [1, "b"]}',
    "two\nlines",
    "0",
    "- [x] **b** `c`",
    "'quoted' \"text\" \\n",
    "a  b",
    "1. 2.",
]


@dataclass(frozen=True, slots=True)
class Step:
    """A turn of the policy and what is appended after it. kind: of the append."""

    turn: Message
    new: tuple[Message, ...]
    kind: str


class Speaker:
    """Makes messages from a seed. edges: texts may start or end with white space.

    phrases: what texts that are not sampled may hold beside ordinary things.
    """

    def __init__(
        self, rng: random.Random, *, reasoning: bool = True, edges: bool = False, phrases: Sequence[str] = ()
    ) -> None:
        self._rng = rng
        self._phrases = list(phrases)
        self._reasoning = reasoning
        self._edges = edges
        self._count = 0

    def text(self) -> str:
        """What the policy says: something between two words that occur nowhere else."""
        return self._between(self._rng.choice(ODD))

    def given(self) -> str:
        """What anybody else says."""
        if not self._phrases or self._rng.random() < 0.4:
            return self._between(self._rng.choice(ODD))
        phrase = self._rng.choice(self._phrases)
        if phrase[0] == "<" and f"</{phrase[1:]}" in self._phrases:
            return f"{phrase}{self._word()}</{phrase[1:]}"
        if not phrase[0].isalnum() and phrase[0] != "/":  # at an edge it might pass for the template's own
            return self._between(phrase)
        return self._rng.choice([self._between(phrase), f"{phrase} {self._word()}", f"{self._word()} {phrase}"])

    def _between(self, middle: str) -> str:
        space = self._rng.choice(["", "", "", " ", "\n", "\n\n"]) if self._edges else ""
        return f"{space}{self._word()} {middle} {self._word()}{space}"

    def _word(self) -> str:
        self._count += 1
        return f"kw{''.join(chr(ord('a') + int(digit)) for digit in f'{self._count:04d}')}wk"

    def tools(self) -> list[Message]:
        """One or two schemas."""
        return [
            {
                "type": "function",
                "function": {
                    "name": name,
                    "description": f"Says {self._word()}.",
                    "parameters": {
                        "type": "object",
                        "properties": {"word": {"type": "string", "description": "w"}, "limit": {"type": "integer"}},
                        "required": ["word"],
                    },
                },
            }
            for name in ["look_up", "find"][: self._rng.randint(1, 2)]
        ]

    def start(self) -> list[Message]:
        """A user message, perhaps under a system prompt, perhaps after an example."""
        messages: list[Message] = [{"role": "user", "content": self.given()}]
        if self._rng.random() < 0.15:
            shot = {"role": "assistant", "content": self.text()}
            messages += [shot, {"role": "user", "content": self.given()}]
        if self._rng.random() < 0.4:
            messages.insert(0, {"role": "system", "content": self.given()})
        return messages

    def says(self) -> Message:
        """A turn of text."""
        return self._thinking({"role": "assistant", "content": self.text()})

    def calls(self, count: int) -> Message:
        """A turn with tool calls, perhaps with text beside them."""
        made = []
        for _ in range(count):
            arguments = {"word": self.text(), "limit": self._rng.randint(0, 9)}
            identity = "".join(self._rng.choices("abcdefghijklmnopqrstuvwxyz0123456789", k=9))
            name = self._rng.choice(["look_up", "find"])
            made.append({"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}})
        content = self.text() if self._rng.random() < 0.3 else ""
        return self._thinking({"role": "assistant", "content": content, "tool_calls": made})

    def _thinking(self, message: dict[str, Any]) -> Message:
        if self._reasoning and self._rng.random() < 0.5:
            message["reasoning_content"] = self.text()
        return message

    def results(self, turn: Message) -> list[Message]:
        """A result for every call of the turn."""
        return [
            {"role": "tool", "tool_call_id": call["id"], "name": call["function"]["name"], "content": self.given()}
            for call in turn["tool_calls"]
        ]

    def step(self, kind: str) -> Step:
        """A turn and an append of this kind: roles joined by "+", `tools` for a run of at least two results."""
        roles = kind.split("+")
        if roles[0] in ("tool", "tools"):
            turn = self.calls(1 if roles[0] == "tool" else self._rng.randint(2, 3))
            new = self.results(turn)
        else:
            turn, new = self.says(), []
        later = roles[1:] if new else roles
        for role in later:
            new.append({"role": role, "content": self.given()})
        return Step(turn=turn, new=tuple(new), kind=kind)

    def steps(self, kinds: Sequence[str]) -> list[Step]:
        """One step for each kind."""
        return [self.step(kind) for kind in kinds]
