"""The incremental chat tokenizer: what was sampled stays, what the template adds is derived and proved."""

import threading
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from miles_core.errors import TokenError
from miles_core.sample import Finish, Origin, Span
from miles_tito.compare import Report
from miles_tito.cures import Cures
from miles_tito.derive import Deriver, Suffix, render_marked
from miles_tito.errors import Divergence, NotExtendable
from miles_tito.families import family_named
from miles_tito.families.fit import arguments_of, format_of, with_stops_of
from miles_tito.intake import check_conversation, token_ids
from miles_tito.loading import load
from miles_tito.marks import unmarked
from miles_tito.parsers.formats import TurnFormat, format_named
from miles_tito.parsers.stream import StreamParser
from miles_tito.pinning import pinned
from miles_tito.profile import Profile
from miles_tito.profile_cache import cached_profile
from miles_tito.proof import FROM_HISTORY, Prover, context_tools, kind_of, may_be_bounded
from miles_tito.render import ChatTemplate
from miles_tito.session import history_of, verify
from miles_tito.template_files import choose_template
from miles_tito.transcript import Piece, Transcript, own_copy
from miles_tito.trust import Phrasebook, Trust
from miles_tito.vocabulary import Vocabulary

Message = Mapping[str, Any]


class ChatTokenizer:
    """Incremental ids for one chat template and vocabulary. Safe to share between threads."""

    def __init__(
        self,
        template: ChatTemplate,
        vocabulary: Vocabulary,
        *,
        turn_format: TurnFormat | None = None,
        profile: Profile | str | Path | None = None,
        allow_special: bool = False,
    ) -> None:
        derived, self._template = cached_profile(template, vocabulary)
        found = derived if profile is None else pinned(profile, derived)
        self._vocabulary = vocabulary
        self._format = turn_format or format_named(found.format)
        marker = vocabulary.marker.trusting() if allow_special else vocabulary.marker
        self._deriver = Deriver(self._template, marker, found.stops, found.prefills)
        self._prover = Prover(self._deriver)
        self._cures = Cures(self._prover)
        self._phrasebook = Phrasebook(self._template.constants, self._template.numbers)
        self._lock = threading.Lock()
        self._profile = found

    @classmethod
    def from_pretrained(
        cls,
        path_or_tokenizer: Any,
        *,
        chat_template: str | Path | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        family: str = "auto",
        profile: Profile | str | Path | None = None,
        allow_special: bool = False,
    ) -> "ChatTokenizer":
        """From a model or tokenizer folder, a fast tokenizer of transformers, a `tokenizers.Tokenizer`, a `Vocabulary`.

        chat_template: the text or the file of a template to use instead of the tokenizer's own, or the name of one of
        several (`tool_use`, else `default`, when omitted). template_kwargs: arguments of every render.
        family: "auto" derives everything; a name from `families` adds that family's data, checked against the template.
        profile: a pinned profile, or its file: TokenError when what is derived now differs from it.
        allow_special: text in a message or schema that spells a control token becomes that token. Leave it False unless
        every message is your own: a user or a tool could end its turn and speak as the system.
        TokenError when there is no fast tokenizer or no chat template.
        """
        loaded = load(path_or_tokenizer)
        source = choose_template(loaded.templates, chat_template)
        vocabulary, kwargs, turn_format = loaded.vocabulary, dict(template_kwargs or {}), None
        chosen = None if family == "auto" else family_named(family)
        if chosen is not None:
            vocabulary, kwargs = with_stops_of(chosen, vocabulary), {**arguments_of(chosen, source), **kwargs}
        template = ChatTemplate(source, kwargs=kwargs, special_tokens=vocabulary.special_tokens)
        if chosen is not None:
            derived, prepared = cached_profile(template, vocabulary)
            turn_format = format_of(chosen, prepared, derived.format)
        return cls(template, vocabulary, turn_format=turn_format, profile=profile, allow_special=allow_special)

    @property
    def profile(self) -> Profile:
        """What was derived about the template so far."""
        return self._profile

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Every id that ends a turn: those of the model's files, the tokenizer's, the template's own end marks."""
        return self._profile.stop_ids

    @property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary that encodes and decodes."""
        return self._vocabulary

    @property
    def template(self) -> ChatTemplate:
        """The chat template with its arguments."""
        return self._template

    @property
    def deriver(self) -> Deriver:
        """What derives suffixes from the template."""
        return self._deriver

    @property
    def phrasebook(self) -> Phrasebook:
        """What tells which of the template's constants are said."""
        return self._phrasebook

    def begin(
        self, messages: Sequence[Message], tools: Sequence[Message] | None = None, *, now: datetime | None = None
    ) -> Transcript:
        """The prompt of a conversation, generation prompt included, as a transcript that awaits a turn.

        now: the clock that templates see in this conversation; the present when omitted.
        """
        check_conversation(messages, tools)
        now = now or datetime.now()
        messages, tools = tuple(own_copy(messages)), tuple(own_copy(tools or ()))
        text = render_marked(
            self._template,
            self._deriver.marker,
            messages,
            tools=tools,
            generation_prompt=True,
            now=now,
            joints=self._deriver.joints,
        )
        ids, _ = self._vocabulary.encode(text)
        piece = Piece(spans=(Span(origin=Origin.PROMPT, ids=tuple(ids)),), messages=messages, text=text)
        return Transcript(
            _chat=self,
            _parent=None,
            _piece=piece,
            tools=tools,
            now=now,
            num_tokens=len(ids),
            num_messages=len(messages),
            all_sampled=all(message["role"] != "assistant" for message in messages),
            trust=Trust(said=self._phrasebook.fresh([*tools, *messages])),
        )

    def append(
        self, transcript: Transcript, new_messages: Sequence[Message], *, close_truncated: bool = False
    ) -> Transcript:
        """Add messages after a sampled turn: glue, their ids, and the next generation prompt.

        A stop that was sampled is kept where the template writes the same one; another sampled stop gives way to the
        template's; where none was sampled the template's is added, masked. A truncated turn is closed that way only
        with `close_truncated`. NotExtendable when the ids cannot be proved to be those of a whole render.
        """
        check_conversation(new_messages)
        if not new_messages:
            raise TokenError("expected at least one message to append, found none.")
        new_messages = own_copy(new_messages)
        role = new_messages[0]["role"]
        if transcript.awaits_turn:
            raise _refused(
                transcript,
                "the transcript awaits a turn",
                role,
                expected="a sampled turn",
                help="Sample a turn first, or begin a new transcript from all messages.",
            )
        self._check_finish(transcript, role, close_truncated=close_truncated)
        try:
            suffix, trust = self._suffix(transcript, new_messages)
        except NotExtendable as error:
            raise self._helped(error, transcript, new_messages) from error
        return self._extended(transcript, suffix, new_messages, trust)

    def _check_finish(self, transcript: Transcript, role: str, *, close_truncated: bool) -> None:
        finish, ids = transcript.last.finish, transcript.last.spans[0].ids
        if finish is Finish.ABORTED:
            raise _refused(
                transcript,
                "the last turn was aborted",
                role,
                expected="a finished turn",
                help="Sample the turn again from `transcript.parent`.",
            )
        ended = bool(ids) and ids[-1] in self.stop_token_ids
        if finish is Finish.LENGTH and not ended and not close_truncated:
            raise _refused(
                transcript,
                "the last turn was truncated before its stop token",
                role,
                expected=" or ".join(self._profile.stops),
                help="Pass close_truncated=True to close it with masked end-of-turn tokens.",
            )

    def _suffix(self, transcript: Transcript, new: Sequence[Message]) -> tuple[Suffix, Trust]:
        """The suffix, and what the transcript that it gives may trust.

        A bounded suffix stands alone where its kind has agreed with the real history in this transcript; until then
        both are derived, and the real history's is the one that counts.
        """
        turn = transcript.last.messages[0]
        trust = transcript.trust.meeting([turn, *new])
        kind = self._kind(turn, new, transcript)
        fresh = self._phrasebook.fresh([turn, *new], trust.said) | ({kind} - trust.said)
        bounded = self._bounded(transcript, new, kind)
        if bounded is not None and trust.covers(kind, fresh):
            return bounded, trust
        history = history_of(transcript, self._vocabulary, self._deriver, self.stop_token_ids)
        whole = self._deriver.whole(history, turn, new, transcript.tools, transcript.now)
        if bounded is None:
            return whole, trust.doubting().hearing(fresh)
        equal = (bounded.text, bounded.marker) == (whole.text, whole.marker)
        return whole, trust.compared(kind, equal=equal).hearing(fresh)

    def _bounded(self, transcript: Transcript, new: Sequence[Message], kind: str) -> Suffix | None:
        """The suffix in a bounded context, where the template's proof of the kind allows one here."""
        turn, trust = transcript.last.messages[0], transcript.trust
        if trust.broken or not transcript.all_sampled or not may_be_bounded(new):
            return None
        proof = self._proof(kind, turn, new, with_tools=bool(transcript.tools))
        if proof == FROM_HISTORY or not trust.said.isdisjoint(self._profile.triggers.get(kind, ())):
            return None
        return self._deriver.bounded(turn, new, transcript.now, tools=context_tools(proof))

    def _helped(self, error: NotExtendable, transcript: Transcript, new: Sequence[Message]) -> NotExtendable:
        turn = transcript.last.messages[0]
        with self._lock:
            helped = self._cures.helped(error, turn, new, with_tools=bool(transcript.tools))
            if helped.arguments:
                self._profile = self._profile.with_cure(self._kind(turn, new, transcript), helped.arguments)
        return helped

    def _kind(self, turn: Message, new: Sequence[Message], transcript: Transcript) -> str:
        return kind_of(turn, new, with_tools=bool(transcript.tools), phrases=self._template.phrases)

    def _proof(self, kind: str, turn: Message, new: Sequence[Message], *, with_tools: bool) -> str:
        if kind not in self._profile.proofs:
            with self._lock:
                if kind not in self._profile.proofs:
                    proof, triggers = self._prover.prove(turn, new, with_tools=with_tools)
                    self._profile = self._profile.with_proof(kind, proof, triggers)
        return self._profile.proofs[kind]

    def _extended(self, transcript: Transcript, suffix: Suffix, new: Sequence[Message], trust: Trust) -> Transcript:
        ids, starts = self._vocabulary.encode(suffix.text)
        end_id = self._vocabulary.id_of(suffix.marker)
        if not ids or ids[0] != end_id:
            raise TokenError(f"expected {suffix.marker!r} to be one token of the vocabulary, found {ids[:4]}.")
        last = transcript.last
        sampled = last.spans[0].ids
        if sampled and sampled[-1] == end_id:
            ids, starts = ids[1:], starts[1:]
        elif sampled and sampled[-1] in self.stop_token_ids:
            transcript = transcript.replace_turn(_without_stop(last))
        spans = self._spans(ids, starts, suffix)
        return transcript._with(
            Piece(spans=spans, messages=tuple(new), text=suffix.text),
            awaits_turn=True,
            all_sampled=transcript.all_sampled and all(message["role"] != "assistant" for message in new),
            trust=trust,
        )

    def _spans(self, ids: Sequence[int], starts: Sequence[int], suffix: Suffix) -> tuple[Span, ...]:
        """Ids as glue (end of the turn), environment, glue (generation prompt)."""
        text = unmarked(suffix.text)
        prompt = self._profile.generation_prompt
        first = len(suffix.marker)
        while first < len(text) and text[first].isspace():
            first += 1
        last = len(text) - len(prompt) if prompt and text.endswith(prompt) else len(text)
        cut = bisect_left(starts, first)
        tail = max(cut, bisect_left(starts, last))
        parts = ((Origin.GLUE, ids[:cut]), (Origin.ENVIRONMENT, ids[cut:tail]), (Origin.GLUE, ids[tail:]))
        return tuple(Span(origin=origin, ids=tuple(some)) for origin, some in parts if some)

    def verify(self, transcript: Transcript) -> Report:
        """Compare the transcript with a canonical render of its messages; see `compare`."""
        return verify(transcript, self._template, self._vocabulary, self._deriver, self.stop_token_ids)

    def parse(
        self, ids: Sequence[int], *, call_seed: int | str = 0, tools: Sequence[Message] | None = None
    ) -> dict[str, Any]:
        """The message that sampled ids spell: content, reasoning_content, tool_calls.

        A call that cannot be read is among tool_calls with `"invalid": True` and its text under "raw".
        call_seed: makes tool-call ids; use another for each turn. tools: say the types of arguments that a format
        writes as bare text. `transcript.parse` gives both.
        """
        check_conversation([], tools)
        return self.stream_parser(call_seed=call_seed, tools=tools).parse(token_ids(ids))

    def stream_parser(
        self, *, call_seed: int | str = 0, prompt: str | None = None, tools: Sequence[Message] | None = None
    ) -> StreamParser:
        """A parser for one turn; see `parse`. prompt: text that ends in that turn's generation prompt, if known."""
        opening, closing = self._format.reasoning
        written = self._profile.generation_prompt if prompt is None else prompt
        prefill = self._deriver.prefill_of(written)
        is_open = bool(opening) and (
            written.rstrip().endswith(opening.rstrip()) or prefill.rfind(opening) > prefill.rfind(closing)
        )
        return StreamParser(
            self._format,
            decode=self._vocabulary.decode,
            stop_ids=self.stop_token_ids,
            reasoning_open=is_open,
            call_seed=call_seed,
            tools=tools or (),
        )


def _refused(transcript: Transcript, reason: str, role: str, *, expected: str, help: str) -> NotExtendable:
    """A refusal for the state that the transcript is in: what it lacks is missing at its end."""
    tail = [number for span in transcript.last.spans for number in span.ids][-20:]
    before = transcript._chat.vocabulary.decode(tail)
    divergence = Divergence(offset=transcript.num_tokens, before=before, expected=expected, found="")
    return NotExtendable(reason, role=role, divergence=divergence, help=help)


def _without_stop(piece: Piece) -> Piece:
    span = piece.spans[0]
    shorter = Span(
        origin=span.origin,
        ids=span.ids[:-1],
        logprobs=span.logprobs[:-1],
        weight_versions=span.weight_versions[:-1],
        trained=span.trained,
    )
    return Piece(spans=(shorter,), messages=piece.messages, finish=piece.finish, dropped=span.ids[-1])
