import json
import os
import signal
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

from miles_core.errors import WeightSyncError
from miles_sync.receivers.disk import read_folder
from miles_sync.transports.disk import DIGESTS_FILE, prune_versions, publish_folder


def test_a_small_model_is_one_file_and_comes_back_bit_for_bit(tiny_weights, tmp_path):
    published = publish_folder(tiny_weights(3).items(), tmp_path, version=3)
    assert published.path == tmp_path / "version-00000003"
    assert sorted(p.name for p in published.path.iterdir()) == [DIGESTS_FILE, "model.safetensors"]
    arrived = dict(read_folder(published.path))
    assert set(arrived) == set(tiny_weights(3))
    assert all(torch.equal(arrived[name], tensor) for name, tensor in tiny_weights(3).items())


def test_a_larger_model_is_several_files_with_the_index_that_transformers_reads(tiny_weights, tmp_path):
    folder = publish_folder(tiny_weights(0).items(), tmp_path, version=1, bucket_bytes=1500).path
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    files = sorted(set(index["weight_map"].values()))
    assert files == [f"model-{n:05d}-of-{len(files):05d}.safetensors" for n in range(1, len(files) + 1)]
    assert len(files) > 1
    assert index["metadata"]["total_size"] == sum(t.numel() * t.element_size() for t in tiny_weights(0).values())
    for name, file in index["weight_map"].items():
        assert torch.equal(load_file(folder / file)[name], tiny_weights(0)[name])
    arrived = dict(read_folder(folder))
    assert all(torch.equal(arrived[name], tensor) for name, tensor in tiny_weights(0).items())


def test_strided_and_tied_tensors_are_written(tmp_path):
    base = torch.arange(12.0).reshape(3, 4)
    folder = publish_folder([("a", base), ("b", base.t()), ("c", base[:, ::2])], tmp_path, version=1).path
    arrived = dict(read_folder(folder))
    assert torch.equal(arrived["b"], base.t())
    assert torch.equal(arrived["c"], base[:, ::2])


def test_files_beside_the_weights_are_copied_and_old_weights_are_not(tiny_weights, tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"model_type": "toy"}')
    (model / "tokenizer.json").write_text("{}")
    (model / "model.safetensors").write_bytes(b"old")
    folder = publish_folder(tiny_weights(0).items(), tmp_path / "out", version=1, files_from=model).path
    assert json.loads((folder / "config.json").read_text()) == {"model_type": "toy"}
    assert (folder / "tokenizer.json").exists()
    assert set(dict(read_folder(folder))) == set(tiny_weights(0))


def test_a_version_is_replaced_whole(tiny_weights, tmp_path):
    publish_folder(tiny_weights(0).items(), tmp_path, version=1, bucket_bytes=1000)
    folder = publish_folder(tiny_weights(1).items(), tmp_path, version=1).path
    assert torch.equal(dict(read_folder(folder))["scale"], tiny_weights(1)["scale"])
    assert [p.name for p in tmp_path.iterdir()] == ["version-00000001"]


def test_a_failing_trainer_publishes_nothing(tiny_weights, tmp_path):
    def weights():
        yield from list(tiny_weights(0).items())[:5]
        raise RuntimeError("rank died")

    with pytest.raises(RuntimeError, match="rank died"):
        publish_folder(weights(), tmp_path, version=1, bucket_bytes=1000)
    assert not (tmp_path / "version-00000001").exists()
    publish_folder(tiny_weights(0).items(), tmp_path, version=2)
    assert [p.name for p in tmp_path.iterdir()] == ["version-00000002"]


def test_a_sender_killed_while_writing_leaves_the_published_version_and_no_half_one(tiny_weights, tmp_path):
    publish_folder(tiny_weights(0).items(), tmp_path, version=1)
    code = (
        "import sys, time, torch; from pathlib import Path; from miles_sync.transports.disk import publish_folder\n"
        "def weights():\n"
        "    yield 'a', torch.zeros(300)\n"
        "    yield 'b', torch.zeros(300)\n"
        "    yield 'c', torch.zeros(300)\n"
        "    print('writing', flush=True); time.sleep(60)\n"
        "publish_folder(weights(), Path(sys.argv[1]), version=2, bucket_bytes=1200)\n"
    )
    sender = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert sender.stdout.readline() == "writing\n"
    sender.send_signal(signal.SIGKILL)
    sender.communicate(timeout=10)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["version-00000001", "version-00000002.unfinished"]
    assert set(dict(read_folder(tmp_path / "version-00000001"))) == set(tiny_weights(0))
    publish_folder(tiny_weights(2).items(), tmp_path, version=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["version-00000001", "version-00000002"]


def test_pruning_keeps_the_newest_by_number_and_everything_that_is_not_a_version(tmp_path):
    for name in ("version-00000009", "version-00000010", "version-00000002", "version-x", "export"):
        (tmp_path / name).mkdir()
    removed = prune_versions(tmp_path, keep_last=2)
    assert [p.name for p in removed] == ["version-00000002"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["export", "version-00000009", "version-00000010", "version-x"]


def test_a_changed_bit_is_found_by_the_tensors_name(tiny_weights, tmp_path):
    folder = publish_folder(tiny_weights(0).items(), tmp_path, version=1).path
    weights = load_file(folder / "model.safetensors")
    weights["scale"] = weights["scale"] + 1
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(WeightSyncError, match="tensor scale: digest"):
        list(read_folder(folder))


def test_a_missing_tensor_is_found(tiny_weights, tmp_path):
    folder = publish_folder(tiny_weights(0).items(), tmp_path, version=1).path
    weights = load_file(folder / "model.safetensors")
    del weights["scale"]
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(WeightSyncError, match="tensor scale: missing"):
        list(read_folder(folder))


def test_a_truncated_file_is_refused(tiny_weights, tmp_path):
    folder = publish_folder(tiny_weights(0).items(), tmp_path, version=1).path
    os.truncate(folder / "model.safetensors", 500)
    with pytest.raises(WeightSyncError, match=r"model\.safetensors: expected a complete safetensors file"):
        list(read_folder(folder))


def test_an_index_that_points_outside_its_folder_is_refused(tmp_path):
    index = {"weight_map": {"w": "../secret.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(WeightSyncError, match="expected a file beside it for w"):
        list(read_folder(tmp_path))


def test_an_index_that_names_an_absent_tensor_is_refused(tmp_path):
    save_file({"w": torch.zeros(1)}, tmp_path / "part.safetensors")
    index = {"weight_map": {"w": "part.safetensors", "v": "part.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(WeightSyncError, match=r"tensor v: the index places it in part\.safetensors, which lacks it"):
        list(read_folder(tmp_path))


def test_a_folder_without_weights_is_refused(tmp_path):
    with pytest.raises(WeightSyncError, match=r"expected model\.safetensors or .* found neither"):
        list(read_folder(tmp_path))


def test_a_plain_hugging_face_folder_is_read_without_digests(tmp_path):
    save_file({"w": torch.arange(3.0)}, tmp_path / "model.safetensors", {"format": "pt"})
    assert dict(read_folder(tmp_path))["w"].tolist() == [0.0, 1.0, 2.0]
