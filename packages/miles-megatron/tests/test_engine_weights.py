"""Replacing the weights of a running engine: versions, transactions, misfits."""

import asyncio
from contextlib import contextmanager

import pytest
import torch

from miles_core.errors import WeightSyncError
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


def params(seed=0, **options):
    return SamplingParams(**{"sampling_seed": seed, "max_new_tokens": 24, "ignore_eos": True, **options})


def outputs(completions):
    return [(c.output_ids, c.logprobs) for c in completions]


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


def weights(folder, factor):
    model = load_causal_lm(folder)
    return [(name, p.detach() * factor) for name, p in model.named_parameters()]


async def push(core, tensors, version):
    await core.begin_weight_update()
    await core.stage_weights(tensors)
    await core.commit_weights(version)


def test_new_weights_give_the_answers_of_an_engine_that_started_with_them(folder, tmp_path):
    model = load_causal_lm(folder)
    for parameter in model.parameters():
        parameter.data.mul_(1.5)
    model.save_pretrained(tmp_path)
    row = [i % 88 for i in range(100)]
    with engine(tmp_path) as core:
        expected = asyncio.run(core.complete(row, params()))

    async def before_and_after(core):
        old = await core.complete(row, params())
        await push(core, weights(folder, 1.5), "7")
        return old, await core.complete(row, params())

    with engine(folder) as core:
        old, new = asyncio.run(before_and_after(core))
    assert outputs([new]) == outputs([expected])
    assert outputs([old]) != outputs([new])
    assert new.cached_tokens == 0  # the prefix kept under the old weights is never used
    assert (old.weight_versions, new.weight_versions) == ((("0", 24),), (("7", 24),))


@pytest.mark.parametrize("mode", ["retract", "in_place"])
def test_each_token_carries_the_version_that_sampled_it(folder, mode):
    async def across(core):
        tasks = await running(core, 2, max_new_tokens=60)
        await core.pause(mode)
        await push(core, weights(folder, 1.5), "7")
        await core.resume()
        found = await asyncio.gather(*tasks)
        later = [await core.complete([*c.output_ids, 5], params()) for c in found]
        return found, later

    with engine(folder) as core:
        found, later = asyncio.run(across(core))
    for completion in found:
        (old, before), (new, after) = completion.weight_versions
        assert (old, new, before + after) == ("0", "7", 60)
        assert min(before, after) > 0
    assert all(c.weight_version == "7" for c in [*found, *later])


def test_keys_written_by_two_versions_are_never_kept_for_reuse(folder):
    row = [i % 88 for i in range(100)]

    async def across(core):
        stream = core.generate(row, params(max_new_tokens=60), stream=True)
        await anext(stream)
        await core.pause("in_place")
        await push(core, weights(folder, 1.5), "7")
        await core.resume()
        async for completion in stream:
            last = completion
        return last, await core.complete([*row, *last.output_ids], params())

    with engine(folder) as core:
        _, later = asyncio.run(across(core))
    assert later.cached_tokens == 0


def test_after_a_retraction_the_new_version_computes_the_whole_sequence_again(folder, tmp_path):
    model = load_causal_lm(folder)
    for parameter in model.parameters():
        parameter.data.mul_(1.5)
    model.save_pretrained(tmp_path)

    async def across(core):
        (task,) = await running(core, 1, max_new_tokens=60)
        await core.pause("retract")
        await push(core, weights(folder, 1.5), "7")
        await core.resume()
        return await task

    with engine(folder) as core:
        found = asyncio.run(across(core))
    before = found.weight_versions[0][1]
    fresh = load_causal_lm(tmp_path)
    ids = torch.tensor([0, 3, *found.output_ids])
    with torch.no_grad():
        logprobs = log_distribution(packed_forward(fresh, ids, [len(ids)]))[1:-1].gather(1, ids[2:, None])[:, 0]
    assert torch.equal(torch.tensor(found.logprobs)[before:], logprobs[before:])


def test_a_commit_is_all_or_nothing(folder):
    async def incomplete(core):
        before = await core.complete([1, 2], params())
        await core.begin_weight_update()
        await core.stage_weights(weights(folder, 2.0)[:-1])
        with pytest.raises(WeightSyncError, match=r"model\.norm\.weight: not sent"):
            await core.commit_weights("9")
        return before, await core.complete([1, 2], params())

    with engine(folder) as core:
        before, after = asyncio.run(incomplete(core))
        assert core.weight_version == "0"
    assert outputs([before]) == outputs([after])


@pytest.mark.parametrize(
    ("name", "tensor", "words"),
    [
        ("model.norm.weight", torch.zeros(31), r"model\.norm\.weight: expected \[32\] of torch.float32, found \[31\]"),
        ("model.norm.weight", torch.zeros(32, dtype=torch.float64), "found .32. of torch.float64"),
        ("model.nonsense", torch.zeros(1), "the model has no parameter of this name"),
    ],
)
def test_a_tensor_that_does_not_fit_is_named(folder, name, tensor, words):
    async def stage(core):
        await core.begin_weight_update()
        await core.stage_weights([(name, tensor)])

    with engine(folder) as core, pytest.raises(WeightSyncError, match=words):
        asyncio.run(stage(core))


def test_staging_and_committing_need_an_open_transaction(folder):
    async def dropped(core):
        await core.begin_weight_update()
        await core.stage_weights(weights(folder, 2.0))
        await core.abort_weights()
        with pytest.raises(WeightSyncError, match="nothing is open"):
            await core.stage_weights(weights(folder, 2.0))
        await core.commit_weights("9")

    with engine(folder) as core, pytest.raises(WeightSyncError, match="nothing is open"):
        asyncio.run(dropped(core))


def test_the_tied_head_may_be_sent_under_either_name(folder):
    async def tied(core):
        tensors = dict(weights(folder, 1.5))
        tensors["lm_head.weight"] = tensors.pop("model.embed_tokens.weight")
        await push(core, list(tensors.items()), "2")
        return await core.complete([1, 2], params())

    with engine(folder) as core:
        found = asyncio.run(tied(core))
    with engine(folder) as core:
        asyncio.run(push(core, weights(folder, 1.5), "2"))
        assert outputs([asyncio.run(core.complete([1, 2], params()))]) == outputs([found])


def test_weights_that_are_not_finite_end_requests_with_the_reason_and_harm_no_later_one(folder):
    async def poisoned(core):
        await push(core, weights(folder, float("nan")), "2")
        bad = await core.complete([1, 2], params())
        await push(core, weights(folder, 1.0), "3")
        return bad, await core.complete([1, 2], params())

    with engine(folder) as core:
        expected = asyncio.run(core.complete([1, 2], params()))
        bad, good = asyncio.run(poisoned(core))
    assert bad.finish.kind is FinishKind.ABORT
    assert "not finite" in bad.finish.message
    assert outputs([good]) == outputs([expected])


def test_a_staging_call_that_outlives_its_transaction_reaches_no_later_one(folder):
    async def late(core):
        await core.begin_weight_update()
        gone, ended = iter(weights(folder, 2.0)), weights(folder, 1.0)

        def slow():
            yield next(gone)
            core._loop.weights.abort()
            core._loop.weights.begin()  # the sender gave up and pushes again
            yield next(gone)

        with pytest.raises(WeightSyncError, match="has ended"):
            await core.stage_weights(slow())
        await core.stage_weights(ended[2:])
        with pytest.raises(WeightSyncError, match="not sent, with 1 more"):
            await core.commit_weights("5")

    with engine(folder) as core:
        asyncio.run(late(core))
