"""The engine as its users see it: determinism, limits, pauses, aborts, weight versions."""

import asyncio
import random
from contextlib import contextmanager

import pytest
import torch

from miles_core.errors import EngineError
from miles_megatron.engine.config import EngineConfig
from miles_megatron.engine.core import EngineCore
from miles_megatron.engine.request import FinishKind
from miles_megatron.engine.sampling_params import SamplingParams
from miles_megatron.models import load_causal_lm, log_distribution, packed_forward

CONTEXT = 192


@pytest.fixture(scope="module")
def folder(engine_folder):
    return engine_folder


@contextmanager
def engine(folder, decode=None, **options):
    config = EngineConfig(**{"context_length": CONTEXT, "max_running": 8, "command_timeout_s": 30.0, **options})
    with EngineCore(config, folder, decode=decode) as core:
        yield core


def prompts(count=12, seed=0):
    chance = random.Random(seed)
    return [[chance.randrange(88) for _ in range(chance.randint(1, 100))] for _ in range(count)]


def params(seed=0, **options):
    return SamplingParams(**{"sampling_seed": seed, "max_new_tokens": 24, "ignore_eos": True, **options})


async def all_of(core, rows, **options):
    return await asyncio.gather(*(core.complete(row, params(i, **options)) for i, row in enumerate(rows)))


def outputs(completions):
    return [(c.output_ids, c.logprobs) for c in completions]


@pytest.fixture(scope="module")
def alone(folder):
    """Each prompt served when nothing else runs, without prefix reuse."""
    with engine(folder, prefix_tokens=0) as core:

        async def one_by_one():
            return [await core.complete(row, params(i)) for i, row in enumerate(prompts())]

        return outputs(asyncio.run(one_by_one()))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"chunk": 7},
        {"max_running": 3},
        {"prefix_tokens": 0},
        {"fused": False},
        {"cache_tokens": CONTEXT, "max_running": 8},
        {"prefix_tokens": 64},
    ],
    ids=str,
)
def test_prompt_and_seed_fix_the_bits_whatever_else_runs(folder, alone, options):
    with engine(folder, **options) as core:
        assert outputs(asyncio.run(all_of(core, prompts()))) == alone
        assert outputs(asyncio.run(all_of(core, prompts()))) == alone  # now from kept prefixes, where there are any


def test_a_full_cache_retracts_requests_and_their_bits_stay(folder, alone):
    with engine(folder, cache_tokens=CONTEXT + 64) as core:
        rows = [row[:60] for row in prompts()]
        first = asyncio.run(all_of(core, rows, max_new_tokens=80))
        assert core.counters()["retractions"] > 0
    with engine(folder) as core:
        assert outputs(asyncio.run(all_of(core, rows, max_new_tokens=80))) == outputs(first)
        assert core.counters()["retractions"] == 0


def test_logprobs_are_the_trainers_bit_for_bit(folder):
    model, rows = load_causal_lm(folder), prompts()
    with engine(folder) as core:
        found = asyncio.run(all_of(core, rows, temperature=0.7, top_k=20, top_p=0.9))
    with torch.no_grad():
        for row, completion in zip(rows, found, strict=True):
            ids = torch.tensor([*row, *completion.output_ids])
            logprobs = log_distribution(packed_forward(model, ids, [len(ids)]), 0.7)
            expected = logprobs[len(row) - 1 : -1].gather(1, ids[len(row) :, None])[:, 0]
            assert torch.equal(torch.tensor(completion.logprobs), expected)


def test_a_known_prefix_is_reused_and_counted(folder):
    row = [i % 88 for i in range(100)]

    async def twice(core):
        first = await core.complete(row, params(5))
        turn = [*row, *first.output_ids, 1, 2, 3]
        return first, await core.complete(row, params(5)), await core.complete(turn, params(6))

    with engine(folder) as core:
        first, again, turn = asyncio.run(twice(core))
    assert (first.cached_tokens, again.cached_tokens, turn.cached_tokens) == (0, 96, 112)
    assert outputs([first]) == outputs([again])


def test_answers_to_one_prompt_compute_it_once(folder):
    row = [i % 88 for i in range(100)]

    async def group(core):
        return await asyncio.gather(*(core.complete(row, params(i)) for i in range(8)))

    with engine(folder) as core:
        found = asyncio.run(group(core))
        assert sorted(c.cached_tokens for c in found) == [0] + [96] * 7
        assert core.counters()["prompt_tokens"] == 100 + 7 * 4
    assert len({c.output_ids for c in found}) == 8


@pytest.mark.parametrize("length", [CONTEXT, CONTEXT + 1, 1000])
def test_a_prompt_at_or_over_the_context_is_refused_with_400(folder, length):
    with engine(folder) as core, pytest.raises(EngineError, match=f"context length of {CONTEXT}") as caught:
        asyncio.run(core.complete([1] * length, params()))
    assert caught.value.status == 400


def test_the_answer_ends_at_the_context(folder):
    with engine(folder) as core:
        found = asyncio.run(core.complete([1] * (CONTEXT - 1), params()))
    assert found.finish.kind is FinishKind.LENGTH
    assert len(found.output_ids) == 1


def test_every_end_id_of_the_generation_config_stops_and_is_part_of_the_output(folder):
    async def until_stopped(core):
        rows = [core.complete([i, i + 1], params(i, ignore_eos=False, max_new_tokens=150)) for i in range(40)]
        return await asyncio.gather(*rows)

    with engine(folder) as core:
        found = [c for c in asyncio.run(until_stopped(core)) if c.finish.kind is FinishKind.STOP]
    assert {c.finish.matched for c in found} == {88, 89}
    assert all(c.output_ids[-1] == c.finish.matched for c in found)
    assert all(not {88, 89} & set(c.output_ids[:-1]) for c in found)


