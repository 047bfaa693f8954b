"""A scripted engine that reasons, calls a tool, sees its result and answers; and the check of what was recorded."""

import importlib
import json
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from miles_core import sample_codec
from miles_core.sample import Origin
from miles_tito import ChatTokenizer

THINKING_TEMPLATE = Path(__file__).parents[1] / "thinking.jinja"
TOKEN = "s3cret"
FIRST, SECOND = "What is 2 + 3?", "And 4 + 5?"
SYSTEM = "You add numbers."


def tool_text(a: int, b: int) -> str:
    return f'Adding.\n<tool_call>\n{{"name": "add", "arguments": {{"a": {a}, "b": {b}}}}}\n</tool_call>'


def reply_to(prompt: str) -> str:
    """What the engine answers to a prompt: by its last message."""
    last = prompt.rsplit("<|im_start|>", 2)[-2]
    if "<tool_response>" in last:
        return f"The sum is {last.split('<tool_response>')[1].split('</tool_response>')[0].strip()}."
    if "Observation:" in last:
        return '<tool_call>\n{"name": "final_answer", "arguments": {"answer": "The sum is 5."}}\n</tool_call>'
    if SECOND in last:
        return tool_text(4, 5)
    return tool_text(2, 3) if FIRST in last else "Nothing to add."


@dataclass
class Stage:
    """One session with its engine. url: the session's base URL, without `/v1`."""

    http: Any
    session: str
    url: str
    sampled: list[tuple[int, ...]] = field(default_factory=list)
    """Ids of each of the engine's answers, in their order."""
    token: str = TOKEN

    def state(self) -> dict[str, Any]:
        return self.http.get(f"/sessions/{self.session}").json()

    def samples(self) -> list[Any]:
        answer = self.http.post(f"/sessions/{self.session}/samples", json={"prompt_id": "0-1", "rollout_id": "1/0-1/0"})
        assert answer.status_code == 200, answer.text
        return sample_codec.decode(answer.content)

    def check(self, *, turns: int, samples: int = 1) -> list[Any]:
        """Every answer of the engine is on record and trained exactly once, with the log-probabilities it came with.

        turns: answers that the engine gave. samples: trajectories that they form.
        """
        state = self.state()
        assert (len(self.sampled), len(state["turns"])) == (turns, turns)
        assert state["in_flight"] == 0
        assert {report["hard"] for report in state["mismatch"].values()} == {0}
        found = self.samples()
        assert len(found) == samples
        trained = []
        for sample in found:
            start = 0
            for span in sample.spans:
                ids = sample.ids[start : start + len(span.ids)]
                mask = sample.loss_mask[start : start + len(span.ids)]
                assert tuple(ids.tolist()) == span.ids
                if span.origin is Origin.SAMPLED:
                    assert bool(mask.all()) == span.trained
                    expected = [-(token % 8 + 1) / 16 for token in span.ids]
                    assert np.array_equal(np.asarray(span.logprobs), np.asarray(expected))
                    trained += [span.ids] if span.trained else []
                else:
                    assert not mask.any()
                start += len(span.ids)
        assert sorted(trained) == sorted(self.sampled)
        return found

    def check_chain(self, *, turns: int) -> None:
        """One trajectory: each turn extends the one before, and the trained ids are the engine's, in order."""
        (sample,) = self.check(turns=turns)
        assert sample.metadata["turns"] == turns
        state = self.state()
        assert [turn["extends"] for turn in state["turns"]] == [False, *[True] * (turns - 1)]
        assert sample.ids[sample.loss_mask].tolist() == [i for ids in self.sampled for i in ids]


@pytest.fixture
def stage(bench, Reply) -> Stage:
    """A session behind a session server and a router, each of which asks for its token."""
    bench.chat = ChatTokenizer.from_pretrained(bench.model_dir, chat_template=THINKING_TEMPLATE.read_text())
    sampled: list[tuple[int, ...]] = []

    def script(prompt: str, body: dict) -> Any:
        reply = Reply(f"<think>\nLet me see.\n</think>\n\n{reply_to(prompt)}", step_s=0.001)
        sampled.append(tuple(engine.ids_of(reply)))
        return reply

    engine, url = bench.engine(script)
    _, router = bench.router(url, token="r")
    _, sessions = bench.sessions(router, token=TOKEN, engine_token="r")
    http = bench.client(sessions, headers={"Authorization": f"Bearer {TOKEN}"})
    session = http.post("/sessions", json={"seed": 3}).json()["session_id"]
    return Stage(http=http, session=session, url=f"{sessions}/sessions/{session}", sampled=sampled)


@pytest.fixture
def library():
    """Imports a client's module; what it warns about at import is its own affair."""

    def load(name: str) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module(name)

    return load


@pytest.fixture
def add():
    """The tool, which keeps count of its calls."""
    calls: list[tuple[int, int]] = []

    def add(a: int, b: int) -> int:
        calls.append((a, b))
        return a + b

    add.calls = calls
    return add


@pytest.fixture
def call_add(add):
    """Runs a call from its name and arguments (a JSON text or an object); the result as a text."""

    def call(name: str, arguments: Any) -> str:
        assert name == "add"
        return str(add(**(json.loads(arguments) if isinstance(arguments, str) else arguments)))

    return call
