"""`POST /v1/chat/completions` in OpenAI's shapes. Tool calls stay text here; the session server parses them."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from miles_cli.engines.generate_call import Job, expand
from miles_cli.engines.text_codec import TextCodec
from miles_core.errors import EngineError, RecordError
from miles_core.messages import check_messages
from miles_megatron.engine.request import Completion, FinishKind
from miles_megatron.engine.sampling_params import SamplingParams

SAMPLING = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "max_tokens": "max_new_tokens",
    "max_completion_tokens": "max_new_tokens",
    "stop": "stop",
    "stop_token_ids": "stop_token_ids",
    "seed": "sampling_seed",
    "ignore_eos": "ignore_eos",
    "n": "n",
}
"""OpenAI's name -> the engine's."""
USED = frozenset({"model", "messages", "input_ids", "tools", "stream", "logprobs", "rid", "user", *SAMPLING})
NEUTRAL: Mapping[str, Sequence[Any]] = {
    "top_logprobs": (0, None),
    "frequency_penalty": (0, None),
    "presence_penalty": (0, None),
    "logit_bias": (None, {}),
    "tool_choice": ("auto", "none", None),
    "parallel_tool_calls": (True, None),
    "response_format": (None, {"type": "text"}),
    "stream_options": (None, {}, {"include_usage": True}, {"include_usage": False}),
    "store": (False, None),
    "metadata": (None, {}),
}
"""Fields of OpenAI's that this engine does not act on, and the values that ask for nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatCall:
    """What a chat body asks for."""

    jobs: Sequence[Job]
    stream: bool
    include_usage: bool
    logprobs: bool
    model: str

    @classmethod
    def parse(cls, body: Mapping[str, Any], text: TextCodec | None) -> "ChatCall":
        """Check a body; EngineError with status 400 says what was expected. `input_ids` wins over `messages`."""
        for name, value in body.items():
            if name not in USED and value not in NEUTRAL.get(name, ()):
                raise EngineError(f"{name}: this engine does not support it; leave it out.", status=400)
        raw = {SAMPLING[name]: body[name] for name in SAMPLING if body.get(name) is not None}
        options = body.get("stream_options") or {}
        return cls(
            jobs=expand(_prompt(body, text), SamplingParams.parse(raw), body.get("rid")),
            stream=body.get("stream") is True,
            include_usage=options.get("include_usage") is True,
            logprobs=body.get("logprobs") is True,
            model=str(body.get("model") or ""),
        )

    def answer(self, completions: Sequence[Completion], text: TextCodec | None) -> dict[str, Any]:
        """A `chat.completion`."""
        choices = [
            {
                "index": index,
                "message": {"role": "assistant", "content": _content(completion, text)},
                "finish_reason": finish_word(completion),
                "logprobs": self._logprobs(completion, 0, text),
            }
            for index, completion in enumerate(completions)
        ]
        return {**self._head("chat.completion", completions[0].rid), "choices": choices, "usage": usage(completions)}

    def chunk(
        self, completion: Completion, index: int, *, text: TextCodec | None, sent_chars: int, sent_tokens: int
    ) -> dict[str, Any]:
        """A `chat.completion.chunk` with what came after `sent_chars` characters and `sent_tokens` tokens."""
        delta = {"role": "assistant", "content": _content(completion, text)[sent_chars:]}
        choice = {
            "index": index,
            "delta": delta,
            "finish_reason": finish_word(completion) if completion.finish else None,
            "logprobs": self._logprobs(completion, sent_tokens, text),
        }
        return {**self._head("chat.completion.chunk", completion.rid), "choices": [choice]}

    def usage_chunk(self, completions: Sequence[Completion]) -> dict[str, Any]:
        """The last chunk when usage was asked for."""
        head = self._head("chat.completion.chunk", completions[0].rid)
        return {**head, "choices": [], "usage": usage(completions)}

    def _head(self, kind: str, rid: str) -> dict[str, Any]:
        return {"id": rid, "object": kind, "created": int(time.time()), "model": self.model}

    def _logprobs(self, completion: Completion, start: int, text: TextCodec | None) -> dict[str, Any] | None:
        if not self.logprobs:
            return None
        pairs = zip(completion.output_ids[start:], completion.logprobs[start:], strict=True)
        content = [_token(text.decode([token]) if text else str(token), logprob) for token, logprob in pairs]
        return {"content": content}


def finish_word(completion: Completion) -> str:
    """OpenAI's finish reason. EngineError 503 for an aborted answer, which has no word of OpenAI's."""
    assert completion.finish is not None
    if completion.finish.kind is FinishKind.ABORT:
        raise EngineError(f"the answer was aborted: {completion.finish.message}.", status=503)
    return completion.finish.kind.value


def usage(completions: Sequence[Completion]) -> dict[str, Any]:
    """Token counts of all choices of one prompt."""
    prompt, answered = completions[0].prompt_tokens, sum(len(c.output_ids) for c in completions)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": answered,
        "total_tokens": prompt + answered,
        "prompt_tokens_details": {"cached_tokens": completions[0].cached_tokens},
    }


def _token(shown: str, logprob: float) -> dict[str, Any]:
    return {"token": shown, "logprob": logprob, "bytes": list(shown.encode()), "top_logprobs": []}


def _content(completion: Completion, text: TextCodec | None) -> str:
    return text.answer(completion.output_ids, completion.finish) if text else ""


def _prompt(body: Mapping[str, Any], text: TextCodec | None) -> Sequence[int]:
    if body.get("input_ids") is not None:
        ids = body["input_ids"]
        if not isinstance(ids, list):
            raise EngineError(f"input_ids: expected a list of integers, found {type(ids).__name__}.", status=400)
        return ids
    if text is None:
        raise EngineError("messages: this model folder has no tokenizer; send input_ids.", status=400)
    try:
        return text.encode_chat(check_messages(body.get("messages")), body.get("tools"))
    except RecordError as error:
        raise EngineError(f"messages: {error}", status=400) from error
