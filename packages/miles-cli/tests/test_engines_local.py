"""The local engine over real HTTP: SGLang's surface, errors, streams, weight updates."""

import asyncio
import json
import threading
import time

import httpx
import pytest
import torch
from openai import OpenAI
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from miles_cli.engines.local import LocalEngineConfig, create_engine_app, open_engine
from miles_cli.engines.text_codec import TextCodec
from miles_router.serve import ServerThread
from miles_sync.push import WeightPusher
from miles_sync.receivers.endpoint import EngineEndpoint
from miles_sync.transports.shared_memory import SharedMemoryConfig

CONTEXT = 128
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny Qwen3 whose tokenizer has a token for each byte, and ChatML's two specials (256 and 257)."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("model")
    config = Qwen3Config(
        vocab_size=258,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        eos_token_id=257,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|im_end|>")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>"]})
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def core(folder):
    core, _ = open_engine(LocalEngineConfig(context_length=CONTEXT, max_running=8), folder)
    yield core
    core.close()


@pytest.fixture(scope="module")
def served(core, folder):
    app = create_engine_app(core, text=TextCodec.of_folder(folder), body_limit_bytes=1 << 20, health_timeout_s=2.0)
    with ServerThread(app) as server:
        yield server.url


@pytest.fixture
def client(served):
    with httpx.Client(base_url=served, timeout=30.0, trust_env=False) as client:
        yield client
        client.post("/continue_generation")
        client.post("/end_weight_update", json={"abort": True})


def body(ids=(1, 2, 3), **options):
    params = {"max_new_tokens": 8, "sampling_seed": 3, "ignore_eos": True, **options.pop("params", {})}
    return {"input_ids": list(ids), "sampling_params": params, "return_logprob": True, **options}


def generate(client, *args, **options):
    answer = client.post("/generate", json=body(*args, **options))
    assert answer.status_code == 200, answer.text
    return answer.json()


def events(answer):
    data = [line.removeprefix("data: ") for line in answer.text.split("\n") if line]
    assert data[-1] == "[DONE]"
    return [json.loads(item) for item in data[:-1]]


def refusal(answer, status):
    assert answer.status_code == status, answer.text
    assert set(answer.json()["error"]) == {"message", "type", "code"}
    return answer.json()["error"]["message"]


def counters(client):
    return client.get("/server_info").json()


def eventually(holds, what):
    give_up = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < give_up, f"waited 20 s for {what}"
        time.sleep(0.01)


def test_generate_answers_in_sglangs_shape(client):
    answer = generate(client)
    meta = answer["meta_info"]
    assert set(answer) == {"text", "output_ids", "meta_info"}
    assert meta["finish_reason"] == {"type": "length", "length": 8}
    assert (meta["prompt_tokens"], meta["completion_tokens"], meta["weight_version"]) == (3, 8, "0")
    assert meta["token_weight_versions"] == [["0", 8]]
    assert [entry[1] for entry in meta["output_token_logprobs"]] == answer["output_ids"]
    assert all(entry[0] < 0 and entry[2] is None for entry in meta["output_token_logprobs"])


def test_the_same_seed_gives_the_same_answer_and_another_one_another(client):
    first, again, other = generate(client), generate(client), generate(client, params={"sampling_seed": 4})
    assert first["output_ids"] == again["output_ids"] != other["output_ids"]
    assert first["meta_info"]["output_token_logprobs"] == again["meta_info"]["output_token_logprobs"]


def test_a_batch_with_n_answers_each_is_a_flat_list_and_the_first_of_each_is_the_single_answer(client):
    single = generate(client)
    many = client.post("/generate", json={**body(params={"n": 2}), "input_ids": [[1, 2, 3], [4]]}).json()
    assert len(many) == 4
    assert many[0]["output_ids"] == single["output_ids"] != many[1]["output_ids"]
    assert [answer["meta_info"]["prompt_tokens"] for answer in many] == [3, 3, 1, 1]


