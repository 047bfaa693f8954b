"""The figures of one step's rollouts."""

import statistics
from collections.abc import Mapping, Sequence

from miles_core.metrics import Metrics, Reduction
from miles_core.sample import Finish, Group, Origin, Sample


def step_metrics(kept: Sequence[Group], every: Sequence[Group]) -> dict[str, float]:
    """The figures of a step, 0 where there was nothing to observe.

    reward_mean, reward_std (population): over the judged rollouts of every group, dropped ones included, so that a
    filter does not flatter the policy. response_length_mean: tokens, over live samples. turns_mean: over live rollouts.
    samples_trained: live samples of kept groups. samples_aborted: samples that failed. groups_dropped: groups kept
    from training. rollout_tokens: sampled tokens of every sample. tito_*: mismatches that the session server found.
    """
    rewards = [reward for group in every for reward in group.rewards.values()]
    samples = [sample for group in every for sample in group.samples]
    live = [sample for sample in samples if sample.finish is not Finish.ABORTED]
    found = Metrics()
    for sample in live:
        found.observe("response_length_mean", sample.response_length)
    for turns in _turns(live).values():
        found.observe("turns_mean", turns)
    for sample in samples:
        found.observe("rollout_tokens", sampled_tokens(sample), reduction=Reduction.SUM)
        for kind in ("hard", "soft"):
            found.observe(f"tito_{kind}_mismatches", _mismatches(sample, kind), reduction=Reduction.SUM)
    trained = sum(s.finish is not Finish.ABORTED for group in kept for s in group.samples)
    figures = found.values()
    return {
        "reward_mean": statistics.mean(rewards) if rewards else 0.0,
        # Exact arithmetic: equal rewards have their own value as mean and a deviation of exactly 0.
        "reward_std": statistics.pstdev(rewards) if rewards else 0.0,
        "response_length_mean": figures.get("response_length_mean", 0.0),
        "turns_mean": figures.get("turns_mean", 0.0),
        "samples_trained": float(trained),
        "samples_aborted": float(len(samples) - len(live)),
        "groups_dropped": float(len(every) - len(kept)),
        "rollout_tokens": figures.get("rollout_tokens", 0.0),
        "tito_hard_mismatches": figures.get("tito_hard_mismatches", 0.0),
        "tito_soft_mismatches": figures.get("tito_soft_mismatches", 0.0),
    }


def sampled_tokens(sample: Sample) -> int:
    """Tokens that the policy sampled, trained or not."""
    return sum(len(span.ids) for span in sample.spans if span.origin is Origin.SAMPLED)


def is_aborted(samples: Sequence[Sample]) -> bool:
    """Whether a rollout failed: none of its samples is live."""
    return all(sample.finish is Finish.ABORTED for sample in samples)


def _turns(live: Sequence[Sample]) -> dict[str, float]:
    """Turns of each rollout; a split rollout counts its longest branch."""
    turns: dict[str, float] = {}
    for sample in live:
        value = sample.metadata.get("turns")
        if isinstance(value, int | float):
            turns[sample.rollout_id] = max(turns.get(sample.rollout_id, 0.0), float(value))
    return turns


def _mismatches(sample: Sample, kind: str) -> float:
    report = sample.metadata.get("tito")
    value = report.get(kind, 0) if isinstance(report, Mapping) else 0
    return float(value) if isinstance(value, int | float) else 0.0
