"""What a check of a template says, as data."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from miles_tito.errors import Divergence
from miles_tito.verify.rules import RULES, Severity


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One conversation that shows why a kind of append is not sound.

    rule: id of what is broken. diff: the divergence as lines for people: context, `-` whole render, `+` incremental.
    """

    rule: str
    shape: str
    reason: str
    cure: str = ""
    divergence: Divergence | None = None
    diff: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not RULES[self.rule].per_kind:
            raise ValueError(f"expected a rule about appends, found {self.rule!r}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether one kind of append is sound: in all `tried` appends (0: the kind was never reached).

    begun, left_out: conversations with such appends, and those more whose prompt the template refuses. A kind that
    most of them leave out is not sound: what was tried says too little.
    """

    kind: str
    tried: int
    required: bool
    failures: tuple[Failure, ...] = ()
    begun: int = 0
    left_out: int = 0
    proof: str = ""
    """"bounded": the cost of an append does not depend on the history; "history": it is derived from a whole render."""
    argument: Mapping[str, Any] | None = None
    """Template arguments under which the kind is sound, where it is not without them."""

    @property
    def sound(self) -> bool:
        """True when the kind was tried, in most of its conversations, and never failed."""
        return self.tried > 0 and not self.failures and self.left_out <= self.begun

    @property
    def severity(self) -> Severity | None:
        """None when sound, "error" when the kind is required, else "warning"."""
        return None if self.sound else "error" if self.required else "warning"

    @property
    def cure(self) -> str:
        """What would make the kind sound: an argument where one does, else what helps with the first failure."""
        if self.argument is not None:
            return f"Pass the template argument {dict(self.argument)}: with it this kind is sound."
        if self.failures:
            return self.failures[0].cure or RULES[self.failures[0].rule].cure
        return "" if self.sound else "See why the prompts of these conversations are refused."


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something about the template that is not about one kind of append. cure: the rule's own when empty."""

    rule: str
    severity: Severity
    what: str
    cure: str = ""
    diff: tuple[str, ...] = ()

    @property
    def advice(self) -> str:
        """What helps."""
        return self.cure or RULES[self.rule].cure


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateReport:
    """The verdicts and findings for one template.

    name: of the template, unique in a run. path: the file or folder it came from. facts: what was derived about it.
    profile: the derived profile as JSON text, fit to be pinned. seconds: how long the check took, on the clock.
    """

    name: str
    path: str = ""
    verdicts: tuple[Verdict, ...]
    findings: tuple[Finding, ...]
    facts: Mapping[str, Any] = field(default_factory=dict)
    profile: str = ""
    seconds: float = 0.0

    @property
    def sound(self) -> bool:
        """True when every required kind is sound and no finding is an error."""
        return not self.problems("error")

    @property
    def reached(self) -> bool:
        """True when the template rendered at least one conversation."""
        return any(verdict.tried for verdict in self.verdicts)

    def problems(self, severity: Severity) -> list[Verdict | Finding]:
        """What has this severity."""
        items: list[Verdict | Finding] = [*self.verdicts, *self.findings]
        return [item for item in items if item.severity == severity]

    def passes(self, fail_on: Severity) -> bool:
        """True when nothing is as severe as `fail_on` ("error", or "warning" for both)."""
        return self.sound and (fail_on == "error" or not self.problems("warning"))

    def verdict(self, kind: str) -> Verdict:
        """The verdict on one kind; KeyError for an unknown one."""
        return {verdict.kind: verdict for verdict in self.verdicts}[kind]

    def of_rule(self, rule: str) -> tuple[Finding, ...]:
        """The findings under one rule."""
        return tuple(finding for finding in self.findings if finding.rule == rule)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unusable:
    """A template that could not be checked at all, and why, in one sentence."""

    name: str
    path: str
    why: str


Outcome = TemplateReport | Unusable
