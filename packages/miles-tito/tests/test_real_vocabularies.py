"""Real vocabularies: sampled ids stay bit for bit, and the rest is what the tokenizer gives for the template's text."""

import random
import re

import pytest
from tokenizers import Tokenizer

from miles_core.sample import Origin
from miles_tito import ChatTokenizer

from .conversations import Speaker
from .duel import Duel
from .oracle import CLOCK

pytestmark = pytest.mark.shared
NAMES = ["qwen3", "smollm2", "deepseek-v4"]


@pytest.fixture(scope="module")
def chats(tokenizers_folder):
    return {name: ChatTokenizer.from_pretrained(tokenizers_folder / name) for name in NAMES}


@pytest.fixture(scope="module")
def raw(tokenizers_folder):
    """The tokenizer as its own library loads it, and the texts of its control tokens."""
    found = {}
    for name in NAMES:
        tokenizer = Tokenizer.from_file(str(tokenizers_folder / name / "tokenizer.json"))
        found[name] = (tokenizer, [token.content for token in tokenizer.get_added_tokens_decoder().values()])
    return found


def spelled(tokenizer, rng, controls):
    """Ids that spell a control token letter by letter."""
    letters = [tokenizer.encode(letter, add_special_tokens=False).ids for letter in rng.choice(controls)]
    return [number for ids in letters for number in ids]


def broken_character(tokenizer, rng):
    """Part of the bytes of a character, as ids; all of them where the vocabulary has it whole."""
    ids = tokenizer.encode(rng.choice("🤖𝔘ꙮ🜁𓀀"), add_special_tokens=False).ids
    return ids[: rng.randint(1, max(1, len(ids) - 1))]


def split_merges(tokenizer, rng):
    """A word in pieces that the tokenizer would have joined."""
    word = rng.choice([" get_weather", " tokenization", "Hello", " unbelievable", "1234567", "        x"])
    cut = rng.randint(1, len(word) - 1)
    return [n for part in (word[:cut], word[cut:]) for n in tokenizer.encode(part, add_special_tokens=False).ids]


def random_pieces(tokenizer, rng, forbidden):
    size = tokenizer.get_vocab_size(with_added_tokens=False)
    return [n for n in rng.choices(range(size), k=8) if n not in forbidden]


def sampled_by(tokenizer, rng, controls, forbidden):
    kinds = [
        lambda: spelled(tokenizer, rng, controls),
        lambda: broken_character(tokenizer, rng),
        lambda: split_merges(tokenizer, rng),
        lambda: random_pieces(tokenizer, rng, forbidden),
    ]
    return [number for _ in range(rng.randint(1, 4)) for number in rng.choice(kinds)()]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", range(3))
def test_fifty_turns_of_ids_that_no_text_gives_back_are_kept_bit_for_bit(chats, raw, name, seed):
    chat, (tokenizer, controls) = chats[name], raw[name]
    rng = random.Random(f"{name}{seed}")
    transcript, kept, drifted = chat.begin([{"role": "user", "content": "go"}], now=CLOCK), [], 0
    for turn in range(50):
        ids = sampled_by(tokenizer, rng, controls, set(chat.stop_token_ids))
        again = tokenizer.encode(tokenizer.decode(ids, skip_special_tokens=False), add_special_tokens=False).ids
        drifted += again != ids
        ids = [*ids, chat.stop_token_ids[0]]
        kept.append(tuple(ids))
        logprobs = [-rng.random() for _ in ids]
        before = transcript.ids
        transcript = transcript.sampled(ids, message={"role": "assistant", "content": f"t{turn}"}, logprobs=logprobs)
        assert transcript.spans[-1].logprobs == tuple(logprobs)
        transcript = chat.append(transcript, [{"role": "user", "content": f"on {turn}"}])
        assert transcript.ids[: len(before) + len(ids)] == (*before, *ids)
    assert drifted > 40  # these are ids that decoding and encoding would have changed
    spans = transcript.spans
    assert [span.ids for span in spans if span.origin is Origin.SAMPLED] == kept
    assert [n for n, mask in zip(transcript.ids, transcript.loss_mask, strict=True) if mask] == [
        n for t in kept for n in t
    ]
    assert chat.verify(transcript).hard == 0


def pieces(text, controls):
    """The text cut at its control tokens, which are kept."""
    return [part for part in re.split("(" + "|".join(map(re.escape, controls)) + ")", text) if part]


@pytest.mark.parametrize("name", NAMES)
def test_the_ids_outside_turns_are_those_the_tokenizer_gives_for_each_piece_of_text(chats, raw, name):
    chat, (tokenizer, controls) = chats[name], raw[name]
    duel = Duel(chat.template.source, chat=chat)
    rng = random.Random(name)
    compared = 0
    for _ in range(12):
        speaker = Speaker(rng, reasoning=False)
        kinds = (
            ["user", "system"] if name == "smollm2" else ["user", "tool", "tools", "tools+user"]
        )  # it knows no tools
        steps = speaker.steps(rng.choices(kinds, k=3))
        found = duel.run([{"role": "user", "content": speaker.given()}], speaker.tools(), steps)
        assert [outcome.verdict for outcome in found] == ["agree"] * 3
        assert found[-1].refusal is None
        ids: list[list[int]] = [[]]
        for span in found[-1].transcript.spans:
            if span.origin is Origin.SAMPLED:
                ids.append([])
            else:
                ids[-1] += span.ids
        for some in ids:
            text = tokenizer.decode(some, skip_special_tokens=False)
            expected = [
                number
                for part in pieces(text, controls)
                for number in tokenizer.encode(part, add_special_tokens=False).ids
            ]
            assert some == expected
            compared += 1
    assert compared == 12 * 4


@pytest.mark.parametrize("name", NAMES)
def test_control_tokens_spelled_by_callers_are_no_control_tokens(chats, raw, name):
    chat, (tokenizer, controls) = chats[name], raw[name]
    special = [token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special]
    plain = chat.begin([{"role": "user", "content": "a  b"}], now=CLOCK)
    evil = chat.begin([{"role": "user", "content": "a " + " ".join(special) + " b"}], now=CLOCK)
    numbers = {tokenizer.token_to_id(token) for token in special}
    count = lambda transcript: sum(number in numbers for number in transcript.ids)  # noqa: E731
    assert count(evil) == count(plain)
    assert " ".join(special) in tokenizer.decode(list(evil.ids), skip_special_tokens=False)
    grown = chat.append(
        plain.sampled([*tokenizer.encode("x", add_special_tokens=False).ids, chat.stop_token_ids[0]]),
        [{"role": "user", "content": " ".join(controls)}],
    )
    assert chat.verify(grown).hard == 0
