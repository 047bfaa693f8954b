r"""What each built-in reward says about an answer."""

import asyncio
import json
import threading
import time
from dataclasses import replace
from fractions import Fraction
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec

import pytest
from hypothesis import given
from hypothesis import strategies as st

from miles_core.errors import RewardError
from miles_core.rewards.agent_reward import agent_reward
from miles_core.rewards.answer import answer_of, last_boxed
from miles_core.rewards.boxed import boxed_reward
from miles_core.rewards.choice import choice_reward, chosen
from miles_core.rewards.f1 import f1_reward
from miles_core.rewards.math import math_reward
from miles_core.rewards.number import last_number, number_of
from miles_core.rewards.random import random_reward
from miles_core.rewards.remote import remote_reward


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("42", 42), ("-3", -3), ("+3", 3), ("−3", -3), ("1,234.50", Fraction(2469, 2)), ("3/4", Fraction(3, 4)),
        ("-3/-4", Fraction(3, 4)), (r"\frac{3}{4}", Fraction(3, 4)), (r"-\dfrac34", Fraction(-3, 4)),
        (r"2\frac{1}{2}", Fraction(5, 2)), (r"\frac{-1}{2}", Fraction(-1, 2)), ("1e3", 1000),
        ("1.5e-2", Fraction(3, 200)),
        (r"3\times 10^{4}", 30000), (r"$ 7 $", 7), (r"50\%", 50), ("5.", 5), (".5", Fraction(1, 2)), (r"\text{7}", 7),
        (r"90^\circ", 90), ("3/0", None), ("x", None), ("1,23", None), ("", None), ("1" * 500, None), ("1e9999", None),
        ("12 apples", None), ("1/2/3", None), (r"\$5", 5), (r"1{,}000", 1000),
    ],
)  # fmt: skip
def test_a_numeral_has_an_exact_value(text, value):
    assert number_of(text) == value


@given(st.integers(-(10**30), 10**30))
def test_every_integer_is_itself_with_and_without_separators(n):
    assert number_of(str(n)) == number_of(f"{n:,}") == number_of(rf"\frac{{{n}}}{{1}}") == n


@given(st.fractions(max_denominator=10**6))
def test_every_ratio_is_itself(q):
    assert number_of(f"{q.numerator}/{q.denominator}") == q


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("so 3 + 4 = 7.", "7"),
        ("it is -2", "-2"),
        ("about 1,000 or 2/3 maybe", "2/3"),
        ("no digits", None),
        ("x1", None),
    ],
)
def test_the_last_number_of_running_text(text, number):
    assert last_number(text) == number


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (r"\boxed{4}", "4"), (r"\boxed{1} then \boxed{\frac{1}{2}}", r"\frac{1}{2}"), (r"\boxed {a}", "a"),
        (r"\boxed{1} and \boxed{2", "1"), (r"\fbox{7}", "7"), (r"\boxed{\{1\}}", r"\{1\}"), (r"\boxed4", None),
        ("none", None),
        (r"\boxed{}", ""), (r"\boxed{a{b{c}}d}", "a{b{c}}d"),
    ],
)  # fmt: skip
def test_the_last_whole_box_counts(text, content):
    assert last_boxed(text) == content


@given(st.text(alphabet="ab{}\\boxed "))
def test_what_a_box_holds_has_as_many_closing_braces_as_opening_ones(text):
    content = last_boxed(text)
    if content is not None:
        plain = content.replace("\\\\", "").replace("\\{", "").replace("\\}", "")
        assert plain.count("{") == plain.count("}")


@pytest.mark.parametrize(
    ("answer", "label", "reward"),
    [
        (r"so \boxed{8}", 8, 1), (r"so \boxed{9}", "8", 0), (r"\boxed{8} no, \boxed{9}", "8", 0),
        ("#### 1,200", "1200", 1),
        ("The answer is 0.75.", "3/4", 1), ("Answer: 12 apples", "12", 1), ("3 + 4 = 7", 7, 1),
        ("7 is odd, not 8", "7", 0),
        ("The answer is blue", "blue", 1), ("", "4", 0), ("no idea", "4", 0), ("-5", "5", 0), ("0.333", "1/3", 0),
        (r"\boxed{\frac{1}{2}}", "0.5", 1), (r"\boxed{x + 1}", "x+1", 1), ("42", r"\boxed{42}", 1),
        ("It costs $18", "18", 1),
        ("Final answer: $x=5$", "5", 1), ("1" * 100000, "1", 0), ("The answer is 5. Then 7 came.", "5", 1),
    ],
)  # fmt: skip
def test_the_math_reward(make_sample, make_prompt, answer, label, reward):
    assert math_reward(make_sample(answer), make_prompt(label)) == reward


