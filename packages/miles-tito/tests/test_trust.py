"""A bounded proof is confirmed in every transcript: whatever of its prompt a template looks at, the ids are right."""

import sys
from collections import Counter

import pytest

from miles_tito import ChatTokenizer
from miles_tito.transcript import Transcript
from miles_tito.vocabulary import Vocabulary

USER = {"role": "user", "content": "hi"}
MARKS = ["<|im_start|>", "<|im_end|>"]
SAYS = {"role": "assistant", "content": "a"}


def chat_noting(note, *, head="", role="user"):
    """ChatML with a note after every message of a role."""
    return ChatTokenizer.from_pretrained(
        Vocabulary.of_bytes(MARKS),
        chat_template=head + "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
        "{% for call in m.tool_calls or [] %}{{ call.function.name }}{{ call.function.arguments|tojson }}{% endfor %}"
        "{% if m.role == '" + role + "' %}" + note + "{% endif %}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    )


def tool(name, **more):
    return {"type": "function", "function": {"name": name, "description": "d", "parameters": {"type": "object"}}} | more


def system(text, role="system"):
    return [{"role": role, "content": text}, USER]


def user(text, **more):
    return [{"role": "user", "content": text, **more}]


QUICK = " (be quick)"
IN_LIST = (
    "{% set ns = namespace(found=false) %}{% for w in ['/no_think', '/fast'] %}"
    "{% if w in messages[0].content %}{% set ns.found = true %}{% endif %}{% endfor %}"
)
STRICT = {"function": {**tool("a")["function"], "strict": True}}
CASES = {
    "a constant with a name": ("w in messages[0].content", "{% set w = '/no_think' %}", user("x /no_think"), None),
    "constants of a list": ("ns.found", IN_LIST, user("x /fast"), None),
    "a table of modes": (
        "messages[0].content in modes",
        "{% set modes = {'low': 1, 'high': 2} %}",
        system("high"),
        None,
    ),
    "lower case": ("'/think' in messages[0].content|lower", "", user("x /THINK"), None),
    "upper case": ("messages[0].content.upper().startswith('URGENT')", "", user("urgent x"), None),
    "white space": ("'\\n\\n' in messages[0].content", "", user("x\n\ny"), None),
    "a joined constant": ("'/no'~'_think' in messages[0].content", "", user("x /no_think"), None),
    "length": ("messages[0].content|length > 200", "", user("x" * 300), None),
    "words": ("messages[0].content.split(' ')|length > 30", "", user("x " * 40), None),
    "digits": ("messages[0].content.isdigit()", "", user("42"), None),
    "no content": ("not messages[0].content", "", user(""), None),
    "an empty system prompt": ("messages[0].role == 'system' and not messages[0].content", "", system(""), None),
    "a key": ("messages|selectattr('no_think', 'defined')|list", "", user("x", no_think=True), None),
    "a name": ("'name' in messages[0]", "", user("x", name="bob"), None),
    "a developer": ("messages[0].role == 'developer'", "", system("x", "developer"), None),
    "a result first": ("messages[0].role == 'tool'", "", system("x", "tool"), None),
    "two systems": ("messages|length > 1 and messages[1].role == 'system'", "", [*system("x")[:1], *system("y")], None),
    "two users": ("messages|length > 1 and messages[0].role == messages[1].role", "", [USER, USER], None),
    "many results": (
        "messages|selectattr('role', 'equalto', 'tool')|list|length > 4",
        "",
        [USER, *[{"role": "tool", "content": "r"}] * 6, USER],
        None,
    ),
    "a tool's name": ("tools and 'python' in tools|map(attribute='function.name')", "", [USER], [tool("python")]),
    "a tool's type": ("tools and tools[0].type == 'browser'", "", [USER], [tool("python", type="browser")]),
    "a strict tool": ("tools and tools[0].function.strict", "", [USER], [tool("a", **STRICT)]),
    "many tools": ("tools and tools|length > 3", "", [USER], [tool(f"a{n}") for n in range(5)]),
}


def grown(chat, transcript, new, turn=SAYS):
    """The append, checked against the whole render."""
    ids = [*chat.vocabulary.encode("x")[0], *chat.stop_token_ids[:1]]
    after = chat.append(transcript.sampled(ids, message=turn), new)
    report = chat.verify(after)
    assert report.hard == 0, report.first
    return after


@pytest.mark.parametrize("name", CASES)
def test_what_a_template_looks_at_in_a_prompt_is_not_overlooked(name):
    condition, head, messages, tools = CASES[name]
    chat = chat_noting(f"{{% if {condition} %}}{QUICK}{{% endif %}}", head=head)
    transcript = chat.begin(messages, tools)
    for _ in range(3):
        transcript = grown(chat, transcript, [USER])
        assert chat.vocabulary.decode(transcript.last.spans[1].ids).endswith(f"hi{QUICK}<|im_end|>\n")
    plain = grown(chat, chat.begin([{"role": "user", "content": "plain"}]), [USER])
    assert QUICK not in chat.vocabulary.decode(plain.ids)


def test_a_first_and_a_last_message_may_ask_for_it_together():
    condition = "'deep' in messages[0].content and '/think' in messages[-1].content"
    chat = chat_noting(f"{{% if loop.last and {condition} %}}{QUICK}{{% endif %}}")
    transcript = chat.begin(user("deep x"))
    transcript = grown(chat, transcript, [USER])
    ids = [*chat.vocabulary.encode("x")[0], *chat.stop_token_ids[:1]]
    after = chat.append(transcript.sampled(ids), user("next /think"))
    assert QUICK in chat.vocabulary.decode(after.ids)


@pytest.mark.parametrize("said", ["in the new message", "in the turn"])
def test_what_is_said_after_the_kind_has_agreed_is_heard(said):
    chat = chat_noting(
        "{% if ns.found %} (be quick){% endif %}{% if w in m.content|lower %}{% set ns.found = true %}{% endif %}",
        head="{% set w = '/fast' %}{% set ns = namespace(found=false) %}",
        role="user" if said == "in the new message" else "assistant",
    )
    transcript = chat.begin([USER])
    for _ in range(4):
        transcript = grown(chat, transcript, [USER])
    assert "text>user" in transcript.trust.agreed
    before = transcript
    for _ in range(2):
        loud = [{"role": "user", "content": "go /FAST"}] if said == "in the new message" else [USER]
        turn = {"role": "assistant", "content": "go /FAST"} if said == "in the turn" else SAYS
        transcript = grown(chat, transcript, loud, turn)
    transcript = grown(chat, transcript, [USER])
    assert "/fast" in transcript.trust.said
    assert "/fast" not in before.trust.said
    assert "text>user" in grown(chat, before, [USER]).trust.agreed


def test_a_key_that_a_later_message_brings_is_heard():
    chat = chat_noting(f"{{% if messages[:loop.index0]|selectattr('loud', 'true')|list %}}{QUICK}{{% endif %}}")
    transcript = chat.begin([USER])
    for _ in range(3):
        transcript = grown(chat, transcript, [USER])
    for new in (user("x", loud=False), user("x", loud=True), [USER], [USER]):
        transcript = grown(chat, transcript, new)
    assert chat.vocabulary.decode(transcript.last.spans[1].ids).endswith(f"hi{QUICK}<|im_end|>\n")


BEFORE = "{% set ns = namespace(found=false) %}{% for k in messages[:loop.index0] %}{% if « %}{% set ns.found = true %}"
LATE = {
    "length": ("k.content|length > 200", user("z" * 300)),
    "another length": ("k.content|length > 48", user("z" * 60)),
    "words": ("k.content.split()|length > 30", user("z " * 40)),
    "digits": ("k.content.isdigit()", user("42")),
    "no content": ("not k.content", user("")),
    "white space only": ("not k.content|trim", user(" ")),
    "white space before": ("k.content[0] != (k.content|trim)[0]", user(" x")),
    "white space after": ("k.content|trim|length != k.content|length", user("x ")),
    "lines": ("k.content.splitlines()|length == 2", user("x\ny")),
    "a developer": ("k.role == 'developer'", system("d", "developer")[:1]),
    "a late system message": ("k.role == 'system'", system("d")[:1]),
    "users in a row": ("k.role == 'user' and messages[loop.index].role == 'user'", [USER, USER]),
}


@pytest.mark.parametrize("name", LATE)
def test_what_a_message_is_like_for_the_first_time_may_change_what_follows_later(name):
    condition, middle = LATE[name]
    note = BEFORE.replace("«", condition) + f"{{% endif %}}{{% endfor %}}{{% if ns.found %}}{QUICK}{{% endif %}}"
    chat = chat_noting(note)
    transcript = chat.begin([USER])
    for _ in range(3):
        transcript = grown(chat, transcript, [USER])
    proved = {kind for kind, proof in chat.profile.proofs.items() if proof == "bounded"}
    assert transcript.trust.agreed == proved
    for new in (middle, [USER], [USER]):
        transcript = grown(chat, transcript, new)
    assert QUICK in chat.vocabulary.decode(transcript.last.spans[1].ids)


def test_a_late_system_message_may_change_what_follows_a_later_turn():
    late = "messages[1:loop.index0]|selectattr('role', 'equalto', 'system')|list"
    chat = chat_noting(f"{{% if {late} %}}{QUICK}{{% endif %}}")
    transcript = chat.begin(system("rules"))
    for _ in range(2):
        transcript = grown(chat, transcript, [USER])
    assert transcript.trust.agreed == {"text>user"}
    transcript = grown(chat, transcript, [{"role": "system", "content": "hint"}])
    assert chat.profile.proofs == {"text>user": "bounded", "text>system": "bounded"}
    transcript = grown(chat, transcript, [USER])
    assert QUICK in chat.vocabulary.decode(transcript.last.spans[1].ids)
    assert transcript.trust.broken


def test_what_only_the_history_can_tell_puts_the_rest_in_doubt():
    counts = "{% set ns = namespace(n=0) %}"
    chat = chat_noting("{% set ns.n = ns.n + 1 %}{{ ns.n }}", head=counts, role="system")
    transcript = chat.begin([USER])
    for new in (USER, USER, {"role": "system", "content": "s"}):
        transcript = grown(chat, transcript, [new])
    assert chat.profile.proofs == {"text>user": "bounded", "text>system": "history"}
    assert transcript.trust.agreed == frozenset()
    assert grown(chat, transcript, [USER]).trust.agreed == {"text>user"}


def test_a_transcript_that_the_template_refuses_as_a_whole_differs_hard():
    chat = chat_noting("", head="{% if messages|length > 3 %}{{ raise_exception('too many') }}{% endif %}")
    transcript = grown(chat, chat.begin([USER]), [USER])
    step = transcript.last
    longer = transcript.sampled([1])._with(step, awaits_turn=True)
    report = chat.verify(longer)
    assert report.hard == 1
    assert "too many" in report.first.divergence.expected


def test_where_the_two_differ_no_bounded_suffix_is_used_in_that_transcript_any_more():
    chat = chat_noting(f"{{% if messages[0].content|length > 9 %}}{QUICK}{{% endif %}}")
    assert grown(chat, chat.begin(user("x" * 10)), [USER]).trust.broken
    other = grown(chat, chat.begin([USER]), [USER])
    assert not other.trust.broken
    assert chat.profile.proofs["text>user"] == "bounded"


def wholes_of(work, monkeypatch):
    """How often the real history is rendered."""
    counted = []
    with monkeypatch.context() as patch:
        real = Transcript.pieces
        patch.setattr(Transcript, "pieces", lambda transcript: counted.append(1) or real(transcript))
        work()
    return len(counted)


def test_the_real_history_is_rendered_once_per_kind_and_again_only_after_something_new(chat_for, encode, monkeypatch):
    chat = chat_for("chatml")
    ids = encode(chat, "a<|im_end|>")
    calling = {"role": "assistant", "content": ""} | {
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}]
    }
    result = {"role": "tool", "tool_call_id": "c", "content": "r"}
    states = [chat.begin([{"role": "system", "content": " ".join(chat.template.constants)}, USER])]

    def step(turn, new):
        states.append(chat.append(states[-1].sampled(ids, message=turn), [new]))

    counts = [wholes_of(lambda: step(SAYS, USER), monkeypatch) for _ in range(3)]
    counts += [wholes_of(lambda: step(calling, result), monkeypatch) for _ in range(3)]
    counts += [wholes_of(lambda: step(SAYS, {**USER, "extra": 1}), monkeypatch) for _ in range(3)]
    counts += [wholes_of(lambda: step(calling, result), monkeypatch) for _ in range(2)]
    assert counts == [1, 1, 0, 1, 1, 0, 1, 1, 0, 1, 0]
    branch = chat.append(states[3].sampled(ids, message=SAYS), [USER])
    assert branch.trust.agreed == states[3].trust.agreed


def calls_of(work):
    """How many functions are entered, Python's and C's."""
    entered = Counter()
    sys.setprofile(lambda frame, event, argument: entered.update([event]))
    try:
        work()
    finally:
        sys.setprofile(None)
    return entered


def test_a_confirmed_append_costs_the_same_however_long_the_history_is(chat_for, encode):
    chat = chat_for("chatml")
    ids = encode(chat, "a<|im_end|>")
    states = [chat.begin([USER])]
    for _ in range(200):
        states.append(chat.append(states[-1].sampled(ids), [USER]))
    counted = []
    for state in (states[3], states[200]):
        counted.append(calls_of(lambda state=state: chat.append(state.sampled(ids, message=SAYS), [USER])))
    assert counted[0] == counted[1]
