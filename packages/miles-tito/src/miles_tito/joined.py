"""Control tokens that nobody wrote: they appear where callers' texts meet, or where a template rewrites them.

`marks` finds look-alikes in each text. One may also be parted among two messages that the template writes without
anything between, or be spelled with a character that the template takes out. Both are seen by breaking up whatever
callers wrote at every character that begins or ends a control token: the template's own tokens stay whole.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from miles_tito.errors import TemplateError
from miles_tito.marks import CLOSE, OPEN, strings_of, unmarked
from miles_tito.render import ChatTemplate

Message = Mapping[str, Any]


class Joints:
    """Looks for joined control tokens. controls: those that no caller may write; none are looked for when empty."""

    def __init__(self, controls: Iterable[str]) -> None:
        # A run of white space that is a token may well be made of two texts: it means nothing else than they do.
        named = sorted({token for token in controls if token.strip()}, key=len, reverse=True)
        self._token = re.compile("|".join(map(re.escape, named)) or "(?!)")
        ends = "".join(sorted({end for token in named for end in (token[0], token[-1]) if not end.isalnum()}))
        self._edge = re.compile(f"[{re.escape(ends)}]" if ends else "(?!)")

    def count(self, text: str) -> int:
        """Number of control tokens in the text that are not marked."""
        return sum(1 for m in self._token.finditer(text) if m.start() == 0 or text[m.start() - 1] != OPEN)

    def touched(self, value: Any) -> bool:
        """True when a string of the JSON value, keys included, could be the beginning or the end of a control token."""
        return any(map(self._edge.search, strings_of(value, keys=True)))

    def beside_content(self, messages: Sequence[Message]) -> bool:
        """`touched` for what the messages hold beside their contents."""
        return any(
            self.touched({key: value for key, value in message.items() if key not in ("role", "content")})
            for message in messages
            if len(message) > _ROLE_AND_CONTENT
        )

    def check(
        self, marked: str, template: ChatTemplate, plain: Sequence[Message], tools: Sequence[Message], **options: Any
    ) -> None:
        """TemplateError when the marked render of these normalised messages holds a control token of callers' making.

        options: of `ChatTemplate.render`.
        """
        callers = [message for message in plain if message["role"] != "assistant"]
        if not (self.touched(tools) or any(self.touched(_text_of(message)) for message in callers)):
            return
        broken = [m if m["role"] == "assistant" else {**self._broken(m), "role": m["role"]} for m in plain]
        found = template.render(broken, tools=self._broken(tools), **options)
        if self.count(marked) <= self.count(found):
            return
        if unmarked(found) != unmarked(marked) and not self.touched(tools) and not self.beside_content(callers):
            # The template looks at these characters and writes something else: it is the places that tell.
            placed = self._placed(unmarked(marked), [message["content"] for message in callers])
            if placed is not None and self.count(placed) == self.count(marked):
                return
        raise TemplateError(
            "expected control tokens of the template's own, but the callers' texts make one where the template joins "
            "or rewrites them; take the parts of control tokens out of the messages."
        )

    def _broken(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._edge.sub(lambda found: f"{OPEN}{found[0]}{CLOSE}", value)
        if isinstance(value, Mapping):
            return {self._broken(key): self._broken(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._broken(item) for item in value]
        return value

    def _placed(self, text: str, contents: Sequence[str]) -> str | None:
        """The text with the contents in it broken up, in order; None if one that has an edge is not there."""
        parts: list[str] = []
        cursor = 0
        for content in contents:
            wanted = content if text.find(content, cursor) >= 0 else content.strip()
            at = text.find(wanted, cursor)
            if at < 0 and self._edge.search(content):
                return None
            if at >= 0:
                parts += [text[cursor:at], self._broken(wanted)]
                cursor = at + len(wanted)
        return "".join(parts) + text[cursor:]


def _text_of(message: Message) -> dict[str, Any]:
    return {key: value for key, value in message.items() if key != "role"}


_ROLE_AND_CONTENT = 2
