"""Runs every conversation shape through the incremental tokenizer and compares it with whole renders."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from miles_core.errors import TokenError
from miles_tito.errors import Divergence, NotExtendable, TemplateError
from miles_tito.marks import unmarked
from miles_tito.profile import EPOCH
from miles_tito.proof import FROM_HISTORY
from miles_tito.render import ChatTemplate, mentions
from miles_tito.template_files import read_text
from miles_tito.tokenizer import ChatTokenizer
from miles_tito.transcript import Transcript
from miles_tito.verify.report import Failure, Finding, TemplateReport, Verdict
from miles_tito.verify.shapes import TOOLS, Shape, kind_of, shapes
from miles_tito.verify.turns import turn_ids
from miles_tito.verify.vocabulary import default_vocabulary

Message = Mapping[str, Any]
KINDS = ("tool", "tools", "user", "system", "assistant", "tools+user")
REQUIRED = ("tool", "tools", "user", "tools+user")
"""Kinds that a template must support unless the caller asks for others: tool results and user turns."""


def check_template(
    model_dir_or_jinja: str | Path,
    *,
    template_kwargs: Mapping[str, Any] | None = None,
    tools: bool = True,
    thinking: bool | None = None,
    required: Sequence[str] | None = None,
) -> TemplateReport:
    """Say for each kind of append whether the template is sound, with the conversation that shows where it is not.

    model_dir_or_jinja: a model or tokenizer folder, or a `.jinja` file (checked with a vocabulary of bytes and the
    template's control tokens). thinking: turns with reasoning, without, or both (None). required: the kinds whose
    failure is an error; without tools only `user` by default. TokenError when there is nothing to check.
    """
    path = Path(model_dir_or_jinja)
    chat = _load(path, template_kwargs or {})
    required = tuple(required if required is not None else REQUIRED if tools else ("user",))
    unknown = [kind for kind in required if kind not in KINDS]
    if unknown:
        raise TokenError(f"expected kinds among {', '.join(KINDS)}, found {unknown[0]!r}.")
    trial = _Trial(chat=chat, tools=TOOLS if tools else ())
    for reasoning in (False, True) if thinking is None else (thinking,):
        for shape in shapes(tools=tools, reasoning=reasoning):
            trial.run(shape, "with reasoning" if reasoning else "")
    kinds = [kind for kind in KINDS if tools or "tool" not in kind]
    return TemplateReport(
        name=path.name,
        verdicts=tuple(trial.verdict(kind, required=kind in required) for kind in kinds),
        findings=(*trial.refusals(), *trial.findings, *_findings(chat)),
        facts=_facts(chat),
    )


def _load(path: Path, kwargs: Mapping[str, Any]) -> ChatTokenizer:
    if path.is_dir():
        return ChatTokenizer.from_pretrained(path, template_kwargs=kwargs)
    if not path.is_file():
        raise TokenError(f"expected a model folder or a .jinja file, found nothing at {path}.")
    template = ChatTemplate(read_text(path), kwargs=kwargs)
    vocabulary = default_vocabulary(template)
    return ChatTokenizer(template.with_special_tokens(vocabulary.special_tokens), vocabulary)


@dataclass
class _Trial:
    """The results of the conversations so far."""

    chat: ChatTokenizer
    tools: tuple[Message, ...]
    tried: dict[str, int] = field(default_factory=dict)
    failures: dict[str, list[Failure]] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    refused: dict[str, list[str]] = field(default_factory=dict)

    def run(self, shape: Shape, variant: str) -> None:
        """Grow the conversation step by step; it ends at the first append that is refused or wrong."""
        name = f"{shape.name} {variant}".strip()
        steps = list(shape.steps())
        transcript = self._begin(steps[0][0], shape)
        if transcript is None:
            return
        for _, turn, appended in steps:
            grown = self._step(transcript, turn, appended, shape, name)
            if grown is None:
                return
            transcript = grown

    def _begin(self, messages: Sequence[Message], shape: Shape) -> Transcript | None:
        """The prompt, without tools unless the shape needs them or the template insists; None when it refuses."""
        for tools in (self.tools,) if shape.needs_tools else ((), self.tools):
            try:
                return self.chat.begin(messages, tools, now=EPOCH)
            except TemplateError as error:
                refusal = str(error)
        self.refused.setdefault(refusal, []).append(shape.name)
        return None

    def _step(
        self, transcript: Transcript, turn: Message, appended: Sequence[Message], shape: Shape, name: str
    ) -> Transcript | None:
        kind = kind_of(appended)
        ids = turn_ids(self.chat, transcript, turn, truncated=shape.truncated)
        self._check_parser(turn, transcript, ids)
        sampled = transcript.sampled(ids, message=turn, finish="length" if shape.truncated else "stop")
        try:
            grown = self.chat.append(sampled, appended, close_truncated=shape.truncated)
        except NotExtendable as error:
            self._fail(kind, Failure(shape=name, reason=error.reason, cure=error.help, divergence=error.divergence))
            return None
        if not self._agrees(grown, kind, name, appended):
            return None
        self.tried[kind] = self.tried.get(kind, 0) + 1
        return grown

    def refusals(self) -> list[Finding]:
        """A finding for each reason why prompts were refused."""
        return [
            Finding(severity="warning", what=f"{reason} (prompts of {len(names)} conversations, first {names[0]!r})")
            for reason, names in self.refused.items()
        ]

    def _agrees(self, transcript: Transcript, kind: str, name: str, appended: Sequence[Message]) -> bool:
        first = self.chat.verify(transcript).first
        if first is not None and first.kind != "assistant_text":
            self._fail(kind, Failure(shape=name, reason=str(first.kind), cure="", divergence=first.divergence))
            return False
        text = unmarked("".join(piece.text or "" for piece in transcript.pieces()))
        plain = self.chat.template.normalised(appended)
        lost = next((m for m in plain if m["content"].split()[0] not in text), None)
        if lost is not None:
            where = Divergence(offset=0, before="", expected=lost["content"][:60], found=text[-200:])
            self._fail(
                kind, Failure(shape=name, reason=f"the {lost['role']} message is lost", cure="", divergence=where)
            )
            return False
        return True

    def _fail(self, kind: str, failure: Failure) -> None:
        self.tried[kind] = self.tried.get(kind, 0) + 1
        self.failures.setdefault(kind, []).append(failure)

    def _check_parser(self, turn: Message, transcript: Transcript, ids: Sequence[int]) -> None:
        wanted = [call["function"]["name"] for call in turn.get("tool_calls") or ()]
        calls = transcript.parse(ids).get("tool_calls") or ()
        found = [call["function"]["name"] for call in calls if not call.get("invalid")]
        if wanted != found and not any(finding.what == _UNREAD for finding in self.findings):
            self.findings.append(Finding(severity="warning", what=_UNREAD, cure="Use a parser that reads this format."))

    def verdict(self, kind: str, *, required: bool) -> Verdict:
        proofs = {proof for key, proof in self.chat.profile.proofs.items() if _plain_kind(key) == kind}
        return Verdict(
            kind=kind,
            tried=self.tried.get(kind, 0),
            required=required,
            failures=tuple(self.failures.get(kind, ())),
            proof="history" if FROM_HISTORY in proofs or not proofs else "bounded",
        )


_UNREAD = "tool calls as the template writes them are not read back from the ids."


def _plain_kind(key: str) -> str:
    return key.split(">")[1].split("|")[0]


def _findings(chat: ChatTokenizer) -> list[Finding]:
    profile = chat.profile
    notes: list[tuple[str, str]] = []
    if mentions(chat.template.source, "strftime_now"):
        notes.append(("the template prints the time; a transcript keeps its clock frozen.", ""))
    if profile.reasoning_kept is None:
        notes.append(("reasoning is dropped from history; sampled tokens keep it, a new branch does not.", ""))
    elif profile.reasoning_kept:
        kept = dict(profile.reasoning_kept)
        notes.append((f"reasoning stays in history only with {kept}.", "Pass it as template argument."))
    if profile.prefills:
        opened = list(profile.prefills)
        notes.append((f"the generation prompt opens the turn with {opened}, which history does not always show.", ""))
    return [Finding(severity="note", what=what, cure=cure) for what, cure in notes]


def _facts(chat: ChatTokenizer) -> dict[str, Any]:
    profile = chat.profile
    return {
        "stops": list(profile.stops),
        "generation_prompt": profile.generation_prompt,
        "arguments": profile.arguments,
        "roles": list(profile.roles),
        "reasoning_kept": None if profile.reasoning_kept is None else dict(profile.reasoning_kept),
        "format": profile.format,
        "proofs": dict(profile.proofs),
    }
