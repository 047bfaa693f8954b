"""The three dialects over HTTP: shapes of answers, streams and failures, whatever the model says."""

import pytest

USER = {"role": "user", "content": "hello there"}
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
BODIES = {
    CHAT: {"messages": [USER], "max_tokens": 8},
    RESPONSES: {"input": [USER], "max_output_tokens": 8},
    MESSAGES: {"messages": [USER], "max_tokens": 8},
}
IMAGES = {
    CHAT: {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]},
    RESPONSES: {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:"}]}]},
    MESSAGES: {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}], "max_tokens": 8},
}
FORCED = {CHAT: "required", RESPONSES: "required", MESSAGES: {"type": "any"}}


def test_a_chat_completion_has_its_shape(session):
    answer = session.ok(CHAT, BODIES[CHAT])
    assert answer["object"] == "chat.completion"
    (choice,) = answer["choices"]
    assert choice["message"]["role"] == "assistant"
    assert choice["finish_reason"] in ("stop", "length", "tool_calls")
    (turn,) = session.state()["turns"]
    usage = answer["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (turn["prompt_tokens"], len(turn["ids"]))
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


def test_a_streamed_chat_completion_spells_its_turn(session, read_stream):
    body = {**BODIES[CHAT], "stream": True, "stream_options": {"include_usage": True}}
    *chunks, usage, (_, done) = read_stream(session.post(CHAT, body))
    assert done == "[DONE]"
    assert {chunk["object"] for _, chunk in chunks} == {"chat.completion.chunk"}
    assert chunks[0][1]["choices"][0]["delta"]["role"] == "assistant"
    text = "".join(chunk["choices"][0]["delta"].get("content") or "" for _, chunk in chunks)
    (turn,) = session.state()["turns"]
    assert text == (turn["response"]["content"] or "")
    assert usage[1]["usage"]["completion_tokens"] == len(turn["ids"])


def test_a_response_has_its_shape_and_can_be_read_again_and_continued(session):
    answer = session.ok(RESPONSES, {**BODIES[RESPONSES], "instructions": "Be brief."})
    assert (answer["object"], answer["instructions"]) == ("response", "Be brief.")
    assert answer["status"] == ("incomplete" if answer["incomplete_details"] else "completed")
    assert answer["output"][-1]["type"] in ("message", "function_call")
    assert session.get(f"{RESPONSES}/{answer['id']}").json() == answer
    more = session.ok(RESPONSES, {"input": "and then?", "previous_response_id": answer["id"], "max_output_tokens": 8})
    assert more["previous_response_id"] == answer["id"]
    lost = session.post(RESPONSES, {"input": "x", "previous_response_id": "resp_none"})
    assert (lost.status_code, lost.json()["error"]["code"]) == (400, "previous_response_not_found")


def test_a_streamed_response_numbers_its_events_and_ends_with_the_whole(session, read_stream):
    events = read_stream(session.post(RESPONSES, {**BODIES[RESPONSES], "stream": True}))
    assert [data["sequence_number"] for _, data in events] == list(range(len(events)))
    assert all(name == data["type"] for name, data in events)
    assert [name for name, _ in events[:2]] == ["response.created", "response.in_progress"]
    assert events[-1][0] in ("response.completed", "response.incomplete")
    whole = events[-1][1]["response"]
    assert whole["output"] == [data["item"] for name, data in events if name == "response.output_item.done"]
    text = "".join(data["delta"] for name, data in events if name == "response.output_text.delta")
    assert text == (session.state()["turns"][0]["response"]["content"] or "")
    assert whole["usage"]["output_tokens"] == len(session.state()["turns"][0]["ids"])


def test_a_message_has_its_shape_and_its_tokens_can_be_counted_before(session):
    counted = session.ok(f"{MESSAGES}/count_tokens", {"messages": [USER]})["input_tokens"]
    answer = session.ok(MESSAGES, BODIES[MESSAGES])
    assert (answer["type"], answer["role"]) == ("message", "assistant")
    assert answer["stop_reason"] in ("end_turn", "max_tokens", "tool_use")
    assert {block["type"] for block in answer["content"]} <= {"text", "thinking", "tool_use"}
    (turn,) = session.state()["turns"]
    usage = answer["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == turn["prompt_tokens"] == counted
    assert usage["output_tokens"] == len(turn["ids"])


def test_a_streamed_message_opens_and_closes_its_blocks(session, read_stream):
    events = read_stream(session.post(MESSAGES, {**BODIES[MESSAGES], "stream": True}))
    names = [name for name, _ in events]
    assert (names[0], names[-2:]) == ("message_start", ["message_delta", "message_stop"])
    opened = [data["index"] for name, data in events if name == "content_block_start"]
    assert opened == [data["index"] for name, data in events if name == "content_block_stop"] == [*range(len(opened))]
    deltas = [data["delta"] for name, data in events if name == "content_block_delta"]
    text = "".join(delta["text"] for delta in deltas if delta["type"] == "text_delta")
    assert text == (session.state()["turns"][0]["response"]["content"] or "")


def test_the_dialects_share_one_session(session):
    for path, body in BODIES.items():
        session.ok(path, body)
    state = session.state()
    assert [turn["dialect"] for turn in state["turns"]] == ["openai_chat", "openai_responses", "anthropic"]
    assert len({turn["prompt_tokens"] for turn in state["turns"]}) == 1


@pytest.mark.parametrize("path", list(BODIES))
@pytest.mark.parametrize("kind", ["unknown field", "image", "forced tool", "not JSON", "a list", "a wrong type"])
def test_what_is_not_supported_is_400_in_the_dialects_body(session, path, kind):
    body = {
        "unknown field": {**BODIES[path], "odd_field": 1},
        "image": IMAGES[path],
        "forced tool": {**BODIES[path], "tool_choice": FORCED[path]},
        "a list": [BODIES[path]],
        "a wrong type": {**BODIES[path], "temperature": "hot"},
    }.get(kind)
    if body is None:
        answer = session.contract.http.post(f"/sessions/{session.session_id}{path}", content=b'{"messages": [')
    else:
        answer = session.post(path, body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["message"]
    assert ("param" in error) != (path == MESSAGES)
    assert session.state()["turns"] == []


@pytest.mark.parametrize("path", list(BODIES))
def test_a_session_that_is_not_there_is_404_in_the_dialects_body(contract, path):
    answer = contract.http.post(f"/sessions/none{path}", json=BODIES[path])
    assert (answer.status_code, answer.json()["error"]["type"]) == (404, "not_found_error")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", list(BODIES))
def test_every_answer_names_its_request(session, path, stream):
    answer = session.post(path, {**BODIES[path], "stream": stream})
    assert answer.headers["request-id" if path == MESSAGES else "x-request-id"]


def test_more_than_one_choice_is_refused(session):
    answer = session.post(CHAT, {**BODIES[CHAT], "n": 2})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "n")


def test_models_are_listed_in_both_shapes(session):
    listed = session.get("/v1/models").json()
    assert listed["object"] == "list"
    name = listed["data"][0]["id"]
    assert session.get(f"/v1/models/{name}").json()["object"] == "model"
    page = session.get("/v1/models", headers={"anthropic-version": "2023-06-01"}).json()
    assert (page["data"][0]["type"], page["data"][0]["id"], page["has_more"]) == ("model", name, False)
