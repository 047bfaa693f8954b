"""What a chat template really does, found by rendering everything: no derivation, no bounded context, no cache.

A conversation is a prompt and then steps: a turn of the policy and the messages appended after it. Every text in it
holds a word of its own. `Oracle.step` renders the whole conversation and says whether an incremental tokenizer could
have got there by appending: all that was fixed before stands where it stood, in every character; between the fixed
parts there is nothing but the policy's own words; each new message shows up once and in order.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import product
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

Message = Mapping[str, Any]
WORD = re.compile(r"kw[a-z]+wk")
CLOCK = datetime(2031, 5, 6, 7, 8, 9)
_REASONING = re.compile(r"<[^<>]{0,12}(?:think|thought|channel)|\[/?THINK\]", re.IGNORECASE)
"""Where a generation prompt stops opening the message and starts to write in the policy's place."""


class Refused(Exception):
    """The template raises."""


class _Generation(jinja2.ext.Extension):
    tags = frozenset({"generation"})

    def parse(self, parser):
        start = next(parser.stream)
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=start.lineno)


def _raise(message):
    raise Refused(message)


def _tojson(value, indent=None, ensure_ascii=False, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class Rendering:
    """A template as transformers runs it. controls: the texts of its vocabulary's control tokens."""

    def __init__(
        self,
        source: str,
        *,
        controls: Sequence[str],
        special_tokens: Mapping[str, str] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _tojson
        environment.globals |= {"raise_exception": _raise, "strftime_now": CLOCK.strftime}
        self._template = environment.from_string(source)
        self._names = {**(special_tokens or {}), **(kwargs or {})}
        ordered = sorted(filter(None, controls), key=len, reverse=True)
        self.control = re.compile("|".join(map(re.escape, ordered)) or "(?!)")
        self._as_objects = True
        self._as_objects = self._objects_suit()

    def text(self, messages: Sequence[Message], tools: Sequence[Message], *, prompt: bool) -> str:
        """The whole conversation as text."""
        names: dict[str, str] = {}
        plain = [self._plain(message, names) for message in messages]
        try:
            return self._template.render(
                messages=plain, tools=list(tools) or None, documents=None, add_generation_prompt=prompt, **self._names
            )
        except Refused:
            raise
        except Exception as error:
            raise Refused(f"{type(error).__name__}: {error}") from error

    def _plain(self, message: Message, names: dict[str, str]) -> dict[str, Any]:
        """The message as a template's author imagines one: text, objects, the function a result belongs to."""
        content = message.get("content") or ""
        if not isinstance(content, str):
            content = "".join(part["text"] for part in content)
        plain = {"role": message["role"], "content": content}
        for key in ("name", "tool_call_id"):
            if message.get(key):
                plain[key] = message[key]
        if message["role"] == "tool" and "name" not in plain and message.get("tool_call_id") in names:
            plain["name"] = names[message["tool_call_id"]]
        if message.get("reasoning_content"):
            plain |= {"reasoning_content": message["reasoning_content"], "thinking": message["reasoning_content"]}
        for call in message.get("tool_calls") or ():
            names[call["id"]] = call["function"]["name"]
            arguments = call["function"]["arguments"]
            given = json.loads(arguments) if isinstance(arguments, str) else arguments
            if not self._as_objects:
                given = json.dumps(given, ensure_ascii=False)
            call = {**call, "function": {**call["function"], "arguments": given}}
            plain.setdefault("tool_calls", []).append(call)
        return plain

    def _objects_suit(self) -> bool:
        """False when arguments given as an object are refused or printed in Python's notation."""
        call = {"id": "abcdefgh1", "type": "function", "function": {"name": "f", "arguments": {"k": "kwaawk"}}}
        ask, calls = {"role": "user", "content": "u"}, {"role": "assistant", "content": "", "tool_calls": [call]}
        result = {"role": "tool", "content": "r", "tool_call_id": "abcdefgh1", "name": "f"}
        tool = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}
        for messages, tools in product(([ask, calls, result], [ask, calls]), ([], [tool])):
            try:
                text = self.text(messages, tools, prompt=True)
            except Refused:
                continue
            return "'k'" not in text and "kwaawk" in text
        return False


@dataclass(frozen=True, slots=True)
class Fixed:
    """Text that no later append may change. sure: from and to where it certainly reaches within `text`.

    Certain is what lies between the last control token before the first new word and the token that opens the turn
    (loosely), or all from the policy's last word to the end of the generation prompt (strictly).
    """

    strict: str
    loose: str
    anchor: str


@dataclass(frozen=True, slots=True)
class Walk:
    """A conversation so far; fixed: one more than there are turns."""

    messages: tuple[Message, ...]
    tools: tuple[Message, ...]
    text: str
    fixed: tuple[Fixed, ...]
    turns: tuple[Message, ...] = ()


@dataclass(frozen=True, slots=True)
class Finding:
    """Whether a step only appends. broken: why it certainly does not; doubt: why one may see it otherwise.

    gap: the part of `text` in which the suffix starts, after the policy's last word and before the first new one;
    latest: where it must start at the latest, at the last control token there.
    """

    text: str = ""
    broken: str = ""
    doubt: str = ""
    gap: tuple[int, int] = (0, 0)
    latest: int = 0
    after: Walk | None = None

    @property
    def true(self) -> bool:
        """The step appends, whichever way one looks at it."""
        return not self.broken and not self.doubt


def phrases_of(source: str) -> list[str]:
    """Every string that a template compares with, looks for, or hands to a method."""
    tree = jinja2.Environment(extensions=[_Generation, "jinja2.ext.loopcontrols"]).parse(source)
    asked = tree.find_all((jinja2.nodes.Compare, jinja2.nodes.Call, jinja2.nodes.Filter, jinja2.nodes.Test))
    found = {node.value for part in asked for node in part.find_all(jinja2.nodes.Const) if isinstance(node.value, str)}
    return sorted(text for text in found if 1 < len(text.strip()) < 40)


def words_of(message: Any) -> list[str]:
    """The words of a message (or of any JSON value), reasoning left out, in reading order."""
    if isinstance(message, Mapping):
        return [w for k, v in message.items() if k != "reasoning_content" for w in words_of(v)]
    if isinstance(message, list | tuple):
        return [w for item in message for w in words_of(item)]
    return WORD.findall(message) if isinstance(message, str) else []


def reasoning_of(message: Message) -> list[str]:
    """The words of a message's reasoning."""
    return WORD.findall(message.get("reasoning_content") or "")


class Oracle:
    """Judges the steps of conversations under one template."""

    def __init__(self, rendering: Rendering) -> None:
        self._render = rendering

    def begin(self, messages: Sequence[Message], tools: Sequence[Message] = ()) -> Walk:
        """The prompt; Refused when the template raises."""
        text = self._render.text(messages, tools, prompt=True)
        strict, loose = self._ends(text, messages, tools)
        fixed = Fixed(strict=text[:strict], loose=text[:loose], anchor="")
        return Walk(messages=tuple(messages), tools=tuple(tools), text=text, fixed=(fixed,))

    def step(self, walk: Walk, turn: Message, new: Sequence[Message]) -> Finding:
        """Render everything with the turn and the new messages, and look at what became of the rest."""
        messages = (*walk.messages, turn, *new)
        try:
            text = self._render.text(messages, walk.tools, prompt=True)
            strict_end, loose_end = self._ends(text, messages, walk.tools)
        except Refused as error:
            return Finding(broken=f"raises: {error}")
        broken = self._lost(text, turn, new)
        # A template that cuts a turn at white space it begins with loses none of what was sampled: the ids keep it.
        doubts = [broken] if broken and self._cut_at_space(walk, turn, new) else []
        if broken and not doubts:
            return Finding(text=text, broken=broken)
        own = [*words_of(turn), *reasoning_of(turn)]
        first = min(text.index(word) for message in new for word in words_of(message))
        start = max((text.rindex(word) + len(word) for word in own if word in text), default=0)
        if start > first:
            return Finding(text=text, broken="words of the turn stand after the new message")
        written = list(self._render.control.finditer(text, start, first))
        doubts += [] if written else ["no control token ends the turn"]
        strict = text[start:strict_end]
        latest = written[-1].start() if written else first
        loose = text[latest:loose_end]
        fixed = Fixed(strict=strict, loose=loose, anchor=words_of(new)[0])
        turns = (*walk.turns, turn)
        loosely = self._aligned(text, [*(f.loose for f in walk.fixed), loose], [*walk.fixed, fixed], turns)
        if loosely:
            return Finding(text=text, broken=loosely)
        strictly = self._aligned(text, [*(f.strict for f in walk.fixed), strict], [*walk.fixed, fixed], turns)
        doubts += [strictly] if strictly else []
        after = Walk(messages, walk.tools, text, (*walk.fixed, fixed), turns)
        return Finding(text=text, doubt="; ".join(doubts), gap=(start, first), latest=latest, after=after)

    def spelled(self, walk: Walk, finding: Finding, stops: Collection[str]) -> tuple[str, str]:
        """The turn as the template writes it after `walk`, and the control token that ends it ("" for none).

        stops: the tokens that may end a turn; where none of them is in the gap the last control token there does.
        """
        text, (start, end) = finding.text, finding.gap
        last = walk.fixed[-1]
        begin = (
            text.find(last.anchor) - last.loose.find(last.anchor) + len(last.loose) if last.anchor else len(last.loose)
        )
        opened = walk.text[walk.text.rfind(last.loose) + len(last.loose) :]
        begin += _shared(opened, text[begin:start])
        written = list(self._render.control.finditer(text, start, end))
        ending = [match for match in written if match[0] in stops] or written[-1:]
        if not ending:
            return text[begin:start], ""
        return text[begin : ending[0].start()], ending[0][0]

    def _cut_at_space(self, walk: Walk, turn: Message, new: Sequence[Message]) -> bool:
        """True when nothing would be lost had the turn not begun with white space."""
        bare = {**turn, "content": turn["content"].strip()}
        if bare["content"] == turn["content"]:
            return False
        return not self._lost(self._render.text((*walk.messages, bare, *new), walk.tools, prompt=True), bare, new)

    def _lost(self, text: str, turn: Message, new: Sequence[Message]) -> str:
        """Why the last turn or a new message does not show up as it must, or ""."""
        # A turn of which something remains is spelled otherwise, and the sampled ids keep it; one that is gone is lost.
        for part in turn.get("tool_calls") or [turn["content"]]:
            if not any(word in text for word in words_of(part)):
                return f"the turn's {words_of(part)} is lost"
        last = -1
        for message in new:
            words = words_of({**message, "content": _said(message)})
            places = [text.find(word) for word in words]
            if -1 in places:
                return f"a new {message['role']} message is lost"
            if any(text.count(word) > 1 for word in words):
                return f"a new {message['role']} message is repeated"
            if min(places) < last:
                return f"a new {message['role']} message is moved"
            last = max(places)
        return ""

    def _ends(self, text: str, messages: Sequence[Message], tools: Sequence[Message]) -> tuple[int, int]:
        """Where the fixed text of this render ends, strictly and loosely: with or without what opens the turn."""
        try:
            common = _shared(text, self._render.text(messages, tools, prompt=False))
        except Refused:  # some templates insist on a turn to come
            common = 0
        common = max([common, *(text.rindex(word) + len(word) for word in words_of(messages[-1]) if word in text)])
        thinks = _REASONING.search(text, common)
        opener = self._render.control.search(text, common)
        strict = thinks.start() if thinks else len(text)
        return strict, min(opener.end() if opener and opener.end() <= strict else common, strict)

    def _aligned(self, text: str, fixed: Sequence[str], names: Sequence[Fixed], turns: Sequence[Message]) -> str:
        """Why the fixed texts do not stand in order with only the policy's words between them, or ""."""
        cursor = 0
        for place, (wanted, name) in enumerate(zip(fixed, names, strict=True)):
            at = text.find(name.anchor) - wanted.find(name.anchor) if name.anchor else 0
            if at < cursor or not text.startswith(wanted, at):
                return f"the fixed text {place} changes: {_parting(wanted, text[max(at, 0) :])}"
            if place:
                foreign = set(WORD.findall(text[cursor:at])) - _all_words(turns[place - 1])
                foreign -= set(WORD.findall(name.strict[: name.strict.find(name.loose)]))
                if foreign:
                    return f"{sorted(foreign)} stand inside turn {place - 1}"
            cursor = at + len(wanted)
        return ""

    def agrees(self, finding: Finding, fixed: Sequence[str], turns: Sequence[Message]) -> str:
        """Why these fixed texts of an incremental tokenizer are not the whole render's, or "".

        fixed: prompt, then what follows each turn, the token that ends the turn included. All but the last may end in
        something that opens the turn and is not there in history; the last one is exact and starts in the gap.
        """
        text = finding.text
        start = len(text) - len(fixed[-1])
        if not text.endswith(fixed[-1]) or not finding.gap[0] <= start <= finding.latest:
            return f"the suffix is not the render's: {_parting(fixed[-1], text[max(start, 0) :])}"
        cursor = 0
        loose = finding.after.fixed if finding.after else ()
        for place, (wanted, sure) in enumerate(zip(fixed[:-1], loose, strict=False)):
            at = text.find(sure.anchor) - wanted.find(sure.anchor) if sure.anchor else 0
            least = wanted.find(sure.loose) + len(sure.loose)
            if sure.loose not in wanted or at < cursor or not text.startswith(wanted[:least], at):
                return f"the fixed text {place} is not the render's: {_parting(wanted[:least], text[max(at, 0) :])}"
            own = _all_words(turns[place - 1]) if place else set()
            foreign = set(WORD.findall(text[cursor:at])) - own
            if foreign:
                return f"{sorted(foreign)} stand between the fixed texts"
            cursor = at + least
        return ""


def _said(message: Message) -> str:
    """The content without what an assistant thought before it: templates may strip that from a text as they like."""
    content = str(message["content"])
    return content.rpartition("</think>")[2] if message["role"] == "assistant" else content


def _all_words(message: Message) -> set[str]:
    return {*words_of(message), *reasoning_of(message)}


def _shared(one: str, other: str) -> int:
    """Number of characters with which both begin."""
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _parting(wanted: str, found: str) -> str:
    same = _shared(wanted, found)
    return f"after {wanted[max(0, same - 40) : same]!r} {wanted[same : same + 40]!r} became {found[same : same + 40]!r}"
