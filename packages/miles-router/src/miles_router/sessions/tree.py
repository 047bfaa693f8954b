"""The turns of a session as a tree: each hangs on the deepest earlier turn whose conversation it continues."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import xxhash

from miles_router.sessions.engine import Generation
from miles_router.sessions.matchers import Matcher

Message = Mapping[str, Any]


@dataclass(eq=False, slots=True, kw_only=True)
class Turn:
    """One recorded answer. Nothing changes after recording but `delivered`.

    number: order of recording. depth: turns before it in its conversation. sibling: its number among the answers
    after `parent`. extends: its tokens continue the parent's; False starts a trajectory whose history is all prompt.
    end: messages of its conversation, its own answer included. generation: None for an answer that had no room.
    """

    number: int
    turn_id: str
    parent: "Turn | None"
    sibling: int
    depth: int
    extends: bool
    end: int
    new_messages: tuple[Message, ...]
    message: Message
    tools: tuple[Message, ...]
    tools_key: str
    keys: tuple[str, ...]
    """The tree's keys of `new_messages`."""
    transcript: Any
    prompt_tokens: int
    generation: Generation | None
    dialect: str = "openai_chat"
    """The dialect that the request came in."""
    notes: Mapping[str, Any] = field(default_factory=dict)
    """What the dialect needs to know when a later request refers to this turn; JSON values."""
    not_extendable: str | None = None
    """Why the parent's tokens could not be continued, where they could not."""
    delivered: bool = False
    """A client was there to take the answer, or came back to it."""

    @property
    def finish(self) -> str:
        """`stop` or `length`."""
        return self.generation.finish if self.generation is not None else "length"

    def line(self) -> "list[Turn]":
        """The turns from the conversation's first to this one."""
        turns: list[Turn] = []
        turn: Turn | None = self
        while turn is not None:
            turns.append(turn)
            turn = turn.parent
        return turns[::-1]

    def trajectory(self) -> "list[Turn]":
        """The turns from the start of its token trajectory to this one."""
        turns = [self]
        while turns[-1].extends and turns[-1].parent is not None:
            turns.append(turns[-1].parent)
        return turns[::-1]

    def conversation(self) -> tuple[Message, ...]:
        """All messages, this answer last."""
        return tuple(message for turn in self.line() for message in (*turn.new_messages, turn.message))

    def place(self) -> tuple[int, ...]:
        """Sibling numbers from the root: an order that does not depend on timing where the requests do not."""
        return tuple(turn.sibling for turn in self.line())


@dataclass(slots=True)
class _Node:
    children: "dict[str, _Node]" = field(default_factory=dict)
    turns: list[Turn] = field(default_factory=list)


class TurnTree:
    """A session's turns, found by the messages that lead to them."""

    def __init__(self, matcher: Matcher) -> None:
        self._matcher = matcher
        self._roots: dict[str, _Node] = {}
        self._nodes: dict[Turn, _Node] = {}
        self._taken: dict[int | None, set[int]] = {}
        self.turns: list[Turn] = []

    def keys(self, messages: Sequence[Message]) -> tuple[str, ...]:
        """A digest of the matcher's key of each message: what is equal has equal digests."""
        return tuple(self._key(message) for message in messages)

    def attach(self, messages: Sequence[Message], keys: Sequence[str], *, tools_key: str) -> Turn | None:
        """The deepest turn whose whole conversation is a proper prefix of `messages`, under the same tools."""
        node = self._roots.get(tools_key)
        best: Turn | None = None
        for key in keys[:-1]:
            node = node.children.get(key) if node is not None else None
            if node is None:
                break
            best = self._best(node.turns, messages) or best
        return best

    def claim(self, parent: Turn | None) -> int:
        """The smallest free sibling number after `parent`; give it back with `unclaim` when no turn comes of it."""
        taken = self._taken.setdefault(None if parent is None else parent.number, set())
        number = next(n for n in range(len(taken) + 1) if n not in taken)
        taken.add(number)
        return number

    def unclaim(self, parent: Turn | None, sibling: int) -> None:
        """Free a number whose turn was never recorded, so that the next attempt is seeded alike."""
        self._taken[None if parent is None else parent.number].discard(sibling)

    def record(self, turn: Turn) -> None:
        """Add a turn."""
        node = self._roots.setdefault(turn.tools_key, _Node()) if turn.parent is None else self._nodes[turn.parent]
        for key in (*turn.keys, self._key(turn.message)):
            node = node.children.setdefault(key, _Node())
        node.turns.append(turn)
        self._nodes[turn] = node
        self.turns.append(turn)

    def _key(self, message: Message) -> str:
        return xxhash.xxh3_128_hexdigest(self._matcher.key(message).encode())

    def _best(self, turns: Sequence[Turn], messages: Sequence[Message]) -> Turn | None:
        """The turn that fits the sent messages best, the latest of equals."""
        best: tuple[int, int] | None = None
        chosen = None
        for turn in turns:
            score = self._score(turn, messages)
            if score is not None and (best is None or (score, turn.number) > best):
                best, chosen = (score, turn.number), turn
        return chosen

    def _score(self, turn: Turn, messages: Sequence[Message]) -> int | None:
        total = 0
        for part in _upwards(turn):
            score = self._matcher.agreement(part.message, messages[part.end - 1])
            if score is None:
                return None
            total += score
        return total


def _upwards(turn: Turn) -> Iterator[Turn]:
    part: Turn | None = turn
    while part is not None:
        yield part
        part = part.parent
