"""Writes the quickstart's files from a seed: `python -m miles_cli.recipes.quickstart.build FOLDER`.

What it writes equals what the package ships, byte for byte: `prompts.jsonl`, `demonstrations.jsonl` and, in `model/`,
the tokenizer and the configuration. The weights come from `miles run quickstart-warm-start`, which starts there.
"""

import argparse
import json
import random
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2.sandbox import ImmutableSandboxedEnvironment

from miles_cli.recipes.quickstart import problems, tokenizer
from miles_cli.recipes.quickstart.agent import CALCULATOR
from miles_cli.recipes.quickstart.demonstrations import demonstrate

SEED = 20
PROMPTS = 512
DEMONSTRATIONS = 4000
PROMPTS_TWO_STEP_SHARE = 0.1
DEMONSTRATIONS_TWO_STEP_SHARE = 0.2
TEMPLATE = Path(__file__).parent / "model" / "chat_template.jinja"
ARCHITECTURE: Mapping[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 96,
    "intermediate_size": 192,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "hidden_act": "silu",
    "initializer_range": 0.06,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "dtype": "float32",
}


def build(folder: Path) -> None:
    """Write everything but the weights into `folder`."""
    model = folder / "model"
    model.mkdir(parents=True, exist_ok=True)
    prompts = problems.draw_many(random.Random(SEED), PROMPTS, two_step_share=PROMPTS_TWO_STEP_SHARE)
    rng = random.Random(SEED + 1)
    told = problems.draw_many(rng, DEMONSTRATIONS, two_step_share=DEMONSTRATIONS_TWO_STEP_SHARE)
    demonstrations = [demonstrate(rng, problem) for problem in told]
    _write_lines(folder / "prompts.jsonl", ({"prompt": p.question, "label": str(p.answer)} for p in prompts))
    _write_lines(folder / "demonstrations.jsonl", ({"messages": m, "tools": [CALCULATOR]} for m in demonstrations))
    trained = tokenizer.train(render(demonstrations))
    tokenizer.save(trained, model)
    _write_config(model, vocab_size=trained.get_vocab_size(), ids=trained.token_to_id)
    if not (model / TEMPLATE.name).exists():
        shutil.copy(TEMPLATE, model)


def render(conversations: Iterable[Sequence[Mapping[str, Any]]]) -> list[str]:
    """Each conversation as the chat template writes it, with the calculator offered."""
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    return [template.render(messages=messages, tools=[CALCULATOR]) for messages in conversations]


def _write_config(model: Path, *, vocab_size: int, ids: Any) -> None:
    special = {"eos_token_id": [ids("<|im_end|>"), ids("<|endoftext|>")], "pad_token_id": ids("<|endoftext|>")}
    architecture = {**ARCHITECTURE, "vocab_size": vocab_size, **special, "bos_token_id": None}
    _write_json(model / "config.json", architecture)
    _write_json(model / "generation_config.json", {"do_sample": True, "temperature": 1.0, **special})


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def _write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def main() -> None:
    """Read the folder from the command line and build."""
    parser = argparse.ArgumentParser(description="Write the quickstart's prompts, demonstrations and tokenizer.")
    parser.add_argument("folder", type=Path)
    build(parser.parse_args().folder)


if __name__ == "__main__":
    main()
