"""A ChatML template and what can be wrong with it, so that any mixture of faults is a template of its own."""

from collections.abc import Iterable

from .conversations import KINDS

_BASE = """\
{%- set ns = namespace(n=0, user=-1, text='') %}
{%- for m in messages %}{% if m.role == 'user' %}{% set ns.user = loop.index0 %}{% endif %}{% endfor %}
«head»
{%- if tools and «tools» %}{{ '<|im_start|>tools\\n' + (tools | tojson) + '<|im_end|>\\n' }}{% endif %}
{%- for m in messages %}
«message»
{{- '<|im_start|>' + m.role + '\\n' }}
«opened»
{%- if m.role == 'assistant' and m.reasoning_content and «keeps» %}
{{- '<think>\\n' + m.reasoning_content + '\\n</think>\\n\\n' }}
{%- endif %}
{{- «content» }}
{%- for call in «calls» %}
{{- '<tool_call>' + call.function.name + ' ' + (call.function.arguments | tojson) + '</tool_call>' }}
{%- endfor %}
«closing»
{{- «stop» }}
«closed»
{%- endfor %}
«tail»
{%- if add_generation_prompt and «prompted» %}{{ '<|im_start|>assistant\\n' + «opening» }}{% endif %}
«end»
"""
_EXPRESSIONS = {
    "tools": "true",
    "keeps": "true",
    "content": "m.content",
    "calls": "m.tool_calls or []",
    "stop": "'<|im_end|>\\n'",
    "prompted": "true",
    "opening": "''",
}
_RESULT = "{%- if m.role == 'tool' %}"
_PREVIOUS = "messages[loop.index0 - 1].role"
_NEXT = "(loop.last or messages[loop.index0 + 1].role != 'tool')"

