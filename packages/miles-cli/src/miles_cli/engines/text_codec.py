"""Text of token ids and back, with the model folder's own tokenizer."""

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from miles_core.errors import EngineError
from miles_megatron.engine.request import FinishKind, FinishReason

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model")


class TextCodec:
    """A tokenizer behind a lock: fast tokenizers cannot be used by two threads at once."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._lock = threading.Lock()

    @classmethod
    def of_folder(cls, model_dir: Path) -> "TextCodec | None":
        """The folder's tokenizer, None when it has none."""
        if not any((model_dir / name).is_file() for name in TOKENIZER_FILES):
            return None
        from transformers import AutoTokenizer

        return cls(AutoTokenizer.from_pretrained(model_dir, local_files_only=True))

    def encode(self, text: str) -> list[int]:
        """Ids of a plain prompt, with the special tokens the tokenizer adds."""
        with self._lock:
            return list(self._tokenizer(text)["input_ids"])

    def encode_chat(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None
    ) -> list[int]:
        """Ids of a conversation in the folder's chat template, ready for the assistant's turn."""
        with self._lock:
            if not self._tokenizer.chat_template:
                raise EngineError("messages: this model folder has no chat template; send input_ids.", status=400)
            rendered = self._tokenizer.apply_chat_template(
                list(messages), tools=list(tools) if tools else None, add_generation_prompt=True, tokenize=False
            )
            return list(self._tokenizer(rendered, add_special_tokens=False)["input_ids"])

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, special tokens included."""
        return self._decode(ids, skip_special_tokens=False)

    def answer(self, ids: Sequence[int], finish: FinishReason | None) -> str:
        """Text of an answer, without special tokens, without the stop token or string that ended it.

        While the answer runs, a character whose bytes are not all there yet is held back.
        """
        if finish is None:
            return self._decode(ids, skip_special_tokens=True).rstrip("\ufffd")
        if finish.kind is FinishKind.STOP and isinstance(finish.matched, int):
            ids = ids[:-1]
        text = self._decode(ids, skip_special_tokens=True)
        if finish.kind is FinishKind.STOP and isinstance(finish.matched, str):
            text = text.partition(finish.matched)[0]
        return text

    def _decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        with self._lock:
            return str(self._tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens))
