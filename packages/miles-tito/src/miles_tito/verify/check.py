"""A template judged: every conversation shape grown append by append, and every rule asked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from miles_core.errors import TokenError
from miles_core.messages import ROLES
from miles_tito.proof import FROM_HISTORY
from miles_tito.tokenizer import ChatTokenizer
from miles_tito.verify.checks import APPEND_CHECKS, TEMPLATE_CHECKS
from miles_tito.verify.checks.role_support import is_blank
from miles_tito.verify.mend import mended
from miles_tito.verify.report import TemplateReport, Verdict
from miles_tito.verify.shapes import KINDS, REQUIRED
from miles_tito.verify.targets import Target, load, targets_in
from miles_tito.verify.trial import Trial, lookalikes, runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a check covers.

    template_kwargs: arguments of every render. tools: conversations with tools too. thinking: turns with reasoning,
    without, or both (None). required: kinds whose failure is an error; None for `REQUIRED`, without tools for `user`.
    roles: roles whose every kind of append is required.
    """

    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    tools: bool = True
    thinking: bool | None = None
    required: tuple[str, ...] | None = None
    roles: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _known(self.required or (), self.kinds, "kinds")
        _known(self.roles, ROLES, "roles")

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds that get a verdict."""
        return tuple(kind for kind in KINDS if self.tools or "tool" not in kind)

    @property
    def needed(self) -> tuple[str, ...]:
        """The kinds whose failure is an error."""
        named = self.required if self.required is not None else REQUIRED
        by_role = [kind for kind in KINDS if self.roles and _roles_of(kind) <= set(self.roles)]
        return tuple(kind for kind in self.kinds if kind in (*named, *by_role))


def check_template(
    path: str | Path,
    *,
    template_kwargs: Mapping[str, Any] | None = None,
    tools: bool = True,
    thinking: bool | None = None,
    required: Sequence[str] | None = None,
    roles: Sequence[str] = (),
    tokenizer: str | Path | None = None,
) -> TemplateReport:
    """Say for each kind of append whether the template is sound, with the conversation that shows where it is not.

    path: a model or tokenizer folder with one template, or a `.jinja` file. tokenizer: a folder whose vocabulary is
    used with the file; else one of bytes and the template's control tokens. The rest: see `Settings`. TokenError when
    there is nothing to check, or several templates. It runs in this process: a template that loops never ends.
    """
    settings = Settings(
        template_kwargs=dict(template_kwargs or {}),
        tools=tools,
        thinking=thinking,
        required=None if required is None else tuple(required),
        roles=tuple(roles),
    )
    found = targets_in(Path(path), tokenizer=None if tokenizer is None else Path(tokenizer))
    if len(found) > 1:
        names = ", ".join(target.name for target in found)
        raise TokenError(f"expected one template at {path}, found {names}; check the one you mean, or all of them.")
    return check_target(found[0], settings)


def check_target(target: Target, settings: Settings) -> TemplateReport:
    """The report on one template; TokenError when it cannot be used at all."""
    chat = load(target, settings.template_kwargs)
    if is_blank(chat):
        raise TokenError("expected a chat template, found that it renders nothing of the messages.")
    trial = Trial(
        chat=chat,
        checks=APPEND_CHECKS,
        with_tools=settings.tools,
        roles=settings.roles,
        real_vocabulary=target.tokenizer is not None,
    )
    everything = runs(chat, tools=settings.tools, thinking=settings.thinking)
    for run in everything:
        trial.run(run)
    arguments = mended(trial, everything) if trial.failures else {}
    return TemplateReport(
        name=target.name,
        path=str(target.path),
        verdicts=tuple(_verdict(trial, kind, settings, arguments.get(kind)) for kind in settings.kinds),
        findings=tuple(finding for check in TEMPLATE_CHECKS for finding in check(trial)),
        facts=_facts(chat),
        profile=chat.profile.to_json(),
    )


def _verdict(trial: Trial, kind: str, settings: Settings, argument: Mapping[str, Any] | None) -> Verdict:
    proofs = {proof for key, proof in trial.chat.profile.proofs.items() if _same_kind(key, kind)}
    begun, left_out = trial.reach(kind)
    return Verdict(
        kind=kind,
        begun=begun,
        left_out=left_out,
        tried=trial.tried.get(kind, 0),
        required=kind in settings.needed,
        failures=tuple(trial.failures.get(kind, ())),
        proof="history" if FROM_HISTORY in proofs or not proofs else "bounded",
        argument=argument,
    )


def _same_kind(key: str, kind: str) -> bool:
    """Whether the key of a proof is one of the appends that a kind stands for."""
    appended = key.split(">")[-1].split("|")[0]
    return kind in (appended, appended.replace("tool+", "tools+"))


def _facts(chat: ChatTokenizer) -> dict[str, Any]:
    profile = chat.profile
    return {
        "stops": list(profile.stops),
        "stop_ids": list(profile.stop_ids),
        "generation_prompt": profile.generation_prompt,
        "prefills": list(profile.prefills),
        "arguments": profile.arguments,
        "roles": list(profile.roles),
        "reasoning_kept": None if profile.reasoning_kept is None else dict(profile.reasoning_kept),
        "format": profile.format,
        "proofs": dict(profile.proofs),
        "look_alikes": lookalikes(chat),
    }


def _roles_of(kind: str) -> set[str]:
    return {role.replace("tools", "tool") for role in kind.split("+")}


def _known(given: Sequence[str], known: Sequence[str], what: str) -> None:
    unknown = [name for name in given if name not in known]
    if unknown:
        raise TokenError(f"expected {what} among {', '.join(known)}, found {unknown[0]!r}.")
