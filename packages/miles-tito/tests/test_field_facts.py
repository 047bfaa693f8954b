"""Faults that people met in token-in-token-out systems, each as the fact that rules out its whole kind."""

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from miles_core.sample import Origin
from miles_tito import ChatTokenizer, NotExtendable
from miles_tito.verify import check_template
from miles_tito.verify.vocabulary import default_vocabulary

from .conversations import KINDS, Speaker
from .duel import Duel
from .oracle import CLOCK
from .traits import template_with

USER = {"role": "user", "content": "ask"}
SAYS = {"role": "assistant", "content": "so"}


def calling(count, *, content="", arguments="{}"):
    calls = [
        {"id": f"abcdefgh{n}", "type": "function", "function": {"name": "find", "arguments": arguments}}
        for n in range(count)
    ]
    return {"role": "assistant", "content": content, "tool_calls": calls}


def results(turn, text="r"):
    return [{"role": "tool", "tool_call_id": call["id"], "content": text} for call in turn["tool_calls"]]


def chat_of(*traits, **kwargs):
    return Duel(template_with(traits), **kwargs).chat


def outside(transcript):
    """The text of everything that was not sampled, turn by turn."""
    parts = [""]
    for span in transcript.spans:
        if span.origin is Origin.SAMPLED:
            parts.append("")
        else:
            parts[-1] += transcript._chat.vocabulary.decode(span.ids)
    return parts


# The newline after the end-of-turn token is lost at each border.
@pytest.mark.parametrize("glue", ["", "\\n", "\\n\\n", " ", "\\n---\\n", " é"])
@pytest.mark.parametrize("kind", KINDS)
def test_whatever_follows_a_stop_stands_at_every_border(glue, kind):
    duel = Duel(template_with().replace("'<|im_end|>\\n'", f"'<|im_end|>{glue}'"))
    speaker = Speaker(random.Random(kind), reasoning=False)
    start, tools, steps = speaker.start(), speaker.tools(), speaker.steps([kind, "user", kind])
    for sample in (lambda ids, stop: [*ids, stop], lambda ids, stop: ids):  # the policy writes its stop, or does not
        found = duel.run(start, tools, steps, sample=sample)
        assert [outcome.verdict for outcome in found] == ["agree"] * 3
        walk, transcript = found[-1].finding, found[-1].transcript
        assert duel.chat.vocabulary.decode(transcript.ids) == walk.text


# Template arguments are left out of some renders, and masks shift.
def test_every_render_of_a_session_has_the_same_arguments():
    each = "{% for m in messages %}<|{{ m.role }}|>{{ mood + m.content }}<|end|>{% endfor %}"
    source = "{{ mood }}" + each + "<|assistant|>{{ mood }}"
    kwargs = [{"mood": "calm"}, {"mood": "keen and long"}]
    chats = [Duel(source, **some).chat for some in kwargs]
    for _ in range(2):  # the second time from whatever the first one kept
        for chat, mood in zip(chats, ("calm", "keen and long"), strict=True):
            transcript = chat.begin([{"role": "system", "content": "s"}, USER])
            for new in ([USER], [{"role": "system", "content": "t"}], [USER, USER]):
                transcript = transcript.sampled(chat.vocabulary.encode("x<|end|>")[0], message=SAYS)
                transcript = chat.append(transcript, new)
                assert outside(transcript)[-1].count(mood) == len(new) + 1
            assert transcript._chat.verify(transcript).hard == 0
            assert (
                outside(transcript)[0] == f"{mood}<|system|>{mood}s<|end|><|user|>{mood}ask<|end|><|assistant|>{mood}"
            )


def test_arguments_changed_by_their_owner_later_change_no_session():
    kwargs = {"preserve_thinking": True}
    source = (
        "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{{ preserve_thinking }}<|end|>{% endfor %}<|assistant|>"
    )
    template = Duel(source).chat.template.with_kwargs(kwargs)
    chat = ChatTokenizer(template, default_vocabulary(template))
    before = chat.begin([USER]).ids
    kwargs["preserve_thinking"] = "other"
    assert chat.begin([USER]).ids == before


# Parallel tool results rendered one by one become separate user turns.
@pytest.mark.parametrize("trait", [None, "runs of results in one message", "numbers results", "numbers messages"])
@pytest.mark.parametrize("count", [1, 2, 3, 6])
def test_messages_appended_together_are_one_suffix(trait, count):
    chat = chat_of(*([trait] if trait else []))
    turn = calling(count)
    done = chat.begin([USER]).sampled(chat.vocabulary.encode("x<|im_end|>")[0], message=turn)
    together = chat.append(done, results(turn))
    whole = chat.template.render(
        chat.template.normalised([USER, turn, *results(turn)]), generation_prompt=True, now=CLOCK
    )
    assert whole.endswith("<|im_end|>" + outside(together)[-1])
    one = chat.append(done, results(turn)[:1])
    with pytest.raises(NotExtendable, match="awaits a turn"):
        chat.append(one, results(turn)[1:] or results(turn))


