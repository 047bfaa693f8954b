"""All rollouts of one prompt, generated and judged."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from miles_core.prompt import Prompt
from miles_core.protocols import Generate, RolloutContext
from miles_core.rollout.episode import failed
from miles_core.sample import Finish, Group, Sample

MARGIN_S = 90.0
"""Time beyond the rollout's own deadline for opening, collecting and deleting its session."""


class Judge(Protocol):
    """Gives a sample its reward, or aborts it with the reason; never raises (`rewards.score.RewardRunner`)."""

    async def score(self, sample: Sample, prompt: Prompt) -> Sample:
        """The sample with its reward, or aborted."""
        ...


async def run_group(
    prompt: Prompt,
    contexts: Sequence[RolloutContext],
    *,
    generate: Generate,
    judge: Judge | None,
    gate: asyncio.Semaphore,
    on_rollout: Callable[[Sequence[Sample]], None] | None = None,
) -> Group:
    """One rollout for each context, at most as many at once as the gate lets in, in the order of the contexts.

    on_rollout: called with the judged samples of each rollout as it ends. Without a judge, rewards stay as they are.
    """

    async def one(context: RolloutContext) -> Sequence[Sample]:
        async with gate:
            samples = await run_rollout(prompt, context, generate=generate)
        if judge is not None:
            samples = await judge_rollout(samples, prompt, judge)
        if on_rollout is not None:
            on_rollout(samples)
        return samples

    async with asyncio.TaskGroup() as tasks:
        rollouts = [tasks.create_task(one(context)) for context in contexts]
    samples = tuple(sample for rollout in rollouts for sample in rollout.result())
    return Group(prompt_id=prompt.prompt_id, samples=samples)


async def run_rollout(prompt: Prompt, context: RolloutContext, *, generate: Generate) -> tuple[Sample, ...]:
    """The samples of one rollout; a generate function that raises, hangs or answers wrongly gives an aborted sample."""
    scope = asyncio.timeout(context.timeout_s + MARGIN_S)
    try:
        async with scope:
            answer = await generate(prompt, context)
    except Exception as error:  # noqa: BLE001 - a failed rollout is data
        if isinstance(error, TimeoutError) and scope.expired():
            reason = f"the generate function did not return within {context.timeout_s + MARGIN_S:g} s."
        else:
            reason = f"the generate function raised {type(error).__name__}: {error}"
        return (failed(prompt, context, reason),)
    samples = (answer,) if isinstance(answer, Sample) else tuple(answer or ())
    if not samples or not all(isinstance(sample, Sample) for sample in samples):
        return (failed(prompt, context, f"the generate function returned {answer!r:.200}; expected samples."),)
    strangers = {(s.prompt_id, s.rollout_id) for s in samples} - {(prompt.prompt_id, context.rollout_id)}
    if strangers:
        return (failed(prompt, context, f"the generate function returned samples of {sorted(strangers)}."),)
    return samples


async def judge_rollout(samples: Sequence[Sample], prompt: Prompt, judge: Judge) -> tuple[Sample, ...]:
    """Judge the last live sample of a rollout, its final conversation, and give its reward to every live sibling."""
    live = [sample for sample in samples if sample.finish is not Finish.ABORTED]
    if not live:
        return tuple(samples)
    verdict = await judge.score(live[-1], prompt)
    return tuple(sample if sample.finish is Finish.ABORTED else _share(sample, verdict) for sample in samples)


def _share(sample: Sample, verdict: Sample) -> Sample:
    if verdict.error is not None:
        return sample.aborted(verdict.error)
    return sample if verdict.reward is None else sample.with_reward(verdict.reward)