def test_a_stream_is_cumulative_and_ends_like_the_plain_answer(client):
    plain = generate(client)
    parts = events(client.post("/generate", json=body(stream=True)))
    assert [part["output_ids"] for part in parts] == [plain["output_ids"][: n + 1] for n in range(8)]
    lengths = [len(part["meta_info"]["output_token_logprobs"]) for part in parts]
    assert lengths == list(range(1, 9))
    assert parts[-1]["meta_info"]["output_token_logprobs"] == plain["meta_info"]["output_token_logprobs"]
    assert [part["meta_info"]["finish_reason"] for part in parts[:-1]] == [None] * 7


def test_a_streamed_batch_says_which_prompt_each_event_is_of(client):
    parts = events(client.post("/generate", json={**body(stream=True), "input_ids": [[1, 2, 3], [4]]}))
    last = {part["index"]: part["output_ids"] for part in parts}
    assert last == {0: generate(client)["output_ids"], 1: generate(client, [4])["output_ids"]}


def test_text_goes_in_and_comes_out(client):
    answer = client.post("/generate", json={"text": "abc", "sampling_params": body()["sampling_params"]}).json()
    assert answer["meta_info"]["prompt_tokens"] == 3
    assert isinstance(answer["text"], str)
    assert answer["text"]


def test_a_stop_string_ends_the_answer_and_is_cut_from_its_text(client, folder):
    codec = TextCodec.of_folder(folder)
    free = generate(client, params={"max_new_tokens": 40})
    stop = codec.decode(free["output_ids"][4:6])
    found = generate(client, params={"max_new_tokens": 40, "stop": [stop]})
    assert found["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}
    assert stop not in found["text"]
    assert free["output_ids"][: len(found["output_ids"])] == found["output_ids"]


def test_a_stop_token_is_in_the_ids_and_not_in_the_text(client):
    free = generate(client)
    stop = free["output_ids"][3]
    found = generate(client, params={"stop_token_ids": [stop]})
    place = free["output_ids"].index(stop)
    assert found["output_ids"] == free["output_ids"][: place + 1]
    assert found["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"input_ids": [1] * CONTEXT}, f"expected fewer tokens than the context length of {CONTEXT}, found {CONTEXT}"),
        ({"input_ids": [258]}, "each from 0 to 257"),
        ({"input_ids": []}, "input_ids"),
        ({"input_ids": "abc"}, "input_ids: expected a list"),
        ({"input_ids": None}, "either input_ids or text"),
        ({"text": "a"}, "either input_ids or text"),
        ({"sampling_params": {"top_p": 2}}, "top_p"),
        ({"sampling_params": 3}, "sampling_params: expected an object"),
        ({"sampling_params": [{}, {}]}, "expected one for each of the 1 prompts"),
        ({"stream": "yes"}, "stream: expected true or false"),
        ({"return_routed_experts": True}, "return_routed_experts: this engine does not support it"),
        ({"rid": 7}, "rid: expected a string"),
    ],
)
def test_a_bad_request_is_a_400_with_one_sentence(client, change, words):
    assert words in refusal(client.post("/generate", json={**body(), **change}), 400)


@pytest.mark.parametrize("content", [b"{", b"[1]", b"\xff"])
def test_a_body_that_is_no_object_is_a_400(client, content):
    assert "JSON object" in refusal(client.post("/generate", content=content), 400)


def test_a_streamed_bad_request_is_a_plain_400(client):
    refusal(client.post("/generate", json=body(stream=True, ids=[999])), 400)


def test_an_unknown_path_is_a_404_and_a_body_over_the_limit_a_413(client):
    refusal(client.get("/nope"), 404)
    refusal(client.get("/generate"), 404)
    assert "at most 1048576 bytes" in refusal(client.post("/generate", content=b" " * (1 << 20) + b"{}"), 413)

    def chunks():
        for _ in range(20):
            yield b" " * (1 << 16)

    refusal(client.post("/generate", content=chunks()), 413)


def test_health_and_information(client, folder):
    assert client.get("/health").status_code == 200
    assert client.get("/health_generate").status_code == 200
    info = client.get("/model_info").json()
    assert (info["model_path"], info["context_length"], info["weight_version"]) == (str(folder), CONTEXT, "0")
    assert counters(client)["generated_tokens"] > 0
    assert client.post("/flush_cache").status_code == 200
    assert counters(client)["cached_pages"] == 0


