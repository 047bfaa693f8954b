"""The session server: cost of a turn as a conversation grows, of the log, and of many sessions in one process.

Times are CPU time of the server's process alone: it calls a scripted engine that answers at once, in the same process,
so what the engine would take is not in them, and neither is what other programs do meanwhile.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
import tracemalloc
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from miles_router.sessions.assembly import Assembler
from miles_router.sessions.config import SessionServerConfig
from miles_router.sessions.dialects.openai_chat.request import parse_request
from miles_router.sessions.generation import Generation
from miles_router.sessions.log.config import LogConfig
from miles_router.sessions.log.shards import ShardedLog
from miles_router.sessions.matchers import matcher_named
from miles_router.sessions.service import SessionService
from miles_router.sessions.session import SessionSpec
from miles_tito import ChatTokenizer

TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
TOOL_RESULT = "the tool found " + " ".join(f"item {number}" for number in range(40))
ANSWER = "I look at the next one and think about what it means for the plan. " * 3


def model_folder(folder: Path) -> Path:
    """A folder with a small byte-level vocabulary and a ChatML template."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator([TOOL_RESULT, ANSWER] * 8, trainer)
    tokenizer.add_special_tokens([AddedToken(mark, special=True) for mark in ("<|im_start|>", "<|im_end|>")])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


class InstantEngine:
    """Answers every call at once with the same ids. delay_s: how long it lets others go first."""

    def __init__(self, chat: ChatTokenizer) -> None:
        ids = (*chat.vocabulary.encode(ANSWER)[0], chat.vocabulary.id_of("<|im_end|>"))
        self.delay_s = 0.0
        self._answer = Generation(
            ids=ids, logprobs=tuple(-0.25 for _ in ids), weight_versions=(1,) * len(ids), finish="stop"
        )

    async def generate(self, body: Mapping[str, Any], *, routing_key: str, first_row: int = 0) -> Generation:
        await asyncio.sleep(self.delay_s)
        return self._answer

    async def close(self) -> None:
        return None


