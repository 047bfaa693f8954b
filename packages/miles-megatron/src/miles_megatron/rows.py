"""A pack of sequences as tensors: the tokens of the forward pass and the trained tokens alone."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from miles_core.batch import TrainSequence


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedRows:
    """One micro-batch.

    ids `[tokens]` int64, lengths of the sequences laid end to end; rows `[trained]`: positions whose hidden state
    predicts a trained token; targets `[trained]`: that token; sequence `[trained]`: index of its sequence in the batch.
    """

    ids: Tensor
    lengths: tuple[int, ...]
    rows: Tensor
    targets: Tensor
    sequence: Tensor

    @property
    def num_trained(self) -> int:
        """Trained tokens."""
        return self.targets.shape[0]


def pack_rows(sequences: Sequence[TrainSequence], members: Sequence[int], *, device: torch.device) -> PackedRows:
    """The members of a pack, in the given order. An empty pack has one token, of which nothing is trained."""
    if not members:
        nothing = torch.zeros(0, dtype=torch.long, device=device)
        one = torch.zeros(1, dtype=torch.long, device=device)
        return PackedRows(ids=one, lengths=(1,), rows=nothing, targets=nothing, sequence=nothing)
    chosen = [sequences[index] for index in members]
    lengths = tuple(s.num_tokens for s in chosen)
    ids = np.concatenate([s.ids for s in chosen]).astype(np.int64)
    places = np.flatnonzero(np.concatenate([s.loss_mask for s in chosen]))
    owner = np.repeat(np.asarray(members, dtype=np.int64), lengths)[places]
    return PackedRows(
        ids=torch.from_numpy(ids).to(device),
        lengths=lengths,
        rows=torch.from_numpy(places - 1).to(device),
        targets=torch.from_numpy(ids[places]).to(device),
        sequence=torch.from_numpy(owner).to(device),
    )
