import asyncio
import os
import signal
import threading
import time

import pytest
import torch

from miles_core.errors import WeightSyncError
from miles_sync.deadlines import Deadlines
from miles_sync.push import NoEngineError, WeightPusher
from miles_sync.receivers.endpoint import EngineEndpoint
from miles_sync.transports import DiskConfig, SharedMemoryConfig


def equal(engine, weights):
    return set(engine.weights) == set(weights) and all(torch.equal(engine.weights[n], weights[n]) for n in weights)


def pusher_to(*urls, **options):
    return WeightPusher(SharedMemoryConfig(**options), [EngineEndpoint(url) for url in urls])


def assert_untouched(engine, weights):
    assert equal(engine, weights)
    assert engine.version == "0"
    assert engine.staged is None
    assert not engine.paused


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("refuse-pause", r"/pause_generation: status 400: refuse-pause by request"),
        ("refuse-begin", r"/begin_weight_update: status 400: refuse-begin by request"),
        ("wrong-digest", r"tensor model\.embed_tokens\.weight: it holds digest 0{32}"),
        ("no-digests", r"expected the digests of what it staged, found none"),
        ("ignore-commit", r"committed 1, but reports 0"),
    ],
)
def test_a_failed_engine_keeps_its_version_and_is_caught_up_by_the_next_push(
    start_engine, tiny_weights, segments, fault, reason
):
    good, bad = start_engine(tiny_weights(0)), start_engine(tiny_weights(0), faults={fault})
    pusher = pusher_to(good.url, bad.url)
    report = asyncio.run(pusher.push(tiny_weights(1).items(), 1))
    assert report.acknowledged == (good.url,)
    assert set(report.failed) == {bad.url}
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(report.failed[bad.url])
    assert equal(good, tiny_weights(1))
    assert_untouched(bad, tiny_weights(0))
    bad.faults.clear()
    report = asyncio.run(pusher.push(tiny_weights(2).items(), 2))
    assert report.acknowledged == (good.url, bad.url)
    assert equal(good, tiny_weights(2))
    assert equal(bad, tiny_weights(2))
    assert segments() == set()


def test_bytes_that_change_on_the_way_are_found_by_the_tensors_name(start_engine, tiny_weights):
    engine = start_engine(tiny_weights(0), faults={"flip-bit"})
    with pytest.raises(NoEngineError, match=r"400: tensor model\.embed_tokens\.weight: its bytes .* have digest"):
        asyncio.run(pusher_to(engine.url).push(tiny_weights(1).items(), 1))
    assert_untouched(engine, tiny_weights(0))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"scale": torch.zeros(2)}, r"tensor scale: expected \[\], found \[2\]"),
        ({"stranger": torch.zeros(2)}, r"tensor stranger: the model has no such parameter"),
    ],
)
def test_a_model_that_does_not_fit_is_named_and_not_committed(start_engine, tiny_weights, change, reason):
    engine = start_engine(tiny_weights(0))
    with pytest.raises(NoEngineError, match=reason):
        asyncio.run(pusher_to(engine.url).push((tiny_weights(1) | change).items(), 1))
    assert_untouched(engine, tiny_weights(0))


def test_a_missing_tensor_means_nothing_is_committed(start_engine, tiny_weights):
    engine = start_engine(tiny_weights(0))
    weights = tiny_weights(1)
    del weights["scale"]
    with pytest.raises(NoEngineError, match="tensor scale: not staged"):
        asyncio.run(pusher_to(engine.url).push(weights.items(), 1))
    assert_untouched(engine, tiny_weights(0))


def test_a_commit_whose_answer_is_lost_counts_as_what_the_engine_then_reports(start_engine, tiny_weights):
    engine = start_engine(tiny_weights(0), faults={"lose-commit-answer"})
    report = asyncio.run(pusher_to(engine.url).push(tiny_weights(1).items(), 1))
    assert report.acknowledged == (engine.url,)
    assert equal(engine, tiny_weights(1))


def test_an_engine_that_does_not_continue_is_reported(start_engine, tiny_weights):
    good, bad = start_engine(tiny_weights(0)), start_engine(tiny_weights(0), faults={"refuse-continue"})
    report = asyncio.run(pusher_to(good.url, bad.url).push(tiny_weights(1).items(), 1))
    assert report.acknowledged == (good.url,)
    assert "refuse-continue by request" in report.failed[bad.url]


