"""A vocabulary for a template that comes without one."""

import re

from miles_tito.control_forms import CONTROL_FORM
from miles_tito.profile import CALLS, SAYS, TOOL, USER, try_render
from miles_tito.render import ChatTemplate, literals_of, mentions
from miles_tito.vocabulary import Vocabulary

_ORDINARY = re.compile(r"</?(?:think|tool_call|tool_calls|tool_response|answer)>")
_DEFAULTS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}


def default_vocabulary(template: ChatTemplate) -> Vocabulary:
    """The 256 bytes and every control token the template writes; `bos_token` and the like only where it uses them."""
    special = {name: token for name, token in _DEFAULTS.items() if mentions(template.source, name)}
    template = template.with_special_tokens(special)
    texts = [literals_of(template.source)]
    for messages in ([USER, SAYS, USER], [{"role": "system", "content": "s"}, USER, CALLS, TOOL]):
        texts.append(try_render(template, messages, generation_prompt=True) or "")
    found = [match[0] for text in texts for match in CONTROL_FORM.finditer(text)]
    ordinary = [match[0] for text in texts for match in _ORDINARY.finditer(text)]
    return Vocabulary.of_bytes([*special.values(), *found], ordinary=ordinary, special_tokens=special)
