"""Samples of a session on demand: picked, assembled, post-processed, without holding up other sessions."""

import asyncio
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from miles_core.errors import DeadlineError, RecordError, SessionError, TokenError
from miles_core.plugins import load
from miles_core.sample import Sample
from miles_router.sessions.config import SessionServerConfig
from miles_router.sessions.deadline import run_with_deadline
from miles_router.sessions.pickers import Picked, picker_named
from miles_router.sessions.samples import Naming, assemble
from miles_router.sessions.session import Session
from miles_router.sessions.tree import Turn
from miles_tito import ChatTokenizer


class Assembler:
    """Makes samples the way a server is configured to; PluginError when one of its plug-ins cannot be used."""

    def __init__(self, config: SessionServerConfig, chat: ChatTokenizer) -> None:
        self._config = config
        self._chat = chat
        name = "all_leaves" if config.keep_retries and config.sample_picker == "leaves" else config.sample_picker
        self._picker = picker_named(name)
        self._processors = [load("sample_processors", name) for name in config.sample_processors]

    async def samples(self, session: Session, *, prompt_id: str, rollout_id: str) -> list[Sample]:
        """The session's samples; SessionError 422 with the reason when there can be none."""
        turns = tuple(session.tree.turns)
        metadata: dict[str, Any] = {"session": dict(session.spec.metadata), "failed_turns": session.failed}
        if session.damaged is not None:
            metadata["log_damaged"] = session.damaged
        naming = Naming(prompt_id=prompt_id, rollout_id=rollout_id, metadata=metadata)
        picked = await self._pick(turns)
        try:
            samples = await asyncio.to_thread(assemble, turns, picked, self._chat, naming, per=self._config.samples_per)
        except (RecordError, TokenError) as error:
            raise SessionError(f"samples cannot be assembled: {error}", status=422) from error
        for name, processor in zip(self._config.sample_processors, self._processors, strict=True):
            samples = _checked(await self._call(processor, samples, what=f"sample processor {name}"), name, naming)
        return samples

    async def _pick(self, turns: Sequence[Turn]) -> Picked:
        what = f"sample picker {self._config.sample_picker}"
        found = await self._call(self._picker, turns, what=what)
        picked = found if isinstance(found, Picked) else Picked(tuple(found) if _is_list(found) else (found,))
        known = set(turns)
        usable = [t for t in picked.ends if isinstance(t, Turn) and t in known and t.generation is not None]
        if len(usable) != len(picked.ends) or len(set(usable)) != len(usable):
            raise _refused(what, "expected turns of the session that have an answer, each once")
        return picked

    async def _call(self, plugin: Callable[[Any], Any], argument: Any, *, what: str) -> Any:
        try:
            return await run_with_deadline(lambda: plugin(argument), timeout_s=self._config.plugin_timeout_s, what=what)
        except DeadlineError as error:
            raise _refused(what, str(error).rstrip(".")) from error
        except Exception as error:
            raise _refused(what, f"{type(error).__name__}: {error}") from error


def _checked(found: Any, name: str, naming: Naming) -> list[Sample]:
    what = f"sample processor {name}"
    if inspect.isawaitable(found) or not _is_list(found) or not all(isinstance(sample, Sample) for sample in found):
        raise _refused(what, f"expected a list of samples, found {type(found).__name__}")
    if any((sample.prompt_id, sample.rollout_id) != (naming.prompt_id, naming.rollout_id) for sample in found):
        raise _refused(what, "expected samples of the same prompt and rollout")
    return list(found)


def _is_list(found: Any) -> bool:
    return isinstance(found, list | tuple)


def _refused(what: str, why: str) -> SessionError:
    return SessionError(f"samples cannot be assembled: {what}: {why}.", status=422)
