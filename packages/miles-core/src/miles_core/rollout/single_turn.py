"""The generate function `single_turn`: one question, one answer."""

from miles_core.prompt import Prompt
from miles_core.protocols import RolloutContext
from miles_core.rollout.agent import request_kwargs
from miles_core.rollout.episode import play_episode
from miles_core.rollout.session_client import SessionClient
from miles_core.sample import Sample


async def single_turn(prompt: Prompt, context: RolloutContext) -> list[Sample]:
    """One chat completion of the prompt's messages (and tools) through a session, as one sample."""

    async def play(client: SessionClient, session_id: str) -> None:
        body = {
            "model": request_kwargs(context)["model"],
            "messages": list(prompt.messages),
            "max_tokens": context.sampling.max_tokens,
        }
        if prompt.tools:
            body["tools"] = list(prompt.tools)
        await client.chat(session_id, body, timeout_s=context.timeout_s)

    return await play_episode(prompt, context, play, who="the chat call")