def test_a_tolerance_is_relative(make_sample, make_prompt):
    assert math_reward(make_sample("0.333"), make_prompt("1/3"), tolerance=0.01) == 1
    assert math_reward(make_sample("330"), make_prompt("333"), tolerance=0.001) == 0


@pytest.mark.skipif(find_spec("math_verify") is None, reason="needs the extra `math`")
@pytest.mark.parametrize(
    ("answer", "label", "reward"),
    [
        (r"\boxed{(x+1)^2}", "x^2+2x+1", 1), (r"\boxed{\sqrt{8}}", r"2\sqrt{2}", 1), (r"\boxed{2^3}", "8", 1),
        (r"\boxed{x^2+1}", "x^2+2x+1", 0), (r"\boxed{(1, 2)}", "(1,2)", 1), (r"\boxed{\{1,2\}}", r"\{2,1\}", 1),
    ],
)  # fmt: skip
def test_mathematics_that_is_no_number_is_compared_symbolically(make_sample, make_prompt, answer, label, reward):
    assert math_reward(make_sample(answer), make_prompt(label)) == reward


def test_no_answer_however_long_or_odd_is_judged_slowly(make_sample, make_prompt):
    start = time.process_time()
    for answer in (
        "9" * 200_000,
        "(" * 20_000,
        "\\boxed{" * 5_000,
        "answer " * 20_000,
        "1e999 " * 5_000,
        "1," * 50_000,
        "answer" + "\n" * 100_000,
        "answer " + "*" * 100_000,
        "####" + " " * 100_000,
        "#" * 100_000,
        "\\text{" * 20_000,
    ):
        for reward in (boxed_reward, choice_reward, f1_reward):
            assert reward(make_sample(answer), make_prompt("B")) == 0
        if find_spec("math_verify") is None:
            assert math_reward(make_sample(answer), make_prompt("1/7")) == 0
        number_of(answer)
        last_number(answer)
    assert time.process_time() - start < 5


def test_the_boxed_reward_needs_a_box(make_sample, make_prompt):
    assert boxed_reward(make_sample(r"\boxed{\frac12}"), make_prompt("0.5")) == 1
    assert boxed_reward(make_sample("4"), make_prompt("4")) == 0
    assert boxed_reward(make_sample(r"\boxed{5}"), make_prompt("4"), format_reward=0.1) == 0.1


def test_f1_by_hand(make_sample, make_prompt):
    # answer {cat, sat, mat}, label {cat, on, mat, mat}: 2 shared, 2 * 2 / (3 + 4)
    assert f1_reward(make_sample("The cat sat, mat!"), make_prompt("a cat on mat mat")) == pytest.approx(4 / 7)
    assert f1_reward(make_sample("Paris"), make_prompt(["London", "paris."])) == 1
    assert f1_reward(make_sample("x"), make_prompt("y")) == 0
    assert f1_reward(make_sample("the"), make_prompt("a")) == 1
    with pytest.raises(RewardError, match="a label or a list of labels"):
        f1_reward(make_sample("x"), make_prompt(None))


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("The answer is (C).", "C"), ("Answer: b", "B"), (r"\boxed{D}", "D"), (r"\boxed{\text{(A)}}", "A"),
        ("**B**", "B"),
        ("A or B? I choose (B).", "B"), ("C", "C"), ("I think it is a cat", None), ("no", None),
        ("option A, no: option D", "D"),
        ("The answer is Apple", None), ("Z", None), ("It was A at first, then B", "B"),
    ],
)  # fmt: skip
def test_the_chosen_letter(text, letter):
    assert chosen(text, choices=4) == letter


def test_choice_labels_are_letters_or_places(make_sample, make_prompt):
    assert choice_reward(make_sample("(C)"), make_prompt("c")) == 1
    assert choice_reward(make_sample("(C)"), make_prompt(2)) == 1
    assert choice_reward(make_sample("(C)"), make_prompt("(B)")) == 0
    for label in (None, "BC", 26, True):
        with pytest.raises(RewardError, match="a label from A to Z"):
            choice_reward(make_sample("(C)"), make_prompt(label))


