"""Sessions as records of the log, and sessions made from such records again."""

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from miles_core.errors import MilesError, RecordError
from miles_core.sample import Origin, Span
from miles_router.sessions.attempt import Attempt
from miles_router.sessions.generation import Generation
from miles_router.sessions.log.records import Kind, Record
from miles_router.sessions.matchers import Matcher
from miles_router.sessions.request import tools_key
from miles_router.sessions.session import Session, SessionSpec
from miles_router.sessions.sizes import turn_bytes
from miles_router.sessions.tree import Turn, TurnTree
from miles_tito import ChatTokenizer
from miles_tito.restore import restore_append, restore_prompt
from miles_tito.transcript import Piece, Transcript

Arrays = Mapping[str, NDArray[Any]]


def opened_fields(session: Session) -> Mapping[str, Any]:
    """The record of a session's beginning."""
    return {
        "spec": session.spec.model_dump(mode="json"),
        "seed": session.seed,
        "created_at": session.created_at.isoformat(),
    }


def turn_fields(
    session: Session, turn: Turn, *, fingerprint: str, keys: Sequence[str]
) -> tuple[dict[str, Any], Arrays]:
    """The record of a turn, with its arrays. keys: the Idempotency-Keys that name it."""
    inherited = session.spec.tools or () if turn.parent is None else turn.parent.tools
    fields: dict[str, Any] = {
        "number": turn.number,
        "turn_id": turn.turn_id,
        "parent": None if turn.parent is None else turn.parent.number,
        "sibling": turn.sibling,
        "repeat": turn.repeat,
        "extends": turn.extends,
        "not_extendable": turn.not_extendable,
        "end": turn.end,
        "messages": turn.new_messages,
        "message": turn.message,
        "tools": None if orjson.dumps(inherited) == orjson.dumps(turn.tools) else turn.tools,
        "dialect": turn.dialect,
        "notes": turn.notes,
        "delivered": turn.delivered,
        "prompt_tokens": turn.prompt_tokens,
        "prompt_digest": turn.prompt_digest.hex(),
        "digest": turn.digest.hex(),
        "fingerprint": fingerprint,
        "keys": list(keys),
    }
    arrays: dict[str, NDArray[Any]] = {}
    before = turn.transcript if turn.generation is None else turn.transcript.parent
    assert before is not None
    if turn.parent is None or not turn.extends or turn.parent.generation is not None:
        fields["prompt"] = _prompt_fields(before, turn)
        arrays["prompt_ids"] = _numbers("i", [number for span in before.last.spans for number in span.ids])
    if turn.generation is not None:
        fields["generation"] = _generation_fields(turn.generation)
        arrays |= _generation_arrays(turn.generation)
    return fields, arrays


def _prompt_fields(before: Transcript, turn: Turn) -> Mapping[str, Any]:
    piece = before.last
    gave_way = before.parent is not None and before.parent.last.dropped is not None
    return {
        "spans": [[span.origin.value, len(span.ids)] for span in piece.spans],
        "text": piece.text,
        "stop_gave_way": gave_way,
        # A trajectory that begins here holds the whole conversation in the client's own spelling.
        "messages": None if turn.extends or turn.parent is None else piece.messages,
    }


def _generation_fields(generation: Generation) -> Mapping[str, Any]:
    return {
        "finish": generation.finish,
        "matched": generation.matched,
        "cached_tokens": generation.cached_tokens,
        "counters": dict(generation.counters),
        "first_row": generation.first_row,
    }


def _generation_arrays(generation: Generation) -> Arrays:
    arrays: dict[str, NDArray[Any]] = {
        "ids": _numbers("i", generation.ids),
        "logprobs": _numbers("d", generation.logprobs),
        "weight_versions": _numbers("q", generation.weight_versions),
    }
    if generation.routing is not None:
        arrays["routing"] = generation.routing
    return arrays


def _numbers(code: str, values: Sequence[float]) -> NDArray[Any]:
    numbers = array(code, values)
    return np.frombuffer(numbers, dtype={"i": np.int32, "d": np.float64, "q": np.int64}[code])


@dataclass(frozen=True, slots=True)
class Restored:
    """Sessions from a log. lost: records that made no session or turn, with the reason."""

    sessions: list[Session]
    lost: list[str]


def restore_sessions(
    records: Sequence[Record],
    chat: ChatTokenizer,
    matcher: Matcher,
    *,
    on_delivery: Callable[[Session, Attempt, bool], None],
) -> Restored:
    """The sessions that the records tell of. A session with a record missing or unusable says so in `damaged`.

    on_delivery: of their attempts from now on.
    """
    restoring: dict[str, _Restoring] = {}
    lost: list[str] = []
    for record in records:
        try:
            if record.kind is Kind.OPENED:
                restoring[record.session_id] = _Restoring(record, chat, matcher, on_delivery)
            elif record.session_id in restoring:
                restoring[record.session_id].add(record)
            else:
                lost.append(f"{record.kind} of session {record.session_id}, whose beginning is lost")
        except (MilesError, KeyError, TypeError, ValueError, IndexError) as error:
            reason = f"{record.kind} {record.number} of session {record.session_id} cannot be read: {error!r}"
            lost.append(reason)
            if record.session_id in restoring:
                restoring[record.session_id].damage(reason)
    return Restored([each.session for each in restoring.values()], lost)


