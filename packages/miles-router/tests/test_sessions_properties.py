"""Over random trees of requests, with retries, races, cuts and aborts: what the engine gave is trained, and once."""

import asyncio
import json
import tempfile
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from miles_core.errors import EngineError, MilesError
from miles_core.sample import Origin
from miles_router.sessions.assembly import Assembler
from miles_router.sessions.config import SessionServerConfig
from miles_router.sessions.dialects.openai_chat.request import parse_request
from miles_router.sessions.generation import Generation, Piece
from miles_router.sessions.log.config import LogConfig
from miles_router.sessions.log.shards import ShardedLog
from miles_router.sessions.matchers import matcher_named
from miles_router.sessions.service import SessionService
from miles_router.sessions.session import SessionSpec

NAMES = {"prompt_id": "p", "rollout_id": "r"}


class ScriptedEngine:
    """Answers with a word of its own each time: its tokens can be found again. Fails when told to."""

    def __init__(self, chat) -> None:
        self.chat = chat
        self.given: dict[tuple[int, ...], tuple[tuple[int, ...], int]] = {}
        """Prompt and number of every answer, by its ids."""
        self.seeds: list[tuple[tuple[int, ...], int]] = []
        self.finish = "stop"
        self.fails = False

    async def generate(self, body, *, routing_key, first_row=0) -> Generation:
        number = len(self.seeds)
        prompt = tuple(body["input_ids"].tolist())
        self.seeds.append((prompt, body["sampling_params"]["sampling_seed"]))
        await asyncio.sleep(0)
        if self.fails:
            raise EngineError("scripted", status=503)
        ids = list(self.chat.vocabulary.encode(f"answer{number}!")[0])
        if self.finish == "stop":
            ids.append(self.chat.vocabulary.id_of("<|im_end|>"))
        ids = tuple(ids)
        self.given[ids] = prompt, number
        return Generation(
            ids=ids,
            logprobs=tuple(-(i % 7 + 1) / 8 - number / 1024 for i in ids),
            weight_versions=(number,) * len(ids),
            finish=self.finish,
            counters={"completion_tokens": len(ids)},
        )

    async def stream(self, body, *, routing_key, first_row=0):
        generation = await self.generate(body, routing_key=routing_key)
        for place, token in enumerate(generation.ids):
            yield Piece((token,), (generation.logprobs[place],), None)
        yield generation

    async def close(self) -> None:
        return None


@dataclass
class World:
    """One log folder, and servers on it one after the other."""

    chat: object
    model_dir: Path
    folder: Path
    engine: ScriptedEngine = field(init=False)

    def __post_init__(self) -> None:
        self.engine = ScriptedEngine(self.chat)

    @asynccontextmanager
    async def server(self, **options):
        log = LogConfig(folder=self.folder, fsync="none", segment_bytes=1 << 14)
        config = SessionServerConfig(
            engine_url="http://x", model_dir=self.model_dir, context_length=2000, log=log, **options
        )
        service = SessionService(
            config,
            self.chat,
            self.engine,
            matcher=matcher_named(config.matcher),
            assembler=Assembler(config, self.chat),
            log=ShardedLog(log),
        )
        await service.open()
        try:
            yield service
        finally:
            await service.close()


def user(text):
    return {"role": "user", "content": text}


def request_of(messages, *, stream=False):
    return parse_request(json.dumps({"messages": messages, "stream": stream}).encode()).turn


STEPS = st.lists(
    st.fixed_dictionaries(
        {
            "which": st.integers(0, 30),
            "what": st.sampled_from(["continue", "continue", "retry", "rewrite", "new", "race", "fail", "restart"]),
            "finish": st.sampled_from(["stop", "stop", "length"]),
            "took": st.sampled_from([True, True, True, False]),
            "stream": st.booleans(),
            "key": st.sampled_from([None, None, "k"]),
            "word": st.integers(0, 2),
        }
    ),
    min_size=1,
    max_size=9,
)


