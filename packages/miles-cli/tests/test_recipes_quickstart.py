"""The quickstart's own files: what is shipped is what the script writes, and it says what it claims."""

import ast
import asyncio
import json
import random
import re
import threading
from collections import Counter
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from miles_cli import recipes
from miles_cli.recipes.quickstart import agent, problems
from miles_cli.recipes.quickstart.build import build, render
from miles_cli.recipes.quickstart.demonstrations import demonstrate

FOLDER = Path(agent.__file__).parent
MODEL = FOLDER / "model"


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_shipped_files_are_what_the_script_writes(tmp_path):
    build(tmp_path)
    names = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert {"prompts.jsonl", "demonstrations.jsonl", "model/tokenizer.json", "model/config.json"} <= set(names)
    for name in names:
        assert (tmp_path / name).read_bytes() == (FOLDER / name).read_bytes(), name


def test_the_checkpoint_stays_under_three_megabytes():
    assert sum(path.stat().st_size for path in MODEL.iterdir()) < 3_000_000
    assert (MODEL / "model.safetensors").is_file()


def retell(question):
    """The answer by reading the question's words, apart from the code that drew it."""
    number, *events = re.fullmatch(r"\w+ has (\d+) \w+, (.*)\. How many now\?", question).groups()
    number = int(number)
    for event in events[0].split(", then "):
        (operand,) = map(int, re.findall(r"\d+", event))
        if re.search("more", event):
            number += operand
        elif re.search("times", event):
            number *= operand
        elif re.search("all|equal", event):
            assert number % operand == 0
            number //= operand
        else:
            assert re.search("away", event)
            number -= operand
    return number


def test_every_label_is_the_answer_to_its_question():
    prompts = rows(FOLDER / "prompts.jsonl")
    assert len(prompts) >= 300
    assert len({row["prompt"] for row in prompts}) == len(prompts)
    for row in prompts:
        assert retell(row["prompt"]) == int(row["label"]), row


def test_prompts_need_one_or_two_operations_of_every_kind():
    lengths = Counter(row["prompt"].count(", ") for row in rows(FOLDER / "prompts.jsonl"))
    assert set(lengths) == {1, 2}
    assert 0.07 < lengths[2] / lengths.total() < 0.13


def test_demonstrations_copy_the_numbers_and_sometimes_pick_the_wrong_operation():
    rng = random.Random(3)
    right = 0
    for problem in problems.draw_many(rng, 2000, two_step_share=0.0):
        call = demonstrate(rng, problem)[1]["tool_calls"][0]["function"]
        left, operator, operand = json.loads(call["arguments"])["expression"].split()
        assert (int(left), int(operand)) == (problem.start, problem.steps[0].operand)
        right += operator == problem.steps[0].operator
    # Three quarters of 2000 picks; five standard deviations are 0.049.
    assert abs(right / 2000 - 0.75) < 0.049


def test_a_demonstration_answers_with_the_last_result_or_operand_and_tries_again_after_an_error():
    attentive = 0
    for messages in (row["messages"] for row in rows(FOLDER / "demonstrations.jsonl")[:500]):
        results = [message["content"] for message in messages if message["role"] == "tool"]
        operand = re.findall(r"\d+", messages[0]["content"])[-1]
        assert messages[-1]["content"] in (results[-1], operand)
        attentive += messages[-1]["content"] == results[-1]
        assert not results[-1].startswith("error")
        for call, result in zip(messages[1:-1:2], messages[2:-1:2], strict=True):
            assert result["tool_call_id"] == call["tool_calls"][0]["id"]
            assert result["content"] == agent.use_tool("calculator", call["tool_calls"][0]["function"]["arguments"])
    # Half of 500, and where result and operand are the same number; five standard deviations are 0.112.
    assert 0.388 < attentive / 500 < 0.65


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        ("37 + 5", "42"),
        ("5 - 37", "-32"),
        ("-4 * 6", "-24"),
        ("84 / 7", "12"),
        ("85 / 7", "error: not a whole number"),
        ("1 / 0", "error: not a whole number"),
        ("37", "error: not an operation"),
        ("1 + 2 + 3", "error: not an operation"),
        ("__import__('os')", "error: not an operation"),
        (None, "error: not an operation"),
    ],
)
def test_the_calculator_computes_one_operation_and_answers_every_fault(expression, result):
    assert agent.calculate(expression) == result


