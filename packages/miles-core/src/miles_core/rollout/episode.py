"""One session from its creation to its deletion, with every failure kept as data."""

import asyncio
import contextlib
import functools
import json
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from miles_core.errors import SessionError
from miles_core.prompt import Prompt
from miles_core.protocols import RolloutContext
from miles_core.rollout.deadline import Outcome, run_until
from miles_core.rollout.session_client import SessionClient
from miles_core.sample import Finish, Sample

_log = logging.getLogger(__name__)

COLLECT_TIMEOUT_S = 30.0
DELETE_TIMEOUT_S = 5.0
CREATE_TIMEOUT_S = 30.0
ABORT_TIMEOUT_S = 10.0


def failed(prompt: Prompt, context: RolloutContext, error: str) -> Sample:
    """An aborted sample without tokens."""
    return Sample(
        prompt_id=prompt.prompt_id,
        rollout_id=context.rollout_id,
        spans=(),
        finish=Finish.ABORTED,
        reward=0.0,
        error=error,
        messages=prompt.messages,
    )


async def play_episode(
    prompt: Prompt,
    context: RolloutContext,
    play: Callable[[SessionClient, str], Any],
    *,
    who: str,
    on_abort: Callable[[str], Callable[[], Any]] | None = None,
) -> list[Sample]:
    """Open a session, let `play(client, session_id)` talk to it until the deadline, and collect its samples.

    play: a coroutine function, or a plain function that then runs in a thread; the mapping it returns, if any, lands in
    each sample's metadata under "agent". who: names it in reasons ("the agent"). A failure gives aborted samples, with
    the tokens that were collected in spite of it. on_abort: given the reason, the call made then, with a deadline
    of its own. The session is deleted in every case.
    """
    loop = asyncio.get_running_loop()
    ends = loop.time() + context.timeout_s
    async with _client(context) as client:
        try:
            session_id = await _open(client, prompt, context)
        except SessionError as error:
            return [failed(prompt, context, f"no session could be opened: {error}")]
        ended: str | None = f"{who} was cancelled."
        try:
            bound = _bind(play, client, session_id)
            outcome = await run_until(
                bound, timeout_s=max(ends - loop.time(), 0.0), what=f"{who} of {context.rollout_id}"
            )
            reason = _failure(outcome, who, context.timeout_s)
            samples, trouble = await _collect(client, session_id, prompt, context, who)
            ended = reason or trouble
            return _finish(samples, ended, outcome, prompt, context)
        finally:
            if on_abort is not None and ended is not None:
                await _abort(on_abort(ended), context.rollout_id)
            await _delete(client, session_id)


async def _abort(call: Callable[[], Any], rollout_id: str) -> None:
    """Run the hook; whatever goes wrong in it is logged, for the rollout has failed already."""
    outcome = await run_until(call, timeout_s=ABORT_TIMEOUT_S, what=f"the abort hook of {rollout_id}")
    if outcome.late:
        _log.warning("the abort hook of %s did not end within %g s", rollout_id, ABORT_TIMEOUT_S)
    elif outcome.error is not None:
        _log.warning("the abort hook of %s raised %r", rollout_id, outcome.error)


@contextlib.asynccontextmanager
async def _client(context: RolloutContext) -> AsyncIterator[SessionClient]:
    """The client that the rollouts share, or one of this rollout's own."""
    if context.sessions is not None:
        yield context.sessions
        return
    async with SessionClient(context.session_url, token=context.token, timeout_s=context.timeout_s) as client:
        yield client


async def _open(client: SessionClient, prompt: Prompt, context: RolloutContext) -> str:
    """The id of a new session. Cancelled meanwhile, it waits for the answer, for without its id none can delete it."""
    opening = asyncio.ensure_future(
        client.create(
            sampling=context.sampling,
            seed=context.seed,
            max_seq_len=context.max_seq_len,
            tools=prompt.tools,
            metadata={"rollout_id": context.rollout_id},
            timeout_s=min(CREATE_TIMEOUT_S, context.timeout_s),
        )
    )
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        done, _ = await asyncio.wait({opening}, timeout=DELETE_TIMEOUT_S)
        if not done:
            opening.cancel()
        elif opening.exception() is None:
            await _delete(client, opening.result())
        raise


def _bind(play: Callable[[SessionClient, str], Any], client: SessionClient, session_id: str) -> Callable[[], Any]:
    return functools.partial(play, client, session_id)


def _failure(outcome: Outcome, who: str, timeout_s: float) -> str | None:
    """Why the episode failed, None when it did not."""
    if outcome.late:
        return f"{who} ran past its deadline of {timeout_s:g} s."
    if outcome.error is not None:
        return f"{who} raised {type(outcome.error).__name__}: {outcome.error}"[:1000]
    returned = outcome.value
    if returned is None:
        return None
    if not isinstance(returned, Mapping):
        return f"{who} returned {type(returned).__name__}; expected a mapping or None."
    try:
        json.dumps(dict(returned), allow_nan=False)
    except (TypeError, ValueError) as error:
        return f"{who} returned a mapping that is not JSON: {error}."
    return None


async def _collect(
    client: SessionClient, session_id: str, prompt: Prompt, context: RolloutContext, who: str
) -> tuple[list[Sample], str | None]:
    """The session's samples, or none and why."""
    ids = {"prompt_id": prompt.prompt_id, "rollout_id": context.rollout_id}
    try:
        async with asyncio.timeout(COLLECT_TIMEOUT_S):
            try:
                samples = await client.samples(session_id, **ids, timeout_s=COLLECT_TIMEOUT_S)
            except SessionError as error:
                if error.status == 422 and await _is_silent(client, session_id):
                    return [], f"{who} never called the model."
                return [], f"the samples could not be collected: {error}"
    except TimeoutError:
        return [], f"the samples could not be collected within {COLLECT_TIMEOUT_S:g} s."
    return samples, None if samples else f"{who} never called the model."


async def _is_silent(client: SessionClient, session_id: str) -> bool:
    try:
        return not (await client.state(session_id)).get("turns")
    except SessionError:
        return False


def _finish(
    samples: list[Sample], reason: str | None, outcome: Outcome, prompt: Prompt, context: RolloutContext
) -> list[Sample]:
    if not samples:
        return [failed(prompt, context, reason or "the session gave no samples.")]
    if reason is not None:
        return [sample.aborted(reason) for sample in samples]
    if outcome.value is None:
        return samples
    return [sample.with_metadata(agent=dict(outcome.value)) for sample in samples]


async def _delete(client: SessionClient, session_id: str) -> None:
    try:
        async with asyncio.timeout(DELETE_TIMEOUT_S):
            await client.delete(session_id, timeout_s=DELETE_TIMEOUT_S)
    except (SessionError, TimeoutError) as error:
        # The session server's time-to-live removes what could not be deleted.
        _log.warning("session %s could not be deleted: %s", session_id, error or "no answer in time")
