"""The generate function `agent`: ordinary agent code behind a session URL."""

import functools
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from miles_core.errors import PluginError
from miles_core.plugins import load
from miles_core.prompt import Prompt
from miles_core.protocols import RolloutContext
from miles_core.rollout.episode import failed, play_episode
from miles_core.rollout.session_client import SessionClient
from miles_core.sample import Sample


async def agent(prompt: Prompt, context: RolloutContext) -> list[Sample]:
    """Run the agent named by the option `agent` against a session of its own; one sample for each leaf of the session.

    Options: `agent`, a name for `plugins.load` or the function itself; `on_abort`, likewise, called with `prompt`,
    `metadata` and `reason` after the rollout failed or was cancelled; `base`, the folder of relative plug-in files;
    `model`, the model name handed to the agent ("policy" by default). The label of the prompt stays out of its sight.
    """
    try:
        run = _named(context.options, "agent", "agents")
        hooked = context.options.get("on_abort") is not None
        on_abort = _named(context.options, "on_abort", "abort_hooks") if hooked else None
    except PluginError as error:
        return [failed(prompt, context, str(error))]
    keywords = {
        "prompt": {
            "prompt_id": prompt.prompt_id,
            "messages": [dict(message) for message in prompt.messages],
            "tools": [dict(tool) for tool in prompt.tools],
        },
        "request_kwargs": request_kwargs(context),
        "metadata": dict(prompt.metadata),
    }
    hook = None if on_abort is None else _hook(on_abort, keywords)
    return await play_episode(prompt, context, _player(run, keywords), who="the agent", on_abort=hook)


def request_kwargs(context: RolloutContext) -> dict[str, Any]:
    """What goes into each chat completion call of the official client: model, extra headers and time limit.

    The limit is that of the rollout, which ends the call anyway: the client's own limit for connecting is 5 s, and a
    busy machine would turn into aborted rollouts.
    """
    headers = {"Authorization": f"Bearer {context.token}"} if context.token else {}
    model = str(context.options.get("model", "policy"))
    return {"model": model, "extra_headers": headers, "timeout": context.timeout_s}


def _named(options: Mapping[str, Any], option: str, kind: str) -> Callable[..., Any]:
    named = options.get(option)
    if callable(named):
        return named
    if not isinstance(named, str):
        raise PluginError(f"expected the option {option!r} to name a plug-in as module:attribute, found {named!r}.")
    base = options.get("base")
    return load(kind, named, base=Path(base) if base else None)


def _hook(run: Callable[..., Any], keywords: Mapping[str, Any]) -> Callable[[str], Callable[[], Any]]:
    """Given the reason, the call that runs the hook; a coroutine function stays one."""
    given = {name: keywords[name] for name in ("prompt", "metadata")}
    return lambda reason: functools.partial(run, reason=reason, **given)


def _player(run: Callable[..., Any], keywords: Mapping[str, Any]) -> Callable[[SessionClient, str], Any]:
    """The agent as `play_episode` wants it, still a coroutine function or a plain one."""
    if inspect.iscoroutinefunction(run) or inspect.iscoroutinefunction(getattr(run, "__call__", None)):  # noqa: B004

        async def play(client: SessionClient, session_id: str) -> Any:
            return await run(base_url=client.base_url(session_id), **keywords)

        return play
    return lambda client, session_id: run(base_url=client.base_url(session_id), **keywords)
