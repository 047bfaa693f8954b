"""One conversation grown append by append, and what whole renders of the same messages say about it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from miles_tito.compare import Report
from miles_tito.errors import TemplateError
from miles_tito.tokenizer import ChatTokenizer
from miles_tito.transcript import Transcript

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A turn and what is appended to it. before: the transcript that awaited the turn. shape: name for people."""

    chat: ChatTokenizer
    shape: str
    before: Transcript
    turn: Message
    appended: tuple[Message, ...]
    truncated: bool = False
    plain: bool = True

    @property
    def earlier(self) -> tuple[Message, ...]:
        """The messages before the turn."""
        return self.before.messages

    @property
    def messages(self) -> tuple[Message, ...]:
        """All messages, the appended ones included."""
        return (*self.before.messages, self.turn, *self.appended)

    def whole(self) -> str:
        """The template's own render of all messages with a generation prompt; TemplateError when it refuses."""
        return self._render(self.messages, generation_prompt=True)

    def prompt(self) -> str:
        """The render that asked for the turn; TemplateError when the template refuses."""
        return self._render(self.earlier, generation_prompt=True)

    def before_prompt(self) -> str:
        """What stands before the generation prompt that asked for the turn; the whole prompt where that is unclear."""
        prompt = self.prompt()
        try:
            without = self._render(self.earlier, generation_prompt=False)
        except TemplateError:
            return prompt
        return without if prompt.startswith(without) else prompt

    def closed(self) -> str:
        """The render up to and with the turn; TemplateError when the template refuses."""
        return self._render([*self.earlier, self.turn], generation_prompt=False)

    def _render(self, messages: Sequence[Message], *, generation_prompt: bool) -> str:
        return raw_render(
            self.chat, messages, tools=self.before.tools, generation_prompt=generation_prompt, now=self.before.now
        )

    def without_reasoning(self) -> Iterator[tuple[str, str]]:
        """`(prompt, whole)` as the template renders them when no turn has reasoning; nothing when it refuses."""
        bare = [{k: v for k, v in m.items() if k != "reasoning_content"} for m in self.messages]
        try:
            prompt = self._render(bare[: len(self.earlier)], generation_prompt=True)
            yield prompt, self._render(bare, generation_prompt=True)
        except TemplateError:
            return


@dataclass(frozen=True, slots=True, kw_only=True)
class Grown:
    """A step whose append succeeded. whole: the template's render of all messages. report: what `verify` says."""

    step: Step
    after: Transcript
    whole: str
    report: Report


def raw_render(
    chat: ChatTokenizer,
    messages: Sequence[Message],
    *,
    tools: Sequence[Message] = (),
    generation_prompt: bool = False,
    now: datetime,
) -> str:
    """The template's text of the messages, normalised, without any marks; TemplateError when it refuses."""
    plain = chat.template.normalised(messages)
    return chat.template.render(plain, tools=tools, generation_prompt=generation_prompt, now=now)
