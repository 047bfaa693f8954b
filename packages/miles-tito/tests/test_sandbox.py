"""Templates run in jinja2's immutable sandbox: the quick lookups give the same and refuse the same."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import StrictUndefined, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment

from miles_tito import TemplateError
from miles_tito.profile import EPOCH
from miles_tito.render import ChatTemplate
from miles_tito.sandbox import TemplateSandbox

MESSAGES = [{"role": "user", "content": "hi {0.__class__}", "append": "own key", "__class__": "own key too"}]
ESCAPES = [
    "{{ messages.append(1) }}",
    "{{ messages.pop() }}",
    "{{ messages.clear() }}",
    "{{ messages.sort() }}",
    "{{ messages[0].update({'role': 'system'}) }}",
    "{{ messages[0].pop('role') }}",
    "{{ messages[0].setdefault('a', 1) }}",
    "{{ messages[0].clear() }}",
    "{{ (messages[0] | attr('update'))({'role': 'x'}) }}",
    "{{ messages[0]['update']({'role': 'x'}) }}",
    "{{ ''.__class__.__mro__ }}",
    "{{ ''['__class__'].__mro__ }}",
    "{{ (messages[0] | attr('__class__')).__mro__ }}",
    "{{ messages.__class__.__base__.__subclasses__() }}",
    "{{ ''.join.__self__.__class__.__base__ }}",
    "{{ raise_exception.__globals__['json'] }}",
    "{{ strftime_now.__self__.__class__.__base__ }}",
    "{{ namespace(a=1).__class__.__init__.__globals__ }}",
    "{{ namespace(a=1)._Namespace__attrs.update(b=2) }}",
    "{{ cycler.__init__.__globals__.os.system('true') }}",
    "{{ self.__init__.__globals__ }}{{ self._TemplateReference__context.environment.globals.clear() }}",
    "{% for m in messages %}{{ loop.__class__.__init__.__globals__ }}{% endfor %}",
    "{% for m in messages %}{{ loop._iterator.__class__.__name__ }}{% endfor %}",
    "{{ '{0.__class__.__mro__}'.format('') }}",
    "{{ '{a.__class__.__mro__}'.format_map({'a': ''}) }}",
    "{{ ('{0.__class__.__mro__}' | attr('format'))('') }}",
    "{{ ''['format'].__self__.__class__.__mro__ }}",
    "{{ ['{0.__class__.__mro__}'] | map('format', '') | first }}{{ ['{0.__class__}'.format] | first | string }}"
    "{{ ''.__class__.__mro__ }}",
    "{{ range(10000000) | length }}",
    "{% for i in range(100001) %}{% endfor %}",
]


@pytest.mark.parametrize("source", ESCAPES)
def test_a_template_reaches_no_internals_and_changes_nothing(source):
    template = ChatTemplate(source)
    before = repr(MESSAGES)
    with pytest.raises(TemplateError):
        template.render(MESSAGES, generation_prompt=False, now=EPOCH)
    assert repr(MESSAGES) == before


def test_a_message_may_have_a_key_named_like_a_method_or_an_internal():
    assert ChatTemplate("{{ messages[0]['append'] }}").render(MESSAGES, generation_prompt=False, now=EPOCH) == "own key"
    by_name = ChatTemplate("{{ messages[0]['__class__'] }}").render(MESSAGES, generation_prompt=False, now=EPOCH)
    assert by_name == "own key too"


class _Mine(dict):
    """A mapping with a method of its own."""

    def secret(self):
        return 1


OBJECTS = [
    {"role": "user", "items": "own", "a": None, "_x": 1, "__doc__": "d"},
    _Mine(role="user"),
    "text",
    ["a"],
    ("a",),
    1.5,
    None,
    Undefined(name="u"),
]
NAMES = ["role", "a", "absent", "_x", "items", "get", "keys", "values", "pop", "update", "append", "clear", "secret"]
NAMES += ["strip", "split", "format", "format_map", "encode", "join", "__class__", "__doc__", "__init__", "__dict__"]


@given(obj=st.sampled_from(OBJECTS), name=st.sampled_from(NAMES))
def test_every_lookup_gives_what_jinjas_own_gives(obj, name):
    ours, theirs = TemplateSandbox(undefined=StrictUndefined), ImmutableSandboxedEnvironment(undefined=StrictUndefined)
    assert _shown(ours, obj, name) == _shown(theirs, obj, name)


def _shown(environment, obj, name):
    """The value, or what it says when it is used."""
    try:
        found = environment.getattr(obj, name)
    except Exception as error:
        return repr(error)
    if isinstance(found, StrictUndefined):
        try:
            str(found)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    return getattr(found, "__qualname__", repr(found))
