"""The turns of a session as a tree: each hangs on the deepest earlier turn whose conversation it continues."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import orjson
import xxhash
from numpy.typing import NDArray

from miles_router.sessions.generation import Generation
from miles_router.sessions.matchers import Matcher
from miles_tito.transcript import Transcript

Message = Mapping[str, Any]


@dataclass(eq=False, slots=True, kw_only=True)
class Turn:
    """One recorded answer. Nothing changes after recording but `delivered`.

    number: order of recording. depth: turns before it in its conversation. sibling: its number among the answers
    after `parent`, in the order of arrival. repeat: earlier answers to the same request. extends: its tokens continue
    the parent's; False starts a trajectory whose history is all prompt.
    end: messages of its conversation, its own answer included. generation: None for an answer that had no room.
    """

    number: int
    turn_id: str
    parent: "Turn | None"
    sibling: int
    repeat: int
    depth: int
    extends: bool
    end: int
    new_messages: tuple[Message, ...]
    message: Message
    tools: tuple[Message, ...]
    tools_key: str
    keys: tuple[bytes, ...]
    """The tree's keys of `new_messages`."""
    digest: bytes
    """Of the whole request's keys and its tools."""
    transcript: Transcript
    prompt_tokens: int
    prompt_digest: bytes
    """Of the ids that the engine was asked to continue."""
    generation: Generation | None
    dialect: str = "openai_chat"
    """The dialect that the request came in."""
    notes: Mapping[str, Any] = field(default_factory=dict)
    """What the dialect needs to know when a later request refers to this turn; JSON values."""
    not_extendable: str | None = None
    """Why the parent's tokens could not be continued, where they could not."""
    ids: NDArray[np.int32] | None = None
    """All ids up to this turn's last, kept while nothing continues it: the next prompt begins with them."""
    score: int = 0
    """How well the answer agrees with itself."""
    delivered: bool = False
    """A client was there to take the answer, or came back to it."""

    @property
    def finish(self) -> str:
        """`stop` or `length`."""
        return self.generation.finish if self.generation is not None else "length"

    def all_ids(self) -> NDArray[np.int32]:
        """The ids of its trajectory up to its last."""
        if self.ids is not None:
            return self.ids
        pieces = self.transcript.pieces()
        ids = chain.from_iterable(span.ids for piece in pieces for span in piece.spans)
        return np.fromiter(ids, dtype=np.int32, count=self.transcript.num_tokens)

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

    def place(self) -> tuple[tuple[int, int, bytes], ...]:
        """Where the turn stands among its session's: an order made of what was asked, never of when it came."""
        return tuple((turn.repeat, turn.end, turn.digest) for turn in self.line())


@dataclass(slots=True)
class _Node:
    children: "dict[bytes, _Node]" = field(default_factory=dict)
    turns: list[Turn] = field(default_factory=list)


def request_digest(keys: Sequence[bytes], tools_key: str) -> bytes:
    """One value for all requests with the same conversation under the same tools."""
    return xxhash.xxh3_128_digest(b"".join(keys) + tools_key.encode())


class TurnTree:
    """A session's turns, found by the messages that lead to them."""

    def __init__(self, matcher: Matcher) -> None:
        self._matcher = matcher
        self._roots: dict[str, _Node] = {}
        self._nodes: dict[Turn, _Node] = {}
        self._siblings: dict[int | None, set[int]] = {}
        self._repeats: dict[bytes, set[int]] = {}
        self._known: dict[bytes, bytes] = {}
        self.turns: list[Turn] = []

    def keys(self, messages: Sequence[Message]) -> tuple[bytes, ...]:
        """A digest of the matcher's key of each message: what is equal has equal digests."""
        return tuple(self._key(message) for message in messages)

    def attach(self, messages: Sequence[Message], keys: Sequence[bytes], *, tools_key: str) -> Turn | None:
        """The deepest turn whose whole conversation is a proper prefix of `messages`, under the same tools.

        Of turns that fit equally well it is the last answer to the same request.
        """
        node = self._roots.get(tools_key)
        scores: dict[Turn | None, int | None] = {None: 0}
        best: Turn | None = None
        for key in keys[:-1]:
            node = node.children.get(key) if node is not None else None
            if node is None:
                break
            if node.turns:
                best = self._best(node.turns, messages, scores) or best
        return best

    def claim(self, parent: Turn | None, digest: bytes) -> tuple[int, int]:
        """The smallest free sibling number after `parent`, and the smallest free number of a repeat of this request.

        Give them back with `unclaim` when no turn comes of it.
        """
        siblings = self._siblings.setdefault(None if parent is None else parent.number, set())
        repeats = self._repeats.setdefault(digest, set())
        return _take(siblings), _take(repeats)

    def unclaim(self, parent: Turn | None, digest: bytes, *, sibling: int, repeat: int) -> None:
        """Free the numbers of a turn that was never recorded, so that the next attempt is seeded alike."""
        self._siblings[None if parent is None else parent.number].discard(sibling)
        self._repeats[digest].discard(repeat)

    def restore_claim(self, turn: Turn) -> None:
        """Take the numbers of a turn that comes from a log."""
        self._siblings.setdefault(None if turn.parent is None else turn.parent.number, set()).add(turn.sibling)
        self._repeats.setdefault(turn.digest, set()).add(turn.repeat)

    def record(self, turn: Turn) -> None:
        """Add a turn."""
        node = self._roots.setdefault(turn.tools_key, _Node()) if turn.parent is None else self._nodes[turn.parent]
        for key in (*turn.keys, self._key(turn.message)):
            node = node.children.setdefault(key, _Node())
        node.turns.append(turn)
        turn.score = self._matcher.agreement(turn.message, turn.message) or 0
        if turn.parent is not None:
            turn.parent.ids = None
        self._nodes[turn] = node
        self.turns.append(turn)

    def _key(self, message: Message) -> bytes:
        # A conversation is sent again with each turn: what was seen before costs one hash.
        seen = xxhash.xxh3_128_digest(orjson.dumps(message, option=orjson.OPT_NON_STR_KEYS))
        key = self._known.get(seen)
        if key is None:
            key = self._known[seen] = xxhash.xxh3_128_digest(self._matcher.key(message).encode())
        return key

    def _best(
        self, turns: Sequence[Turn], messages: Sequence[Message], scores: dict[Turn | None, int | None]
    ) -> Turn | None:
        """The turn that fits the sent messages best; `scores` grows from parents to children along the way."""
        best: tuple[int, int, int] | None = None
        chosen = None
        for turn in turns:
            so_far = scores.get(turn.parent)
            here = None if so_far is None else self._agreement(turn, messages[turn.end - 1])
            score = scores[turn] = None if so_far is None or here is None else so_far + here
            if score is not None and (best is None or (score, turn.repeat, turn.number) > best):
                best, chosen = (score, turn.repeat, turn.number), turn
        return chosen

    def _agreement(self, turn: Turn, sent: Message) -> int | None:
        return turn.score if sent == turn.message else self._matcher.agreement(turn.message, sent)


def _take(taken: set[int]) -> int:
    number = next(n for n in range(len(taken) + 1) if n not in taken)
    taken.add(number)
    return number
