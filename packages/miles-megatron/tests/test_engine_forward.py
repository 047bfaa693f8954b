"""The engine's cached steps against the trainer's packed forward, bit for bit."""

import random
import resource
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from miles_megatron.engine.cache import PAGE, CacheShape, SlotCache
from miles_megatron.engine.forward import ModelDecoder, Piece, step
from miles_megatron.engine.fused import fuse
from miles_megatron.models import load_causal_lm, packed_forward

LENGTHS = [1, 2, 3, 63, 64, 65, 127, 129, 200, 17, 40, 5, 90]
SLOTS = len(LENGTHS)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    torch.manual_seed(0)
    qwen, llama = tmp_path_factory.mktemp("qwen3"), tmp_path_factory.mktemp("llama")
    Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=108,
            hidden_size=64,
            intermediate_size=160,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=16,
            max_position_embeddings=256,
            tie_word_embeddings=True,
        )
    ).save_pretrained(qwen)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=100,
            hidden_size=72,
            intermediate_size=200,
            num_hidden_layers=2,
            num_attention_heads=9,
            num_key_value_heads=3,
            max_position_embeddings=256,
            attention_bias=True,
            mlp_bias=True,
        )
    )
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.1)
    model.save_pretrained(llama)
    return {"qwen3": qwen, "llama": llama}


@pytest.fixture(params=["qwen3", "llama"])
def model(request, folders):
    return load_causal_lm(folders[request.param]).requires_grad_(False)


@pytest.fixture(params=["plain", "fused"])
def decoder(request, model):
    if request.param == "plain":
        return ModelDecoder(model)
    found = fuse(model)
    assert found is not None
    return found


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _inference():
    with torch.inference_mode():
        yield


def cache_of(model, slots=SLOTS, pages=64):
    config = model.config
    shape = CacheShape(
        layers=config.num_hidden_layers,
        kv_heads=config.num_key_value_heads,
        head_dim=model.model.layers[0].self_attn.head_dim,
        slots=slots,
        length=256,
        pages=pages,
    )
    return SlotCache(shape, dtype=torch.float32, device="cpu")


def sequences(seed=0):
    generator = random.Random(seed)
    return [[generator.randrange(100) for _ in range(n)] for n in LENGTHS]


def group_size(model):
    return model.config.num_attention_heads // model.config.num_key_value_heads


def packed_logits(model, rows):
    lengths = [len(row) for row in rows]
    return packed_forward(model, torch.tensor([i for row in rows for i in row]), lengths).split(lengths)


@pytest.mark.parametrize(("trainer_threads", "engine_threads"), [(1, 1), (2, 1), (1, 2)])
def test_mixed_prefill_and_decode_in_any_batch_equals_the_packed_forward(
    model, decoder, threads, trainer_threads, engine_threads
):
    rows, cache, chance = sequences(), cache_of(model), random.Random(1)
    threads(trainer_threads)
    expected = packed_logits(model, rows)
    threads(engine_threads)
    done = [0] * SLOTS
    while active := [s for s in range(SLOTS) if done[s] < len(rows[s])]:
        picked = chance.sample(active, chance.randint(1, len(active)))
        sizes = {s: min(len(rows[s]) - done[s], chance.choice([1, 1, 1, 1, 2, 7, 17, 40, 64, 100])) for s in picked}
        picked.sort(key=lambda s: sizes[s] > 1)
        pieces = [Piece(s, done[s], rows[s][done[s] : done[s] + sizes[s]]) for s in picked]
        logits = decoder.logits(step(decoder, pieces, cache, group_size=group_size(model)))
        for s, found in zip(picked, logits.split([sizes[s] for s in picked]), strict=True):
            assert torch.equal(found, expected[s][done[s] : done[s] + sizes[s]]), (s, done[s], sizes[s])
            done[s] += sizes[s]


def test_a_prefix_copied_through_the_page_store_gives_the_same_bits(model, decoder):
    (donor,) = ([i % 90 for i in range(100)],)
    cache, size = cache_of(model), group_size(model)
    step(decoder, [Piece(3, 0, donor)], cache, group_size=size)
    pages = 100 // PAGE
    cache.save(3, [(number, 2 * number + 1) for number in range(pages)])
    cache.release(3, 100)
    other = [*donor[: pages * PAGE], 7, 8, 9]
    cache.load(5, [2 * number + 1 for number in range(pages)])
    found = decoder.logits(step(decoder, [Piece(5, pages * PAGE, other[pages * PAGE :])], cache, group_size=size))
    assert torch.equal(found, packed_logits(model, [other])[0][pages * PAGE :])


def test_a_request_moved_to_another_slot_goes_on_with_the_same_bits(model, decoder):
    row = [(5 * i) % 97 for i in range(80)]
    cache, size = cache_of(model), group_size(model)
    step(decoder, [Piece(9, 0, row[:79])], cache, group_size=size)
    cache.move(9, 2, 79)
    found = decoder.logits(step(decoder, [Piece(2, 79, row[79:])], cache, group_size=size))
    assert torch.equal(found[0], packed_logits(model, [row])[0][79])


def test_a_released_slot_holds_zeros_only(model):
    cache = cache_of(model)
    step(ModelDecoder(model), [Piece(4, 0, [1, 2, 3])], cache, group_size=group_size(model))
    assert cache.keys.any()
    cache.release(4, 3)
    assert not cache.keys.any()
    assert not cache.values.any()


def test_a_weight_update_in_place_reaches_the_fused_matrices(model):
    plain, quick = ModelDecoder(model), fuse(model)
    for parameter in model.parameters():
        parameter.data.copy_(parameter.data * 1.25 + 0.01)
    results = []
    for decoder in (plain, quick):
        hidden = step(decoder, [Piece(0, 0, [5, 6, 7])], cache_of(model), group_size=group_size(model))
        results.append(decoder.logits(hidden))
    assert torch.equal(*results)


def test_fusing_keeps_names_values_and_saved_bits(folders, tmp_path):
    model, untouched = load_causal_lm(folders["qwen3"]), load_causal_lm(folders["qwen3"])
    fuse(model)
    assert list(model.state_dict()) == list(untouched.state_dict())
    assert all(
        torch.equal(a, b) for a, b in zip(model.state_dict().values(), untouched.state_dict().values(), strict=True)
    )


def test_a_large_cache_takes_memory_only_where_it_is_written():
    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

    before = resident()
    shape = CacheShape(layers=8, kv_heads=4, head_dim=64, slots=32, length=4096, pages=0)
    cache = SlotCache(shape, dtype=torch.float32, device="cpu")
    assert cache.keys.nbytes == 1 << 30
    assert resident() - before < 64 << 20
    assert not cache.keys[7, 31, 3, 4095].any()
