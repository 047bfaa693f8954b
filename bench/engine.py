"""Local engine against `transformers.generate`: 32 concurrent requests of mixed lengths, one thread each."""

import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

THREADS = 1
CONCURRENCY = 32
ROUNDS = 3


@dataclass(frozen=True)
class Request:
    """A prompt and how many tokens to sample."""

    ids: Sequence[int]
    new_tokens: int


def make_model(folder: Path) -> None:
    """The quickstart's size: 0.46M parameters, Qwen3 architecture, random weights."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=512,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        eos_token_id=None,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)


def make_requests() -> list[Request]:
    """Prompts of 20 to 219 tokens, answers of 16 to 127, all distinct, always the same."""
    return [
        Request(
            ids=[(7 * i + 31 * place + 1) % 512 for i in range(20 + place * 37 % 200)], new_tokens=16 + place * 53 % 112
        )
        for place in range(CONCURRENCY)
    ]


def with_engine(folder: Path, requests: Sequence[Request]) -> Callable[[], int]:
    """A run of the engine over all requests at once; it returns the tokens sampled."""
    from miles_megatron.engine.config import EngineConfig
    from miles_megatron.engine.core import EngineCore
    from miles_megatron.engine.sampling_params import SamplingParams

    config = EngineConfig(context_length=512, max_running=CONCURRENCY, threads=THREADS, prefix_tokens=0)
    core = EngineCore(config, folder)

    async def serve() -> int:
        jobs = [
            core.complete(r.ids, SamplingParams(max_new_tokens=r.new_tokens, sampling_seed=i, ignore_eos=True))
            for i, r in enumerate(requests)
        ]
        return sum(len(c.output_ids) for c in await asyncio.gather(*jobs))

    return lambda: asyncio.run(serve())


def with_transformers(folder: Path, requests: Sequence[Request]) -> Callable[[], int]:
    """`generate` over one left-padded batch until the longest answer; it returns the tokens that were asked for."""
    import torch
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(folder).eval()
    width = max(len(r.ids) for r in requests)
    ids = torch.tensor([[0] * (width - len(r.ids)) + list(r.ids) for r in requests])
    mask = torch.tensor([[0] * (width - len(r.ids)) + [1] * len(r.ids) for r in requests])
    longest = max(r.new_tokens for r in requests)

    def run() -> int:
        with torch.inference_mode():
            model.generate(ids, attention_mask=mask, max_new_tokens=longest, do_sample=True, top_k=0, pad_token_id=0)
        return sum(r.new_tokens for r in requests)

    return run


def measure(run: Callable[[], int]) -> tuple[float, float]:
    """Tokens per second of wall time, and of the process's CPU time, which a busy machine changes less."""
    wall, cpu = time.perf_counter(), time.process_time()
    tokens = run()
    return tokens / (time.perf_counter() - wall), tokens / (time.process_time() - cpu)


def main() -> None:
    """Print the table; rounds alternate, the median counts."""
    import torch
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.set_num_threads(THREADS)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_model(folder)
        requests = make_requests()
        runs = {
            "miles engine": with_engine(folder, requests),
            "transformers.generate": with_transformers(folder, requests),
        }
        for run in runs.values():
            run()
        rates: dict[str, list[tuple[float, float]]] = {label: [] for label in runs}
        for _ in range(ROUNDS):
            for label, run in runs.items():
                rates[label].append(measure(run))
    middle = {
        label: [statistics.median(column) for column in zip(*found, strict=True)] for label, found in rates.items()
    }
    base = middle["transformers.generate"]
    print(
        f"Qwen3 0.46M, {CONCURRENCY} concurrent requests of mixed lengths, {THREADS} thread, sampled, with logprobs\n"
    )
    print("| | tokens/s | ratio | tokens per CPU second | ratio |\n|---|---|---|---|---|")
    for label, (wall, cpu) in middle.items():
        print(f"| {label} | {wall:,.0f} | {wall / base[0]:.2f} | {cpu:,.0f} | {cpu / base[1]:.2f} |")


if __name__ == "__main__":
    main()