TRAITS: dict[str, dict[str, str]] = {
    "trims": {"content": "m.content | trim"},
    "drops reasoning before the last user": {"keeps": "loop.index0 > ns.user"},
    "keeps reasoning of the last message only": {"keeps": "loop.last"},
    "drops reasoning": {"keeps": "false"},
    "opens reasoning": {"opening": "'<think>\\n'"},
    "opens and closes reasoning": {"opening": "'<think>\\n\\n</think>\\n\\n'"},
    "clock at the start": {"head": "{{- strftime_now('%Y-%m-%d %H:%M:%S.%f') + '\\n' }}"},
    "clock in every message": {"opened": "{{- strftime_now('%H:%M:%S.%f ') }}"},
    "no newline after the stop": {"stop": "'<|im_end|>'"},
    "another stop after calls": {"stop": "('<|call|>' if m.tool_calls else '<|im_end|>') + '\\n'"},
    "another stop for the last turn": {"stop": "'<|return|>' if loop.last and m.role == 'assistant' else '<|im_end|>'"},
    "another stop for every last message": {"stop": "'<|return|>' if loop.last else '<|im_end|>'"},
    "two newlines after a turn": {"stop": "'<|im_end|>\\n\\n' if m.role == 'assistant' else '<|im_end|>\\n'"},
    "a stop for assistants only": {"stop": "'<|im_end|>\\n' if m.role == 'assistant' else ''"},
    "a stop in plain text": {"stop": "'\\n### end\\n'"},
    "no stop for the last message": {"stop": "'' if loop.last else '<|im_end|>\\n'"},
    "numbers results": {"opened": _RESULT + "{% set ns.n = ns.n + 1 %}{{ '#' ~ ns.n ~ ' ' }}{% endif %}"},
    "numbers messages": {"opened": "{{- '#' ~ loop.index ~ ' ' }}"},
    "numbers messages from the end": {"opened": "{{- '#' ~ loop.revindex ~ ' ' }}"},
    "numbers users from the end": {
        "opened": "{%- if m.role == 'user' %}{{ '#' ~ (messages[loop.index0:] | selectattr('role', 'equalto', 'user')"
        " | list | length) ~ ' ' }}{% endif %}"
    },
    "counts messages at the start": {"head": "{{- (messages | length) ~ ' messages\\n' }}"},
    "counts turns at the end": {
        "tail": "{{- (messages | selectattr('role', 'equalto', 'assistant') | list | length) ~ ' turns\\n' }}"
    },
    "quotes the last message at the start": {"head": "{{- messages[-1].content + '\\n' }}"},
    "quotes the message before": {
        "opened": "{%- if loop.index0 %}{{ '> ' ~ messages[loop.index0 - 1].role }}{% endif %}"
    },
    "runs of results in one message": {
        "message": _RESULT + "{{- ('<|im_start|>tool' if " + _PREVIOUS + " != 'tool' else '') + '\\n' + m.content"
        " + ('<|im_end|>\\n' if " + _NEXT + " else '') }}{% continue %}{% endif %}"
    },
    "runs of results closed after the last message": {
        "message": _RESULT + "{{- '<|tool|>' + m.content + ('<|im_end|>\\n' if loop.last else '') }}"
        "{% continue %}{% endif %}"
    },
    "runs of results closed by what follows": {
        "message": "{%- if loop.index0 and m.role != 'tool' and " + _PREVIOUS + " == 'tool' %}{{ '<|im_end|>\\n' }}"
        "{% endif %}" + _RESULT + "{{- '<|tool|>' + m.content }}{% continue %}{% endif %}"
    },
    "users in a row in one message": {
        "message": "{%- if m.role == 'user' and loop.index0 and " + _PREVIOUS + " == 'user' %}{{ m.content + '\\n' }}"
        "{% continue %}{% endif %}"
    },
    "results sorted by id": {
        "head": "{%- if messages | selectattr('role', 'equalto', 'tool') | list %}{% set messages = (messages | "
        "rejectattr('role', 'equalto', 'tool') | list) + (messages | selectattr('role', 'equalto', 'tool') | "
        "sort(attribute='tool_call_id') | list) %}{% endif %}"
    },
    "results inside the turn that called": {
        "message": _RESULT + "{% continue %}{% endif %}",
        "closing": "{%- for r in messages if r.role == 'tool' and r.tool_call_id in (m.tool_calls or []) | "
        "map(attribute='id') | list %}{{ '<tool_response>' + r.content + '</tool_response>' }}{% endfor %}",
    },
    "tools before the last user": {
        "tools": "false",
        "message": "{%- if tools and loop.index0 == ns.user %}{{ '<|im_start|>tools\\n' + (tools | tojson) + "
        "'<|im_end|>\\n' }}{% endif %}",
    },
    "tools at the end": {"tools": "false", "tail": "{%- if tools %}{{ (tools | tojson) + '\\n' }}{% endif %}"},
    "tools after every system message": {
        "closed": "{%- if tools and m.role == 'system' %}{{ (tools | tojson) + '\\n' }}{% endif %}"
    },
    "systems at the start": {
        "head": "{%- set messages = (messages | selectattr('role', 'equalto', 'system') | list) + "
        "(messages | rejectattr('role', 'equalto', 'system') | list) %}"
    },
    "systems in one": {
        "head": "{%- for m in messages if m.role == 'system' %}{% set ns.text = ns.text + m.content %}{% endfor %}"
        "{{- '<|im_start|>system\\n' + ns.text + '<|im_end|>\\n' }}",
        "message": "{%- if m.role == 'system' %}{% continue %}{% endif %}",
    },
    "late systems dropped": {"message": "{%- if m.role == 'system' and loop.index0 %}{% continue %}{% endif %}"},
    "a system before the last user": {
        "message": "{%- if loop.index0 == ns.user %}{{ '<|im_start|>system\\nobey<|im_end|>\\n' }}{% endif %}"
    },
    "a reminder at the end": {"tail": "{{- '<|im_start|>system\\nremember<|im_end|>\\n' }}"},
    "a word after the last user": {"closing": "{%- if loop.index0 == ns.user %}{{ ' /think' }}{% endif %}"},
    "the last message dropped": {"message": "{%- if loop.last %}{% continue %}{% endif %}"},
    "results dropped": {"message": _RESULT + "{% continue %}{% endif %}"},
    "all results but the last run dropped": {
        "message": _RESULT + "{% if messages[loop.index0:] | selectattr('role', 'equalto', 'assistant') | list %}"
        "{% continue %}{% endif %}{% endif %}"
    },
    "the second of two results dropped": {
        "message": _RESULT + "{% if " + _PREVIOUS + " == 'tool' %}{% continue %}{% endif %}{% endif %}"
    },
    "calls dropped": {"calls": "[]"},
    "calls of earlier turns dropped": {"calls": "m.tool_calls or [] if loop.index0 > ns.user else []"},
    "empty messages dropped": {"message": "{%- if not m.content and not m.tool_calls %}{% continue %}{% endif %}"},
    "only the last four messages": {"head": "{%- set messages = messages[-4:] %}"},
    "only the last twelve messages": {"head": "{%- set messages = messages[-12:] %}"},
    "content cut to forty characters": {"content": "m.content[:40]"},
    "content cut to its first line": {"content": "m.content.split('\\n')[0]"},
    "content in capitals": {"content": "m.content | upper"},
    "content escaped": {"content": "m.content | e"},
    "content as JSON": {"content": "m.content | tojson"},
    "content twice": {"content": "m.content + m.content"},
    "late systems refused": {
        "message": "{%- if m.role == 'system' and loop.index0 %}{{ raise_exception('system first') }}{% endif %}"
    },
    "tools in a row refused": {
        "message": "{%- if m.role == 'tool' and "
        + _PREVIOUS
        + " == 'tool' %}{{ raise_exception('one result') }}{% endif %}"
    },
    "a user needed": {"head": "{%- if ns.user < 0 %}{{ raise_exception('no user message') }}{% endif %}"},
    "a user needed last": {
        "head": "{%- if messages[-1].role == 'system' %}{{ raise_exception('a question must come last') }}{% endif %}"
    },
    "roles must alternate": {
        "message": "{%- if loop.index0 and m.role == " + _PREVIOUS + " %}{{ raise_exception('alternate') }}{% endif %}"
    },
    "no prompt after a turn": {"prompted": "messages[-1].role != 'assistant'"},
    "prompt only after a user": {"prompted": "messages[-1].role == 'user'"},
    "stop depends on tools": {"stop": "'<|im_end|>' + ('\\n' if tools else '\\n\\n')"},
    "stop depends on the system prompt": {"stop": "'<|im_end|>' + ('\\n' if messages[0].role == 'system' else ' ')"},
    "stop depends on reasoning": {"stop": "'<|im_end|>' + ('\\n' if m.reasoning_content else '\\n\\n')"},
    "stop depends on the content": {"stop": "'<|im_end|>' + ('\\n' if m.content | length > 60 else '\\n\\n')"},
    "stop depends on the calls": {"stop": "'<|im_end|>' + ('\\n' if (m.tool_calls or []) | length > 1 else ' ')"},
    "stop depends on the place": {"stop": "'<|im_end|>' + ('\\n' if loop.index0 % 2 else '\\n\\n')"},
    "stop depends on the length": {"stop": "'<|im_end|>' + ('\\n' if messages | length > 9 else '\\n\\n')"},
    "roles named late": {"opened": "{%- if loop.index0 > 3 %}{{ '(' + m.role + ') ' }}{% endif %}"},
    "results show the tool's description": {
        "opened": _RESULT + "{% for t in tools or [] if t.function.name == m.name %}{{ t.function.description ~ ' ' }}"
        "{% endfor %}{% endif %}"
    },
    "calls show the tool's description": {
        "closed": "{%- for t in tools or [] if t.function.name in (m.tool_calls or []) | map(attribute='function.name')"
        " | list %}{{ t.function.description ~ ' ' }}{% endfor %}"
    },
    "long messages numbered": {"opened": "{%- if m.content | length > 26 %}{{ '#' ~ loop.index ~ ' ' }}{% endif %}"},
    "turns with reasoning numbered": {
        "closing": "{%- if m.reasoning_content %}{{ '<|im_end|>#' ~ loop.index }}{% endif %}"
    },
    "results of one tool numbered": {"opened": "{%- if m.name == 'find' %}{{ '#' ~ loop.index ~ ' ' }}{% endif %}"},
    "third results numbered": {
        "opened": _RESULT + "{% if loop.index0 > 1 and messages[loop.index0 - 2].role == 'tool' %}"
        "{{ '#' ~ loop.index ~ ' ' }}{% endif %}{% endif %}"
    },
    "a word in the system prompt opens the turn": {
        "opening": "'<think></think>' if messages[0].role == 'system' and '/no_think' in messages[0].content else ''"
    },
    "a word of a user changes every stop after it": {
        "opened": "{%- if m.role == 'user' and '/quiet' in m.content %}{% set ns.text = 'quiet' %}{% endif %}",
        "stop": "'<|im_end|>' + ('' if ns.text else '\\n')",
    },
    "the first user quoted by every user": {
        "opened": "{%- if m.role == 'user' %}{{ messages[0].content ~ ': ' }}{% endif %}"
    },
    "results name their place among all calls": {
        "message": "{%- if m.tool_calls %}{% set ns.n = ns.n + m.tool_calls | length %}{% endif %}",
        "opened": _RESULT + "{{ m.name ~ ':' ~ ns.n ~ ' ' }}{% endif %}",
    },
    "results show the id of their call": {"opened": _RESULT + "{{ m.tool_call_id ~ ' ' }}{% endif %}"},
    "results show the end of their id": {"opened": _RESULT + "{{ m.tool_call_id[-3:] ~ ' ' }}{% endif %}"},
    "a number by chance": {"opened": "{{- range(99999) | random ~ ' ' }}"},
}


