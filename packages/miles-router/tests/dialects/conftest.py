"""The three dialects as a test speaks them: what is asked and answered in each, in one vocabulary."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from miles_tito import ChatTokenizer

SCHEMA = {"type": "object", "properties": {"at": {"type": "string"}}}
THINKING_TEMPLATE = Path(__file__).parents[1] / "thinking.jinja"
CALL_TEXT = 'I look.\n<tool_call>\n{"name": "look", "arguments": {"at": "Paris"}}\n</tool_call>'


@dataclass(frozen=True)
class Said:
    """An answer in one vocabulary. finish: stop, length or tool_calls. calls: (id, name, arguments as JSON values)."""

    text: str
    reasoning: str
    calls: tuple[tuple[str, str, Any], ...]
    finish: str
    tokens: tuple[int, int]
    """Prompt and sampled tokens."""


class Chat:
    name, path = "openai_chat", "/v1/chat/completions"

    def body(self, history, *, tools=False, **fields):
        """history: (role, text) pairs, `Said` for an answer, ("result", id, text) for a tool's."""
        messages = [self._message(entry) for entry in history]
        tool = {"type": "function", "function": {"name": "look", "description": "Look.", "parameters": SCHEMA}}
        return {"messages": messages, **({"tools": [tool]} if tools else {}), **fields}

    def _message(self, entry):
        if isinstance(entry, Said):
            calls = [
                {"id": i, "type": "function", "function": {"name": n, "arguments": json.dumps(a)}}
                for i, n, a in entry.calls
            ]
            found = {"role": "assistant", "content": entry.text}
            found |= {"reasoning_content": entry.reasoning} if entry.reasoning else {}
            return found | ({"tool_calls": calls} if calls else {})
        if entry[0] == "result":
            return {"role": "tool", "tool_call_id": entry[1], "content": entry[2]}
        return {"role": entry[0], "content": entry[1]}

    def limit(self, tokens):
        return {"max_tokens": tokens}

    def said(self, answer: Mapping[str, Any]) -> Said:
        choice, usage = answer["choices"][0], answer["usage"]
        message = choice["message"]
        return Said(
            message["content"] or "",
            message.get("reasoning_content") or "",
            tuple(
                (c["id"], c["function"]["name"], json.loads(c["function"]["arguments"]))
                for c in message.get("tool_calls") or ()
            ),
            choice["finish_reason"],
            (usage["prompt_tokens"], usage["completion_tokens"]),
        )

    def read_stream(self, events) -> Said:
        *chunks, done = [data for _, data in events]
        assert done == "[DONE]"
        *chunks, last = chunks
        message: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": []}
        finish = None
        for chunk in chunks:
            choice = chunk["choices"][0]
            finish = choice["finish_reason"] or finish
            for field in ("content", "reasoning_content"):
                message[field] += choice["delta"].get(field) or ""
            message["tool_calls"] += choice["delta"].get("tool_calls") or []
        return self.said({"choices": [{"message": message, "finish_reason": finish}], "usage": last["usage"]})

    stream_fields: Mapping[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}

    def failure(self, body):
        assert set(body["error"]) == {"message", "type", "param", "code"}
        return body["error"]["type"], body["error"]["message"]


class Responses(Chat):
    name, path = "openai_responses", "/v1/responses"
    stream_fields: Mapping[str, Any] = {"stream": True}

    def body(self, history, *, tools=False, **fields):
        items = [item for entry in history for item in self._items(entry)]
        tool = {"type": "function", "name": "look", "description": "Look.", "parameters": SCHEMA, "strict": False}
        return {"input": items, **({"tools": [tool]} if tools else {}), **fields}

    def _items(self, entry):
        if isinstance(entry, Said):
            if entry.reasoning:
                parts = [{"type": "reasoning_text", "text": entry.reasoning}]
                yield {"type": "reasoning", "id": "rs", "summary": [], "content": parts}
            if entry.text or not entry.calls:
                content = [{"type": "output_text", "text": entry.text, "annotations": []}]
                yield {"type": "message", "role": "assistant", "content": content}
            for identity, name, arguments in entry.calls:
                yield {
                    "type": "function_call", "call_id": identity, "name": name, "arguments": json.dumps(arguments)
                }  # fmt: skip
        elif entry[0] == "result":
            yield {"type": "function_call_output", "call_id": entry[1], "output": entry[2]}
        else:
            yield {"role": entry[0], "content": entry[1]}

    def limit(self, tokens):
        return {"max_output_tokens": tokens}

    def said(self, answer) -> Said:
        output, usage = answer["output"], answer["usage"]
        calls = [item for item in output if item["type"] == "function_call"]
        texts = {
            kind: "".join(p["text"] for item in output if item["type"] == kind for p in item["content"])
            for kind in ("message", "reasoning")
        }
        finish = "length" if answer["status"] == "incomplete" else "tool_calls" if calls else "stop"
        assert (answer["incomplete_details"] == {"reason": "max_output_tokens"}) == (finish == "length")
        return Said(
            texts["message"],
            texts["reasoning"],
            tuple((c["call_id"], c["name"], json.loads(c["arguments"])) for c in calls),
            finish,
            (usage["input_tokens"], usage["output_tokens"]),
        )

    def read_stream(self, events) -> Said:
        assert [data["sequence_number"] for _, data in events] == list(range(len(events)))
        return self.said(events[-1][1]["response"])


