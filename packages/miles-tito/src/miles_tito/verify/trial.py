"""Every shape run through the incremental tokenizer: what was grown, what failed, and where."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from miles_core.errors import TokenError
from miles_tito.errors import NotExtendable, TemplateError
from miles_tito.profile import EPOCH
from miles_tito.tokenizer import ChatTokenizer
from miles_tito.transcript import Transcript
from miles_tito.verify.cause import cause_of
from miles_tito.verify.conversation import Grown, Step
from miles_tito.verify.edges import edges
from miles_tito.verify.report import Failure
from miles_tito.verify.shapes import TOOLS, Shape, shapes, verdict_kind
from miles_tito.verify.turns import turn_ids
from miles_tito.verify.words import Words

_MOST = 60
"""Phrases of one template that a prompt says at most."""

Message = Mapping[str, Any]
Check = Callable[[Grown], Failure | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One shape with one choice of tools and reasoning."""

    shape: Shape
    tools: tuple[Message, ...]
    name: str


@dataclass
class Trial:
    """The results of the runs so far, by kind of append.

    checks: what every append that succeeds must pass; the first failure counts. roles: those that the caller requires.
    real_vocabulary: False where the template came without a tokenizer of its own.
    """

    chat: ChatTokenizer
    checks: Sequence[Check]
    with_tools: bool = True
    roles: tuple[str, ...] = ()
    real_vocabulary: bool = False
    tried: dict[str, int] = field(default_factory=dict)
    failures: dict[str, list[Failure]] = field(default_factory=dict)
    failed_runs: dict[str, list[Run]] = field(default_factory=dict)
    grown: list[Grown] = field(default_factory=list)
    turns: list[tuple[Transcript, Message, list[int]]] = field(default_factory=list)
    """Where turns were sampled: the transcript before, the message, the ids."""
    arguments: list[Mapping[str, Any]] = field(default_factory=list)
    """Template arguments that refusals say would help, each once."""
    refused: dict[str, list[str]] = field(default_factory=dict)
    """Names of the runs whose prompt the template refuses, by its reason."""
    begun: set[str] = field(default_factory=set)
    grown_runs: list[Run] = field(default_factory=list)
    refused_runs: list[Run] = field(default_factory=list)

    def run(self, run: Run) -> bool:
        """Grow the conversation step by step; False when an append is refused or wrong, where it ends."""
        steps = list(run.shape.steps())
        try:
            transcript = self.chat.begin(steps[0][0], run.tools, now=EPOCH)
        except (TemplateError, TokenError) as error:
            self.refused.setdefault(str(error), []).append(run.name)
            self.refused_runs.append(run)
            return True
        self.begun.add(run.shape.name)
        self.grown_runs.append(run)
        for number, (_, turn, appended) in enumerate(steps, 1):
            step = Step(
                chat=self.chat,
                shape=run.name,
                before=transcript,
                turn=turn,
                appended=appended,
                truncated=run.shape.truncated,
                plain=run.shape.plain,
            )
            kind = verdict_kind(appended)
            self.tried[kind] = self.tried.get(kind, 0) + 1
            judged = number % run.shape.judged_every == 0 or number == len(steps)
            result = self._take(step, judged=judged)
            if isinstance(result, Failure):
                self.failures.setdefault(kind, []).append(result)
                self.failed_runs.setdefault(kind, []).append(run)
                return False
            transcript = result
        return True

    def _take(self, step: Step, *, judged: bool) -> Transcript | Failure:
        ids = turn_ids(self.chat, step.before, step.turn, truncated=step.truncated)
        self.turns.append((step.before, step.turn, ids))
        try:
            sampled = step.before.sampled(ids, message=step.turn, finish="length" if step.truncated else "stop")
            after = self.chat.append(sampled, step.appended, close_truncated=step.truncated)
            return (self._judged(step, after) if judged else None) or after
        except NotExtendable as error:
            if error.arguments and error.arguments not in self.arguments:
                self.arguments.append(error.arguments)
            return _certain(cause_of(step, error))
        except TokenError as error:
            reason = str(error).rstrip(".")
            return _certain(cause_of(step, NotExtendable(reason, role=str(step.appended[0]["role"]))))

    def _judged(self, step: Step, after: Transcript) -> Failure | None:
        grown = Grown(step=step, after=after, whole=step.whole(), report=self.chat.verify(after))
        self.grown.append(grown)
        return next((failure for check in self.checks if (failure := check(grown))), None)

    def reach(self, kind: str) -> tuple[int, int]:
        """Conversations with such an append that were begun, and those that the template refuses with any tools."""
        alone = [run for run in self.refused_runs if run.shape.name not in self.begun]
        begun, left_out = (sum(kind in run.shape.kinds for run in some) for some in (self.grown_runs, alone))
        return begun, left_out

    def refusals(self) -> Iterator[tuple[str, list[str]]]:
        """`(reason, runs)` for prompts refused; a shape that begins with other tools is no refusal of its text."""
        for reason, names in self.refused.items():
            alone = [name for name in names if name.split(",")[0] not in self.begun]
            if alone:
                yield reason, alone


def runs(chat: ChatTokenizer, *, tools: bool, thinking: bool | None) -> list[Run]:
    """Every shape with and without reasoning, and, where it does not need tools, with and without these.

    A long shape has tools where its turns have reasoning and none where they have none.
    """
    spelled, phrases = " ".join(lookalikes(chat)), chat.template.phrases[:_MOST]
    say = Words(reasoning=thinking is True)
    found: list[Run] = []
    for reasoning in (False, True) if thinking is None else (thinking,):
        for shape in shapes(tools=tools, reasoning=reasoning, lookalikes=spelled, phrases=phrases):
            for given in _schemas(shape, tools=tools, only=None if thinking is not None else reasoning):
                extra = [", with tools"] if given and not shape.needs_tools else []
                extra += [", with reasoning"] if reasoning else []
                found.append(Run(shape=shape, tools=given, name="".join([shape.name, *extra])))
    # Last, so that an ordinary conversation is the first to show a fault.
    edge_shapes = edges(say, tools=tools, constants=chat.template.constants, phrases=phrases)
    return [*found, *(Run(shape=shape, tools=TOOLS if tools else (), name=shape.name) for shape in edge_shapes)]


def _schemas(shape: Shape, *, tools: bool, only: bool | None) -> tuple[tuple[Message, ...], ...]:
    """The tools that a shape is run with. only: a long shape, tried twice in all, has some just this time, or none."""
    if shape.needs_tools or not tools:
        return (TOOLS if shape.needs_tools else (),)
    return ((), TOOLS) if only is None or shape.judged_every == 1 else (TOOLS if only else (),)


def lookalikes(chat: ChatTokenizer) -> list[str]:
    """Control tokens that this template's own turns are made of, spelled out."""
    marker = chat.vocabulary.marker
    prompt = [token[0] for token in marker.written(chat.profile.generation_prompt)]
    return list(dict.fromkeys([*chat.profile.stops, *prompt]))[:8]


def _certain(failure: Failure | None) -> Failure:
    if failure is None:
        raise AssertionError("a refused append has a cause")
    return failure
