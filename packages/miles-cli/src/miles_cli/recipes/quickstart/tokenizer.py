"""The quickstart's tokenizer: byte-level BPE of a few hundred entries, trained on the recipe's own text."""

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKUP = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
VOCAB_SIZE = 640
PIECES = Regex(r"\d{1,2}| ?\p{L}+|(?: ?[^\s\p{L}\d])+(?: (?!\p{L}))?|\s")
"""One or two digits, so that a number of a story is one entry, easy to copy; a word with the space before it; a run of
punctuation, and the space after it if no word follows."""


def train(texts: Iterable[str]) -> Tokenizer:
    """A tokenizer for texts of this kind; control tokens and tool markup are whole entries, any byte has one."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(PIECES, behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(CONTROL + MARKUP),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens([AddedToken(text, normalized=False, special=False) for text in MARKUP])
    return tokenizer


def save(tokenizer: Tokenizer, folder: Path) -> None:
    """Write `tokenizer.json` and `tokenizer_config.json`."""
    document = json.loads(tokenizer.to_str())
    for entry in document["added_tokens"]:
        entry["special"] = entry["content"] in CONTROL
    (folder / "tokenizer.json").write_text(json.dumps(document, ensure_ascii=False, indent=1) + "\n")
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "clean_up_tokenization_spaces": False,
        "model_max_length": 512,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")