@pytest.mark.parametrize("arguments", ["", "[1]", "{}", "{'expression': 1}", "null"])
def test_arguments_that_are_no_call_are_answered_with_an_error(arguments):
    assert agent.use_tool("calculator", arguments) == "error: no expression"
    assert agent.use_tool("abacus", arguments) == "error: no such tool"


def test_the_agent_imports_nothing_of_miles():
    tree = ast.parse(Path(agent.__file__).read_text())
    modules = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    modules |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert "openai" in modules
    assert not [name for name in modules if name.startswith("miles")]


def call(expression, number):
    arguments = json.dumps({"expression": expression})
    function = {"name": "calculator", "arguments": arguments}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": f"c{number}", "type": "function", "function": function}],
    }


@contextmanager
def scripted(answers):
    """A real HTTP server that gives the answers in turn and keeps what it was asked."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            message = answers[len(asked)]
            asked.append(body)
            finish = "tool_calls" if message.get("tool_calls") else "stop"
            choice = {"index": 0, "finish_reason": finish, "message": message}
            answer = {"id": "x", "object": "chat.completion", "created": 0, "model": "policy", "choices": [choice]}
            raw = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def play(answers):
    question = {"role": "user", "content": "Mia has 9 eggs, buys 3 more, then sells 5. How many now?"}
    with scripted(answers) as (url, asked):
        told = asyncio.run(
            agent.run(base_url=url, prompt={"messages": [question]}, request_kwargs={"model": "policy"}, metadata={})
        )
    return told, asked


def test_the_agent_executes_calls_and_feeds_errors_back():
    answers = [call("9 / 5", 0), call("9 + 3", 1), call("12 - 5", 2), {"role": "assistant", "content": "7"}]
    told, asked = play(answers)
    assert told == {"tool_calls": 3, "tool_errors": 1}
    results = [(m["tool_call_id"], m["content"]) for m in asked[-1]["messages"] if m["role"] == "tool"]
    assert results == [("c0", "error: not a whole number"), ("c1", "12"), ("c2", "7")]
    assert all(body["tools"] == [agent.CALCULATOR] for body in asked)


def test_an_agent_that_never_gets_an_answer_stops_after_its_last_turn():
    told, asked = play([call("1 + 1", n) for n in range(agent.MAX_TURNS)])
    assert len(asked) == agent.MAX_TURNS
    assert told == {"tool_calls": agent.MAX_TURNS, "tool_errors": 0}


def test_the_tokenizer_takes_digits_by_twos_and_keeps_every_text():
    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    assert tokenizer.encode("12345", add_special_tokens=False).tokens == ["12", "34", "5"]
    assert not [entry for entry in tokenizer.get_vocab() if re.search(r"\d", entry) and not entry.isdecimal()]
    assert all(str(number) in tokenizer.get_vocab() for number in range(100))
    for text in ["naïve 日本 🎉\n\ttabs", "x  y", "<|im_start|>user\n9 + 3<|im_end|>\n", "{}[]"]:
        assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_every_stop_of_the_generation_config_is_a_control_token():
    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    stops = json.loads((MODEL / "generation_config.json").read_text())["eos_token_id"]
    assert [tokenizer.id_to_token(stop) for stop in stops] == ["<|im_end|>", "<|endoftext|>"]


def test_the_template_is_sound_for_tools_and_users():
    from miles_tito.verify import check_template

    report = check_template(MODEL)
    sound = {verdict.kind for verdict in report.verdicts if verdict.sound}
    assert report.sound
    assert {"tool", "tools", "user", "tools+user"} <= sound


def test_the_template_writes_a_call_as_json_between_its_tags():
    (text,) = render([[{"role": "user", "content": "hi"}, call("9 + 3", 0)]])
    assert text.endswith(
        '<|im_start|>assistant\n<tool_call>{"name": "calculator", "arguments": {"expression": "9 + 3"}}</tool_call>'
        "<|im_end|>\n"
    )


@pytest.mark.parametrize("name", ["quickstart", "quickstart-warm-start", "smollm2"])
def test_the_recipe_is_listed_with_a_description(name):
    recipe = recipes.all_recipes()[name]
    assert recipe.description
    assert recipe.kind == ("sft" if name == "quickstart-warm-start" else "rl")
