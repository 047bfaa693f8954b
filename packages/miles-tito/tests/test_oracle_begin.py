"""The prompt's text is that of transformers' own `apply_chat_template`, for every template and every shape."""

import pytest
from transformers import PreTrainedTokenizerFast

from miles_tito import ChatTokenizer, TemplateError
from miles_tito.render import ChatTemplate
from miles_tito.verify.shapes import TOOLS, shapes
from miles_tito.verify.vocabulary import default_vocabulary

from .oracle import CLOCK
from .traits import TRAITS, template_with


class Frozen:
    """transformers reads the clock itself; it is given this one."""

    @classmethod
    def now(cls):
        return CLOCK


@pytest.fixture
def apply(monkeypatch):
    """The text, or None where transformers raises."""
    from transformers.utils import chat_template_utils

    monkeypatch.setattr(chat_template_utils, "datetime", Frozen)
    made = {}

    def text(chat, messages, tools):
        if id(chat) not in made:
            special = {name: token for name, token in chat.vocabulary.special_tokens.items() if name.endswith("_token")}
            made[id(chat)] = PreTrainedTokenizerFast(tokenizer_object=chat.vocabulary._tokenizer, **special)
        try:
            return made[id(chat)].apply_chat_template(
                messages,
                tools=tools,
                chat_template=chat.template.source,
                add_generation_prompt=True,
                tokenize=False,
                **chat.template.kwargs,
            )
        except Exception:  # whatever a template does in there
            return None

    return text


def compared(chat, apply, *, every=1):
    """Number of prompts whose texts are equal; both refuse the others."""
    equal = 0
    for tools in (list(TOOLS), None):
        for reasoning in (False, True):
            for shape in shapes(tools=True, reasoning=reasoning)[::every]:
                expected = apply(chat, chat.template.normalised(shape.messages), tools)
                text, refusal = begun(chat, shape.messages, tools)
                if expected is not None and "control tokens" not in refusal:
                    assert text == expected, shape.name
                equal += text is not None
                # transformers drops nulls, so a template that asks for a null content fails there.
                assert text is None or expected is not None or chat.template.beside_calls == "null", shape.name
    return equal


def begun(chat, messages, tools):
    try:
        return chat.vocabulary.decode(chat.begin(messages, tools, now=CLOCK).ids), ""
    except TemplateError as error:
        return None, str(error)


def chat_of(source):
    template = ChatTemplate(source)
    vocabulary = default_vocabulary(template)
    return ChatTokenizer(template.with_special_tokens(vocabulary.special_tokens), vocabulary)


@pytest.mark.parametrize("trait", [None, *sorted(TRAITS)[::6]])
def test_small_templates(apply, trait):
    if trait == "a number by chance":
        pytest.skip("nobody renders it twice alike")
    assert compared(chat_of(template_with([trait] if trait else [])), apply, every=4) > 10


@pytest.mark.slow
@pytest.mark.shared
def test_every_template_of_the_corpus(corpus, apply):
    reached = [path.stem for path in corpus if compared(chat_of(path.read_bytes().decode("utf-8")), apply)]
    assert len(reached) > 0.9 * len(corpus)
