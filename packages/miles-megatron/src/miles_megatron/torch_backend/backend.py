"""One rank of training with PyTorch: the object a trainer process holds."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Self

import torch
from torch import Tensor
from transformers.utils.logging import disable_progress_bar

from miles_core.batch import TrainBatch
from miles_core.errors import TrainError
from miles_core.seeds import derive
from miles_megatron.algorithm import AlgorithmConfig
from miles_megatron.models import load_causal_lm
from miles_megatron.torch_backend.config import TorchBackendConfig
from miles_megatron.torch_backend.export import export_model
from miles_megatron.torch_backend.policy import TorchPolicy
from miles_megatron.torch_backend.ranks import Ranks
from miles_megatron.torch_backend.sharded_model import ScoringModel, full_tensors, global_shapes, shard
from miles_megatron.torch_backend.shards import ShardReader, read_index, write_index, write_shard
from miles_megatron.trainer import PolicyTrainer, Progress

MOMENTS = ("exp_avg", "exp_avg_sq")


class TorchBackend:
    """`miles_core.protocols.Trainer` with FSDP2. Every method but `close` is collective: all ranks call it in order.

    model_dir: the Hugging Face folder that training starts from; also the reference of the KL term, whatever is loaded
    later. rendezvous: where ranks meet (a torch.distributed init method); one rank needs none. seed: of the run.
    Sets, for the process: the number of threads and deterministic algorithms.
    """

    def __init__(
        self,
        config: TorchBackendConfig,
        *,
        model_dir: Path,
        algorithm: AlgorithmConfig,
        rank: int = 0,
        world_size: int = 1,
        rendezvous: str | None = None,
        seed: int = 0,
    ) -> None:
        self.config, self._source = config, Path(model_dir)
        _prepare_process(config.threads, derive(seed, "trainer", rank))
        self._ranks = Ranks(
            rank=rank,
            world_size=world_size,
            rendezvous=rendezvous,
            device=config.device,
            timeout_s=config.collective_timeout_s,
        )
        try:
            self._model = self._load_model()
        except BaseException:
            self._ranks.close()
            raise
        self._policy = TorchPolicy(self._model, self._ranks, config.optimizer, with_reference=algorithm.uses_reference)
        self._trainer = PolicyTrainer(
            self._policy,
            algorithm,
            schedule=config.schedule,
            peak_rate=config.optimizer.lr,
            token_budget=config.tokens_per_micro_batch,
            oversize=config.oversize,
            seed=seed,
        )

    def _load_model(self) -> ScoringModel:
        config = self.config
        causal_lm = load_causal_lm(
            self._source,
            dtype=config.dtype,
            device=str(self._ranks.device),
            batch_invariant=config.batch_invariant,
        )
        self._vocab_size = causal_lm.get_input_embeddings().weight.shape[0]
        model = ScoringModel(causal_lm, chunk_rows=config.logprob_chunk_rows)
        compute = getattr(torch, config.compute_dtype) if config.compute_dtype else None
        shard(model, self._ranks.mesh, compute_dtype=compute)
        return model

    def step(self, batch: TrainBatch) -> Mapping[str, float]:
        """Train on the batch; see `PolicyTrainer.step` for the metrics, equal on every rank."""
        self._check_ids(batch)
        return self._trainer.step(batch)

    def _check_ids(self, batch: TrainBatch) -> None:
        for sequence in batch.sequences:
            if sequence.num_tokens and not 0 <= sequence.ids.min() <= sequence.ids.max() < self._vocab_size:
                raise TrainError(
                    f"sequence of rollout {sequence.rollout_id}: expected token ids from 0 to {self._vocab_size - 1}, "
                    f"found {sequence.ids.min()} to {sequence.ids.max()}; the engine and the trainer differ in model."
                )

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Full parameters by Hugging Face name, tied ones once; on rank 0 only.

        Every rank runs it to its end. A tensor may share the live parameter's memory: copy it to keep it.
        """
        for name, tensor in full_tensors(self._model):
            if self._ranks.rank == 0:
                yield name, tensor

    def save(self, folder: Path) -> None:
        """Write parameters, optimizer, counters and RNG into `folder`, a file per rank; returns when all have."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        ranks = self._ranks
        write_shard(folder, self._state_tensors(), rank=ranks.rank, world_size=ranks.world_size)
        ranks.meet()
        if ranks.rank == 0:
            index = {
                "world_size": ranks.world_size,
                "parameters": global_shapes(self._model),
                "optimizer": bool(self._policy.optimizer.state),
                "progress": asdict(self._trainer.progress),
            }
            write_index(folder, index)
        ranks.meet()

    def load(self, folder: Path) -> None:
        """Restore what `save` wrote, also for another number of ranks; TrainError when it is incomplete or unlike."""
        folder = Path(folder)
        index = read_index(folder)
        expected = global_shapes(self._model)
        if index["parameters"] != expected:
            raise TrainError(
                f"expected the state of the model in {self._source}, found in {folder} that of another: "
                f"{_first_difference(index['parameters'], expected)}."
            )
        ranks = self._ranks
        reader = ShardReader(folder, saved_ranks=index["world_size"], rank=ranks.rank, world_size=ranks.world_size)
        self._restore(reader, optimizer=index["optimizer"])
        self._trainer.progress = Progress(**index["progress"])
        ranks.meet()

    def export(self, folder: Path) -> None:
        """Write the model as a Hugging Face folder with the tokenizer files of the source; returns when it is there."""
        tensors = {name: tensor.cpu() for name, tensor in self.weights()}
        if self._ranks.rank == 0:
            export_model(self._model, tensors, Path(folder), source=self._source)
        self._ranks.meet()

    def close(self) -> None:
        """Leave the process group. Safe to call twice."""
        self._ranks.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _state_tensors(self) -> dict[str, Tensor]:
        """This rank's parameters, moments, step counts and RNG by the names of the file."""
        policy = self._policy
        tensors = {f"param/{name}": shard for name, shard in policy.shards.items()}
        for name, parameter in policy.shards.items():
            state = policy.optimizer.state.get(parameter)
            if state:
                tensors |= {f"{moment}/{name}": state[moment] for moment in MOMENTS}
                tensors[f"updates/{name}"] = state["step"].reshape(1)
        return {**tensors, "rng": torch.get_rng_state()}

    @torch.no_grad()
    def _restore(self, reader: ShardReader, *, optimizer: bool) -> None:
        """Put back what `_state_tensors` gave. Another number of ranks keeps this process's own RNG."""
        policy = self._policy
        policy.optimizer.state.clear()
        for name, parameter in policy.shards.items():
            parameter.copy_(reader.tensor(f"param/{name}"))
            if optimizer:
                state = {moment: reader.tensor(f"{moment}/{name}").to(parameter.device) for moment in MOMENTS}
                policy.optimizer.state[parameter] = {"step": reader.first(f"updates/{name}").reshape(()), **state}
        if reader.same_ranks:
            torch.set_rng_state(reader.first("rng"))


def _prepare_process(threads: int, seed: int) -> None:
    """Threads, determinism and seed of this process; progress bars of model files would tear a live display."""
    disable_progress_bar()
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.manual_seed(seed)


def _first_difference(found: Mapping[str, list[int]], expected: Mapping[str, list[int]]) -> str:
    for name in sorted({*found, *expected}):
        if found.get(name) != expected.get(name):
            return f"{name} has shape {found.get(name)} instead of {expected.get(name)}"
    return "the order of the parameters differs"