@asynccontextmanager
async def server(chat: ChatTokenizer, model_dir: Path, log: LogConfig | None) -> AsyncIterator[SessionService]:
    """A session service without HTTP in front of it."""
    config = SessionServerConfig(engine_url="http://x", model_dir=model_dir, context_length=1 << 20, log=log)
    service = SessionService(
        config,
        chat,
        InstantEngine(chat),  # type: ignore[arg-type]
        matcher=matcher_named(config.matcher),
        assembler=Assembler(config, chat),
        log=None if log is None else ShardedLog(log),
    )
    await service.open()
    tending = asyncio.create_task(service.tend())
    try:
        yield service
    finally:
        tending.cancel()
        await asyncio.wait({tending})
        await service.close()


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU seconds of one turn. reading: of its body, which holds the whole conversation. rest: everything after."""

    reading: float
    rest: float

    @property
    def total(self) -> float:
        """Both."""
        return self.reading + self.rest


async def converse(service: SessionService, turns: int) -> list[Cost]:
    """What each turn of one conversation costs."""
    session = await service.create(SessionSpec(seed=1))
    messages: list[Mapping[str, Any]] = [{"role": "user", "content": "go"}]
    times = []
    for _ in range(turns):
        body = json.dumps({"messages": messages}).encode()
        began = time.process_time()
        request = parse_request(body).turn
        read = time.process_time()
        attempt = await service.start(session.session_id, request)
        turn = await attempt.result()
        attempt.leave(took=True)
        times.append(Cost(read - began, time.process_time() - read))
        messages += [turn.message, {"role": "user", "content": TOOL_RESULT}]
    await service.delete(session.session_id)
    return times


async def growth(chat: ChatTokenizer, model_dir: Path, *, turns: int, rounds: int) -> None:
    """Print the cost of a turn by its place in the conversation, with and without the log."""
    tokens = len(chat.vocabulary.encode(TOOL_RESULT + ANSWER)[0])
    print(f"| turn of {turns} (about {tokens} tokens each) | CPU ms | of it reading the request |")
    print("|---|---|---|")
    best: dict[str, list[Cost]] = {}
    for name in ("no log", "none", "interval", "always"):
        with tempfile.TemporaryDirectory() as folder:
            log = None if name == "no log" else LogConfig(folder=Path(folder), fsync=name)  # type: ignore[arg-type]
            async with server(chat, model_dir, log) as service:
                await converse(service, 20)
                runs = [await converse(service, turns) for _ in range(rounds)]
        best[name] = [min(costs, key=lambda cost: cost.total) for costs in zip(*runs, strict=True)]
    for first in range(0, turns, turns // 5):
        part = best["no log"][first : first + turns // 5]
        total, reading = (statistics.median(times) * 1e3 for times in _columns(part))
        print(f"| {first + 1} to {first + turns // 5} | {total:.2f} | {reading:.2f} |")
    early, late = (_columns(best["no log"][part]) for part in (slice(5, 25), slice(turns - 20, turns)))
    rest = [statistics.median(total) - statistics.median(reading) for total, reading in (early, late)]
    print(f"| last 20 / turns 5 to 25, without reading | {rest[1] / rest[0]:.2f} | |")
    print("\n| log | CPU ms a turn | more than without |")
    print("|---|---|---|")
    plain = sum(cost.total for cost in best["no log"]) / turns
    for name, costs in best.items():
        mean = sum(cost.total for cost in costs) / turns
        print(f"| {name} | {mean * 1e3:.2f} | {(mean - plain) * 1e3:.2f} |")


def _columns(costs: Sequence[Cost]) -> tuple[list[float], list[float]]:
    return [cost.total for cost in costs], [cost.reading for cost in costs]


async def crowd(chat: ChatTokenizer, model_dir: Path, *, idle: int, active: int, turns: int) -> None:
    """Print memory and latency with many sessions in one process."""
    with tempfile.TemporaryDirectory() as folder:
        log = LogConfig(folder=Path(folder))
        async with server(chat, model_dir, log) as service:
            await converse(service, 5)
            tracemalloc.start()
            before = tracemalloc.get_traced_memory()[0]
            for _ in range(idle):
                await service.create(SessionSpec(seed=1))
            empty = (tracemalloc.get_traced_memory()[0] - before) / idle
            tracemalloc.stop()
            service._runner._engine.delay_s = 0.05  # type: ignore[attr-defined]
            waits: list[float] = []

            async def talk() -> None:
                session = await service.create(SessionSpec(seed=1))
                messages: list[Mapping[str, Any]] = [{"role": "user", "content": "go"}]
                for _ in range(turns):
                    body = json.dumps({"messages": messages}).encode()
                    began = time.perf_counter()
                    attempt = await service.start(session.session_id, parse_request(body).turn)
                    turn = await attempt.result()
                    attempt.leave(took=True)
                    waits.append(time.perf_counter() - began)
                    messages += [turn.message, {"role": "user", "content": TOOL_RESULT}]

            began = time.process_time()
            await asyncio.gather(*(talk() for _ in range(active)))
            cpu = time.process_time() - began
            size = _size_of(Path(folder))
            filled = service.store.nbytes / active
    waits.sort()
    print(f"\n| {idle:,} idle and {active:,} active sessions, {turns} turns each | |")
    print("|---|---|")
    print(f"| bytes of an idle session | {empty:,.0f} |")
    print(f"| bytes of an active session, as it is counted | {filled:,.0f} |")
    print(f"| bytes of log a turn | {size / (active * turns):,.0f} |")
    print(f"| turns/s of CPU | {len(waits) / cpu:,.0f} |")
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        print(
            f"| {name} of a turn with all at once, s (50 ms of it the engine) | {waits[int(len(waits) * share)]:.2f} |"
        )


def _size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*.log"))


async def measured_bytes(chat: ChatTokenizer, model_dir: Path, *, turns: int) -> None:
    """Print what a conversation really takes in memory, beside what the caps count."""
    async with server(chat, model_dir, None) as service:
        await converse(service, 5)
        tracemalloc.start()
        session = await service.create(SessionSpec(seed=1))
        messages: list[Mapping[str, Any]] = [{"role": "user", "content": "go"}]
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(turns):
            attempt = await service.start(
                session.session_id, parse_request(json.dumps({"messages": messages}).encode()).turn
            )
            turn = await attempt.result()
            attempt.leave(took=True)
            messages += [turn.message, {"role": "user", "content": TOOL_RESULT}]
        found = (tracemalloc.get_traced_memory()[0] - before) / turns
        tracemalloc.stop()
        print("\n| bytes of a turn | |\n|---|---|")
        print(f"| measured | {found:,.0f} |\n| counted for the caps | {session.nbytes / turns:,.0f} |")


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--turns", type=int, default=200)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--idle", type=int, default=10_000)
    options.add_argument("--active", type=int, default=1_000)
    chosen, _ = options.parse_known_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        model_dir = model_folder(Path(folder))
        chat = ChatTokenizer.from_pretrained(model_dir)
        asyncio.run(growth(chat, model_dir, turns=chosen.turns, rounds=chosen.rounds))
        asyncio.run(measured_bytes(chat, model_dir, turns=50))
        asyncio.run(crowd(chat, model_dir, idle=chosen.idle, active=chosen.active, turns=5))


if __name__ == "__main__":
    main()
