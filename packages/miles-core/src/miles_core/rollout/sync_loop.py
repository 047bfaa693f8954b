"""The rollouts of one step: draw prompts, run their groups, judge, filter, count."""

import asyncio
import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from miles_core.errors import RolloutError
from miles_core.filters.chain import Chain
from miles_core.plugins import load
from miles_core.prompt import Prompt
from miles_core.protocols import DataSource, Generate, GroupFilter, RolloutContext
from miles_core.rollout.group import Judge, run_group
from miles_core.rollout.rollout_config import RolloutConfig
from miles_core.rollout.session_client import SessionClient
from miles_core.rollout.step_metrics import is_aborted, sampled_tokens, step_metrics
from miles_core.sample import Finish, Group, Sample
from miles_core.seeds import derive

Progress = Callable[[int, int, int], None]
"""Called as (rollouts done, rollouts in all, tokens sampled so far)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutStep:
    """What one step's rollouts gave, in the order of the prompts, whatever order they ended in.

    groups: what training gets; may be empty when filters dropped every group. dropped_groups: the others, and
    dropped: how many for each reason. aborted: how many rollouts failed for each reason.
    """

    groups: tuple[Group, ...]
    dropped_groups: tuple[Group, ...]
    dropped: Mapping[str, int]
    aborted: Mapping[str, int]
    metrics: Mapping[str, float]


class RolloutLoop:
    """Runs the rollouts of a step with bounded concurrency; equal seeds and weights give equal steps.

    generate, filters: taken from the config when None. base: the folder of relative plug-in files.
    """

    def __init__(
        self,
        config: RolloutConfig,
        *,
        session_url: str,
        seed: int,
        judge: Judge | None,
        generate: Generate | None = None,
        filters: Sequence[GroupFilter] | None = None,
        token: str | None = None,
        base: Path | None = None,
        on_progress: Progress | None = None,
    ) -> None:
        self._config = config
        self._session_url = session_url.rstrip("/")
        self._seed = seed
        self._judge = judge
        self._token = token
        self._generate: Generate = generate or load("generates", config.generate, base=base)
        self._filter = Chain(_filters(config, base) if filters is None else filters)
        self._options = _options(config, base)
        self._on_progress = on_progress

    async def run(self, step: int, source: DataSource) -> RolloutStep:
        """The groups of `step`. RolloutError, with the commonest reason, when too many rollouts failed.

        Replacements for dropped groups are drawn between waves, so what is drawn does not depend on timing.
        """
        async with SessionClient(self._session_url, token=self._token, timeout_s=self._config.timeout_s) as sessions:
            return await self._run(step, source, sessions)

    async def _run(self, step: int, source: DataSource, sessions: SessionClient) -> RolloutStep:
        config = self._config
        kept: list[Group] = []
        dropped: list[tuple[Group, str]] = []
        tally = _Tally(config, self._on_progress)
        wanted, budget = config.prompts_per_step, config.refill
        while wanted > 0:
            for group in await self._wave(step, source.next(wanted), tally, sessions):
                reason = self._reason_to_drop(group)
                if reason is None:
                    kept.append(group)
                else:
                    dropped.append((group, reason))
            wanted = min(config.prompts_per_step - len(kept), budget)
            budget -= max(wanted, 0)
        every_group = [*kept, *(group for group, _ in dropped)]
        return RolloutStep(
            groups=tuple(kept),
            dropped_groups=tuple(group for group, _ in dropped),
            dropped=dict(Counter(reason for _, reason in dropped)),
            aborted=dict(tally.reasons),
            metrics=step_metrics(kept, every_group),
        )

    async def _wave(
        self, step: int, prompts: Sequence[Prompt], tally: "_Tally", sessions: SessionClient
    ) -> list[Group]:
        """One group a prompt; every rollout has ended, or was cancelled, when this returns or raises."""
        gate = asyncio.Semaphore(self._config.max_concurrency)
        tally.expect(len(prompts) * self._config.samples_per_prompt)
        try:
            async with asyncio.TaskGroup() as tasks:
                running = [
                    tasks.create_task(
                        run_group(
                            prompt,
                            [
                                self._context(step, prompt, index, sessions)
                                for index in range(self._config.samples_per_prompt)
                            ],
                            generate=self._generate,
                            judge=self._judge,
                            gate=gate,
                            on_rollout=tally.add,
                        )
                    )
                    for prompt in prompts
                ]
        except BaseExceptionGroup as failures:
            raise _first(failures) from None
        return [task.result() for task in running]

    def _context(self, step: int, prompt: Prompt, index: int, sessions: SessionClient) -> RolloutContext:
        config = self._config
        return RolloutContext(
            rollout_id=f"{step}/{prompt.prompt_id}/{index}",
            step=step,
            seed=derive(self._seed, "rollout", step, prompt.prompt_id, index),
            session_url=self._session_url,
            sampling=config.sampling,
            max_seq_len=config.max_seq_len,
            timeout_s=prompt.timeout_s or config.timeout_s,
            token=self._token,
            options=self._options,
            sessions=sessions,
        )

    def _reason_to_drop(self, group: Group) -> str | None:
        if all(sample.finish is Finish.ABORTED for sample in group.samples):
            return "every rollout was aborted"
        verdict = self._filter(group)
        return None if verdict.keep else verdict.reason or "no reason given"


class _Tally:
    """Counts the rollouts of a step as they end, and stops the step when too many failed."""

    def __init__(self, config: RolloutConfig, on_progress: Progress | None) -> None:
        self._allowed = config.max_aborted_fraction
        self._on_progress = on_progress
        self._done = self._total = self._tokens = 0
        self.reasons: Counter[str] = Counter()

    def expect(self, rollouts: int) -> None:
        self._total += rollouts

    def add(self, samples: Sequence[Sample]) -> None:
        self._done += 1
        self._tokens += sum(sampled_tokens(sample) for sample in samples)
        if is_aborted(samples):
            self.reasons[samples[-1].error or "no reason given"] += 1
        if self._on_progress is not None:
            self._on_progress(self._done, self._total, self._tokens)
        failed = self.reasons.total()
        if failed > self._allowed * self._total:
            reason, count = self.reasons.most_common(1)[0]
            raise RolloutError(
                f"expected at most {self._allowed:.0%} of {self._total} rollouts to fail, found {failed} failures "
                f"in the first {self._done}; the commonest ({count} times): {reason}"
            )


def _first(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first error inside groups of groups."""
    error: BaseException = failures
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _filters(config: RolloutConfig, base: Path | None) -> list[GroupFilter]:
    loaded = [(load("group_filters", f.name, base=base, options=f.options), f.options) for f in config.filters]
    return [functools.partial(judge, **options) for judge, options in loaded]


def _options(config: RolloutConfig, base: Path | None) -> dict[str, Any]:
    """Options of the generate function, the agent's name and the folder of plug-in files among them."""
    options = dict(config.options)
    if config.agent is not None:
        load("agents", config.agent, base=base)
        options["agent"] = config.agent
    if config.on_abort is not None:
        load("abort_hooks", config.on_abort, base=base)
        options["on_abort"] = config.on_abort
    if base is not None:
        options["base"] = str(base)
    return options
