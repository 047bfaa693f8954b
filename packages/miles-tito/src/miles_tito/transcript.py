"""The transcript: a conversation as exact tokens, append-only, sharing what it has in common with its parent."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn, Self

from miles_core.errors import TokenError
from miles_core.sample import Finish, Origin, Span
from miles_tito.intake import check_conversation, finish_named, integers, log_probabilities, token_ids
from miles_tito.trust import Trust

if TYPE_CHECKING:
    from miles_tito.parsers.stream import StreamParser
    from miles_tito.tokenizer import ChatTokenizer

UNKNOWN_VERSION = -1
"""Weight version of sampled ids for which none was given."""


def own_copy(value: Any) -> Any:
    """A copy of a JSON value down to its leaves: what a caller does to a message later changes no transcript."""
    if isinstance(value, Mapping):
        return {key: own_copy(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [own_copy(item) for item in value]
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What one step added: its spans, its messages, and, where a template wrote it, its text (marked, see `marks`).

    dropped: a sampled stop that gave way to the one the template writes there, or None.
    """

    spans: tuple[Span, ...]
    messages: tuple[Mapping[str, Any], ...]
    text: str | None = None
    finish: Finish | None = None
    dropped: int | None = None

    @property
    def num_tokens(self) -> int:
        """Tokens of the piece."""
        return sum(len(span.ids) for span in self.spans)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Transcript:
    """One state of a conversation; every step returns a new one and the old one stays valid.

    A step costs what it adds: pieces are shared with the parent. `ids` and the aligned sequences are built when asked.
    """

    _chat: "ChatTokenizer" = field(repr=False)
    _parent: "Transcript | None" = field(repr=False)
    _piece: Piece = field(repr=False)
    tools: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)
    now: datetime = field(repr=False)
    """The clock that templates see, the same for every render of this conversation."""
    num_tokens: int
    num_messages: int
    num_turns: int = 0
    """Sampled turns."""
    awaits_turn: bool = True
    """True when the ids end in a generation prompt, False after a sampled turn."""
    all_sampled: bool = True
    """True when no assistant message came from outside."""
    complete: bool = True
    """True when every sampled turn came with its log-probabilities and weight versions."""
    trust: Trust = field(default=Trust(), repr=False)
    """What has been confirmed here of the template's bounded proofs."""

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a transcript belongs to its tokenizer and is not pickled; store its pieces and see miles_tito.restore."
        )

    def sampled(
        self,
        ids: Sequence[int],
        *,
        message: Mapping[str, Any] | None = None,
        logprobs: Sequence[float] | None = None,
        weight_version: int | None = None,
        weight_versions: Sequence[int] | None = None,
        finish: str = "stop",
    ) -> "Transcript":
        """Add the ids that the policy sampled after the generation prompt, verbatim, its stop token included.

        message: the assistant message as the harness saw it; parsed from the ids when omitted.
        logprobs: natural logs, one for each id. weight_version: of the whole turn; weight_versions: one for each id.
        Where they are not given the spans hold 0.0 and -1 and `complete` turns False.
        ids: integers of at least 0. One that has no token in the vocabulary is kept; the message shows it as U+FFFD.
        finish: "stop", "length" (truncated) or "aborted". TokenError when the transcript does not await a turn.
        """
        if not self.awaits_turn:
            raise TokenError(
                "expected a transcript that awaits a turn, found one that just got it; append messages first."
            )
        ids = token_ids(ids)
        if weight_versions is None and weight_version is not None:
            weight_versions = (weight_version,) * len(ids)
        span = Span(
            origin=Origin.SAMPLED,
            ids=ids,
            logprobs=(0.0,) * len(ids) if logprobs is None else log_probabilities(logprobs),
            weight_versions=(UNKNOWN_VERSION,) * len(ids)
            if weight_versions is None
            else integers(weight_versions, "weight versions"),
        )
        return self._with(
            Piece(spans=(span,), messages=(self._seen(message, ids),), finish=finish_named(finish)),
            awaits_turn=False,
            num_turns=self.num_turns + 1,
            complete=self.complete and logprobs is not None and weight_versions is not None,
        )

    def _seen(self, message: Mapping[str, Any] | None, ids: Sequence[int]) -> Mapping[str, Any]:
        """The assistant's message as given, checked and copied, else as the ids spell it."""
        if message is None:
            return self.parse(ids)
        check_conversation([message])
        if message["role"] != "assistant":
            raise TokenError(f"expected the assistant's message, found one with role {message['role']!r}.")
        return dict(own_copy(message))

    def parse(self, ids: Sequence[int]) -> dict[str, Any]:
        """The message these ids spell when sampled here; the same as `stream_parser` gives."""
        return self.stream_parser().parse(ids)

    def stream_parser(self) -> "StreamParser":
        """A parser for the turn sampled next; its tool-call ids are unique in the conversation."""
        return self._chat.stream_parser(call_seed=self.num_tokens, prompt=self._piece.text, tools=self.tools)

    def _with(self, piece: Piece, **changes: Any) -> "Transcript":
        values: dict[str, Any] = {
            "tools": self.tools,
            "now": self.now,
            "num_turns": self.num_turns,
            "awaits_turn": self.awaits_turn,
            "all_sampled": self.all_sampled,
            "complete": self.complete,
            "trust": self.trust,
        }
        return Transcript(
            _chat=self._chat,
            _parent=self,
            _piece=piece,
            num_tokens=self.num_tokens + piece.num_tokens,
            num_messages=self.num_messages + len(piece.messages),
            **(values | changes),
        )

    def replace_turn(self, piece: Piece) -> "Transcript":
        """The same transcript with its last step's piece replaced (a sampled stop that gave way to the real one)."""
        if self._parent is None:
            raise TokenError("expected a transcript with a sampled turn, found a prompt.")
        return self._parent._with(piece, awaits_turn=self.awaits_turn, num_turns=self.num_turns, complete=self.complete)

    @property
    def parent(self) -> Self | None:
        """The transcript before the last step, or None for a prompt."""
        return self._parent  # type: ignore[return-value]

    @property
    def last(self) -> Piece:
        """What the last step added."""
        return self._piece

    def pieces(self) -> tuple[Piece, ...]:
        """Every step in order, the prompt first."""
        found = list(self._backwards())
        found.reverse()
        return tuple(found)

    def _backwards(self) -> Iterator[Piece]:
        node: Transcript | None = self
        while node is not None:
            yield node._piece
            node = node._parent

    @property
    def spans(self) -> tuple[Span, ...]:
        """All spans in order."""
        return tuple(span for piece in self.pieces() for span in piece.spans)

    @property
    def messages(self) -> tuple[Mapping[str, Any], ...]:
        """All messages in order, as they were given or parsed."""
        return tuple(message for piece in self.pieces() for message in piece.messages)

    @property
    def ids(self) -> tuple[int, ...]:
        """All token ids, `[num_tokens]`."""
        return tuple(number for span in self.spans for number in span.ids)

    @property
    def loss_mask(self) -> tuple[bool, ...]:
        """True where an id was sampled, `[num_tokens]`."""
        return tuple(flag for s in self.spans for flag in (s.origin is Origin.SAMPLED and s.trained,) * len(s.ids))

    @property
    def logprobs(self) -> tuple[float, ...]:
        """Log-probability of each sampled id, 0.0 elsewhere, `[num_tokens]`."""
        return tuple(x for span in self.spans for x in (span.logprobs or (0.0,) * len(span.ids)))

    @property
    def weight_versions(self) -> tuple[int, ...]:
        """Weight version of each sampled id, -1 elsewhere, `[num_tokens]`."""
        return tuple(v for span in self.spans for v in (span.weight_versions or (UNKNOWN_VERSION,) * len(span.ids)))
