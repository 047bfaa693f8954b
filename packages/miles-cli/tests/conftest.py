"""A random tiny Qwen3 with a byte vocabulary and a ChatML template, made without torch."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CONTROLS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
HIDDEN, INNER, LAYERS, HEADS, HEAD_DIM = 32, 64, 2, 2, 16


def write_tiny_model(folder: Path) -> Path:
    """A Qwen3 folder of 26,000 parameters drawn from a fixed seed."""
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={symbol: n for n, symbol in enumerate(vocabulary)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in CONTROLS])
    tokenizer.save(str(folder / "tokenizer.json"))
    size = tokenizer.get_vocab_size()
    end = tokenizer.token_to_id("<|im_end|>")
    _write(folder / "tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>",
        "chat_template": TEMPLATE,
    })  # fmt: skip
    _write(folder / "generation_config.json", {"eos_token_id": [end]})
    _write(folder / "config.json", {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": size, "hidden_size": HIDDEN,
        "intermediate_size": INNER, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "num_key_value_heads": 1, "head_dim": HEAD_DIM, "max_position_embeddings": 512, "tie_word_embeddings": True,
        "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "attention_bias": False,
        "eos_token_id": end, "pad_token_id": size - 3, "torch_dtype": "float32",
    })  # fmt: skip
    save_file(_weights(size), str(folder / "model.safetensors"), metadata={"format": "pt"})
    return folder


def _weights(size: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)

    def matrix(rows: int, columns: int) -> np.ndarray:
        return (0.05 * rng.standard_normal((rows, columns))).astype(np.float32)

    def ones(count: int) -> np.ndarray:
        return np.ones(count, dtype=np.float32)

    weights = {"model.embed_tokens.weight": matrix(size, HIDDEN), "model.norm.weight": ones(HIDDEN)}
    for layer in range(LAYERS):
        name = f"model.layers.{layer}"
        weights |= {
            f"{name}.self_attn.q_proj.weight": matrix(HEADS * HEAD_DIM, HIDDEN),
            f"{name}.self_attn.k_proj.weight": matrix(HEAD_DIM, HIDDEN),
            f"{name}.self_attn.v_proj.weight": matrix(HEAD_DIM, HIDDEN),
            f"{name}.self_attn.o_proj.weight": matrix(HIDDEN, HEADS * HEAD_DIM),
            f"{name}.self_attn.q_norm.weight": ones(HEAD_DIM),
            f"{name}.self_attn.k_norm.weight": ones(HEAD_DIM),
            f"{name}.mlp.gate_proj.weight": matrix(INNER, HIDDEN),
            f"{name}.mlp.up_proj.weight": matrix(INNER, HIDDEN),
            f"{name}.mlp.down_proj.weight": matrix(HIDDEN, INNER),
            f"{name}.input_layernorm.weight": ones(HIDDEN),
            f"{name}.post_attention_layernorm.weight": ones(HIDDEN),
        }
    return weights


def _write(path: Path, content: dict) -> None:
    path.write_text(json.dumps(content))


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the tiny model."""
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny")
