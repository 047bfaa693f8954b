"""What a request becomes: which turn it continues, its prompt ids, its seed and its room. Decided without waiting."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from miles_core import seeds
from miles_core.errors import SessionError, TokenError
from miles_router.sessions.config import SessionServerConfig
from miles_router.sessions.context import Limits
from miles_router.sessions.request import TurnRequest, tools_key
from miles_router.sessions.session import Session
from miles_router.sessions.tree import Turn, request_digest
from miles_tito.errors import NotExtendable
from miles_tito.tokenizer import ChatTokenizer
from miles_tito.transcript import Transcript


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnPlan:
    """One turn before it is sampled. room: tokens that may be sampled, 0 or less when the prompt leaves none."""

    parent: Turn | None
    sibling: int
    repeat: int
    depth: int
    extends: bool
    not_extendable: str | None
    tools: tuple[Mapping[str, Any], ...]
    tools_key: str
    keys: tuple[bytes, ...]
    """Of the new messages."""
    digest: bytes
    """Of the whole request."""
    end: int
    new_messages: tuple[Mapping[str, Any], ...]
    transcript: Transcript
    prompt_ids: NDArray[np.int32]
    room: int
    sampling: Mapping[str, Any]
    dialect: str
    notes: Mapping[str, Any]

    @property
    def turn_id(self) -> str:
        """The sibling numbers from the first turn to this one, which name it within its session."""
        return f"{self.sibling}" if self.parent is None else f"{self.parent.turn_id}.{self.sibling}"

    @property
    def first_row(self) -> int:
        """The first position whose routed experts no earlier turn has."""
        before = self.transcript.parent if self.extends else None
        return 0 if before is None else before.num_tokens - 1


def plan_turn(
    session: Session, request: TurnRequest, chat: ChatTokenizer, config: SessionServerConfig, *, limits: Limits
) -> TurnPlan:
    """Attach the request to the tree and build its prompt; claims the sibling number.

    SessionError 400 for a conversation that the template cannot render, 409 for one that may not go on.
    """
    if len(session.tree.turns) + len(session.running) >= config.max_turns:
        raise SessionError(f"the session holds {config.max_turns} turns, which is the limit.", status=409)
    tools = request.tools if request.tools is not None else session.spec.tools or ()
    key = tools_key(tools)
    keys = session.tree.keys(request.messages)
    parent = session.tree.attach(request.messages, keys, tools_key=key)
    transcript, why_not = _transcript(session, parent, request, chat, config, tools)
    prompt_ids = _prompt_ids(parent if why_not is None else None, transcript)
    digest = request_digest(keys, key)
    depth = 0 if parent is None else parent.depth + 1
    room = limits.room(len(prompt_ids), most=session.spec.max_seq_len)
    if parent is not None and parent.generation is None:
        room = 0
    sibling, repeat = session.tree.claim(parent, digest)
    return TurnPlan(
        parent=parent,
        sibling=sibling,
        repeat=repeat,
        depth=depth,
        extends=parent is not None and why_not is None,
        not_extendable=why_not,
        tools=tools,
        tools_key=key,
        keys=keys[0 if parent is None else parent.end :],
        digest=digest,
        end=len(keys) + 1,
        new_messages=request.messages[0 if parent is None else parent.end :],
        transcript=transcript,
        prompt_ids=prompt_ids,
        room=room,
        sampling=_sampling(session, request, room=room, path=(depth, digest.hex(), repeat)),
        dialect=request.dialect,
        notes=request.notes,
    )


def _prompt_ids(parent: Turn | None, transcript: Transcript) -> NDArray[np.int32]:
    """All ids of the transcript; those that it has from `parent` are there already."""
    own = np.fromiter((number for span in transcript.last.spans for number in span.ids), dtype=np.int32)
    if parent is None or parent.generation is None or transcript.parent is None:
        return own if transcript.parent is None else np.asarray(transcript.ids, dtype=np.int32)
    # A sampled stop that gave way to the template's is no part of the prompt.
    return np.concatenate([parent.all_ids()[: transcript.parent.num_tokens], own])


def prompt_tokens(session: Session, request: TurnRequest, chat: ChatTokenizer, config: SessionServerConfig) -> int:
    """Tokens of the request's prompt; changes nothing."""
    tools = request.tools if request.tools is not None else session.spec.tools or ()
    parent = session.tree.attach(request.messages, session.tree.keys(request.messages), tools_key=tools_key(tools))
    return _transcript(session, parent, request, chat, config, tools)[0].num_tokens


def _transcript(
    session: Session,
    parent: Turn | None,
    request: TurnRequest,
    chat: ChatTokenizer,
    config: SessionServerConfig,
    tools: tuple[Mapping[str, Any], ...],
) -> tuple[Transcript, str | None]:
    """The transcript that awaits the new turn, and why it does not continue the parent's, if it does not."""
    why_not = None
    if parent is not None and parent.generation is not None:
        if parent.finish == "length" and config.after_length == "refuse":
            raise SessionError(
                f"turn {parent.turn_id} was cut off by its length and this server does not continue such turns.",
                status=409,
            )
        try:
            closing = parent.finish == "length" and config.after_length == "close"
            new_messages = request.messages[parent.end :]
            return chat.append(parent.transcript, new_messages, close_truncated=closing), None
        except NotExtendable as error:
            why_not = str(error)
    elif parent is not None:
        return parent.transcript, None
    try:
        return chat.begin(request.messages, tools=tools or None, now=session.created_at), why_not
    except TokenError as error:
        raise SessionError(f"messages: {error}", status=400) from error


def _sampling(session: Session, request: TurnRequest, *, room: int, path: tuple[int, str, int]) -> Mapping[str, Any]:
    pinned = session.spec.sampling
    seed = session.seed
    if session.spec.seed is None and request.seed is not None:
        seed = request.seed
    chosen = {
        "temperature": _first(pinned.temperature, request.temperature, 1.0),
        "top_p": _first(pinned.top_p, request.top_p, 1.0),
        "top_k": _first(pinned.top_k, request.top_k, -1),
    }
    limits = [limit for limit in (pinned.max_tokens, request.max_tokens, room) if limit is not None]
    return {
        **chosen,
        "max_new_tokens": min(limits),
        "sampling_seed": seeds.derive(seed, "turn", *path),
        **({"stop": list(request.stop)} if request.stop else {}),
    }


def _first(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)
