import os
import signal
import subprocess
import sys
import time

import pytest

from miles_core.errors import TrainError
from miles_megatron.checkpoint import CheckpointStore, verify


def write(store, step, text=b"state"):
    with store.writing(step) as folder:
        (folder / "trainer").mkdir()
        (folder / "trainer" / "shard").write_bytes(text)
        (folder / "cursor.json").write_text("{}")


def test_a_published_checkpoint_is_verified_and_found(tmp_path):
    store = CheckpointStore(tmp_path / "checkpoints", keep=3)
    assert store.latest() is None
    write(store, 1)
    write(store, 12)
    write(store, 2)
    assert store.steps() == [1, 2, 12]
    assert store.latest() == tmp_path / "checkpoints" / "step-12"
    assert sorted(verify(store.folder(12))) == ["cursor.json", "trainer/shard"]


def test_only_the_newest_are_kept(tmp_path):
    store = CheckpointStore(tmp_path, keep=2)
    for step in range(5):
        write(store, step)
    assert store.steps() == [3, 4]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-3", "step-4"]


def test_a_block_that_fails_publishes_nothing(tmp_path):
    store = CheckpointStore(tmp_path, keep=2)
    write(store, 1)

    def fail_half_way():
        with store.writing(2) as folder:
            (folder / "half").write_text("x")
            raise RuntimeError("disk")

    with pytest.raises(RuntimeError, match="disk"):
        fail_half_way()
    assert [path.name for path in tmp_path.iterdir()] == ["step-1"]


def test_a_step_is_published_once(tmp_path):
    store = CheckpointStore(tmp_path, keep=2)
    write(store, 1)
    with pytest.raises(TrainError, match="no checkpoint of step 1 yet"), store.writing(1):
        pass
    verify(store.folder(1))


def test_changed_short_and_missing_files_are_each_named(tmp_path):
    store = CheckpointStore(tmp_path, keep=9)
    for step in (1, 2, 3, 4):
        write(store, step)
    (store.folder(1) / "trainer" / "shard").write_bytes(b"stats")
    with pytest.raises(TrainError, match=r"trainer/shard with 5 bytes.*found 5 bytes"):
        verify(store.folder(1))
    (store.folder(2) / "trainer" / "shard").write_bytes(b"sta")
    with pytest.raises(TrainError, match=r"trainer/shard with 5 bytes.*found 3 bytes"):
        verify(store.folder(2))
    (store.folder(3) / "cursor.json").unlink()
    with pytest.raises(TrainError, match=r"cursor\.json is missing"):
        verify(store.folder(3))
    (store.folder(4) / "manifest.json").unlink()
    with pytest.raises(TrainError, match="never finished"):
        store.latest()


@pytest.mark.parametrize("text", ["", "[]", '{"format": 1}', '{"format": 1, "files": {"a": 3}}', '{"format": 99}'])
def test_a_manifest_of_another_kind_is_refused(tmp_path, text):
    store = CheckpointStore(tmp_path, keep=1)
    write(store, 1)
    (store.folder(1) / "manifest.json").write_text(text)
    with pytest.raises(TrainError, match="manifest"):
        verify(store.folder(1))


def test_keeping_none_is_refused(tmp_path):
    with pytest.raises(TrainError, match="at least 1"):
        CheckpointStore(tmp_path, keep=0)


def test_reading_checkpoints_imports_no_torch():
    code = "import sys, miles_megatron.checkpoint, miles_megatron.torch_backend; print('torch' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert answer.stdout.strip() == "False"


WRITER = """
import sys
from pathlib import Path
from miles_megatron.checkpoint import CheckpointStore
store, step = CheckpointStore(Path(sys.argv[1]), keep=2), max([0, *CheckpointStore(Path(sys.argv[1]), keep=2).steps()])
while True:
    step += 1
    with store.writing(step) as folder:
        for part in range(8):
            (folder / f"part-{part}").write_bytes(bytes([step % 251]) * 200_000)
    print(step, flush=True)
"""


def test_killing_a_writer_at_any_moment_leaves_whole_checkpoints_only(tmp_path):
    store = CheckpointStore(tmp_path, keep=2)
    published = 0
    for delay_s in (0.0, 0.013, 0.029, 0.041, 0.007):
        process = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        try:
            reported = int(process.stdout.readline())
            time.sleep(delay_s)
        finally:
            os.kill(process.pid, signal.SIGKILL)
            rest, _ = process.communicate(timeout=30)
        reported = int((rest.split() or [reported])[-1])
        assert reported > published
        published = max(store.steps())
        assert published >= reported
        for step in store.steps():
            assert len(verify(store.folder(step))) == 8
            assert (store.folder(step) / "part-7").read_bytes()[:1] == bytes([step % 251])
    write(store, published + 1)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
