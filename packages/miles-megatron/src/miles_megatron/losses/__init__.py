"""Token losses: one file each, named in `LOSSES`."""

from collections.abc import Callable

from miles_megatron.choices import choose
from miles_megatron.losses.token_loss import LossTokens, TokenLoss
from miles_megatron.tables import LOSSES

LossFn = Callable[..., TokenLoss]


def choose_loss(name: str) -> LossFn:
    """The loss `(tokens: LossTokens, algorithm: AlgorithmConfig) -> TokenLoss` that a name stands for."""
    return choose("loss", name, table=LOSSES, parameters=("tokens", "algorithm"))


__all__ = ["LOSSES", "LossFn", "LossTokens", "TokenLoss", "choose_loss"]