class Messages(Chat):
    name, path = "anthropic", "/v1/messages"
    stream_fields: Mapping[str, Any] = {"stream": True}

    def body(self, history, *, tools=False, **fields):
        messages: list[dict[str, Any]] = []
        system = [text for role, text in (e for e in history if not isinstance(e, Said) and e[0] == "system")]
        for entry in history:
            role, blocks = self._blocks(entry)
            if role == "system":
                continue
            if messages and messages[-1]["role"] == role:
                messages[-1]["content"] += blocks
            else:
                messages.append({"role": role, "content": blocks})
        tool = {"name": "look", "description": "Look.", "input_schema": SCHEMA}
        more = {**({"system": system[0]} if system else {}), **({"tools": [tool]} if tools else {})}
        return {"messages": messages, "max_tokens": 100, **more, **fields}

    def _blocks(self, entry):
        if isinstance(entry, Said):
            blocks = [{"type": "thinking", "thinking": entry.reasoning, "signature": "s"}] if entry.reasoning else []
            blocks += [{"type": "text", "text": entry.text}] if entry.text else []
            return "assistant", [
                *blocks,
                *({"type": "tool_use", "id": i, "name": n, "input": a} for i, n, a in entry.calls),
            ]
        if entry[0] == "result":
            return "user", [{"type": "tool_result", "tool_use_id": entry[1], "content": entry[2]}]
        return entry[0], [{"type": "text", "text": entry[1]}]

    def limit(self, tokens):
        return {"max_tokens": tokens}

    def said(self, answer) -> Said:
        content, usage = answer["content"], answer["usage"]
        finish = {"end_turn": "stop", "max_tokens": "length", "tool_use": "tool_calls", "stop_sequence": "stop"}
        return Said(
            "".join(b["text"] for b in content if b["type"] == "text"),
            "".join(b["thinking"] for b in content if b["type"] == "thinking"),
            tuple((b["id"], b["name"], b["input"]) for b in content if b["type"] == "tool_use"),
            finish[answer["stop_reason"]],
            (usage["input_tokens"] + usage["cache_read_input_tokens"], usage["output_tokens"]),
        )

    def read_stream(self, events) -> Said:
        assert all(name == data["type"] for name, data in events)
        message: dict[str, Any] = events[0][1]["message"]
        for name, data in events:
            if name == "content_block_start":
                assert data["index"] == len(message["content"])
                message["content"].append({**data["content_block"], "json": ""})
            elif name == "content_block_delta":
                block, delta = message["content"][data["index"]], data["delta"]
                for field, value in delta.items():
                    if field == "partial_json":
                        block["json"] += value
                    elif field != "type":
                        block[field] += value
            elif name == "content_block_stop" and message["content"][data["index"]]["json"]:
                message["content"][data["index"]]["input"] = json.loads(message["content"][data["index"]]["json"])
            elif name == "message_delta":
                message |= data["delta"] | {"usage": data["usage"]}
        assert events[-1][0] == "message_stop"
        return self.said(message)

    def failure(self, body):
        assert set(body) == {"type", "error", "request_id"}
        assert body["type"] == "error"
        return body["error"]["type"], body["error"]["message"]


SPEAKERS = {speaker.name: speaker for speaker in (Chat(), Responses(), Messages())}


@dataclass
class Talk:
    """One session, spoken to in any dialect."""

    http: httpx.Client
    session: str

    def post(self, speaker: Chat, body: Mapping[str, Any], **options: Any) -> httpx.Response:
        return self.http.post(f"/sessions/{self.session}{speaker.path}", json=body, **options)

    def say(self, speaker: Chat, history: list[Any], **fields: Any) -> Said:
        answer = self.post(speaker, speaker.body(history, **fields))
        assert answer.status_code == 200, answer.text
        return speaker.said(answer.json())

    def events(self, speaker: Chat, history: list[Any], **fields: Any) -> list[tuple[str, Any]]:
        answer = self.post(speaker, speaker.body(history, **fields, **speaker.stream_fields))
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"].startswith("text/event-stream")
        return read_events(answer.text)

    def stream(self, speaker: Chat, history: list[Any], **fields: Any) -> Said:
        return speaker.read_stream(self.events(speaker, history, **fields))

    def state(self) -> dict[str, Any]:
        return self.http.get(f"/sessions/{self.session}").json()


def read_events(text: str) -> list[tuple[str, Any]]:
    """(name, data) of each event, pings and comments left out."""
    found = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n") if line and not line.startswith(":"))
        if fields and fields.get("event") != "ping":
            data = fields["data"]
            found.append((fields.get("event", ""), data if data == "[DONE]" else json.loads(data)))
    return found


@pytest.fixture(params=list(SPEAKERS))
def speaker(request) -> Chat:
    return SPEAKERS[request.param]


@pytest.fixture(name="SPEAKERS")
def speakers_fixture():
    return SPEAKERS


@pytest.fixture(name="CALL_TEXT")
def call_text_fixture():
    return CALL_TEXT


@pytest.fixture
def talk(bench):
    """Starts a server in front of an engine and opens a session."""

    def start(engine_url: str, *, spec: Mapping[str, Any] | None = None, **options: Any) -> Talk:
        http = bench.client(bench.sessions(engine_url, **options)[1])
        return Talk(http, http.post("/sessions", json=dict(spec or {})).json()["session_id"])

    return start


@pytest.fixture
def thinking(bench):
    """Makes the bench's model one that reasons before it answers."""
    bench.chat = ChatTokenizer.from_pretrained(bench.model_dir, chat_template=THINKING_TEMPLATE.read_text())
    return bench.chat


@pytest.fixture(name="read_events")
def read_events_fixture():
    return read_events