class _Restoring:
    """One session on its way back."""

    def __init__(
        self,
        record: Record,
        chat: ChatTokenizer,
        matcher: Matcher,
        on_delivery: Callable[[Session, Attempt, bool], None],
    ) -> None:
        fields = record.fields
        self._on_delivery = on_delivery
        self._chat = chat
        self._next = record.number + 1
        self._turns: dict[int, Turn] = {}
        self._attempts: dict[int, Attempt] = {}
        spec = dict(fields["spec"])
        if spec.get("tools") is not None:
            spec["tools"] = tuple(spec["tools"])
        self.session = Session(
            session_id=record.session_id,
            spec=SessionSpec.model_validate(spec),
            seed=fields["seed"],
            tree=TurnTree(matcher),
            used_at=record.at,
            created_at=datetime.fromisoformat(fields["created_at"]),
        )

    def damage(self, reason: str) -> None:
        """Mark the session."""
        self.session.damaged = self.session.damaged or reason

    def add(self, record: Record) -> None:
        """Let the next thing happen."""
        if record.number != self._next:
            self.damage(f"records {self._next} to {record.number - 1} are missing from the log")
        self._next = record.number + 1
        self.session.used_at = record.at
        if record.kind is Kind.TURN:
            self._turn(record)
        elif record.kind is Kind.DELIVERY:
            turn = self._turns[record.fields["turn"]]
            self._attempts[turn.number].restore_delivery(took=record.fields["took"])
        elif record.kind is Kind.KEY:
            self.session.keyed[record.fields["key"]] = self._attempts[record.fields["turn"]]
        elif record.kind is Kind.FAILED:
            self.session.failed += 1

    def _turn(self, record: Record) -> None:
        fields = record.fields
        parent = None if fields["parent"] is None else self._turns[fields["parent"]]
        turn = self._read_turn(record, parent)
        self.session.tree.restore_claim(turn)
        self.session.tree.record(turn)
        self.session.nbytes += turn_bytes(turn)
        self._turns[turn.number] = turn
        if parent is not None:
            parent.delivered = True
        attempt = Attempt.restored(fields["fingerprint"], turn, on_delivery=partial(self._on_delivery, self.session))
        self._attempts[turn.number] = self.session.attempts[attempt.fingerprint] = attempt
        self.session.keyed.update(dict.fromkeys(fields["keys"], attempt))

    def _read_turn(self, record: Record, parent: Turn | None) -> Turn:
        fields, spec = record.fields, self.session.spec
        inherited = (spec.tools or ()) if parent is None else parent.tools
        tools = inherited if fields["tools"] is None else tuple(fields["tools"])
        messages = tuple(fields["messages"])
        generation = _read_generation(record)
        transcript = self._transcript(record, parent, tools)
        if generation is not None:
            transcript = transcript.sampled(
                generation.ids,
                message=fields["message"],
                logprobs=generation.logprobs,
                weight_versions=generation.weight_versions,
                finish=generation.finish,
            )
        return Turn(
            number=fields["number"],
            turn_id=fields["turn_id"],
            parent=parent,
            sibling=fields["sibling"],
            repeat=fields["repeat"],
            depth=0 if parent is None else parent.depth + 1,
            extends=fields["extends"],
            end=fields["end"],
            new_messages=messages,
            message=fields["message"],
            tools=tools,
            tools_key=tools_key(tools),
            keys=self.session.tree.keys(messages),
            digest=bytes.fromhex(fields["digest"]),
            transcript=transcript,
            prompt_tokens=fields["prompt_tokens"],
            prompt_digest=bytes.fromhex(fields["prompt_digest"]),
            generation=generation,
            dialect=fields["dialect"],
            notes=fields["notes"],
            not_extendable=fields["not_extendable"],
            delivered=fields["delivered"],
        )

    def _transcript(self, record: Record, parent: Turn | None, tools: Sequence[Mapping[str, Any]]) -> Transcript:
        """The transcript that awaits the turn, from its recorded ids."""
        prompt = record.fields.get("prompt")
        if prompt is None:
            if parent is None:
                raise RecordError("expected the prompt of a first turn, found none.")
            return parent.transcript
        spans, place = [], 0
        ids = record.arrays["prompt_ids"].tolist()
        for origin, count in prompt["spans"]:
            spans.append(Span(origin=Origin(origin), ids=tuple(ids[place : place + count])))
            place += count
        if place != len(ids):
            raise RecordError(f"expected spans of {len(ids)} ids, found {place}.")
        messages = prompt["messages"] if prompt["messages"] is not None else record.fields["messages"]
        piece = Piece(spans=tuple(spans), messages=tuple(messages), text=prompt["text"])
        if parent is None or not record.fields["extends"]:
            return restore_prompt(self._chat, piece, tools=tools, now=self.session.created_at)
        return restore_append(parent.transcript, piece, stop_gave_way=prompt["stop_gave_way"])


def _read_generation(record: Record) -> Generation | None:
    fields = record.fields.get("generation")
    if fields is None:
        return None
    routing = record.arrays.get("routing")
    return Generation(
        ids=tuple(record.arrays["ids"].tolist()),
        logprobs=tuple(record.arrays["logprobs"].tolist()),
        weight_versions=tuple(record.arrays["weight_versions"].tolist()),
        finish=fields["finish"],
        matched=fields["matched"],
        cached_tokens=fields["cached_tokens"],
        counters=fields["counters"],
        first_row=fields["first_row"],
        routing=None if routing is None else routing.copy(),
    )
