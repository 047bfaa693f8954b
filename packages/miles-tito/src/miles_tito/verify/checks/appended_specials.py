"""Text of the appended messages that spells a control token did not become one."""

import re
from collections import Counter

from miles_core.messages import text_of
from miles_tito.marks import unmarked
from miles_tito.tokenizer import ChatTokenizer
from miles_tito.verify.conversation import Grown
from miles_tito.verify.report import Failure


def check(grown: Grown) -> Failure | None:
    """A failure under `special-token-injection`: counted in ids, against the text less what callers wrote."""
    chat = grown.step.chat
    spelled = special_counts(chat, "\n".join(text_of(message.get("content")) for message in grown.step.appended))
    if not spelled:
        return None
    piece = grown.after.last
    wanted = special_counts(chat, unmarked(piece.text or "")) - spelled
    names = {chat.vocabulary.controls[token]: token for token in special_names(chat)}
    ids = [number for span in piece.spans for number in span.ids]
    found = Counter(names[number] for number in ids if number in names)
    extra = found - wanted
    if not extra:
        return None
    token = next(iter(extra))
    return Failure(
        rule="special-token-injection",
        shape=grown.step.shape,
        reason=f"{token} in the text of a message became the control token",
    )


def special_names(chat: ChatTokenizer) -> list[str]:
    """The control tokens that the vocabulary declares special."""
    vocabulary = chat.vocabulary
    return [token for token, number in vocabulary.controls.items() if number in vocabulary.structural]


def special_counts(chat: ChatTokenizer, text: str) -> Counter[str]:
    """How often the plain text spells each special token, the longest first."""
    names = sorted(filter(None, special_names(chat)), key=len, reverse=True)
    return Counter(re.findall("|".join(map(re.escape, names)) or "(?!)", text))