# Re-templating drops reasoning, and one rollout becomes many samples.
@pytest.mark.parametrize(
    "trait",
    ["drops reasoning", "drops reasoning before the last user", "keeps reasoning of the last message only", "trims"],
)
def test_a_rollout_is_one_sequence_whose_prefix_never_changes(trait):
    chat = chat_of(trait)
    transcript, sampled = chat.begin([USER]), []
    for number in range(8):
        ids = chat.vocabulary.encode(f"<think>\nthought {number}\n</think>\n\nanswer {number} <|im_end|>")[0]
        before, sampled = transcript.ids, [*sampled, tuple(ids)]
        transcript = transcript.sampled(ids)
        assert transcript.ids == (*before, *ids)
        grown = chat.append(transcript, [USER])
        assert grown.ids[: transcript.num_tokens] == transcript.ids
        transcript = grown
    assert [span.ids for span in transcript.spans if span.origin is Origin.SAMPLED] == sampled
    assert "thought 0" in str(transcript.messages[1])


# One drifted turn zeroes everything that was trained.
def test_a_drifted_turn_is_one_soft_difference_of_that_turn():
    chat = chat_of()
    transcript = chat.begin([USER])
    clean = chat.vocabulary.encode("hello<|im_end|>")[0]
    for number in range(12):
        drifted = [*clean[:2], 300 - 44, *clean[2:]] if number == 5 else clean
        message = {**SAYS, "content": "hello"}
        transcript = chat.append(transcript.sampled(drifted, message=message), [USER])
    report = chat.verify(transcript)
    assert (report.hard, report.soft) == (0, 1)
    assert [(d.kind, d.turn) for d in report.differences] == [("assistant_text", 5)]
    assert sum(transcript.loss_mask) == 12 * len(clean) + 1


# The generation prompt and the newline after the stop token are trained.
@pytest.mark.parametrize(
    "traits",
    [("opens reasoning",), ("opens and closes reasoning",), ("two newlines after a turn",), ("numbers messages",)],
)
@given(seed=st.integers(0, 2**32))
@settings(max_examples=3, deadline=None)
def test_only_what_was_sampled_is_trained(traits, seed):
    duel, rng = Duel(template_with(traits)), random.Random(seed)
    speaker = Speaker(rng)
    written: list[int] = []

    def sample(ids, stop):
        written.extend(picked := [*rng.choices(range(256), k=3), *ids, *([stop] if rng.random() < 0.7 else [])])
        return picked

    found = duel.run(speaker.start(), speaker.tools(), speaker.steps(["tool", "user", "tools+user"]), sample=sample)
    transcript = found[-1].transcript
    trained = [n for n, mask in zip(transcript.ids, transcript.loss_mask, strict=True) if mask]
    assert trained == written
    assert all(p == 0.0 for p, mask in zip(transcript.logprobs, transcript.loss_mask, strict=True) if not mask)