_ALL = set(KINDS)
_RESULTS = {"tool", "tools", "tools+user"}
_USERS = {"user", "tools+user"}
BREAKS = {
    "another stop for the last turn": {"assistant"},  # an injected turn is the last one until something follows
    "another stop for every last message": _ALL,
    "no stop for the last message": _ALL,
    "numbers messages from the end": _ALL,
    "numbers users from the end": _USERS,
    "counts messages at the start": _ALL,
    "counts turns at the end": _ALL,
    "quotes the last message at the start": _ALL,
    "runs of results closed after the last message": {"tool", "tools"},  # after a user there is nothing to close
    "runs of results closed by what follows": {"tool", "tools"},
    "results sorted by id": _RESULTS,
    "tools before the last user": _USERS,
    "tools at the end": _ALL,
    "systems at the start": {"system"},
    "systems in one": {"system"},
    "late systems dropped": {"system"},
    "a system before the last user": _USERS,
    "a reminder at the end": _ALL,
    "a word after the last user": _USERS,
    "the last message dropped": _ALL,
    "results dropped": _RESULTS,
    "all results but the last run dropped": _RESULTS,
    "the second of two results dropped": {"tools", "tools+user"},
    "calls dropped": _RESULTS,
    "calls of earlier turns dropped": {"tools+user"},  # the user makes the calling turn an earlier one at once
    "only the last four messages": _ALL,
    "only the last twelve messages": _ALL,
    "content cut to forty characters": _ALL,
    "content cut to its first line": _ALL,
    "content in capitals": _ALL,
    "content twice": _ALL,
    "late systems refused": {"system"},
    "tools in a row refused": {"tools", "tools+user"},
    "a user needed last": {"system"},
    "roles must alternate": {"tools", "assistant", "tools+user"},
    "stop depends on the length": _ALL,
    "a number by chance": _ALL,
}
"""The kinds of append that the template does not only add to; the traits left out break none."""


def template_with(traits: Iterable[str] = ()) -> str:
    """The template with these traits; where two of them want the same expression the later one has it."""
    statements: dict[str, str] = {}
    expressions = dict(_EXPRESSIONS)
    for name in traits:
        for slot, code in TRAITS[name].items():
            if slot in expressions:
                expressions[slot] = code
            else:
                statements[slot] = statements.get(slot, "") + code
    source = _BASE
    for slot, code in expressions.items():
        source = source.replace(f"«{slot}»", f"({code})")
    for slot in ("head", "message", "opened", "closing", "closed", "tail", "end"):
        source = source.replace(f"«{slot}»\n", f"{statements[slot]}\n" if statements.get(slot) else "")
    return source
