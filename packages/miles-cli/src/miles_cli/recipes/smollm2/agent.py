"""An agent that asks for a short sentence, checks it in code and gives feedback in words, up to three turns."""

import re
import ssl
from collections.abc import Mapping
from typing import Any

from openai import AsyncOpenAI, DefaultAsyncHttpxClient

MAX_TURNS = 3
CERTIFICATES = ssl.create_default_context()
"""Reading the certificates takes longer than a turn of a small model: once, not in every rollout."""
WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")


async def run(
    *,
    base_url: str,
    prompt: Mapping[str, Any],
    request_kwargs: Mapping[str, Any],
    metadata: Mapping[str, Any],
) -> Mapping[str, Any] | None:
    """Ask, check, say what is wrong, ask again; the reward is the score of the last sentence.

    metadata: `word`, which the sentence must hold, and `most_words`, how long it may be.
    """
    messages: list[Any] = list(prompt["messages"])
    faults: list[str] = []
    score = 0.0
    http_client = DefaultAsyncHttpxClient(verify=CERTIFICATES)
    async with AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0, http_client=http_client) as client:
        for _ in range(MAX_TURNS):
            completion = await client.chat.completions.create(messages=messages, **request_kwargs)
            choice = completion.choices[0]
            score, faults = judge(choice.message.content or "", metadata)
            if not faults or choice.finish_reason == "length":
                break
            messages.append(choice.message.model_dump(exclude_none=True))
            messages.append({"role": "user", "content": " ".join(faults)})
    return {"reward": score, "faults": len(faults)}


def judge(text: str, demands: Mapping[str, Any]) -> tuple[float, list[str]]:
    """A score in [0, 1] and the faults in words.

    Half of the score is for the wanted word; half is for the length and falls with every word too many.
    """
    words = [word.lower() for word in WORD.findall(text)]
    limit = int(demands["most_words"])
    wanted = str(demands["word"]).lower()
    excess = max(len(words) - limit, 0)
    faults = []
    if wanted not in words:
        faults.append(f'Use the word "{wanted}".')
    if excess:
        faults.append(f"You wrote {len(words)} words. Write at most {limit} words.")
    if not words:
        return 0.0, [*faults, "Write one sentence."]
    return 0.5 * (wanted in words) + 0.5 * max(1 - excess / limit, 0.0), faults
