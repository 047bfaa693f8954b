"""Every format: what it reads, however it is cut, and that nothing is lost where it cannot."""

import json
import re
from itertools import pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from miles_core.errors import TokenError
from miles_tito import StreamParser, join_deltas
from miles_tito.parsers.formats import FORMATS, PLAIN, REASONING, format_named
from miles_tito.parsers.tape import Tape

from .written_turns import ARGUMENTS, TOOLS, WRITTEN


def parse(name, text, **options):
    return StreamParser(format_named(name), tools=TOOLS, **options).parse(text)


def parse_in(name, pieces, **options):
    parser = StreamParser(format_named(name), tools=TOOLS, **options)
    return join_deltas([*(delta for piece in pieces for delta in parser.feed(piece)), *parser.finish()])


def calls(message):
    return [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in message.get("tool_calls", ())]


def test_every_format_has_its_written_turn():
    assert WRITTEN.keys() == FORMATS.keys()


@pytest.mark.parametrize("name", FORMATS)
def test_a_written_turn_is_read(name):
    written = WRITTEN[name]
    message = parse(name, written.text)
    assert calls(message) == [("look_up", ARGUMENTS), ("ping", {})]
    assert message["content"] == ""
    assert not any(call.get("invalid") for call in message["tool_calls"])
    ids = [call["id"] for call in message["tool_calls"]]
    if written.ids:
        assert tuple(ids) == written.ids
    else:
        assert len(set(ids)) == 2
        assert all(len(number) == 9 and number.isalnum() for number in ids)


@pytest.mark.parametrize("name", [name for name in FORMATS if WRITTEN[name].words])
def test_content_around_the_calls_is_kept(name):
    message = parse(name, f"Before.\n{WRITTEN[name].text}\nAfter.")
    assert calls(message) == [("look_up", ARGUMENTS), ("ping", {})]
    assert message["content"] == "Before.\nAfter."


@pytest.mark.parametrize("name", FORMATS)
def test_character_by_character_is_the_whole(name):
    text = WRITTEN[name].text
    assert parse_in(name, text) == parse(name, text)


@pytest.mark.parametrize("name", FORMATS)
def test_a_turn_cut_anywhere_gives_whole_calls_and_marked_ones_only(name):
    text = WRITTEN[name].text
    whole = calls(parse(name, text))
    for end in range(len(text)):
        message = parse(name, text[:end])
        read = [call for call in message.get("tool_calls", ()) if not call.get("invalid")]
        marked = [call for call in message.get("tool_calls", ()) if call.get("invalid")]
        assert calls({"tool_calls": read}) == whole[: len(read)]
        assert len(marked) <= 1
        assert all(text[:end].endswith(call["raw"]) for call in marked)


@pytest.mark.parametrize("name", FORMATS)
def test_a_letter_is_in_the_content_in_a_call_or_in_the_raw_text_of_one(name):
    text = WRITTEN[name].text
    for place in range(0, len(text), 3):
        message = parse(name, f"{text[:place]}Ж{text[place:]}")
        assert "Ж" in json.dumps(message, ensure_ascii=False)


@pytest.mark.parametrize("name", FORMATS)
@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_any_cutting_of_any_turn_gives_one_message(name, data):
    reasoning = data.draw(st.sampled_from(["", "think"]))
    full = f"{name}+{reasoning}" if reasoning else name
    marks = [*WRITTEN[name].inside, "<think>", "</think>", WRITTEN[name].text, "\n", " ", "x", "é", "<", '"']
    text = "".join(data.draw(st.lists(st.sampled_from(marks), max_size=10)))
    for place, size in data.draw(st.lists(st.tuples(st.integers(0, 999), st.integers(1, 9)), max_size=3)):
        text = text[: place % (len(text) + 1)] + text[place % (len(text) + 1) + size :]
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=8))
    is_open = data.draw(st.booleans())
    pieces = [text[a:b] for a, b in pairwise([0, *sorted(cuts), len(text)])]
    whole = parse(full, text, reasoning_open=is_open)
    assert parse_in(full, pieces, reasoning_open=is_open) == whole
    # A call that cannot be read holds its letters twice, as arguments and as raw text.
    assert json.dumps(whole, ensure_ascii=False).count("é") >= text.count("é")


