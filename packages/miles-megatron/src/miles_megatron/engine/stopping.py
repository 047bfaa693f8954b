"""When a generation ends."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from miles_megatron.engine.request import FinishKind, FinishReason, Request

Decode = Callable[[Sequence[int]], str]
"""Text of token ids, special tokens included."""

TAIL_MARGIN = 8
"""Tokens decoded beyond the longest stop string: a token has at least one byte, but a character may span several."""


@dataclass(frozen=True, slots=True)
class StopRules:
    """eos_ids: all end-of-sequence ids of the model. decode: needed for stop strings."""

    eos_ids: Collection[int]
    decode: Decode | None = None

    def check(self, request: Request) -> FinishReason | None:
        """The reason to end after the last token, if any: a stop token first, then a stop string, then the length."""
        token = request.tokens[-1]
        params = request.params
        if token in params.stop_token_ids or (token in self.eos_ids and not params.ignore_eos):
            return FinishReason(FinishKind.STOP, matched=token)
        if params.stop and self.decode is not None:
            matched = self._matched_string(request, self.decode)
            if matched is not None:
                return FinishReason(FinishKind.STOP, matched=matched)
        if len(request.tokens) >= request.limit:
            return FinishReason(FinishKind.LENGTH)
        return None

    @staticmethod
    def _matched_string(request: Request, decode: Decode) -> str | None:
        longest = max(len(stop.encode()) for stop in request.params.stop)
        text = decode(request.output_ids[-(longest + TAIL_MARGIN) :])
        found = [(text.find(stop), stop) for stop in request.params.stop if stop in text]
        return min(found)[1] if found else None