def in_background(call):
    found = []
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()
    return thread, found


def test_an_aborted_call_answers_200_with_what_it_had(served, client):
    with httpx.Client(base_url=served, timeout=30.0, trust_env=False) as other:
        client.post("/pause_generation", json={"mode": "in_place"})
        thread, found = in_background(lambda: generate(other, rid="slow", params={"max_new_tokens": 100}))
        eventually(lambda: counters(client)["waiting"] == 1, "the request to be queued")
        assert client.post("/abort_request", json={"rid": "slow"}).json()["aborted"] == 1
        thread.join(20)
    assert found[0]["meta_info"]["finish_reason"]["type"] == "abort"
    assert found[0]["output_ids"] == []


def test_abort_all_ends_every_call_and_a_bad_abort_is_a_400(served, client):
    refusal(client.post("/abort_request", json={}), 400)
    client.post("/pause_generation", json={"mode": "retract"})
    with httpx.Client(base_url=served, timeout=30.0, trust_env=False) as other:
        calls = [in_background(lambda: generate(other)) for _ in range(3)]
        eventually(lambda: counters(client)["waiting"] == 3, "three requests to be queued")
        assert client.post("/abort_request", json={"abort_all": True}).json()["aborted"] == 3
        for thread, _ in calls:
            thread.join(20)
    assert [found[0]["meta_info"]["finish_reason"]["type"] for _, found in calls] == ["abort"] * 3


def test_while_paused_no_token_is_generated_and_health_generate_says_so(client):
    refusal(client.post("/pause_generation", json={"mode": "sideways"}), 400)
    assert client.post("/pause_generation", json={"mode": "in_place"}).status_code == 200
    assert client.get("/health").status_code == 200
    assert "waited 2 s" in refusal(client.get("/health_generate"), 504)
    assert client.post("/continue_generation").status_code == 200
    assert client.get("/health_generate").status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_a_caller_that_hangs_up_ends_its_request(served, client, stream):
    client.post("/pause_generation", json={"mode": "in_place"})
    with (
        httpx.Client(base_url=served, timeout=httpx.Timeout(0.3, connect=10.0), trust_env=False) as other,
        pytest.raises(httpx.ReadTimeout),
    ):
        other.post("/generate", json=body(stream=stream))
    eventually(lambda: counters(client)["waiting"] == 0, "the request to be dropped")


def pushed(folder, target, factor):
    model = Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for parameter in model.parameters():
        parameter.data.mul_(factor)
    model.save_pretrained(target)
    return model


def test_weights_from_disk_are_loaded_at_once_or_in_a_transaction(client, folder, tmp_path):
    pushed(folder, tmp_path, 1.5)
    before = generate(client)
    update = {"model_path": str(tmp_path), "weight_version": "5"}
    assert client.post("/update_weights_from_disk", json=update).json()["success"] is True
    after = generate(client)
    assert after["meta_info"]["weight_version"] == "5"
    assert after["output_ids"] != before["output_ids"]
    client.post("/begin_weight_update")
    assert client.post("/update_weights_from_disk", json={"model_path": str(folder)}).json()["success"] is True
    assert generate(client)["output_ids"] == after["output_ids"]
    assert client.post("/end_weight_update", json={"weight_version": "0"}).json()["success"] is True
    assert generate(client) | {"meta_info": None} == before | {"meta_info": None}


def test_a_push_over_shared_memory_stages_checks_and_commits(client, served, folder):
    model = Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32)

    def push(factor, version):
        pusher = WeightPusher(SharedMemoryConfig(bucket_bytes=1 << 14), [EngineEndpoint(served)])
        tensors = [(name, parameter.detach() * factor) for name, parameter in model.named_parameters()]
        return asyncio.run(pusher.push(tensors, version))

    before = generate(client)
    report = push(1.5, 3)
    assert (report.acknowledged, dict(report.failed)) == ((served,), {})
    after = generate(client)
    assert after["meta_info"]["token_weight_versions"] == [["3", 8]]
    assert after["output_ids"] != before["output_ids"]
    push(1.0, 4)
    assert generate(client)["output_ids"] == before["output_ids"]
    client.post("/update_weight_version", json={"new_version": "0"})


