"""The loop over protocols: what is trained, pushed, written and saved, and in which order."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from miles_cli.pipeline.loop import Loop, Position, Rollout
from miles_cli.pipeline.resume import read_position, write_position
from miles_core.batch import TrainBatch
from miles_core.errors import TrainError
from miles_core.sample import Finish, Group, Origin, Sample, Span


def group(prompt: str, *, aborted: bool = False) -> Group:
    """A group of one sample of three tokens, two of them sampled."""
    spans = (
        Span(origin=Origin.PROMPT, ids=(1,)),
        Span(origin=Origin.SAMPLED, ids=(2, 3), logprobs=(-0.5, -0.25), weight_versions=(0, 0)),
    )
    sample = Sample(prompt_id=prompt, rollout_id=f"0/{prompt}/0", spans=spans, finish=Finish.STOP, reward=1.0)
    return Group(prompt_id=prompt, samples=(sample.aborted("it broke") if aborted else sample,))


class Diary:
    """Stands at the far end of every protocol of the loop and keeps what happened."""

    def __init__(self, steps: Mapping[int, list[Group]]) -> None:
        self.steps = steps
        self.events: list[tuple[Any, ...]] = []
        self.records: list[Mapping[str, Any]] = []

    async def run(self, step: int) -> Rollout:
        self.events.append(("rollout", step))
        return Rollout(groups=self.steps[step], metrics={"rollout_tokens": 2.0}, cursor={"position": step + 1})

    def phase(self, name: str, total: int) -> None: ...

    def step(self, what: Any) -> Any:
        if isinstance(what, TrainBatch):
            return self.train(what)
        self.records.append(what)
        self.events.append(("record", what["step"]))
        return None

    async def train(self, batch: TrainBatch) -> Mapping[str, float]:
        self.events.append(("train", batch.step, tuple(s.group_id for s in batch.sequences), batch.temperature))
        return {"loss": 0.5, "train_tokens": 3.0, "time/update_s": 0.1}

    async def push(self, version: int) -> Mapping[str, Any]:
        self.events.append(("push", version))
        return {}

    async def save(self, position: Position) -> None:
        self.events.append(("save", position))


def played(diary: Diary, *, steps: int, start: Position = Position(), save_every: int = 1) -> Position:  # noqa: B008
    """Run the loop with the diary on every side."""
    loop = Loop(
        rollouts=diary, trainers=diary, observer=diary, steps=steps, rollouts_per_step=1, save_every=save_every,
        temperature=0.7,
    )  # fmt: skip
    return asyncio.run(loop.run(start))


def test_a_step_rolls_out_trains_pushes_records_and_saves_in_that_order():
    diary = Diary({0: [group("a"), group("b")]})
    end = played(diary, steps=1)
    assert end == Position(step=1, weight_version=1, cursor={"position": 1})
    assert diary.events == [
        ("rollout", 0),
        ("train", 0, ("a", "b"), 0.7),
        ("push", 1),
        ("record", 0),
        ("save", end),
    ]


def test_everything_that_depends_on_time_lies_under_time():
    diary = Diary({0: [group("a")]})
    played(diary, steps=1)
    (record,) = diary.records
    time = record.pop("time")
    assert record == {"step": 0, "weight_version": 1, "rollout_tokens": 2.0, "loss": 0.5, "train_tokens": 3.0}
    assert set(time) == {
        "started_s", "rollout_s", "train_s", "push_s", "step_s", "rollout_tokens_per_s", "train_tokens_per_s",
        "update_s",
    }  # fmt: skip


@pytest.mark.parametrize("groups", [[], [group("a", aborted=True)]])
def test_a_step_with_nothing_to_train_keeps_the_weights_and_goes_on(groups):
    diary = Diary({0: groups, 1: [group("b")]})
    assert played(diary, steps=2).weight_version == 1
    assert [event for event in diary.events if event[0] in ("train", "push")] == [
        ("train", 1, ("b",), 0.7),
        ("push", 1),
    ]


def test_a_resumed_run_does_the_steps_that_are_left():
    diary = Diary({2: [group("a")], 3: [group("b")]})
    end = played(diary, steps=4, start=Position(step=2, weight_version=2, cursor={"position": 2}))
    assert [event[1] for event in diary.events if event[0] == "push"] == [3, 4]
    assert end == Position(step=4, weight_version=4, cursor={"position": 4})
    assert played(diary, steps=4, start=end) == end


def test_the_last_step_is_saved_whatever_save_every_says():
    diary = Diary({step: [group("a")] for step in range(5)})
    played(diary, steps=5, save_every=2)
    assert [event[1].step for event in diary.events if event[0] == "save"] == [2, 4, 5]


def test_a_position_survives_its_file_and_a_damaged_file_is_named(tmp_path: Path):
    position = Position(step=3, weight_version=3, cursor={"epoch": 1, "position": 4})
    write_position(tmp_path, position)
    assert read_position(tmp_path) == position
    (tmp_path / "position.json").write_text('{"step": 3')
    with pytest.raises(TrainError, match=r"position\.json"):
        read_position(tmp_path)
