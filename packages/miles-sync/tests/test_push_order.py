import asyncio

import pytest
import torch

from miles_core.errors import WeightSyncError
from miles_sync.push import PHASES, NoEngineError, WeightPusher
from miles_sync.receivers.endpoint import EngineEndpoint
from miles_sync.transports import DiskConfig, SharedMemoryConfig

ORDER = [
    "/pause_generation",
    "/begin_weight_update",
    "/update_weights_from_shared_memory",
    "/end_weight_update",
    "/model_info",
    "/continue_generation",
]


def equal(engine, weights):
    return set(engine.weights) == set(weights) and all(torch.equal(engine.weights[n], weights[n]) for n in weights)


def pusher_to(*engines, config=None, token=None):
    return WeightPusher(config or SharedMemoryConfig(), [EngineEndpoint(e.url, token=token) for e in engines])


def test_a_push_calls_the_phases_in_order_and_leaves_equal_bits_on_every_engine(start_engine, tiny_weights, segments):
    old, new = tiny_weights(0), tiny_weights(1)
    engines = [start_engine(old), start_engine(old)]
    report = asyncio.run(pusher_to(*engines).push(new.items(), 1))
    assert report.acknowledged == tuple(e.url for e in engines)
    assert report.failed == {}
    assert report.version == 1
    assert report.nbytes == sum(t.numel() * t.element_size() for t in new.values())
    assert set(report.seconds) == set(PHASES)
    for engine in engines:
        assert engine.calls == ORDER
        assert equal(engine, new)
        assert engine.version == "1"
        assert not engine.paused
    assert segments() == set()


def test_a_small_budget_sends_several_buckets_in_one_transaction(start_engine, tiny_weights):
    engine = start_engine(tiny_weights(0))
    asyncio.run(pusher_to(engine, config=SharedMemoryConfig(bucket_bytes=1000)).push(tiny_weights(1).items(), 1))
    # the embedding (1280 bytes) | q, k, v (768) | gate, up (384) | q, k, v (768) | gate, up (384), norm, scale
    assert engine.calls.count("/update_weights_from_shared_memory") == 5
    assert engine.calls.count("/begin_weight_update") == 1
    assert equal(engine, tiny_weights(1))


def test_the_announcement_comes_between_commit_and_continue(start_engine, tiny_weights):
    engine = start_engine(tiny_weights(0))
    seen = []

    async def announce(report):
        seen.append((report.version, report.acknowledged, engine.version, engine.paused))

    asyncio.run(pusher_to(engine).push(tiny_weights(1).items(), 7, announce=announce))
    assert seen == [(7, (engine.url,), "7", True)]
    assert not engine.paused


def test_a_failing_announcement_still_lets_the_engines_go_on(start_engine, tiny_weights):
    engine = start_engine(tiny_weights(0))

    async def announce(report):
        raise ConnectionError("the router is gone")

    with pytest.raises(ConnectionError, match="the router is gone"):
        asyncio.run(pusher_to(engine).push(tiny_weights(1).items(), 1, announce=announce))
    assert not engine.paused
    assert engine.version == "1"


def test_the_token_travels_and_its_absence_is_reported_with_the_reason(start_engine, tiny_weights):
    engine = start_engine(tiny_weights(0), token="secret")
    with pytest.raises(NoEngineError, match="status 401: expected a bearer token"):
        asyncio.run(pusher_to(engine).push(tiny_weights(1).items(), 1))
    asyncio.run(pusher_to(engine, token="secret").push(tiny_weights(1).items(), 1))
    assert equal(engine, tiny_weights(1))
    assert "secret" not in repr(EngineEndpoint("http://h", token="secret"))


def test_pushing_a_held_version_again_sends_nothing(start_engine, tiny_weights):
    engine = start_engine(tiny_weights(0))
    pusher = pusher_to(engine)
    asyncio.run(pusher.push(tiny_weights(1).items(), 1))
    engine.calls.clear()
    report = asyncio.run(pusher.push(tiny_weights(1).items(), 1))
    assert report.acknowledged == (engine.url,)
    assert report.nbytes == 0
    assert engine.calls == ["/model_info", "/continue_generation"]


def test_an_engine_that_only_claims_the_version_gets_the_weights_all_the_same(start_engine, tiny_weights):
    engine = start_engine(tiny_weights(0), version="5")
    asyncio.run(pusher_to(engine).push(tiny_weights(1).items(), 5))
    assert equal(engine, tiny_weights(1))


def test_a_restarted_engine_is_caught_up_by_the_same_version(start_engine, tiny_weights):
    first = start_engine(tiny_weights(0))
    pusher = pusher_to(first)
    asyncio.run(pusher.push(tiny_weights(1).items(), 1))
    first.weights, first.version = tiny_weights(0), "0"
    report = asyncio.run(pusher.push(tiny_weights(1).items(), 1))
    assert report.nbytes > 0
    assert equal(first, tiny_weights(1))


def test_versions_never_go_back(start_engine, tiny_weights):
    pusher = pusher_to(start_engine(tiny_weights(0)))
    asyncio.run(pusher.push(tiny_weights(1).items(), 3))
    with pytest.raises(WeightSyncError, match="expected a weight version of at least 3, found 2"):
        asyncio.run(pusher.push(tiny_weights(1).items(), 2))
    assert pusher.version == 3


def test_two_pushes_at_once_are_refused(start_engine, tiny_weights):
    pusher = pusher_to(start_engine(tiny_weights(0)))

    async def both():
        return await asyncio.gather(
            pusher.push(tiny_weights(1).items(), 1), pusher.push(tiny_weights(2).items(), 2), return_exceptions=True
        )

    first, second = asyncio.run(both())
    assert first.version == 1
    assert isinstance(second, WeightSyncError)
    assert "another push is running" in str(second)


def test_an_empty_model_is_refused_and_engines_go_on(start_engine, tiny_weights):
    engine = start_engine(tiny_weights(0))
    with pytest.raises(WeightSyncError, match="yielded no tensors"):
        asyncio.run(pusher_to(engine).push([], 1))
    assert not engine.paused
    assert engine.staged is None
    assert engine.version == "0"


def test_a_disk_push_publishes_commits_and_prunes(start_engine, tiny_weights, tmp_path):
    engines = [start_engine(tiny_weights(0)), start_engine(tiny_weights(0))]
    pusher = pusher_to(*engines, config=DiskConfig(folder=tmp_path / "weights", bucket_bytes=1000, keep_last=2))
    for version in (1, 2, 3):
        report = asyncio.run(pusher.push(tiny_weights(version).items(), version))
        assert report.failed == {}
        assert all(equal(engine, tiny_weights(version)) and engine.version == str(version) for engine in engines)
    assert sorted(p.name for p in (tmp_path / "weights").iterdir()) == ["version-00000002", "version-00000003"]


def test_engines_given_twice_are_refused():
    with pytest.raises(WeightSyncError, match="each engine once"):
        WeightPusher(SharedMemoryConfig(), [EngineEndpoint("http://a:1"), EngineEndpoint("http://a:1/")])
