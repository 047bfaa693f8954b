"""Templates that are sound in usual conversations, and not at the edges: each is found by the shape for it."""

import pytest

from miles_tito.render import ChatTemplate
from miles_tito.tokenizer import ChatTokenizer
from miles_tito.verify.checks import APPEND_CHECKS
from miles_tito.verify.edges import edges
from miles_tito.verify.shapes import TOOLS
from miles_tito.verify.trial import Run, Trial
from miles_tito.verify.vocabulary import default_vocabulary
from miles_tito.verify.words import Words

SOURCE = """{% if tools %}<|im_start|>system
{{ tools | tojson }}<|im_end|>
{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
HEAD, EACH, LAST, TEXT = "{% if tools %}", "{% for m in messages %}", "messages[-1]", "{{ m.content }}"


def _head(condition):
    return SOURCE.replace(HEAD, f"{{% if {condition} %}}<|im_start|>system\nfast<|im_end|>\n{{% endif %}}{HEAD}", 1)


def _text(expression, *, when="true"):
    return SOURCE.replace(TEXT, f"{{% if {when} %}}{{{{ {expression} }}}}{{% else %}}{TEXT}{{% endif %}}", 1)


def _refuses(condition):
    return SOURCE.replace(EACH, f"{EACH}{{% if {condition} %}}{{{{ raise_exception('no') }}}}{{% endif %}}", 1)


UNSOUND = {  # what it does: the source, the kinds that are not sound
    "says more at the head when the newest message has a phrase": (
        _head(f"'/no_think' in {LAST}.content"),
        {"tool", "user"},
    ),
    "says more at the head when the newest result is of a tool": (_head(f"{LAST}.name == 'search'"), {"tool"}),
    "drops the results of a tool": (_text("''", when="m.name == 'search'"), {"tool"}),
    "writes something else for a result with a phrase": (
        _text("'failed'", when="m.role == 'tool' and '<error>' in m.content"),
        {"tool"},
    ),
    "cuts user messages at 2,000": (_text("m.content[:2000]", when="m.role == 'user'"), {"user"}),
    "cuts results at 13,000": (_text("m.content[:13000]", when="m.role == 'tool'"), {"tool"}),
    "cuts the middle out of long results": (
        _text("m.content[:8000] + m.content[-8000:]", when="m.role == 'tool' and m.content|length > 16000"),
        {"tool"},
    ),
    "refuses an empty result": (_refuses("m.role == 'tool' and not m.content"), {"tool"}),
    "refuses four calls at once": (_refuses("m.tool_calls and m.tool_calls|length > 3"), {"tools"}),
    "keeps 70 messages": (SOURCE.replace("in messages", "in messages[-70:]"), {"tool", "user"}),
    "drops a result that was seen before": (
        SOURCE.replace(EACH, "{% set seen = namespace(texts=[]) %}" + EACH, 1).replace(
            TEXT,
            "{% if m.role != 'tool' or m.content not in seen.texts %}{{ m.content }}{% endif %}"
            "{% set seen.texts = seen.texts + [m.content] %}",
            1,
        ),
        {"tool"},
    ),
}


def _unsound(source):
    """The kinds that fail at the edges."""
    template = ChatTemplate(source)
    chat = ChatTokenizer(template, default_vocabulary(template))
    trial = Trial(chat=chat, checks=APPEND_CHECKS)
    asked = edges(Words(reasoning=False), tools=True, constants=template.constants, phrases=template.phrases)
    for shape in asked:
        trial.run(Run(shape=shape, tools=TOOLS, name=shape.name))
    return set(trial.failures)


@pytest.mark.parametrize("what", sorted(UNSOUND))
def test_what_shows_only_at_the_edges_is_found(what):
    source, kinds = UNSOUND[what]
    assert kinds <= _unsound(source)


def test_the_same_template_without_the_flaw_is_sound():
    assert _unsound(SOURCE) == set()