def test_an_engine_slower_than_its_deadline_fails_alone_and_says_what_was_waited_for(
    start_engine, tiny_weights, segments
):
    good, slow = start_engine(tiny_weights(0)), start_engine(tiny_weights(0), faults={"slow-bucket"})
    pusher = pusher_to(good.url, slow.url, deadlines=Deadlines(stage_s=1.5))
    start = time.monotonic()
    report = asyncio.run(pusher.push(tiny_weights(1).items(), 1))
    assert time.monotonic() - start < 5.5
    assert report.acknowledged == (good.url,)
    assert "/update_weights_from_shared_memory: no answer within 1.5 s" in report.failed[slow.url]
    assert slow.version == "0"
    assert segments() == set()


def test_an_engine_killed_in_the_middle_of_a_push_fails_alone_and_leaves_no_segment(
    start_engine, start_engine_process, tiny_weights, segments
):
    good = start_engine(tiny_weights(0))
    url, process = start_engine_process(tiny_weights(0), "die-at-bucket-2")
    report = asyncio.run(pusher_to(good.url, url, bucket_bytes=1000).push(tiny_weights(1).items(), 1))
    assert process.wait(timeout=10) == -signal.SIGKILL
    assert report.acknowledged == (good.url,)
    assert "/update_weights_from_shared_memory: no answer" in report.failed[url]
    assert equal(good, tiny_weights(1))
    assert segments() == set()


def test_when_every_engine_is_gone_the_weights_are_still_read_to_their_end(tiny_weights):
    read = []

    def weights():
        for name, tensor in tiny_weights(1).items():
            read.append(name)
            yield name, tensor

    with pytest.raises(NoEngineError, match=r"no engine took weight version 1: engine .*:9 .*no answer"):
        asyncio.run(pusher_to("http://127.0.0.1:9").push(weights(), 1))
    assert read == list(tiny_weights(1))


def test_a_trainer_that_raises_changes_no_engine(start_engine, tiny_weights, segments):
    engine = start_engine(tiny_weights(0))

    def weights():
        yield from list(tiny_weights(1).items())[:6]
        raise RuntimeError("rank 3 died")

    pusher = pusher_to(engine.url, bucket_bytes=1000)
    with pytest.raises(WeightSyncError, match="weights cannot be read: RuntimeError: rank 3 died"):
        asyncio.run(pusher.push(weights(), 1))
    assert "/update_weights_from_shared_memory" in engine.calls
    assert_untouched(engine, tiny_weights(0))
    assert segments() == set()
    assert asyncio.run(pusher.push(tiny_weights(1).items(), 1)).acknowledged == (engine.url,)


def test_a_trainer_that_hangs_is_given_up_at_its_deadline_and_leaves_no_segment_when_it_comes_back(
    start_engine, tiny_weights, segments
):
    engine = start_engine(tiny_weights(0))
    gone_on = threading.Event()

    def weights():
        yield from list(tiny_weights(1).items())[:3]
        gone_on.wait(30.0)

    with pytest.raises(WeightSyncError, match=r"yielded no further tensors within 0\.2 s"):
        asyncio.run(pusher_to(engine.url, deadlines=Deadlines(gather_s=0.2)).push(weights(), 1))
    assert not gone_on.is_set()
    assert_untouched(engine, tiny_weights(0))
    workers = [thread for thread in threading.enumerate() if thread.name == "miles-weights"]
    gone_on.set()
    for worker in workers:
        worker.join(30.0)
        assert not worker.is_alive()
    assert segments() == set()


def test_a_cancelled_push_changes_no_engine(start_engine, tiny_weights, segments):
    engine = start_engine(tiny_weights(0), faults={"slow-bucket"})

    async def cancel_midway():
        push = asyncio.create_task(pusher_to(engine.url).push(tiny_weights(1).items(), 1))
        while "/update_weights_from_shared_memory" not in engine.calls:  # noqa: ASYNC110  # the engine is a thread
            await asyncio.sleep(0.01)
        push.cancel()
        with pytest.raises(asyncio.CancelledError):
            await push

    asyncio.run(cancel_midway())
    assert engine.version == "0"
    assert not engine.paused
    assert "/end_weight_update" in engine.calls
    assert segments() == set()


def test_a_disk_folder_that_cannot_be_written_changes_no_engine(start_engine, tiny_weights, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    engine = start_engine(tiny_weights(0))
    pusher = WeightPusher(DiskConfig(folder=tmp_path / "file"), [EngineEndpoint(engine.url)])
    with pytest.raises(WeightSyncError, match="weights of version 1 cannot be written"):
        asyncio.run(pusher.push(tiny_weights(1).items(), 1))
    assert_untouched(engine, tiny_weights(0))


def test_proxies_of_the_environment_are_not_used(start_engine, tiny_weights, monkeypatch):
    monkeypatch.setitem(os.environ, "HTTP_PROXY", "http://127.0.0.1:9")
    engine = start_engine(tiny_weights(0))
    assert asyncio.run(pusher_to(engine.url).push(tiny_weights(1).items(), 1)).failed == {}
