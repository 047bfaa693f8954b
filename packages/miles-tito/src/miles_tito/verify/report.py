"""What a check of a template says, as data, as text and as JSON."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from miles_tito.errors import Divergence

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One conversation that shows why a kind of append is not sound."""

    shape: str
    reason: str
    cure: str
    divergence: Divergence | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether one kind of append is sound: in all `tried` conversations (0: the kind was never reached)."""

    kind: str
    tried: int
    required: bool
    failures: tuple[Failure, ...] = ()
    proof: str = ""
    """"bounded": the cost of an append does not depend on the history; "history": it is derived from a whole render."""

    @property
    def sound(self) -> bool:
        """True when the kind was tried and never failed."""
        return self.tried > 0 and not self.failures

    @property
    def severity(self) -> Severity | None:
        """None when sound, "error" when the kind is required, else "warning"."""
        return None if self.sound else "error" if self.required else "warning"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something about the template that is not about one kind of append."""

    severity: Severity
    what: str
    cure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateReport:
    """The verdicts and findings for one template. facts: what was derived about it."""

    name: str
    verdicts: tuple[Verdict, ...]
    findings: tuple[Finding, ...]
    facts: Mapping[str, Any]

    @property
    def sound(self) -> bool:
        """True when every required kind is sound and no finding is an error."""
        return not self.problems("error")

    def problems(self, severity: Severity) -> list[Verdict | Finding]:
        """What has this severity."""
        items: list[Verdict | Finding] = [*self.verdicts, *self.findings]
        return [item for item in items if item.severity == severity]

    def verdict(self, kind: str) -> Verdict:
        """The verdict on one kind; KeyError for an unknown one."""
        return {verdict.kind: verdict for verdict in self.verdicts}[kind]

    def to_json(self) -> str:
        """Everything as JSON text."""
        data = asdict(self) | {"sound": self.sound}
        for verdict, entry in zip(self.verdicts, data["verdicts"], strict=True):
            entry |= {"sound": verdict.sound, "severity": verdict.severity}
        return json.dumps(data, ensure_ascii=False, indent=1)

    def to_text(self, *, explain: bool = False) -> str:
        """A page for people: a line for each kind, below it the first conversation that fails (all with `explain`)."""
        lines = [f"{self.name}: {'sound' if self.sound else 'NOT SOUND'}"]
        for verdict in self.verdicts:
            lines += _verdict_lines(verdict, explain=explain)
        for finding in self.findings:
            lines.append(f"  {finding.severity}: {finding.what} {finding.cure}".rstrip())
        return "\n".join(lines)


def _verdict_lines(verdict: Verdict, *, explain: bool) -> list[str]:
    state = "sound" if verdict.sound else "not reached" if not verdict.tried else "not sound"
    needed = "" if verdict.required else ", not required"
    proof = f", from {verdict.proof}" if verdict.proof == "history" else ""
    lines = [f"  {verdict.kind:<12} {state} ({verdict.tried} conversations{proof}{needed})"]
    for failure in verdict.failures if explain else verdict.failures[:1]:
        lines.append(f"      in {failure.shape!r}: {failure.reason}")
        lines += [f"        {line}" for line in diff_lines(failure.divergence)]
        if failure.cure:
            lines.append(f"        cure: {failure.cure}")
    return lines


def diff_lines(divergence: Divergence | None) -> Sequence[str]:
    """The divergence as three lines: what both share, what the render has, what the transcript would have."""
    if divergence is None:
        return ()
    return (
        f"  after  {divergence.before[-40:]!r}",
        f"  render {divergence.expected[:60]!r}",
        f"  append {divergence.found[:60]!r}",
    )
