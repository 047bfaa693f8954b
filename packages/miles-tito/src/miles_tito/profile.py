"""What was found out about a chat template: enough to say how it behaves, and to notice when it changes."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import chain, product
from pathlib import Path
from typing import Any, Self

import xxhash

from miles_core.errors import TokenError
from miles_tito.derivation import derivation_digest
from miles_tito.errors import TemplateError, shared_prefix
from miles_tito.marks import Marker
from miles_tito.parsers.detect import detect
from miles_tito.profile_json import dumped, values_in
from miles_tito.render import ChatTemplate
from miles_tito.sentinels import sentinel, with_sentinels
from miles_tito.switches import keepers
from miles_tito.vocabulary import Vocabulary

Message = Mapping[str, Any]
EPOCH = datetime(2026, 1, 1, 12, 0, 0)
"""The clock of every render that derives something."""

USER: Message = {"role": "user", "content": "u"}
CALL: Message = {"id": "abcdefgh1", "type": "function", "function": {"name": "look", "arguments": '{"zq": "x"}'}}
TOOL: Message = {"role": "tool", "tool_call_id": "abcdefgh1", "name": "look", "content": "t"}
LOOK: Message = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Looks something up.",
        "parameters": {
            "type": "object",
            "properties": {"zq": {"type": "string", "description": "What."}},
            "required": ["zq"],
        },
    },
}
SAYS: Message = {"role": "assistant", "content": "a"}
CALLS: Message = {"role": "assistant", "content": "", "tool_calls": [CALL]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Facts derived from one template with its arguments and vocabulary.

    fingerprint: of template, arguments and vocabulary. arguments: form in which tool-call arguments reach the template.
    stops: texts that end a turn. stop_ids: their ids, all end-of-sequence ids included.
    generation_prompt: after one user message. prefills: the parts of generation prompts that belong to the turn.
    roles: roles whose text shows up when appended after a turn. reasoning_kept: None, or the template arguments (maybe
    none) under which reasoning stays in history after the next user message. format: how turns are parsed.
    schemas: form in which tool schemas reach the template, "none" where it shows none.
    beside_calls: what stands for the content of a turn that only calls tools, so that the calls are written.
    code: digest of the code that derived and proved it.
    proofs: per append kind, "bounded" (the suffix does not depend on the history) or "history" (derived from it).
    triggers: per bounded kind, the texts of the template's own after which, said in a message, the proof does not hold.
    cures: per append kind that was refused, the template arguments with which it would be sound.
    """

    fingerprint: str
    arguments: str
    stops: tuple[str, ...]
    stop_ids: tuple[int, ...]
    generation_prompt: str
    prefills: tuple[str, ...]
    roles: tuple[str, ...]
    reasoning_kept: Mapping[str, Any] | None
    format: str
    schemas: str = "wrapped"
    beside_calls: str = "empty"
    code: str = ""
    proofs: Mapping[str, str] = field(default_factory=dict)
    cures: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    triggers: Mapping[str, list[str]] = field(default_factory=dict)

    def to_json(self) -> str:
        """The profile as JSON text with the version of its form."""
        return dumped(self)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The profile that `to_json` wrote; TokenError for another version, unknown fields and anything else."""
        return cls(**values_in(text, cls))

    def save(self, path: str | Path) -> None:
        """Write the profile where `load`, and the `profile` argument of `from_pretrained`, read it."""
        Path(path).write_text(self.to_json() + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """The profile that `save` wrote; TokenError with the file's name for anything else."""
        try:
            return cls.from_json(Path(path).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise TokenError(f"expected a profile in {path}, but it cannot be read: {error}.") from error
        except TokenError as error:
            raise TokenError(f"{path}: {error}") from None

    def with_proof(self, kind: str, proof: str, triggers: Sequence[str] = ()) -> Self:
        """The profile with one more proved kind."""
        known = {**self.triggers, kind: list(triggers)} if triggers else self.triggers
        return replace(self, proofs={**self.proofs, kind: proof}, triggers=known)

    def prepared(self, template: ChatTemplate) -> ChatTemplate:
        """The template with arguments, schemas and the content beside calls in the forms that it needs."""
        formed = template.with_arguments(self.arguments).with_schemas(self.schemas)
        return formed.with_beside_calls(self.beside_calls)

    def with_cure(self, kind: str, arguments: Mapping[str, Any]) -> Self:
        """The profile with the template arguments that make one more kind sound."""
        return replace(self, cures={**self.cures, kind: dict(arguments)})


def derive_profile(template: ChatTemplate, vocabulary: Vocabulary) -> tuple[Profile, ChatTemplate]:
    """Derive the facts; the template comes back with the argument form it needs."""
    schemas = _schemas(template)
    template = _writing_calls(template.with_schemas(schemas))
    stops = _stops(template, vocabulary)
    ends = [stop for stop in stops if stop in vocabulary.controls and stop not in _parting(template, stops)]
    ids = [*vocabulary.stop_ids, *(vocabulary.controls[stop] for stop in ends)]
    return (
        Profile(
            fingerprint=fingerprint(template, vocabulary),
            arguments=template.arguments,
            stops=stops,
            stop_ids=tuple(dict.fromkeys(ids)),
            generation_prompt=_generation_prompt(template),
            prefills=_prefills(template, vocabulary.marker),
            roles=_roles(template),
            reasoning_kept=_reasoning_kept(template),
            format=detect(template),
            schemas=schemas,
            beside_calls=template.beside_calls,
            code=derivation_digest(),
        ),
        template,
    )


def fingerprint(template: ChatTemplate, vocabulary: Vocabulary) -> str:
    """Hashes of everything a profile depends on, part by part: template, arguments, tokenizer."""
    arguments = json.dumps([template.kwargs, template.special_tokens], sort_keys=True, default=str)
    parts = {"template": template.source, "arguments": arguments, "tokenizer": vocabulary.fingerprint_text()}
    return " ".join(f"{name}:{xxhash.xxh3_64_hexdigest(text.encode())}" for name, text in parts.items())


def try_render(template: ChatTemplate, messages: Sequence[Message], *, generation_prompt: bool = False) -> str | None:
    """The text, without tools unless the template insists on some; None when it refuses both ways."""
    for tools in ((), (LOOK,)):
        try:
            plain = template.normalised(messages)
            return template.render(plain, tools=tools, generation_prompt=generation_prompt, now=EPOCH)
        except TemplateError:
            continue
    return None


def _schemas(template: ChatTemplate) -> str:
    """The first form in which the function's name and description show up."""
    function = {**LOOK["function"], "name": "zqlookqz", "description": "zqfindsqz"}
    for form in ("wrapped", "bare"):
        tried = template.with_schemas(form)
        try:
            plain = template.normalised([USER])
            text = tried.render(plain, tools=[{**LOOK, "function": function}], generation_prompt=True, now=EPOCH)
        except TemplateError:
            continue
        if "zqlookqz" in text and "zqfindsqz" in text:
            return form
    return "none"


def _writing_calls(template: ChatTemplate) -> ChatTemplate:
    """The template with the first forms of arguments, and of the content beside them, under which it writes calls."""
    word = with_sentinels(CALLS, "turn", 0).words[-1]
    call = {**CALL, "function": {"name": "look", "arguments": json.dumps({"zq": word})}}
    for beside, form in product(("empty", "null", "absent"), ("object", "string")):
        tried = template.with_arguments(form).with_beside_calls(beside)
        text = try_render(tried, [USER, {**CALLS, "tool_calls": [call]}, TOOL]) or try_render(
            tried, [USER, {**CALLS, "tool_calls": [call]}]
        )
        if text and word in text and "'zq'" not in text and '\\"zq\\"' not in text:
            return tried
    return template


def _stops(template: ChatTemplate, vocabulary: Vocabulary) -> tuple[str, ...]:
    """End-of-sequence tokens, and what the template writes first after a turn whatever follows."""
    names = {number: token for token, number in vocabulary.controls.items()}
    found = [names[number] for number in vocabulary.stop_ids if number in names]
    turn = with_sentinels(SAYS, "turn", 0)
    for follow in ([], [USER], [{"role": "system", "content": "s"}]):
        found += _first_control(try_render(template, [USER, turn.message, *follow]), turn.words[-1], vocabulary.marker)
    return tuple(dict.fromkeys([*found, *_call_stop(template, found, vocabulary.marker)]))


def _parting(template: ChatTemplate, stops: Sequence[str]) -> set[str]:
    """Stops that also part reasoning from content inside a turn: a policy that stopped there would never answer."""
    turn, reason = with_sentinels(SAYS, "turn", 0), sentinel("reason", 0)
    text = try_render(template, [USER, {**turn.message, "reasoning_content": reason}]) or ""
    start, end = text.find(reason), text.find(turn.words[0])
    return {stop for stop in stops if 0 <= start < end and stop in text[start:end]}


def _call_stop(template: ChatTemplate, known: Sequence[str], marker: Marker) -> list[str]:
    """What ends a turn of tool calls where no known stop does: a token after the calls, else the next opener.

    A token that closes something the calls opened is neither.
    """
    called = with_sentinels(CALLS, "turn", 0)
    alone = try_render(template, [USER, called.message])
    shown = try_render(template, [USER, called.message, {**TOOL, "content": "zqnewaqz"}])
    if not alone or not shown or called.words[-1] not in alone or called.words[-1] not in shown:
        return []
    new = shown.find("zqnewaqz")
    if any(stop in shown[shown.index(called.words[-1]) : new] for stop in known):
        return []
    common = alone[: min(_shared(alone, shown, marker), _shared(shown, alone, marker))].rstrip()
    written = [match[0] for match in marker.written(common)]
    last = written[-1:] if written and common.endswith(written[-1]) else []
    if last and not _closes(last[0], written[:-1]):
        return last
    opener = marker.first(shown, len(common))
    return [opener[0]] if opener and opener.start() < new else last


def _closes(token: str, before: Sequence[str]) -> bool:
    return token.startswith("</") or _stem(token) in {_stem(other) for other in before if other != token}


def _stem(token: str) -> str:
    return re.sub(r"begin|start|prefix|end|stop|suffix|[^a-z]", "", token.lower())


def _first_control(text: str | None, word: str, marker: Marker) -> list[str]:
    if text is None or word not in text:
        return []
    control = marker.first(text, text.index(word) + len(word))
    return [control[0]] if control else []


def _generation_prompt(template: ChatTemplate) -> str:
    without, with_prompt = try_render(template, [USER]), try_render(template, [USER], generation_prompt=True)
    if without is None or with_prompt is None or not with_prompt.startswith(without):
        return ""
    return with_prompt[len(without) :]


def _prefills(template: ChatTemplate, marker: Marker) -> tuple[str, ...]:
    """What generation prompts write beyond that which every rendered turn begins with."""
    turn = with_sentinels(SAYS, "turn", 0)
    found: set[str] = set()
    for context in ([USER], [USER, SAYS, USER], [USER, CALLS, TOOL]):
        prompt = try_render(template, context, generation_prompt=True)
        if prompt is None:
            continue
        shared = [len(prompt)]
        for follow in ([], [USER], [CALLS, TOOL]):
            text = try_render(template, [*context, turn.message, *follow])
            if text and turn.words[0] in text:
                shared.append(_shared(prompt, text[: text.index(turn.words[0])], marker))
        called = try_render(template, [*context, CALLS, TOOL])
        if called:
            shared.append(_shared(prompt, called, marker))
        plain = try_render(template, context)
        # A render that parts from the prompt before the turn begins says nothing about how the turn begins.
        floor = len(plain) if plain is not None and prompt.startswith(plain) else 0
        found.add(prompt[min(length for length in shared if length > floor or length == len(prompt)) :])
    return tuple(sorted(found - {""}))


def _shared(prompt: str, text: str, marker: Marker) -> int:
    """Length of the shared start, never ending inside a control token of the prompt."""
    length = shared_prefix(prompt, text)
    inside = [m.start() for m in marker.written(prompt) if m.start() < length < m.end()]
    return inside[0] if inside else length


def _roles(template: ChatTemplate) -> tuple[str, ...]:
    supported = []
    for role in ("user", "system", "developer", "tool", "assistant"):
        message = TOOL if role == "tool" else {"role": role}
        new = with_sentinels({**message, "content": "x"}, "new", 0)
        text = try_render(template, [USER, CALLS if role == "tool" else SAYS, new.message], generation_prompt=True)
        if text and new.words[0] in text:
            supported.append(role)
    return tuple(supported)


def _reasoning_kept(template: ChatTemplate) -> Mapping[str, Any] | None:
    turn = {**SAYS, "reasoning_content": "zqreasonqz"}
    for kwargs in chain(({},), keepers(template)):
        tried = template.with_kwargs(kwargs)
        text = try_render(tried, [USER, turn, USER])
        if text and "zqreasonqz" in text:
            return kwargs
    return None
