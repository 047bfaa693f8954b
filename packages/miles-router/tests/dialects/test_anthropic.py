"""Anthropic Messages: what a request may hold, what its content means, and the standard's own details."""

import json

import pytest

from miles_core.errors import SessionError
from miles_router.sessions.dialects.anthropic.request import parse_request

USER = {"role": "user", "content": "hi"}


def parse(**fields):
    return parse_request(json.dumps({"messages": [USER], "max_tokens": 5, **fields}).encode())


def messages_of(*messages, **fields):
    return list(parse(messages=list(messages), **fields).turn.messages)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"max_tokens": None}, "max_tokens: expected an integer"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"n": 2}, "n: this field is not known"),
        ({"messages": []}, "messages: expected a list of at least one"),
        ({"messages": [USER, {"role": "assistant", "content": "I"}]}, "assistant's turn is not continued"),
        ({"messages": [{"role": "system", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, '"image" are not supported'),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages.0.content.0.text"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result", "content": "1"}]}]}, "tool_use_id"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content"),
        ({"messages": [{"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}]}]}, "redacted"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, '"bash_20250124" are not built'),
        ({"tools": [{"name": "f"}]}, "tools.0: expected a name and an object as input_schema"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tool_choice": {"type": "tool", "name": "f"}}, "tool_choice"),
        ({"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}, "disable_parallel_tool_use"),
        ({"thinking": {"type": "loud"}}, "thinking.type"),
        ({"system": 3}, "system"),
        ({"system": [{"type": "image"}]}, "system.0"),
        ({"temperature": "hot"}, "temperature"),
        ({"stop_sequences": [3]}, "stop_sequences"),
        ({"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
        ({"container": "c"}, "container"),
        ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, "context_management"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format"),
        ({"top_k": 0}, "top_k"),
    ],
)
def test_what_is_not_supported_is_400_and_names_the_field(fields, says):
    with pytest.raises(SessionError, match=says) as caught:
        parse(**fields)
    assert caught.value.status == 400


def test_what_a_coding_agent_sends_along_is_accepted():
    cached = {"type": "ephemeral"}
    asked = parse(
        model="any", metadata={"user_id": "u"}, thinking={"type": "enabled", "budget_tokens": 2048},
        system=[{"type": "text", "text": "a", "cache_control": cached}, {"type": "text", "text": "b"}],
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        tools=[{"name": "f", "input_schema": {"type": "object"}, "cache_control": cached}],
        tool_choice={"type": "auto"},
        output_config={"effort": "high"}, service_tier="auto", temperature=1, stream=True, top_k=-1,
    )  # fmt: skip
    assert asked.turn.messages[0] == {"role": "system", "content": "a\nb"}
    assert asked.turn.tools == ({"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}},)
    assert (asked.thinking, asked.turn.stream, asked.turn.temperature) == (True, True, 1.0)
    assert parse(thinking={"type": "disabled"}).thinking is False


def test_tools_that_may_not_be_called_are_not_shown():
    tool = {"name": "f", "input_schema": {}}
    assert parse(tools=[tool], tool_choice={"type": "none"}).turn.tools == ()


def test_results_and_texts_of_one_message_become_messages_in_their_order():
    used = [{"type": "tool_use", "id": i, "name": "f", "input": {}} for i in ("a", "b")]
    results = [
        {"type": "tool_result", "tool_use_id": "a", "content": "1"},
        {"type": "tool_result", "tool_use_id": "b", "content": [{"type": "text", "text": "2"}], "is_error": True},
        {"type": "text", "text": "go"},
        {"type": "text", "text": "on"},
    ]
    _, called, *rest = messages_of(USER, {"role": "assistant", "content": used}, {"role": "user", "content": results})
    assert [call["id"] for call in called["tool_calls"]] == ["a", "b"]
    assert rest == [
        {"role": "tool", "tool_call_id": "a", "content": "1"},
        {"role": "tool", "tool_call_id": "b", "content": "2"},
        {"role": "user", "content": "go\non"},
    ]


def test_blocks_of_an_answer_are_one_message():
    content = [
        {"type": "thinking", "thinking": "so", "signature": "x"},
        {"type": "text", "text": "one "},
        {"type": "tool_use", "id": "a", "name": "f", "input": {"x": "\u00fc"}},
        {"type": "text", "text": "two"},
    ]
    _, answer, _ = messages_of(USER, {"role": "assistant", "content": content}, USER)
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x": "\u00fc"}'}}
    assert answer == {"role": "assistant", "content": "one two", "reasoning_content": "so", "tool_calls": [call]}


def test_the_events_come_in_the_standards_order(bench, thinking, talk, Reply, SPEAKERS, CALL_TEXT):
    _, url = bench.engine(lambda prompt, body: Reply("<think>\nHm.\n</think>\n\n" + CALL_TEXT))
    events = talk(url).events(SPEAKERS["anthropic"], [("user", "hi")], tools=True)
    names = [name for name, _ in events]
    assert [n for i, n in enumerate(names) if n != "content_block_delta" or names[i - 1] != n] == [
        "message_start",
        *["content_block_start", "content_block_delta", "content_block_stop"] * 3,
        "message_delta",
        "message_stop",
    ]
    starts = [data["content_block"] for name, data in events if name == "content_block_start"]
    assert [block["type"] for block in starts] == ["thinking", "text", "tool_use"]
    kinds = [data["delta"]["type"] for name, data in events if name == "content_block_delta"]
    assert list(dict.fromkeys(kinds)) == ["thinking_delta", "signature_delta", "text_delta", "input_json_delta"]
    start, end = events[0][1]["message"], events[-2][1]
    assert (start["content"], start["stop_reason"]) == ([], None)
    assert start["usage"]["input_tokens"] == end["usage"]["input_tokens"] + end["usage"]["cache_read_input_tokens"]
    assert end["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}


def test_thinking_is_left_out_where_it_is_turned_off(bench, thinking, talk, Reply, SPEAKERS):
    _, url = bench.engine(lambda prompt, body: Reply("<think>\nHm.\n</think>\n\nYes."))
    session, off = talk(url), {"thinking": {"type": "disabled"}}
    for ask in (session.say, session.stream):
        said = ask(SPEAKERS["anthropic"], [("user", "hi")], **off)
        assert (said.reasoning, said.text) == ("", "Yes.")
    assert session.state()["turns"][0]["response"]["reasoning_content"] == "Hm."


def test_a_stop_sequence_is_named(bench, talk, Reply, SPEAKERS):
    meta = {"finish_reason": {"type": "stop", "matched": "END"}}
    _, url = bench.engine(lambda prompt, body: Reply("go END", meta=meta))
    speaker = SPEAKERS["anthropic"]
    answer = talk(url).post(speaker, speaker.body([("user", "hi")], stop_sequences=["END"])).json()
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", "END")
    assert answer["content"] == [{"type": "text", "text": "go "}]


@pytest.mark.parametrize("prefix", ["/v1", "/anthropic/v1"])
def test_counted_tokens_are_the_prompts_and_record_nothing(bench, talk, SPEAKERS, prefix):
    engine, url = bench.engine()
    session, speaker = talk(url), SPEAKERS["anthropic"]
    body = speaker.body([("system", "Be brief."), ("user", "hi")], tools=True)
    del body["max_tokens"]
    counted = session.http.post(f"/sessions/{session.session}{prefix}/messages/count_tokens", json=body)
    assert session.state()["turns"] == []
    answer = session.http.post(f"/sessions/{session.session}{prefix}/messages", json={**body, "max_tokens": 9})
    assert answer.status_code == 200
    assert counted.json() == {"input_tokens": len(engine.calls[0]["input_ids"])}


def test_models_have_the_standards_shape(bench, talk):
    _, url = bench.engine()
    session = talk(url)
    headers = {"anthropic-version": "2023-06-01"}
    page = session.http.get(f"/sessions/{session.session}/v1/models", headers=headers).json()
    assert (page["has_more"], page["first_id"], page["last_id"]) == (False, "policy", "policy")
    assert page["data"][0]["type"] == "model"
    one = session.http.get(f"/sessions/{session.session}/v1/models/policy", headers=headers).json()
    assert one == page["data"][0]
    missing = session.http.get(f"/sessions/{session.session}/v1/models/other", headers=headers)
    assert (missing.status_code, missing.json()["error"]["type"]) == (404, "not_found_error")
