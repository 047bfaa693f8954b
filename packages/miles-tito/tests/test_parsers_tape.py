"""Text read forward: marks that overlap, texts that wait, and going back."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from miles_tito.parsers.tape import Tape


def read(reader, tape, pieces, stop=""):
    """What the reader gives when the pieces come one by one."""
    reading = reader(tape)
    for piece in [*pieces, None]:
        if piece is None:
            tape.end(stop)
        else:
            tape.feed(piece)
        try:
            next(reading)
        except StopIteration as done:
            return done.value
    raise AssertionError("the reading never ended")


def splitting(*marks):
    """A reader of everything: each text with the mark after it."""

    def reader(tape):
        found = []
        while True:
            text, mark = yield from tape.until(*marks)
            found.append((text, mark))
            if not mark:
                return found

    return reader


@pytest.mark.parametrize(
    ("marks", "text", "found"),
    [
        (("<a>",), "x<a>y", [("x", "<a>"), ("y", "")]),
        (("<a>", "<a>b"), "x<a>by<a>", [("x", "<a>b"), ("y", "<a>"), ("", "")]),
        (("open```json", "```"), "xopen```jsony```", [("x", "open```json"), ("y", "```"), ("", "")]),
        (("open```json", "```"), "xopen```jy", [("xopen", "```"), ("jy", "")]),
        (("aab",), "aaab", [("a", "aab"), ("", "")]),
        (("ab", "bc"), "abc", [("", "ab"), ("c", "")]),
        (("", "b"), "abc", [("a", "b"), ("c", "")]),
        ((), "abc", [("abc", "")]),
    ],
)
def test_the_first_mark_counts_and_of_two_at_one_place_the_longer(marks, text, found):
    assert read(splitting(*marks), Tape(), [text]) == found
    assert read(splitting(*marks), Tape(), text) == found


@given(
    text=st.text("ab`<", max_size=20),
    marks=st.lists(st.text("ab`<", min_size=1, max_size=4), min_size=1, max_size=4),
    cuts=st.lists(st.integers(0, 20), max_size=6),
)
@settings(max_examples=400, deadline=None)
def test_no_cut_changes_where_marks_are_found(text, marks, cuts):
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[a:b] for a, b in pairwise(edges)]
    assert read(splitting(*marks), Tape(), pieces) == read(splitting(*marks), Tape(), [text])


def test_certain_text_does_not_wait_for_the_mark():
    tape = Tape()
    tape.feed("so <to")
    with pytest.raises(StopIteration) as done:
        next(tape.some("<tool>"))
    assert done.value.value == ("so ", None)


def test_a_stop_is_a_mark_only_where_it_is_expected():
    assert read(splitting("</a>"), Tape(), ["x"], stop="</a>") == [("x", "</a>"), ("", "")]
    assert read(splitting("</a>"), Tape(), ["x"], stop="</b>") == [("x", "")]
    assert read(lambda tape: tape.accept("</a>"), Tape(), [""], stop="</a>") is True
    assert read(lambda tape: tape.accept("</a>"), Tape(), ["x"], stop="</a>") is False


@pytest.mark.parametrize("pieces", [["ab<c>d"], ["a", "b<", "c>d"], list("ab<c>d")])
@pytest.mark.parametrize("stop", ["", "<e>"])
def test_going_back_reads_the_same_again(pieces, stop):
    def reader(tape):
        yield from tape.accept("a")
        tape.record()
        once = [(yield from tape.until("<c>", "<e>")), (yield from tape.until("<e>"))]
        taken = tape.taken()
        tape.rewind()
        again = [(yield from tape.until("<c>", "<e>")), (yield from tape.until("<e>"))]
        tape.forget()
        return once, again, taken

    expected = [("b", "<c>"), ("d", stop)]
    assert read(reader, Tape(), pieces, stop) == (expected, expected, "b<c>d")


def test_a_mark_put_back_is_read_again_and_taken_once():
    def reader(tape):
        tape.record()
        _, mark = yield from tape.until("<c>")
        tape.put_back(mark)
        assert tape.taken() == "ab"
        return (yield from tape.accept("<c>")), tape.taken()

    assert read(reader, Tape(), list("ab<c>")) == (True, "ab<c>")


def test_white_space_and_peeking_wait_for_the_next_character():
    def reader(tape):
        return (yield from tape.space()), (yield from tape.peek()), (yield from tape.peek())

    assert read(reader, Tape(), [" ", "\n", "x"]) == (" \n", "x", "x")
    assert read(reader, Tape(), [" "]) == (" ", "", "")
