"""A reward that a service computes."""

import httpx

from miles_core.errors import RewardError
from miles_core.http_client import open_client, reason_of
from miles_core.prompt import Prompt
from miles_core.retry import Backoff, retry
from miles_core.rewards.answer import answer_of
from miles_core.sample import Sample


async def remote_reward(
    sample: Sample,
    prompt: Prompt,
    *,
    url: str,
    token: str | None = None,
    timeout_s: float = 30.0,
    attempts: int = 4,
) -> float:
    """POST `{"prompt_id", "rollout_id", "answer", "label", "messages", "metadata"}`; expect `{"reward": number}`.

    Refused connections, timeouts and the statuses 429 and 5xx are tried again with growing waits, all within
    `timeout_s`; any other answer is a RewardError at once.
    """
    body = {
        "prompt_id": sample.prompt_id,
        "rollout_id": sample.rollout_id,
        "answer": answer_of(sample),
        "label": prompt.label,
        "messages": list(sample.messages),
        "metadata": dict(sample.metadata),
    }
    async with open_client(url, token=token, timeout_s=timeout_s) as client:

        async def call() -> httpx.Response:
            response = await client.post(url, json=body)
            if response.status_code == 429 or response.status_code >= 500:
                response.raise_for_status()
            return response

        try:
            response = await retry(
                call,
                what=f"the reward of {sample.rollout_id} from {url}",
                deadline_s=timeout_s,
                again=lambda error: isinstance(error, httpx.HTTPError),
                backoff=Backoff(attempts=attempts),
            )
        except httpx.HTTPStatusError as error:
            found = f"{error.response.status_code}: {reason_of(error.response)}"
            raise RewardError(f"{url}: expected a reward after {attempts} attempts, found {found}.") from None
        except httpx.HTTPError as error:
            raise RewardError(f"{url}: expected a reward after {attempts} attempts, found {error!r}.") from None
    return _reward(url, response)


def _reward(url: str, response: httpx.Response) -> float:
    if not response.is_success:
        raise RewardError(f"{url}: expected a reward, found {response.status_code}: {reason_of(response)}.")
    try:
        value = response.json()["reward"]
    except (ValueError, KeyError, TypeError):
        value = None
    if not isinstance(value, int | float):
        raise RewardError(f'{url}: expected {{"reward": number}}, found {response.text[:200]!r}.')
    return float(value)
