"""OpenAI Responses: what a request may hold, items, earlier responses, and the standard's own details."""

import json

import pytest

from miles_core.errors import SessionError
from miles_router.sessions.dialects.openai_responses.items import read_input
from miles_router.sessions.dialects.openai_responses.request import parse_request

HELLO = ("user", "hello there")


def parse(**fields):
    return parse_request(json.dumps({"input": "hi", **fields}).encode(), session=None)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"n": 2}, "n: this field is not known"),
        ({"input": None}, "input: expected a text or a list"),
        ({"input": []}, "input: expected a text or at least one item"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, '"item_reference" are not supported'),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input.0.content.0"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input.0.role"),
        ({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, "input.0.call_id"),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": 5}]}, "input.0.output"),
        ({"tools": [{"type": "web_search"}]}, 'only type in a session; found "web_search"'),
        ({"tools": [{"type": "custom", "name": "patch"}]}, "tools.0"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools.0"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "name": "f"}}, "tool_choice"),
        ({"parallel_tool_calls": False}, "parallel_tool_calls"),
        ({"truncation": "auto"}, "truncation"),
        ({"background": True}, "background"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format"),
        ({"include": ["file_search_call.results"]}, "include"),
        ({"instructions": ["x"]}, "instructions"),
        ({"metadata": "x"}, "metadata"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"store": "yes"}, "store"),
    ],
)
def test_what_is_not_supported_is_400_and_names_the_field(fields, says):
    with pytest.raises(SessionError, match=says) as caught:
        parse(**fields)
    assert caught.value.status == 400


def test_what_a_coding_agent_sends_along_is_accepted():
    asked = parse(
        model="any", instructions="Be brief.", store=False, stream=True, parallel_tool_calls=True, tool_choice="auto",
        reasoning={"effort": "high", "summary": "auto"}, include=["reasoning.encrypted_content"], prompt_cache_key="k",
        text={"verbosity": "low"}, tools=[{"type": "function", "name": "f", "strict": True, "parameters": {}}],
    )  # fmt: skip
    assert asked.turn.messages == ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"})
    assert asked.turn.tools == ({"type": "function", "function": {"name": "f", "parameters": {}}},)
    assert asked.turn.notes["store"] is False


def test_a_run_of_items_is_one_answer_and_ids_split_it_by_turn():
    def text(identity, said):
        part = {"type": "output_text", "text": said}
        return {"type": "message", "role": "assistant", "id": identity, "content": [part]}

    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    run = [text("msg_s_0_0", "a"), call, text("msg_s_0_2", "b")]
    (answer,) = read_input(run)
    assert (answer["content"], len(answer["tool_calls"])) == ("ab", 1)
    one, two = read_input([text("msg_s_0_0", "a"), text("msg_s_0.0_0", "b")])
    assert (one["content"], two["content"]) == ("a", "b")


def test_an_earlier_response_is_continued_without_its_instructions(bench, talk, Reply, SPEAKERS):
    engine, url = bench.engine(lambda prompt, body: Reply("yes"))
    session, speaker = talk(url), SPEAKERS["openai_responses"]
    first = session.post(speaker, {"input": "one", "instructions": "Be brief."}).json()
    assert first["instructions"] == "Be brief."
    second = session.post(
        speaker, {"input": "two", "instructions": "Be brief.", "previous_response_id": first["id"]}
    ).json()
    assert second["previous_response_id"] == first["id"]
    session.post(speaker, {"input": "three", "previous_response_id": second["id"]})
    state = session.state()
    assert state["tree"] == {"0": None, "0.0": "0", "1": None}
    prompts = [bench.chat.vocabulary.decode(call["input_ids"]) for call in engine.calls]
    assert [prompt.count("Be brief.") for prompt in prompts] == [1, 1, 0]
    assert prompts[2].count("yes<|im_end|>") == 2


def test_an_earlier_response_may_be_branched_from_twice(bench, talk, Reply, SPEAKERS):
    _, url = bench.engine(lambda prompt, body: Reply("yes"))
    session, speaker = talk(url), SPEAKERS["openai_responses"]
    first = session.post(speaker, {"input": "one"}).json()
    for text in ("two", "three"):
        session.post(speaker, {"input": text, "previous_response_id": first["id"]})
    assert session.state()["tree"] == {"0": None, "0.0": "0", "0.1": "0"}


def test_a_response_that_is_not_here_is_told_by_the_standards_code(bench, talk, SPEAKERS):
    _, url = bench.engine()
    session, other, speaker = talk(url), talk(url), SPEAKERS["openai_responses"]
    unstored = session.post(speaker, {"input": "one", "store": False}).json()
    elsewhere = other.post(speaker, {"input": "one"}).json()
    for identity in ("resp_none", unstored["id"], elsewhere["id"], 5):
        answer = session.post(speaker, {"input": "two", "previous_response_id": identity})
        error = answer.json()["error"]
        assert answer.status_code == 400
        assert (error["code"], error["param"]) == ("previous_response_not_found", "previous_response_id")
    assert session.http.get(f"/sessions/{session.session}/v1/responses/{unstored['id']}").status_code == 404


def test_a_stored_response_is_read_again(bench, talk, Reply, SPEAKERS, CALL_TEXT):
    _, url = bench.engine(lambda prompt, body: Reply(CALL_TEXT))
    session, speaker = talk(url), SPEAKERS["openai_responses"]
    body = speaker.body([HELLO], tools=True, metadata={"a": "b"}, temperature=0.5, instructions="Be brief.")
    made = session.post(speaker, body).json()
    assert session.http.get(f"/sessions/{session.session}/v1/responses/{made['id']}").json() == made
    assert (made["metadata"], made["temperature"], made["top_p"]) == ({"a": "b"}, 0.5, 1.0)
    assert made["tools"][0]["name"] == "look"


def test_the_events_come_in_the_standards_order(bench, thinking, talk, Reply, SPEAKERS, CALL_TEXT):
    _, url = bench.engine(lambda prompt, body: Reply("<think>\nHm.\n</think>\n\n" + CALL_TEXT))
    events = talk(url).events(SPEAKERS["openai_responses"], [HELLO], tools=True)
    assert all(name == data["type"] for name, data in events)
    names = [name.removeprefix("response.") for name, _ in events]
    text = ["output_item.added", "content_part.added", "{}.delta", "{}.done", "content_part.done", "output_item.done"]
    assert [n for i, n in enumerate(names) if not n.endswith(".delta") or names[i - 1] != n] == [
        "created",
        "in_progress",
        *(name.format("reasoning_text") for name in text),
        *(name.format("output_text") for name in text),
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    assert events[0][1]["response"]["status"] == "in_progress"
    whole = events[-1][1]["response"]
    done = [data["item"] for name, data in events if name == "response.output_item.done"]
    assert whole["output"] == done
    assert [item["type"] for item in done] == ["reasoning", "message", "function_call"]
    assert [data["output_index"] for name, data in events if name == "response.output_item.done"] == [0, 1, 2]
    deltas = [data["delta"] for name, data in events if name == "response.output_text.delta"]
    assert "".join(deltas) == done[1]["content"][0]["text"]
    assert whole["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