# The dummy turn of a difference leaves an empty thinking block in the text.
@pytest.mark.parametrize("trait", ["opens and closes reasoning", "drops reasoning", "stop depends on reasoning"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_rendered_to_derive_leaves_no_trace(trait, kind):
    duel, speaker = Duel(template_with([trait])), Speaker(random.Random(kind))
    for outcome in duel.run(speaker.start(), speaker.tools(), speaker.steps(["user", kind, kind])):
        assert outcome.verdict == "agree", outcome
        text = duel.chat.vocabulary.decode(outcome.transcript.ids)
        assert "zq" not in text
        assert text == outcome.finding.text or trait != "stop depends on reasoning"


# A check accepts templates that drop tool calls.
@pytest.mark.parametrize(
    ("trait", "kinds"),
    [
        ("calls dropped", {"tool", "tools", "tools+user"}),
        ("results dropped", {"tool", "tools", "tools+user"}),
        ("late systems dropped", {"system"}),
        ("the second of two results dropped", {"tools", "tools+user"}),
        ("the last message dropped", set(KINDS)),
        ("content in capitals", set(KINDS)),
    ],
)
def test_a_template_that_drops_something_is_never_sound_and_never_extends(tmp_path, trait, kinds):
    if trait in ("calls dropped", "the last message dropped"):
        path = tmp_path / "template.jinja"
        path.write_text(template_with([trait]))
        unsound = {verdict.kind for verdict in check_template(path, thinking=False).verdicts if not verdict.sound}
        assert unsound >= kinds
    for kind in sorted(kinds):
        speaker = Speaker(random.Random(kind), reasoning=False)
        (outcome,) = Duel(template_with([trait])).run(speaker.start(), [], speaker.steps([kind]))
        assert outcome.refusal is not None


# Only one end-of-sequence id is honoured, and nearly every sample counts as clipped.
@pytest.mark.parametrize(
    ("generation", "config"), [(["<|im_end|>", "<|endoftext|>"], "<|eot|>"), ("<|im_end|>", None), (["<|eot|>"], None)]
)
def test_every_end_of_sequence_id_of_the_model_ends_a_turn(tmp_path, generation, config):
    duel = Duel(template_with() + "{# <|endoftext|> <|eot|> #}{% if false %}<|endoftext|><|eot|>{% endif %}")
    vocabulary = duel.chat.vocabulary
    vocabulary.save(tmp_path)
    ids = [vocabulary.id_of(token) for token in ([generation] if isinstance(generation, str) else generation)]
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": ids if len(ids) > 1 else ids[0]}))
    if config:
        (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": vocabulary.id_of(config)}))
        ids.append(vocabulary.id_of(config))
    (tmp_path / "chat_template.jinja").write_text(template_with())
    chat = ChatTokenizer.from_pretrained(tmp_path)
    assert set(ids) <= set(chat.stop_token_ids)
    end = vocabulary.id_of("<|im_end|>")
    for stop in ids:
        done = chat.begin([USER]).sampled([65, stop], finish="length")  # it stopped, whatever the engine calls it
        grown = chat.append(done, [USER])
        assert grown.ids.count(end) == 3
        assert sum(grown.loss_mask) == (2 if stop == end else 1)
        assert chat.verify(grown).hard == 0


# The stop token is also the next turn's opener and is counted twice.
@pytest.mark.parametrize("sampled", ["<|user|>", "<|observation|>", "<|system|>", ""])
@pytest.mark.parametrize("role", ["user", "system", "tool"])
def test_an_opener_that_was_sampled_as_a_stop_is_there_once(chat_for, sampled, role):
    chat = chat_for("opener_is_stop")
    turn = calling(1) if role == "tool" else SAYS
    new = results(turn) if role == "tool" else [{"role": role, "content": "next"}]
    body = chat.vocabulary.encode(f"x</think>y{sampled}")[0]
    grown = chat.append(chat.begin([USER]).sampled(body, message=turn), new)
    opener = {"tool": "<|observation|>"}.get(role, f"<|{role}|>")
    whole = chat.template.render(chat.template.normalised([USER, turn, *new]), generation_prompt=True, now=CLOCK)
    for token in ("<|user|>", "<|observation|>", "<|system|>"):
        assert grown.ids.count(chat.vocabulary.id_of(token)) == whole.count(token)
    assert chat.vocabulary.decode(grown.ids).count(opener + ("<tool_response>" if role == "tool" else "next")) == 1
    assert sum(grown.loss_mask) == len(body) - (sampled not in ("", opener))


# A tokenizer's own limit cuts long input from the left, without a word.
@pytest.mark.parametrize("direction", ["left", "right"])
def test_nothing_is_ever_cut_or_padded(tmp_path, direction):
    tokenizer = Tokenizer.from_str(chat_of().vocabulary._tokenizer.to_str())
    tokenizer.enable_truncation(16, direction=direction)
    tokenizer.enable_padding(length=64, direction=direction)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 16, "truncation_side": direction}))
    (tmp_path / "chat_template.jinja").write_text(template_with())
    long = "word " * 4000
    for given_as in (tmp_path, tokenizer):
        chat = ChatTokenizer.from_pretrained(given_as, chat_template=template_with())
        transcript = chat.begin([{"role": "user", "content": long}, SAYS, USER])
        grown = chat.append(transcript.sampled([65, chat.stop_token_ids[0]]), [{"role": "user", "content": long}])
        assert chat.vocabulary.decode(grown.ids).count(long) == 2
        assert grown.num_tokens > 2 * len(long)
        assert chat.begin([USER]).num_tokens == len("user\nask\nassistant\n") + 3


# A prompt longer than the context asks for a negative number of tokens.
def test_a_turn_without_room_is_recorded_as_an_empty_truncated_one():
    chat = chat_of()
    transcript = chat.begin([USER]).sampled([], finish="length")
    assert (transcript.num_turns, sum(transcript.loss_mask), transcript.last.finish) == (1, 0, "length")
    with pytest.raises(NotExtendable, match="truncated"):
        chat.append(transcript, [USER])