def test_a_prompt_without_label_cannot_be_judged(make_sample, make_prompt):
    for reward in (math_reward, boxed_reward):
        with pytest.raises(RewardError, match="prompt 0-0: expected a label"):
            reward(make_sample(r"\boxed{4}"), make_prompt(None))


def test_the_random_reward_depends_on_seed_and_rollout_alone(make_sample, make_prompt):
    prompt = make_prompt()
    values = [random_reward(make_sample(rollout_id=f"r{i}"), prompt) for i in range(200)]
    assert values == [random_reward(make_sample("x", rollout_id=f"r{i}"), prompt) for i in range(200)]
    assert all(0 <= v < 1 for v in values)
    assert 0.4 < sum(values) / 200 < 0.6
    assert random_reward(make_sample(), prompt, seed=1) != random_reward(make_sample(), prompt)


def test_the_agents_own_reward_is_taken(make_sample, make_prompt):
    assert agent_reward(make_sample(agent={"reward": 0.5}), make_prompt()) == 0.5
    assert agent_reward(make_sample(agent={"score": True}), make_prompt(), key="score") == 1.0
    for returned in ({}, {"agent": None}, {"agent": {"reward": "1"}}):
        with pytest.raises(RewardError, match="a number under 'reward'"):
            agent_reward(make_sample(**returned), make_prompt())


def test_the_judged_text_is_the_last_assistant_message(make_sample):
    sample = make_sample("yes")
    assert answer_of(sample) == "yes"
    parts = {"role": "assistant", "content": [{"type": "text", "text": "n"}, {"type": "text", "text": "o"}]}
    later = (*sample.messages, parts, {"role": "user", "content": "thanks"})
    assert answer_of(replace(sample, messages=later)) == "no"
    assert answer_of(replace(sample, messages=sample.messages[:1])) == ""


@pytest.fixture
def reward_server():
    """Answers each POST with the next of `script`: (status, body); keeps what it was sent."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            server.seen.append((body, self.headers.get("authorization")))
            status, answer = server.script.pop(0) if len(server.script) > 1 else server.script[0]
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args):
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.seen, server.script = [], [(200, {"reward": 0.25})]
    server.url = f"http://127.0.0.1:{server.server_address[1]}/judge"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_remote_reward_sends_the_rollout_and_takes_the_number(reward_server, make_sample, make_prompt):
    value = asyncio.run(remote_reward(make_sample("4"), make_prompt("5"), url=reward_server.url, token="t"))
    assert value == 0.25
    ((body, authorization),) = reward_server.seen
    assert authorization == "Bearer t"
    assert (body["answer"], body["label"], body["rollout_id"], len(body["messages"])) == ("4", "5", "0/0-0/0", 2)


def test_a_busy_reward_server_is_asked_again(reward_server, make_sample, make_prompt):
    reward_server.script = [(503, {}), (429, {}), (200, {"reward": 1})]
    assert asyncio.run(remote_reward(make_sample(), make_prompt(), url=reward_server.url)) == 1.0
    assert len(reward_server.seen) == 3


@pytest.mark.parametrize(
    ("script", "calls", "told"),
    [
        ([(400, {"error": {"message": "no such model"}})], 1, "expected a reward, found 400: no such model"),
        ([(500, {"error": "boom"})], 2, "after 2 attempts, found 500: boom"),
        ([(200, {"score": 1})], 1, "expected {\"reward\": number}"),
        ([(200, {"reward": "high"})], 1, "expected {\"reward\": number}"),
    ],
)  # fmt: skip
def test_a_reward_server_that_refuses_is_told(reward_server, make_sample, make_prompt, script, calls, told):
    reward_server.script = script
    with pytest.raises(RewardError) as caught:
        asyncio.run(remote_reward(make_sample(), make_prompt(), url=reward_server.url, attempts=2))
    assert told in str(caught.value)
    assert len(reward_server.seen) == calls


def test_no_reward_server_is_told(make_sample, make_prompt):
    with pytest.raises(RewardError, match="expected a reward after 2 attempts, found ConnectError"):
        asyncio.run(remote_reward(make_sample(), make_prompt(), url="http://127.0.0.1:1/x", attempts=2))
