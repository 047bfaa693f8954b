"""The SmolLM2 recipe: how an answer is judged, and what the conversion of the package's GGUF file gives."""

import asyncio
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path

import pytest

from miles_cli.recipes.smollm2 import agent
from miles_cli.recipes.smollm2.convert import PACKAGE, convert, find_gguf
from miles_core.errors import ConfigError

FOLDER = Path(agent.__file__).parent


def has_model():
    try:
        distribution(PACKAGE)
    except PackageNotFoundError:
        return False
    return all(find_spec(name) for name in ("gguf", "accelerate"))


@pytest.mark.parametrize(
    ("text", "score", "faults"),
    [
        ("The river runs fast.", 1.0, 0),
        ("THE RIVER runs fast!", 1.0, 0),
        ("The stream runs fast.", 0.5, 1),
        ("rivers run", 0.5, 1),
        ("A river is a very wide stream.", 0.5 + 0.5 * (1 - 3 / 4), 1),
        ("one two three four five six seven eight nine", 0.0, 2),
        ("", 0.0, 2),
    ],
)
def test_half_the_score_is_for_the_word_and_half_falls_with_every_word_too_many(text, score, faults):
    found, told = agent.judge(text, {"word": "river", "most_words": 4})
    assert found == pytest.approx(score)
    assert len(told) == faults


def test_every_prompt_says_what_its_metadata_demands():
    rows = [json.loads(line) for line in (FOLDER / "prompts.jsonl").read_text().splitlines()]
    assert len(rows) >= 12
    for row in rows:
        assert f'"{row["metadata"]["word"]}"' in row["prompt"]
        assert f"at most {row['metadata']['most_words']} words" in row["prompt"]


def test_the_agent_gives_feedback_until_the_sentence_is_right():
    answers = ["A stream.", "A river that runs and runs and runs.", "A river runs."]
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            message = {"role": "assistant", "content": answers[len(asked) - 1]}
            choice = {"index": 0, "finish_reason": "stop", "message": message}
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
        told = asyncio.run(
            agent.run(
                base_url=f"http://127.0.0.1:{server.server_port}/v1",
                prompt={"messages": [{"role": "user", "content": "Write."}]},
                request_kwargs={"model": "policy"},
                metadata={"word": "river", "most_words": 4},
            )
        )
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert told == {"reward": 1.0, "faults": 0}
    feedback = [message["content"] for message in asked[-1]["messages"] if message["role"] == "user"][1:]
    assert feedback == ['Use the word "river".', "You wrote 8 words. Write at most 4 words."]


def test_a_missing_package_is_one_sentence_with_its_cure(tmp_path):
    with pytest.raises(ConfigError, match=r"expected the package no-such-model to be installed, found none; `uv sync"):
        convert(tmp_path / "model", package="no-such-model")
    assert list(tmp_path.iterdir()) == []


def test_a_package_without_a_gguf_file_is_named():
    with pytest.raises(ConfigError, match=r"expected one GGUF file ending in '' in the package pydantic, found none"):
        find_gguf("pydantic")


def test_a_converted_folder_is_left_as_it_is(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    convert(tmp_path, package="no-such-model")
    assert (tmp_path / "config.json").read_text() == "{}"


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.skipif(not has_model(), reason="needs the extra smollm2")
def test_the_conversion_gives_a_folder_that_transformers_loads(tmp_path):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    target = tmp_path / "model"
    convert(target)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    config = json.loads((target / "config.json").read_text())
    assert "quantization_config" not in config
    assert config["tie_word_embeddings"] is True
    tokenizer = AutoTokenizer.from_pretrained(target)
    stops = json.loads((target / "generation_config.json").read_text())["eos_token_id"]
    assert tokenizer.convert_ids_to_tokens(stops) == ["<|im_end|>", "<|endoftext|>"]
    assert tokenizer.tokenize("1234") == ["1", "2", "3", "4"]
    model = AutoModelForCausalLM.from_pretrained(target)
    assert model.dtype == torch.float32
    assert sum(weight.numel() for weight in model.parameters()) == 134_515_008
    question = [{"role": "user", "content": "What is the capital of France? Answer in one word."}]
    ids = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    with torch.inference_mode():
        answer = model.generate(**ids, max_new_tokens=8, do_sample=False)[0, ids["input_ids"].shape[1] :]
    assert "Paris" in tokenizer.decode(answer)