@pytest.fixture
def tapes(monkeypatch):
    """The tapes of the parsers made since."""
    found = []
    made = Tape.__init__

    def noted(self):
        made(self)
        found.append(self)

    monkeypatch.setattr(Tape, "__init__", noted)
    return found


@pytest.mark.parametrize(("name", "longest"), [(name, 50_000 if name == "hermes" else 5_000) for name in FORMATS])
def test_work_is_linear_in_a_long_argument_fed_by_the_character(name, longest, tapes):
    counts = []
    for size in (longest // 10, longest):
        # Letters that begin a mark of some format make the search look again.
        filling = ("lorem <|[ ipsum ｜ Action" * size)[:size]
        text = WRITTEN[name].text.replace("Italy", filling)
        message = parse_in(name, text)
        assert calls(message)[0][1]["city"] == f'Rome "one"\n{filling}'
        counts.append(tapes[-1].examined / len(text))
    assert counts[1] < 1.2 * counts[0] < 20


@pytest.mark.parametrize("fed", ["whole", "by the character"])
@pytest.mark.parametrize("name", ["hermes", "kimi_k2", "qwen3_coder", "mistral"])
def test_work_is_linear_in_the_number_of_broken_calls(name, fed, tapes):
    counts = []
    for many in (10, 100):
        # Each call breaks off inside a string that only the next one could close.
        text = (WRITTEN[name].first[:-1] + '"' + WRITTEN[name].first[:60]) * many
        parse_in(name, text if fed == "by the character" else [text])
        counts.append(tapes[-1].examined / len(text))
    assert counts[1] < 1.2 * counts[0] < 20


def degenerate(written):
    """What a policy may fall into repeating: each mark, each pair of them, each beginning of a turn up to one."""
    marks = [mark for mark in written.inside if mark and len(mark) < 60]
    beside = ('"', "'", "{", "[", "(", '{"', '\\"', '",', " ", "\n")
    turn = written.before + written.first
    ends = {place.end() for mark in marks for place in re.finditer(re.escape(mark), turn)}
    ends |= {place.end() for place in re.finditer(r"""[\[{(:=,"'>\n]""", turn[:160])}
    pairs = map("".join, product(marks, [*marks, *beside]))
    starts = (turn[start:end] for end in ends for start in (0, len(written.before)) if start < end)
    return list(dict.fromkeys([*marks, *pairs, *starts]))


def looks(name, text, tapes):
    """How often a character of the text is looked at, on average."""
    parse(name, text)
    return tapes[-1].examined / len(text)


@pytest.mark.parametrize("name", FORMATS)
def test_work_is_linear_in_whatever_is_repeated(name, tapes):
    first = WRITTEN[name].before + WRITTEN[name].first
    for number, unit in enumerate(degenerate(WRITTEN[name])):
        # Alone, where calls may stand, and after a call that breaks off.
        before = ("", WRITTEN[name].before, first[: len(first) // 2])[number % 3]
        few, many = (looks(name, before + unit * (size // len(unit) + 1), tapes) for size in (400, 1600))
        assert many < 1.3 * few + 1 < 20, unit


@pytest.mark.parametrize("name", FORMATS)
def test_a_name_gives_the_same_parser_again(name):
    found = format_named(f"{name}+think")
    assert found is format_named(found.name)
    assert found.reasoning == ("<think>", "</think>")
    assert found.syntax is format_named(name).syntax


@pytest.mark.parametrize("name", REASONING)
def test_reasoning_alone_is_a_format(name):
    opening, closing = REASONING[name]
    message = parse(name, f"{opening}why{closing}\nso")
    assert (message["reasoning_content"], message["content"]) == ("why", "so")


def test_an_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(TokenError, match="did you mean 'hermes'"):
        format_named("herms+think")
    with pytest.raises(TokenError, match="known are hermes"):
        format_named("xyzzy")
    with pytest.raises(TokenError, match="one syntax of calls"):
        format_named("hermes+glm45")
    assert format_named("plain") is PLAIN
