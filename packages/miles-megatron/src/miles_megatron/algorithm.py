"""The settings of the learning algorithm, independent of any backend."""

from typing import Literal, Self

from pydantic import Field, model_validator

from miles_core.config import Config

KlKind = Literal["k1", "k2", "k3", "low_variance"]


class AlgorithmConfig(Config):
    """How a batch of rollouts becomes a gradient. Log-probabilities are natural logs at the sampling temperature."""

    advantage: str = "grpo"
    """Advantage estimator: `grpo` or `module:attribute`."""
    advantage_std: bool = True
    """Divide group-centred rewards by the group's standard deviation (unbiased, + 1e-6); off gives Dr. GRPO."""
    loss: str = "ppo"
    """Token loss: `ppo` (clipped policy gradient), `sft` (cross-entropy) or `module:attribute`."""
    clip_eps: float = Field(default=0.2, gt=0)
    """Lower clip range of the ratio: 1 - clip_eps."""
    clip_eps_high: float | None = Field(default=None, gt=0)
    """Upper clip range of the ratio: 1 + clip_eps_high; none takes clip_eps."""
    dual_clip: float | None = Field(default=None, gt=1)
    """Bound c of dual-clip PPO: with a negative advantage the loss is at most -c A; none turns it off."""
    kl_coef: float = Field(default=0.0, ge=0)
    """Weight of the KL term against the reference model; 0 turns it and the reference's forward pass off."""
    kl_kind: KlKind | None = None
    """Estimator of the KL term: k1, k2, k3 or low_variance; none takes k3 in the loss and k1 in the reward."""
    kl_in: Literal["loss", "reward"] = "loss"
    """Where the KL term enters: added to the token loss, or its sum over a rollout subtracted from the reward."""
    entropy_coef: float = Field(default=0.0, ge=0)
    """Weight of the entropy bonus (subtracted from the token loss)."""
    reduction: str = "token_mean"
    """Token losses to one number: `token_mean`, `sequence_mean`, `fixed_length` or `module:attribute`."""
    fixed_length: int | None = Field(default=None, gt=0)
    """The constant that `fixed_length` divides the sum of token losses by."""
    correction: str = "none"
    """Correction of the mismatch between engine and trainer: `none`, `tis` or `module:attribute`."""
    correction_bound: float = Field(default=2.0, gt=0)
    """Upper bound of the importance weight exp(old - rollout)."""
    old_logprobs: Literal["recompute", "rollout"] = "recompute"
    """What the ratio refers to: the trainer's own log-probabilities before the update, or the engine's."""
    epochs: int = Field(default=1, gt=0)
    """Passes over the batch."""
    minibatches: int = Field(default=1, gt=0)
    """Optimizer steps per pass; rollouts are dealt to them by the run's seed."""

    @model_validator(mode="after")
    def _check_combinations(self) -> Self:
        if (self.reduction == "fixed_length") != (self.fixed_length is not None):
            raise ValueError(
                f"expected fixed_length with reduction = 'fixed_length' and only there, found fixed_length = "
                f"{self.fixed_length} with reduction = {self.reduction!r}."
            )
        if self.correction != "none" and self.old_logprobs == "rollout":
            raise ValueError(
                f"expected old_logprobs = 'recompute' with correction = {self.correction!r}; "
                "with 'rollout' the ratio already refers to the engine and the correction would always be 1."
            )
        if self.loss == "sft" and (self.correction != "none" or self.kl_in == "reward"):
            raise ValueError("expected correction = 'none' and kl_in = 'loss' with loss = 'sft': it has no rollouts.")
        return self

    @property
    def uses_rollouts(self) -> bool:
        """False for supervised training: rewards and rollout log-probabilities are not looked at."""
        return self.loss != "sft"

    @property
    def uses_reference(self) -> bool:
        """True when a forward pass of the reference model is needed."""
        return self.kl_coef > 0

    @property
    def kl_estimator(self) -> KlKind:
        """Estimator of the KL term, resolved."""
        return self.kl_kind or ("k3" if self.kl_in == "loss" else "k1")

    @property
    def updates(self) -> int:
        """Optimizer steps per batch."""
        return self.epochs * self.minibatches

    @property
    def upper_clip(self) -> float:
        """Upper clip range of the ratio, resolved."""
        return self.clip_eps if self.clip_eps_high is None else self.clip_eps_high
