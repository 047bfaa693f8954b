"""Which figures of the metrics file are drawn together, and how."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One line. key: of the metrics file; spread: key of a standard deviation drawn as a band around it."""

    key: str
    label: str
    spread: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One picture. logarithmic: a base-10 axis without values of 0 or less; linear when there are no others.

    zero_is_off: left out when every value is 0, because then nothing was measured.
    """

    title: str
    series: tuple[Series, ...]
    logarithmic: bool = False
    zero_is_off: bool = False


CHARTS = (
    Chart(title="Reward", series=(Series(key="reward_mean", label="mean", spread="reward_std"),)),
    Chart(title="Loss", series=(Series(key="loss", label="loss"),)),
    Chart(title="KL to the reference", series=(Series(key="kl", label="nats per token"),), zero_is_off=True),
    Chart(
        title="Engine vs trainer",
        series=(
            Series(key="logprob_abs_diff_max", label="max |Δ|"),
            Series(key="logprob_abs_diff_mean", label="mean |Δ|"),
            Series(key="mismatch_kl", label="KL"),
        ),
        logarithmic=True,
    ),
    Chart(title="Entropy", series=(Series(key="entropy", label="nats per token"),)),
    Chart(title="Gradient norm", series=(Series(key="grad_norm", label="before clipping"),)),
    Chart(title="Response length", series=(Series(key="response_length_mean", label="tokens"),)),
    Chart(title="Turns", series=(Series(key="turns_mean", label="turns per rollout"),)),
)
