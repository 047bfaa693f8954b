"""Samples to bytes and back."""

import json
import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save

from miles_core.errors import RecordError
from miles_core.sample import Finish, Origin, Sample, Span
from miles_core.sample_codec import FORMAT, decode, encode

token = st.integers(0, 2**31 - 1)
logprob = st.floats(max_value=0, allow_nan=False, allow_infinity=False)
json_value = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@st.composite
def spans(draw):
    ids = tuple(draw(st.lists(token, max_size=5)))
    origin = draw(st.sampled_from(Origin))
    trained = draw(st.booleans())
    if origin is not Origin.SAMPLED:
        return Span(origin=origin, ids=ids, trained=trained)
    each = {"min_size": len(ids), "max_size": len(ids)}
    return Span(
        origin=origin,
        ids=ids,
        trained=trained,
        logprobs=tuple(draw(st.lists(logprob, **each))),
        weight_versions=tuple(draw(st.lists(st.integers(-(2**63), 2**63 - 1), **each))),
    )


@st.composite
def samples(draw):
    error = draw(st.none() | st.text())
    parts = tuple(draw(st.lists(spans(), max_size=4)))
    rows = max(sum(len(s.ids) for s in parts) - 1, 0)
    dtype = draw(st.sampled_from([np.uint8, np.uint16, np.uint32]))
    routing = np.arange(rows * 6, dtype=dtype).reshape(rows, 2, 3) if draw(st.booleans()) else None
    return Sample(
        prompt_id=draw(st.text()),
        rollout_id=draw(st.text()),
        spans=parts,
        finish=Finish.ABORTED if error is not None else draw(st.sampled_from([Finish.STOP, Finish.LENGTH])),
        reward=draw(st.none() | st.floats(allow_nan=False, allow_infinity=False)),
        routing=routing,
        error=error,
        messages=tuple({"role": "user", "content": text} for text in draw(st.lists(st.text(), max_size=2))),
        metadata=draw(st.dictionaries(st.text(), json_value, max_size=3)),
    )


@settings(max_examples=60)
@given(st.lists(samples(), max_size=3))
def test_decode_gives_back_what_encode_took(batch):
    back = decode(encode(batch))
    assert back == batch
    for ours, theirs in zip(batch, back, strict=True):
        assert (ours.routing is None) == (theirs.routing is None)
        if ours.routing is not None:
            assert theirs.routing.dtype == ours.routing.dtype
            assert np.array_equal(theirs.routing, ours.routing)


def test_strided_routing_and_lone_surrogates_survive(make_sample):
    sample = make_sample("abc")
    routing = np.arange(2 * 4 * 3, dtype=np.uint16).reshape(3, 4, 2).transpose(1, 0, 2)
    odd = Sample(
        prompt_id="0-0", rollout_id="r", spans=sample.spans, finish=Finish.STOP, routing=routing,
        messages=({"role": "assistant", "content": "\ud800"},),
    )  # fmt: skip
    (back,) = decode(encode([odd]))
    assert np.array_equal(back.routing, routing)
    assert back.messages[0]["content"] == "\ud800"


@pytest.mark.parametrize("value", [math.nan, object(), {1, 2}, b"x"])
def test_metadata_that_is_not_json_is_refused(make_sample, value):
    with pytest.raises(RecordError, match="as JSON values"):
        encode([make_sample(bad=value)])


def blob(headers, ids=(1, 2, 3), *, form=FORMAT, more=None, dtype=np.int32):
    tensors = {
        "ids": np.array(ids, dtype=dtype),
        "logprobs": np.zeros(0),
        "weight_versions": np.zeros(0, dtype=np.int64),
        **(more or {}),
    }
    text = headers if isinstance(headers, str) else json.dumps({"format": form, "samples": headers})
    return save(tensors, metadata={"miles": text})


def header(**fields):
    given = {
        "prompt_id": "p", "rollout_id": "r", "spans": [["prompt", 3, True]], "finish": "stop", "reward": None,
        "error": None, "messages": [], "metadata": {},
    }  # fmt: skip
    return {**given, **fields}


def test_a_blob_written_by_hand_is_read():
    (sample,) = decode(blob([header()]))
    assert sample.ids.tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "cut off or no samples"),
        (b"\xff" * 40, "cut off or no samples"),
        ((10).to_bytes(8, "little") + b"{" * 10, "expected the metadata"),
        ((2).to_bytes(8, "little") + b"{}", "expected the metadata"),
        (blob([header()], form="other/1"), "found 'other/1'"),
        (blob("{"), "expected the metadata"),
        (blob({}), "format"),
        (blob([header()])[:-4], "bytes that are not"),
        (blob([header()], dtype=np.int64), "flat tensor 'ids' of int32, found .* of int64"),
        (blob([header()], ids=(1, 2)), "spans that fit 2 ids, found one of 3"),
        (blob([header()], ids=(1, 2, 3, 4)), "expected 3 ids from the spans of the samples, found 4"),
        (blob([header(spans=[["prompt", -1, True]])]), "found one of -1"),
        (blob([header(spans=[["prompt", True, True]])]), "found one of True"),
        (blob([header(spans=[["elsewhere", 3, True]])]), "expected the header of a sample"),
        (blob([header(spans=[["prompt", 3]])]), "expected the header of a sample"),
        (blob([header(spans=[["sampled", 3, True]])]), "needs 3 logprobs, found 0"),
        (blob([header(finish="gone")]), "expected the header of a sample"),
        (blob([header(prompt_id=3)]), "expected a string, found int"),
        (blob([header(metadata=[])]), "metadata as an object"),
        (blob([header(messages=[{"role": "robot"}])]), "sample 0 of the bytes: message 0"),
        (blob([header(finish="aborted")]), "an aborted sample, and only one, carries its error"),
        (blob([3]), "expected the header of a sample"),
        (blob([header()], more={"routing.0": np.zeros((1, 1, 1), dtype=np.uint8)}), r"expected routing \[2,"),
        (blob([header()], more={"other": np.zeros(1)}), r"found \['other'\]"),
    ],
)
def test_bytes_that_are_no_samples_are_refused(data, told):
    with pytest.raises(RecordError, match=told):
        decode(data)


def test_a_blob_over_the_limit_is_refused(make_sample):
    data = encode([make_sample()])
    with pytest.raises(RecordError, match=f"at most 10 bytes of samples, found {len(data)}"):
        decode(data, max_bytes=10)


@settings(max_examples=150)
@given(st.data())
def test_damaged_bytes_are_refused_or_decode_to_whole_samples(data):
    good = bytearray(blob([header(), header(spans=[])]))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(good) - 1))
        good[place] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(good)))
    try:
        found = decode(bytes(good[:cut]))
    except RecordError:
        return
    assert all(isinstance(sample, Sample) for sample in found)


def test_equal_samples_are_equal_bytes_in_every_process(make_sample):
    program = (
        "import sys; from miles_core.sample_codec import decode, encode; "
        "sys.stdout.buffer.write(encode(decode(sys.stdin.buffer.read())))"
    )
    data = encode([make_sample("one"), make_sample("two")])
    again = [
        subprocess.run([sys.executable, "-c", program], input=data, capture_output=True, check=True, timeout=60).stdout
        for _ in range(3)
    ]
    assert again == [data] * 3
