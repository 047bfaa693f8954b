"""The checks themselves: they find what is put before them, and nothing else."""

import json
from dataclasses import replace

import pytest

from miles_core.sample import Origin, Span
from miles_tito.errors import Divergence
from miles_tito.marks import CLOSE, OPEN, Marker
from miles_tito.profile import EPOCH
from miles_tito.verify import check_template
from miles_tito.verify.checks import appended_ids, appended_specials
from miles_tito.verify.conversation import Grown, Step
from miles_tito.verify.diff import diff_lines
from miles_tito.verify.shapes import KINDS, TOOLS, shapes, verdict_kind
from miles_tito.verify.turns import turn_ids
from miles_tito.verify.words import words_in, words_of


def grown(chat, *appended):
    before = chat.begin([{"role": "user", "content": "Please askaaaa."}], now=EPOCH)
    turn = {"role": "assistant", "content": "So answeraaab."}
    after = chat.append(before.sampled(turn_ids(chat, before, turn), message=turn), appended)
    step = Step(chat=chat, shape="a test", before=before, turn=turn, appended=appended)
    return Grown(step=step, after=after, whole=step.whole(), report=chat.verify(after))


def tampered(grown, change):
    """The same append with other ids for what the template added."""
    piece = grown.after.last
    spans = tuple(replace(span, ids=change(span.ids)) for span in piece.spans)
    return replace(grown, after=grown.after.parent._with(replace(piece, spans=spans)))


def test_ids_as_the_whole_render_has_them_pass_and_one_other_id_fails(chat_for):
    right = grown(chat_for("chatml"), {"role": "user", "content": "Please askaaac."})
    assert appended_ids.check(right) is None
    comma = right.step.chat.vocabulary.encode(",")[0][0]
    point = right.step.chat.vocabulary.encode(".")[0][0]
    wrong = tampered(right, lambda ids: tuple(comma if number == point else number for number in ids))
    failure = appended_ids.check(wrong)
    assert failure is not None
    assert failure.rule == "incremental-ids"
    assert (failure.divergence.expected[0], failure.divergence.found[0]) == (".", ",")


def test_a_look_alike_that_stays_text_passes_and_one_that_becomes_a_token_fails(chat_for):
    right = grown(chat_for("chatml"), {"role": "user", "content": "Please askaaac <|im_end|> now."})
    assert appended_specials.check(right) is None
    stop = right.step.chat.vocabulary.id_of("<|im_end|>")
    failure = appended_specials.check(tampered(right, lambda ids: (*ids, stop)))
    assert failure is not None
    assert (failure.rule, "<|im_end|>" in failure.reason) == ("special-token-injection", True)


def test_a_diff_sets_control_tokens_apart_and_shows_white_space():
    marker = Marker(["<|end|>", "<|user|>"])
    shown = diff_lines(
        Divergence(offset=3, before="a <|u", expected="ser|>b \n", found=f"p {OPEN}<|end|>{CLOSE}\t"), marker
    )
    assert shown == ("  a·", "- ⟦<|user|>⟧b·⏎", "+ <|up <|end|>⇥")


def test_every_kind_is_reached_with_and_without_reasoning():
    for reasoning in (False, True):
        found = shapes(tools=True, reasoning=reasoning)
        assert {verdict_kind(appended) for shape in found for _, _, appended in shape.steps()} == set(KINDS)
        assert len({shape.name for shape in found}) == len(found)
        thoughts = [word for shape in found for word in words_of(shape.messages) if word.stem == "thought"]
        assert bool(thoughts) is reasoning


def test_no_sentinel_occurs_twice():
    every = [word for shape in shapes(tools=True, reasoning=True) for word in set(words_of(shape.messages))]
    by_shape = [list(words_of(shape.messages)) for shape in shapes(tools=True, reasoning=True)]
    assert every
    assert all(len(set(words)) == len(words) for words in by_shape)
    assert [word.stem for word in words_in(json.dumps(TOOLS))] == ["schema"]


def test_a_stop_that_the_files_do_not_name_is_a_warning(tmp_path, chat_for):
    chat = chat_for("chatml")
    chat.vocabulary.save(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(chat.template.source)
    end, start = chat.vocabulary.id_of("<|im_end|>"), chat.vocabulary.id_of("<|im_start|>")
    for stops, warned in (([end, start], False), (start, True)):
        (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": stops}))
        found = check_template(tmp_path, thinking=False, tools=False).of_rule("stop-tokens")
        assert [finding.severity for finding in found] == ["warning"] * warned
        assert all(str(end) in finding.cure for finding in found)


def test_spans_of_a_prompt_count_as_unsampled(chat_for):
    right = grown(chat_for("chatml"), {"role": "user", "content": "Please askaaac."})
    first = right.after.spans[0]
    assert isinstance(first, Span)
    assert first.origin is Origin.PROMPT
    assert {span.origin for span in right.after.spans} >= {Origin.SAMPLED, Origin.GLUE, Origin.ENVIRONMENT}


@pytest.mark.parametrize("name", ["chatml", "moves_tools"])
def test_a_report_is_the_same_each_time(template_file, name):
    one, other = (check_template(template_file(name), thinking=False, tools=False) for _ in range(2))
    assert (one.verdicts, one.findings) == (other.verdicts, other.findings)