def test_weights_that_do_not_fit_change_nothing(client, folder, tmp_path):
    before = generate(client)
    missing = client.post("/update_weights_from_disk", json={"model_path": str(tmp_path), "weight_version": "9"})
    assert "model.safetensors" in refusal(missing, 400)
    refusal(client.post("/update_weights_from_disk", json={"model_path": str(folder)}), 400)
    assert "nothing is open" in refusal(client.post("/end_weight_update", json={"weight_version": "9"}), 400)
    client.post("/begin_weight_update")
    assert "not sent" in refusal(client.post("/end_weight_update", json={"weight_version": "9"}), 400)
    refusal(client.post("/update_weights_from_shared_memory", json={"version": 1}), 400)
    after = generate(client)
    assert after["output_ids"] == before["output_ids"]
    assert after["meta_info"]["weight_version"] == "0"


def test_the_version_can_be_renamed(client):
    assert client.post("/update_weight_version", json={"new_version": "12"}).status_code == 200
    assert client.get("/model_info").json()["weight_version"] == "12"
    refusal(client.post("/update_weight_version", json={}), 400)
    client.post("/update_weight_version", json={"new_version": "0"})


def test_the_official_client_gets_a_completion_with_logprobs(served):
    client = OpenAI(base_url=f"{served}/v1", api_key="none")
    answer = client.chat.completions.create(
        model="m", messages=[{"role": "user", "content": "hi"}], max_tokens=5, seed=3, logprobs=True
    )
    assert answer.usage.prompt_tokens == len("user\nhi\nassistant\n") + 3
    assert answer.choices[0].finish_reason in ("length", "stop")
    assert len(answer.choices[0].logprobs.content) == answer.usage.completion_tokens


def test_a_streamed_chat_adds_up_to_the_plain_one(served):
    client = OpenAI(base_url=f"{served}/v1", api_key="none")
    request = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 20, "seed": 3}
    plain = client.chat.completions.create(**request)
    parts = list(client.chat.completions.create(**request, stream=True, stream_options={"include_usage": True}))
    text = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
    assert text == plain.choices[0].message.content
    assert parts[-1].usage.completion_tokens == plain.usage.completion_tokens
    assert parts[-1].usage.prompt_tokens_details.cached_tokens == 16  # of the first call's prompt


def test_a_chat_with_ids_ignores_the_template(client):
    answer = client.post("/v1/chat/completions", json={"input_ids": [1, 2, 3], "max_tokens": 8, "seed": 3}).json()
    assert answer["usage"]["prompt_tokens"] == 3


@pytest.mark.parametrize(
    "change", [{"messages": 3}, {"messages": [{"role": "robot"}]}, {"response_format": {"type": "json_object"}}]
)
def test_a_bad_chat_is_a_400(client, change):
    refusal(client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "x"}], **change}), 400)


def test_with_a_token_every_call_needs_it(core):
    with ServerThread(create_engine_app(core, token="secret")) as server:
        url, good, wrong = f"{server.url}/generate", {"Authorization": "Bearer secret"}, {"Authorization": "Bearer x"}
        assert httpx.get(f"{server.url}/health", trust_env=False).status_code == 401
        assert httpx.post(url, headers=good, json=body(), trust_env=False).status_code == 200
        assert httpx.post(url, headers=wrong, json=body(), trust_env=False).status_code == 401


def test_the_http_loop_answers_while_the_engine_computes(served, client):
    with httpx.Client(base_url=served, timeout=60.0, trust_env=False) as other:
        thread, _ = in_background(
            lambda: other.post("/generate", json={**body(params={"max_new_tokens": 100}), "input_ids": [[1]] * 8})
        )
        waits = []
        while thread.is_alive():
            start = time.monotonic()
            client.get("/health")
            waits.append(time.monotonic() - start)
        thread.join()
    assert len(waits) > 3
    assert sorted(waits)[len(waits) // 2] < 0.5