def test_a_given_stop_id_stops_also_when_the_models_own_are_ignored(folder):
    with engine(folder) as core:
        free = asyncio.run(core.complete([1, 2], params()))
        wanted = free.output_ids[5]
        found = asyncio.run(core.complete([1, 2], params(stop_token_ids=(wanted,))))
    assert found.output_ids == free.output_ids[: free.output_ids.index(wanted) + 1]
    assert found.finish.matched == wanted


def test_a_stop_string_across_tokens_stops_at_the_token_that_completes_it(folder):
    def decode(ids):
        return "".join(f"<{i}>" for i in ids)

    with engine(folder, decode=decode) as core:
        free = asyncio.run(core.complete([1, 2], params()))
        stop = decode(free.output_ids[3:5])[1:-1]
        found = asyncio.run(core.complete([1, 2], params(stop=("never", stop))))
    assert found.output_ids == free.output_ids[:5]
    assert found.finish.matched == stop


def test_stop_strings_without_a_tokenizer_are_refused(folder):
    with engine(folder) as core, pytest.raises(EngineError, match="no tokenizer"):
        asyncio.run(core.complete([1], params(stop=("x",))))


def test_a_stream_is_cumulative_and_ends_with_the_whole_answer(folder):
    async def stream(core):
        return [c async for c in core.generate([1, 2], params(), stream=True)]

    with engine(folder) as core:
        parts = asyncio.run(stream(core))
        whole = asyncio.run(core.complete([1, 2], params()))
    assert outputs(parts[-1:]) == outputs([whole])
    assert [len(c.output_ids) for c in parts] == [*range(1, 24), 24]
    assert all(c.output_ids == whole.output_ids[: len(c.output_ids)] for c in parts)
    assert [c.finish is None for c in parts] == [True] * 23 + [False]


def test_leaving_a_stream_early_aborts_the_request(folder):
    async def leave(core):
        stream = core.generate([1, 2], params(max_new_tokens=180), stream=True)
        await anext(stream)
        await stream.aclose()
        await core.flush_cache()
        return core.counters()

    with engine(folder) as core:
        assert asyncio.run(leave(core))["running"] == 0


async def running(core, count, **options):
    """Start `count` long requests and return their tasks once each has a token."""
    started = [asyncio.Event() for _ in range(count)]

    async def follow(place):
        async for completion in core.generate([place, 3], params(place, **options), rid=f"r{place}", stream=True):
            if len(completion.output_ids) >= 2:
                started[place].set()
        return completion

    tasks = [asyncio.create_task(follow(place)) for place in range(count)]
    async with asyncio.timeout(30):
        await asyncio.gather(*(event.wait() for event in started))
    return tasks


def test_an_aborted_request_answers_with_what_it_has_and_the_others_go_on(folder):
    async def abort_one(core):
        tasks = await running(core, 3, max_new_tokens=150)
        await core.abort("r1")
        return await asyncio.gather(*tasks)

    with engine(folder) as core:
        first, second, third = asyncio.run(abort_one(core))
    assert second.finish.kind is FinishKind.ABORT
    assert 2 <= len(second.output_ids) < 150
    assert len(second.logprobs) == len(second.output_ids)
    assert [len(c.output_ids) for c in (first, third)] == [150, 150]


def test_a_name_in_use_is_refused(folder):
    async def twice(core):
        tasks = await running(core, 1, max_new_tokens=150)
        try:
            await core.complete([1], params(), rid="r0")
        finally:
            await core.abort()
            await asyncio.gather(*tasks)

    with engine(folder) as core, pytest.raises(EngineError, match="no running request has"):
        asyncio.run(twice(core))


@pytest.mark.parametrize("mode", ["retract", "in_place"])
def test_a_pause_changes_no_bit(folder, mode):
    async def paused(core):
        tasks = await running(core, 3, max_new_tokens=60)
        await core.pause(mode)
        steps = core.counters()["steps"]
        await asyncio.sleep(0.05)
        assert core.counters()["steps"] == steps
        assert core.counters()["running"] == (0 if mode == "retract" else 3)
        await core.resume()
        return await asyncio.gather(*tasks)

    async def undisturbed(core):
        return await asyncio.gather(*await running(core, 3, max_new_tokens=60))

    with engine(folder) as core:
        assert outputs(asyncio.run(paused(core))) == outputs(asyncio.run(undisturbed(core)))


def test_pausing_with_abort_ends_what_runs_and_later_requests_wait(folder):
    async def paused(core):
        tasks = await running(core, 2, max_new_tokens=150)
        await core.pause("abort")
        ended = await asyncio.gather(*tasks)
        late = asyncio.create_task(core.complete([1], params()))
        await asyncio.sleep(0.05)
        assert not late.done()
        await core.resume()
        return ended, await late

    with engine(folder) as core:
        ended, late = asyncio.run(paused(core))
    assert [c.finish.kind for c in ended] == [FinishKind.ABORT] * 2
    assert late.finish.kind is FinishKind.LENGTH


def test_closing_ends_requests_that_run(folder):
    async def close(core):
        tasks = await running(core, 2, max_new_tokens=150)
        core.close()
        return await asyncio.gather(*tasks)

    with engine(folder) as core:
        assert all(c.finish.message == "the engine shuts down" for c in asyncio.run(close(core)))


def test_a_fresh_engine_says_that_its_bits_are_the_trainers(folder):
    with engine(folder) as core:
        assert core.model_info()["bit_equal_to_trainer"] is True
        assert core.model_info()["eos_token_ids"] == [88, 89]
