"""Demonstrations as training sequences: conversations whose assistant turns are trained."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import numpy as np

from miles_cli.run_config import SftSection
from miles_core.batch import TrainBatch, TrainSequence
from miles_core.data.jsonl import JsonlConfig, JsonlSource
from miles_core.errors import DataError, MilesError, TokenError
from miles_core.prompt import Prompt
from miles_tito.derive import render_marked
from miles_tito.tokenizer import ChatTokenizer

CLOCK = datetime(2000, 1, 1)
"""What a template that asks for the time sees: the same in every run."""

Message = Mapping[str, Any]


class Demonstrations:
    """Batches of demonstrations in a seeded order, epoch after epoch. Each is tokenized once."""

    def __init__(self, config: SftSection, chat: ChatTokenizer, *, seed: int) -> None:
        self._config, self._chat = config, chat
        data = JsonlConfig(path=config.path, prompt_key=config.messages_key, tools_key=config.tools_key, limit=None)
        self._source = JsonlSource(data, seed=seed)
        self._known: dict[str, TrainSequence] = {}

    def next(self, step: int) -> TrainBatch:
        """The batch of a step."""
        return TrainBatch(
            step=step, sequences=tuple(self._sequence(prompt) for prompt in self._source.next(self._config.batch_size))
        )

    def state(self) -> Mapping[str, Any]:
        """The cursor as JSON."""
        return self._source.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a cursor."""
        self._source.restore(state)

    def _sequence(self, prompt: Prompt) -> TrainSequence:
        row = prompt.prompt_id.partition("-")[2]
        if row not in self._known:
            try:
                sequence = encode(self._chat, prompt.messages, prompt.tools, name=row)
            except MilesError as error:
                raise DataError(f"{self._config.path}, demonstration {row}: {error}") from error
            if sequence.num_tokens > self._config.max_seq_len:
                raise DataError(
                    f"{self._config.path}, demonstration {row}: expected at most {self._config.max_seq_len} tokens, "
                    f"found {sequence.num_tokens}; raise sft.max_seq_len or shorten it."
                )
            self._known[row] = sequence
        return self._known[row]


def encode(
    chat: ChatTokenizer, messages: Sequence[Message], tools: Sequence[Message] = (), *, name: str = "0"
) -> TrainSequence:
    """One conversation as ids in which every assistant turn, its end token included, is trained.

    What follows the last assistant turn is left out. Raises DataError when there is none, TokenError when the template
    does not write a turn where its generation prompt ends.
    """
    turns = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    if not turns or turns[0] == 0:
        raise DataError("expected an assistant turn after at least one other message, found none.")
    transcript = chat.begin(messages[: turns[0]], tools, now=CLOCK)
    for turn, following in zip(turns, [*turns[1:], None], strict=True):
        transcript = transcript.sampled(_turn_ids(chat, messages[: turn + 1], tools), message=messages[turn])
        if following is not None:
            transcript = chat.append(transcript, messages[turn + 1 : following])
    count = transcript.num_tokens
    return TrainSequence(
        group_id=name,
        rollout_id=name,
        ids=np.asarray(transcript.ids, dtype=np.int32),
        loss_mask=np.asarray(transcript.loss_mask, dtype=np.bool_),
        rollout_logprobs=np.zeros(count, dtype=np.float32),
        weight_versions=np.full(count, -1, dtype=np.int64),
        reward=0.0,
    )


def _turn_ids(chat: ChatTokenizer, messages: Sequence[Message], tools: Sequence[Message]) -> list[int]:
    """Ids of the last message as the template writes it: from the end of the generation prompt to the end token."""
    template, marker = chat.template, chat.vocabulary.marker
    before = render_marked(template, marker, messages[:-1], tools=tools, generation_prompt=True, now=CLOCK)
    whole = render_marked(template, marker, messages, tools=tools, generation_prompt=False, now=CLOCK)
    if not whole.startswith(before):
        raise TokenError("the template does not write an assistant turn after its generation prompt.")
    ids, _ = chat.vocabulary.encode(whole[len(before) :])
    ends = [place for place, number in enumerate(ids) if number in chat.stop_token_ids]
    if not ends:
        raise TokenError("the template writes no end token after an assistant turn.")
    return ids[: ends[-1] + 1]