class Play:
    """Plays steps against a server as a client would, and remembers what it was told."""

    def __init__(self, world, service, session_id) -> None:
        self.world, self.service, self.session_id = world, service, session_id
        self.told: list[tuple[list, dict]] = []
        """Requests with the answers that were taken."""

    async def ask(self, messages, *, took=True, stream=False, key=None) -> None:
        attempt = await self.service.start(self.session_id, request_of(messages, stream=stream), key=key)
        try:
            turn = await attempt.result()
        except MilesError:
            attempt.leave(took=False)
            return
        attempt.leave(took=took)
        if took:
            self.told.append((messages, dict(turn.message)))

    def messages(self, step) -> list:
        if not self.told or step["what"] == "new":
            return [user(f"start {step['word']}")]
        request, answer = self.told[step["which"] % len(self.told)]
        if step["what"] == "retry":
            return request
        shown = {**answer, "content": "rewritten"} if step["what"] == "rewrite" else answer
        return [*request, shown, user(f"go on {step['word']}")]

    async def step(self, step, number) -> None:
        engine = self.world.engine
        engine.finish, engine.fails = step["finish"], step["what"] == "fail"
        messages = self.messages(step)
        key = None if step["key"] is None else f"{step['key']}{number}"
        if step["what"] == "race":
            await asyncio.gather(*(self.ask(messages, took=step["took"], stream=bool(n)) for n in range(2)))
        else:
            await self.ask(messages, took=step["took"], stream=step["stream"], key=key)


async def play(world, steps, **options) -> None:
    session_id, told = None, []
    for number, step in enumerate(steps):
        async with world.server(**options) as service:
            session_id = session_id or (await service.create(SessionSpec(seed=4))).session_id
            game = Play(world, service, session_id)
            game.told = told
            rest = steps[number:] if number == 0 else [step]
            if number == 0 and not any(step["what"] == "restart" for step in steps):
                for place, each in enumerate(rest):
                    await game.step(each, place)
                await check(world, service, session_id, game.told, **options)
                return
            await game.step(step, number)
            before = await view(service, session_id)
        async with world.server(**options) as service:
            assert await view(service, session_id) == before
    async with world.server(**options) as service:
        await check(world, service, session_id, told, **options)


async def view(service, session_id):
    """Everything that can be read of a session."""
    try:
        samples = await service.samples(session_id, **NAMES)
    except MilesError as error:
        samples = str(error)
    return await service.describe(session_id), samples


async def check(world, service, session_id, told, **options) -> None:
    """The samples against what the engine gave and what the client was told."""
    described, samples = await view(service, session_id)
    if isinstance(samples, str):
        assert not told, samples
        return
    trained: Counter[int] = Counter()
    for sample in samples:
        ids = tuple(sample.ids.tolist())
        place = 0
        for span in sample.spans:
            end = place + len(span.ids)
            if span.origin is Origin.SAMPLED:
                prompt, number = world.engine.given[span.ids]
                assert ids[:place] == prompt
                assert span.weight_versions == (number,) * len(span.ids)
                assert span.logprobs == tuple(-(i % 7 + 1) / 8 - number / 1024 for i in span.ids)
                trained[number] += sample.loss_mask[place:end].all()
            else:
                assert not sample.loss_mask[place:end].any()
            place = end
        assert sample.metadata["tito"]["hard"] == 0
    assert set(trained.values()) <= {0, 1}
    # An answer that a client took is trained, unless a later one to the same request was taken as well.
    asked = Counter(json.dumps(request) for request, _ in told)
    texts = {f"answer{number}!": number for _, number in world.engine.given.values()}
    for request, answer in told:
        if asked[json.dumps(request)] == 1:
            assert trained[texts[answer["content"]]] == 1, answer
    assert described["in_flight"] == 0
    assert service.store.nbytes == service.store.get(session_id).nbytes > 0
    # The same request in the same place never has one seed twice.
    assert len(set(world.engine.seeds)) + described["failed_turns"] >= len(world.engine.seeds)


@pytest.mark.parametrize("per", ["leaf", "turn"])
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=STEPS)
def test_random_trees(chat, model_dir, per, steps):
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(play(World(chat, model_dir, Path(folder)), steps, samples_per=per))


@pytest.mark.slow
@pytest.mark.parametrize("per", ["leaf", "turn"])
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=STEPS)
def test_random_trees_at_length(chat, model_dir, per, steps):
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(play(World(chat, model_dir, Path(folder)), steps, samples_per=per))
