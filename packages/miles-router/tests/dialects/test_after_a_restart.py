"""A server that starts again on its log goes on in every dialect, and knows the responses that were stored."""

import httpx

from miles_router.serve import ServerThread
from miles_router.sessions.app import create_session_app
from miles_router.sessions.config import SessionServerConfig
from miles_router.sessions.log.config import LogConfig

HELLO = ("user", "hello there")


def test_a_conversation_goes_on_after_a_restart(bench, Reply, speaker, CALL_TEXT, tmp_path):
    replies = iter([Reply(CALL_TEXT), Reply("It is fine."), Reply("Yes.")])
    _, engine = bench.engine(lambda prompt, body: next(replies))
    config = SessionServerConfig(
        engine_url=engine, model_dir=bench.model_dir, log=LogConfig(folder=tmp_path / "log", fsync="none")
    )

    def ask(body):
        with ServerThread(create_session_app(config, chat=bench.chat)) as server, httpx.Client() as http:
            answer = http.post(f"{server.url}{body[0]}", json=body[1], timeout=20)
            assert answer.status_code == 200, answer.text
            return answer.json()

    session = ask(("/sessions", {}))["session_id"]
    path = f"/sessions/{session}{speaker.path}"
    whole = ask((path, speaker.body([HELLO], tools=True)))
    first = speaker.said(whole)
    history = [HELLO, first, ("result", first.calls[0][0], "sunny")]
    ask((path, speaker.body(history, tools=True)))
    if speaker.name == "openai_responses":
        result = {"type": "function_call_output", "call_id": first.calls[0][0], "output": "rainy"}
        tools = speaker.body([], tools=True)["tools"]
        ask((path, {"input": [result], "tools": tools, "previous_response_id": whole["id"]}))
    with ServerThread(create_session_app(config, chat=bench.chat)) as server, httpx.Client() as http:
        state = http.get(f"{server.url}/sessions/{session}").json()
        again = http.get(f"{server.url}/sessions/{session}/v1/responses/{whole['id']}")
    extra = {"0.1": "0"} if speaker.name == "openai_responses" else {}
    assert state["tree"] == {"0": None, "0.0": "0", **extra}
    assert {turn["dialect"] for turn in state["turns"]} == {speaker.name}
    assert [turn["extends"] for turn in state["turns"]] == [False, *[True] * (len(state["turns"]) - 1)]
    assert again.status_code == (200 if extra else 404)
    assert not extra or again.json() == whole
