"""The README's table of families: its data is that of the code, and what was found is found again."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from miles_tito import ChatTokenizer, NotExtendable
from miles_tito.families import FAMILIES, Family, family_named
from miles_tito.profile import SAYS, USER, try_render
from miles_tito.render import ChatTemplate
from miles_tito.verify import check_template
from miles_tito.verify.vocabulary import default_vocabulary

README = Path(__file__).parents[1] / "README.md"
HEADER = "| family | a turn ends with | then | keeps reasoning | format | in SGLang | found in | extends by |"
FOUND_IN: Mapping[str, str] = {
    "qwen2.5": "qwen2.5",
    "qwen3": "qwen3",
    "qwen3-next": "qwen3-thinking-2507",
    "qwen3.5": "qwen3.5",
    "glm-4.7": "glm-4.7-flash",
    "kimi-k2.5": "kimi-k2",
    "minimax-m2.5": "minimax-m2",
    "nemotron-3": "nemotron-3-super",
    "deepseek-v3": "deepseek-v3",
    "deepseek-v3.1": "deepseek-v3.1",
    "deepseek-v3.2": "deepseek-v3.2-llamacpp",
    "deepseek-v4": "deepseek-v4",
    "gpt-oss": "gpt-oss",
    "llama-3": "llama-3.1",
    "mistral": "mistral-nemo",
}
"""The template of the corpus, or of the real tokenizers, that a family's row was found in."""

TOOLS = [{"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": {"type": "object"}}}]
ONE, TWO = (
    {"id": f"abcdefgh{n}", "type": "function", "function": {"name": "look", "arguments": f'{{"n": {n}}}'}}
    for n in (1, 2)
)
RESULTS = [{"role": "tool", "tool_call_id": call["id"], "name": "look", "content": f"found {n}"} for n, call in
           enumerate((ONE, TWO))]  # fmt: skip
ANSWER = {"role": "assistant", "content": "answer"}
AGAIN = {"role": "user", "content": "again"}
KINDS = {
    "tool": ({"role": "assistant", "content": "", "tool_calls": [ONE]}, RESULTS[:1]),
    "tools": ({"role": "assistant", "content": "", "tool_calls": [ONE, TWO]}, RESULTS),
    "tools+user": ({"role": "assistant", "content": "", "tool_calls": [ONE, TWO]}, [*RESULTS, AGAIN]),
    "user": (ANSWER, [AGAIN]),
    "system": (ANSWER, [{"role": "system", "content": "mind the rules"}]),
    "assistant": (ANSWER, [{"role": "assistant", "content": "injected"}]),
}


def code(text: str) -> str:
    """The text in a cell, as code; a bar inside needs its backslash there too."""
    return "`" + text.replace("|", "\\|") + "`"


def cell(arguments: Mapping[str, Any]) -> str:
    return ", ".join(code(f"{name}={value}") for name, value in arguments.items()) or "-"


def data_of(family: Family) -> list[str]:
    """The cells that come from the table of families alone."""
    parsers = ", ".join(filter(None, (family.engine_tool_parser, family.engine_reasoning_parser)))
    return [family.name, code(family.stops[0]), cell(family.template_kwargs), code(family.format), parsers]


def follows(chat: ChatTokenizer, stop: str) -> str:
    """What the template writes between a turn and the next one: white space after the stop, or another end instead."""
    text = try_render(chat.template, [USER, {**SAYS, "content": "zqsaysqz"}, USER]) or ""
    rest = text[text.index("zqsaysqz") + len("zqsaysqz") :].lstrip()
    if not rest.startswith(stop):
        return f"{code(next(end for end in chat.profile.stops if rest.startswith(end)))} instead"
    after = rest[len(stop) :]
    space = after[: len(after) - len(after.lstrip())]
    return code(repr(space)[1:-1]) if space else "nothing"


def extends_by(chat: ChatTokenizer) -> list[str]:
    """Kinds of append that are proved: those with results in a conversation with tools, the others after an answer."""
    found = []
    for kind, (turn, new) in KINDS.items():
        transcript = chat.begin([USER], TOOLS if "tool" in kind else None)
        try:
            if turn is ANSWER:
                transcript = transcript.sampled([97, chat.stop_token_ids[0]], message=ANSWER)
                transcript = chat.append(transcript, [AGAIN])
            chat.append(transcript.sampled([97, chat.stop_token_ids[0]], message=turn), new)
        except NotExtendable:
            continue
        found.append(kind)
    return found


def kinds_in(row: list[str]) -> list[str]:
    """The kinds of append in a row's last cell."""
    return [] if row[7] == "none" else row[7].split(", ")


@pytest.fixture(scope="module")
def rows() -> dict[str, list[str]]:
    """The README's rows by family, as cells."""
    text = README.read_text()
    table = text[text.index(HEADER) :].split("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in table]
    return {row[0]: row for row in cells}


def test_the_table_has_a_row_for_every_family_with_its_data(rows):
    assert list(rows) == list(FAMILIES)
    for name, row in rows.items():
        assert [row[place] for place in (0, 1, 3, 4, 5)] == data_of(family_named(name))
        assert row[6] == (code(FOUND_IN[name]) if name in FOUND_IN else "-")


@pytest.fixture(scope="module")
def file_of(corpus, tokenizers_folder):
    """The template that a family's row was found in."""
    files = {path.stem: path for path in corpus}
    files["deepseek-v4"] = tokenizers_folder / "deepseek-v4" / "chat_template.jinja"

    def find(name: str) -> Path:
        if FOUND_IN[name] not in files:
            pytest.skip(f"no template {FOUND_IN[name]} in the corpus")
        return files[FOUND_IN[name]]

    return find


@pytest.mark.shared
@pytest.mark.parametrize("name", list(FOUND_IN))
def test_what_a_row_says_was_found_is_found_again(rows, file_of, name):
    family, source = family_named(name), file_of(name).read_text()
    vocabulary = default_vocabulary(ChatTemplate(source))
    chat = ChatTokenizer.from_pretrained(vocabulary, chat_template=source, family=name)
    assert rows[name][2] == follows(chat, family.stops[0])
    assert set(kinds_in(rows[name])) <= set(extends_by(chat))


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.parametrize("name", list(FOUND_IN))
def test_a_row_extends_by_what_the_verifier_finds_sound(rows, file_of, name):
    report = check_template(file_of(name), template_kwargs=family_named(name).template_kwargs)
    sound = {verdict.kind for verdict in report.verdicts if verdict.sound}
    assert kinds_in(rows[name]) == [kind for kind in KINDS if kind in sound]
