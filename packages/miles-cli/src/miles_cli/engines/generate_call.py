"""`POST /generate` in SGLang's shapes: the body as jobs, completions as answers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from miles_cli.engines.text_codec import TextCodec
from miles_core.errors import EngineError
from miles_megatron.engine.core import choice_seed
from miles_megatron.engine.request import Completion, FinishKind, FinishReason
from miles_megatron.engine.sampling_params import SamplingParams

USED = frozenset({"input_ids", "text", "sampling_params", "stream", "return_logprob", "rid"})
NEUTRAL: Mapping[str, Sequence[Any]] = {
    "logprob_start_len": (-1, None),
    "top_logprobs_num": (0, None),
    "token_ids_logprob": (None, []),
    "return_text_in_logprobs": (False, None),
    "return_hidden_states": (False, None),
    "return_routed_experts": (False, None),
    "lora_path": (None,),
    "image_data": (None,),
    "session_params": (None,),
}
"""Fields that SGLang knows and this engine does not, and the values that ask for nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One answer to make."""

    ids: Sequence[int]
    params: SamplingParams
    rid: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateCall:
    """What a body asks for. many: the answer is a list."""

    jobs: Sequence[Job]
    many: bool
    stream: bool
    return_logprob: bool

    @classmethod
    def parse(cls, body: Mapping[str, Any], text: TextCodec | None) -> "GenerateCall":
        """Check a body; EngineError with status 400 says what was expected."""
        for name, value in body.items():
            if name not in USED and value not in NEUTRAL.get(name, ()):
                raise EngineError(f"{name}: this engine does not support it; leave it out.", status=400)
        prompts, batch = _prompts(body, text)
        params = _per_prompt(body.get("sampling_params") or {}, len(prompts), batch, "sampling_params")
        rids = _per_prompt(body.get("rid"), len(prompts), batch, "rid")
        if batch and isinstance(body.get("rid"), str):
            rids = [f"{rid}-{place}" for place, rid in enumerate(rids)]
        jobs: list[Job] = []
        for ids, raw, rid in zip(prompts, params, rids, strict=True):
            if not isinstance(raw, Mapping):
                raise EngineError(f"sampling_params: expected an object, found {type(raw).__name__}.", status=400)
            if rid is not None and not isinstance(rid, str):
                raise EngineError(f"rid: expected a string, found {type(rid).__name__}.", status=400)
            jobs += expand(ids, SamplingParams.parse(raw), rid)
        return cls(
            jobs=jobs,
            many=batch or len(jobs) > 1,
            stream=_flag(body, "stream"),
            return_logprob=_flag(body, "return_logprob"),
        )


def expand(ids: Sequence[int], params: SamplingParams, rid: str | None) -> list[Job]:
    """One job for each of the `n` answers asked for."""
    if params.n == 1:
        return [Job(ids=ids, params=params, rid=rid)]
    return [
        Job(
            ids=ids,
            params=replace(params, n=1, sampling_seed=choice_seed(params.sampling_seed, index)),
            rid=rid and f"{rid}-{index}",
        )
        for index in range(params.n)
    ]


def answer(
    completion: Completion, text: TextCodec | None, *, return_logprob: bool, index: int | None = None
) -> dict[str, Any]:
    """`{"text", "output_ids", "meta_info"}`; `index` tells the streams of a batch apart."""
    meta: dict[str, Any] = {
        "id": completion.rid,
        "finish_reason": finish_reason(completion.finish, len(completion.output_ids)),
        "prompt_tokens": completion.prompt_tokens,
        "completion_tokens": len(completion.output_ids),
        "cached_tokens": completion.cached_tokens,
        "weight_version": completion.weight_version,
        "token_weight_versions": [list(run) for run in completion.weight_versions],
    }
    if return_logprob:
        pairs = zip(completion.logprobs, completion.output_ids, strict=True)
        meta["output_token_logprobs"] = [[logprob, token, None] for logprob, token in pairs]
    shown = text.answer(completion.output_ids, completion.finish) if text else ""
    body: dict[str, Any] = {"text": shown, "output_ids": list(completion.output_ids), "meta_info": meta}
    return body if index is None else {**body, "index": index}


def finish_reason(finish: FinishReason | None, length: int) -> dict[str, Any] | None:
    """SGLang's `finish_reason`; None while the answer runs."""
    if finish is None:
        return None
    if finish.kind is FinishKind.STOP:
        return {"type": "stop", "matched": finish.matched}
    if finish.kind is FinishKind.LENGTH:
        return {"type": "length", "length": length}
    return {"type": "abort", "message": finish.message}


def _prompts(body: Mapping[str, Any], text: TextCodec | None) -> tuple[list[Sequence[int]], bool]:
    given = [name for name in ("input_ids", "text") if body.get(name) is not None]
    if len(given) != 1:
        raise EngineError(f"expected either input_ids or text, found {' and '.join(given) or 'neither'}.", status=400)
    value = body[given[0]]
    if given == ["input_ids"]:
        if not isinstance(value, list) or not value:
            raise EngineError("input_ids: expected a list of integers, or a list of such lists.", status=400)
        batch = isinstance(value[0], list)
        if batch and not all(isinstance(ids, list) for ids in value):
            raise EngineError("input_ids: expected every prompt of the batch as a list of integers.", status=400)
        return (value if batch else [value]), batch
    if text is None:
        raise EngineError("text: this model folder has no tokenizer; send input_ids.", status=400)
    batch = isinstance(value, list)
    texts = value if batch else [value]
    if not texts or not all(isinstance(t, str) for t in texts):
        raise EngineError("text: expected a string or a list of strings.", status=400)
    return [text.encode(t) for t in texts], batch


def _per_prompt(value: Any, count: int, batch: bool, name: str) -> list[Any]:
    if not isinstance(value, list):
        return [value] * count
    if not batch or len(value) != count:
        raise EngineError(f"{name}: expected one for each of the {count} prompts, found {len(value)}.", status=400)
    return value


def _flag(body: Mapping[str, Any], name: str) -> bool:
    value = body.get(name)
    if not isinstance(value, bool | None):
        raise EngineError(f"{name}: expected true or false, found {value!r}.", status=400)
    return bool(value)
