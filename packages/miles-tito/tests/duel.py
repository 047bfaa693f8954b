"""The product and the oracle side by side on one conversation."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from miles_core.sample import Origin
from miles_tito import ChatTokenizer, NotExtendable, TemplateError, Transcript
from miles_tito.render import ChatTemplate
from miles_tito.verify.vocabulary import default_vocabulary

from .conversations import Step
from .oracle import CLOCK, Finding, Oracle, Refused, Rendering, Walk

Message = Mapping[str, Any]
Ids = Callable[[list[int], int], list[int]]
"""What a policy samples where the template would write these ids and end them with this stop."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One step. finding: the oracle's; refusal: the product's, or None; wrong: what the product got wrong."""

    step: Step
    finding: Finding
    refusal: NotExtendable | None
    transcript: Transcript
    wrong: str = ""

    @property
    def verdict(self) -> str:
        """ "agree", "refused but true", "appended but broken", "wrong", or for a matter of view "doubtful"."""
        if self.wrong:
            return "wrong"
        if self.refusal is None:
            return "appended but broken" if self.finding.broken else "agree"
        if self.finding.true:
            return "refused but true"
        return "doubtful" if self.finding.doubt else "agree"

    def __str__(self) -> str:
        seen = self.finding.broken or self.finding.doubt or "only appends"
        return f"{self.step.kind}: {self.verdict}; oracle: {seen}; product: {self.wrong or self.refusal or 'appended'}"


class Duel:
    """Runs conversations through a template's tokenizer and through the oracle."""

    def __init__(self, source: str, *, chat: ChatTokenizer | None = None, **kwargs: Any) -> None:
        template = ChatTemplate(source, kwargs=kwargs)
        vocabulary = chat.vocabulary if chat else default_vocabulary(template)
        self.chat = chat or ChatTokenizer(template.with_special_tokens(vocabulary.special_tokens), vocabulary)
        names = vocabulary.special_tokens
        self.oracle = Oracle(Rendering(source, controls=list(vocabulary.controls), special_tokens=names, kwargs=kwargs))

    def run(
        self, start: Sequence[Message], tools: Sequence[Message], steps: Sequence[Step], *, sample: Ids | None = None
    ) -> list[Outcome]:
        """Outcomes up to and including the first step that the product refuses or gets wrong.

        sample: what the policy makes of the ids that the template would write; the same ids when omitted.
        """
        try:
            walk = self.oracle.begin(start, tools)
        except Refused:
            walk = None
        try:
            transcript = self.chat.begin(start, tools, now=CLOCK)
        except TemplateError:
            transcript = None
        assert (walk is None) == (transcript is None), "one of the two refuses the prompt"
        outcomes: list[Outcome] = []
        for step in steps if walk and transcript else ():
            finding = self.oracle.step(walk, step.turn, step.new)
            outcome, transcript = self._step(transcript, walk, finding, step, sample)
            outcomes.append(outcome)
            if outcome.refusal or outcome.wrong or finding.after is None:
                break
            walk = finding.after
        return outcomes

    def _step(
        self, transcript: Transcript, walk: Walk, finding: Finding, step: Step, sample: Ids | None
    ) -> tuple[Outcome, Transcript]:
        ids = self._ids(walk, finding, step, sample)
        done = transcript.sampled(ids, message=step.turn)
        try:
            grown = self.chat.append(done, step.new)
        except NotExtendable as refusal:
            return Outcome(step, finding, refusal, done), done
        wrong = "" if finding.broken else self._wrong(grown, finding)
        sampled = [span for span in grown.spans if span.origin is Origin.SAMPLED]
        if sampled[-1].ids not in (tuple(ids), tuple(ids[:-1])):
            wrong = wrong or "the sampled ids changed"
        if self.chat.verify(grown).hard:
            wrong = wrong or f"verify finds {self.chat.verify(grown).first}"
        return Outcome(step, finding, None, grown, wrong), grown

    def _ids(self, walk: Walk, finding: Finding, step: Step, sample: Ids | None) -> list[int]:
        stops = self.chat.profile.stops
        body, stop = (
            self.oracle.spelled(walk, finding, stops)
            if finding.after
            else (str(step.turn["content"]), next(iter(stops), ""))
        )
        ids = self.chat.vocabulary.encode(body)[0]
        number = self.chat.vocabulary.id_of(stop)
        if sample is not None and number is not None:
            return sample(ids, number)
        return ids if number is None else [*ids, number]

    def _wrong(self, transcript: Transcript, finding: Finding) -> str:
        """What the oracle says against the text outside the sampled spans."""
        decode, stops = self.chat.vocabulary.decode, self.chat.stop_token_ids
        fixed: list[list[int]] = [[]]
        for span in transcript.spans:
            if span.origin is not Origin.SAMPLED:
                fixed[-1] += span.ids
            else:
                fixed.append([span.ids[-1]] if span.ids and span.ids[-1] in stops else [])
        turns = [piece.messages[0] for piece in transcript.pieces() if piece.finish is not None]
        return self.oracle.agrees(finding, [decode(ids) for ids in fixed], turns)
