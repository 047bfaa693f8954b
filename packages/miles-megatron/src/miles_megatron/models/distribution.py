"""From logits to log-probabilities, the same way in the trainer and in the engine."""

from torch import Tensor


def log_distribution(logits: Tensor, temperature: float | Tensor = 1.0) -> Tensor:
    """Natural log-probabilities of `logits / temperature`, float32 or wider, `[tokens, vocab]`.

    temperature: above 0; a number, or `[tokens, 1]` in float32. Both forms give the same bits for the same value.
    """
    wide = logits if logits.dtype.itemsize > 4 else logits.float()
    if not isinstance(temperature, Tensor):
        temperature = wide.new_tensor(temperature)
    return (wide / temperature).log_softmax(-1)
