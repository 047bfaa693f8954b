"""The ASGI app of the local engine: SGLang's calls over an `EngineCore`."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Any, TypeVar

import orjson
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from miles_cli.engines.chat_call import ChatCall
from miles_cli.engines.generate_call import GenerateCall, Job, answer
from miles_cli.engines.text_codec import TextCodec
from miles_cli.engines.weight_calls import weight_routes
from miles_core.errors import DeadlineError, EngineError, MilesError, WeightSyncError
from miles_megatron.engine.core import EngineCore
from miles_megatron.engine.request import Completion
from miles_megatron.engine.sampling_params import SamplingParams
from miles_router.answers import Gate, Receive, Scope, Send, error_body, error_type

CLIENT_GONE = 499
PAUSE_MODES = ("abort", "retract", "in_place")
T = TypeVar("T")


class EngineApp:
    """Answers the engine's calls; every error is `{"error": {"message", "type", "code"}}`."""

    def __init__(
        self,
        core: EngineCore,
        *,
        text: TextCodec | None,
        token: str | None,
        body_limit_bytes: int,
        health_timeout_s: float,
    ) -> None:
        self._core, self._text = core, text
        self._limit, self._health_timeout_s = body_limit_bytes, health_timeout_s
        self._gate = Gate(token=token, body_limit_bytes=body_limit_bytes)
        calls: dict[str, tuple[str, Callable[[Request], Awaitable[Response]]]] = {
            "/generate": ("POST", self._generate),
            "/v1/chat/completions": ("POST", self._chat),
            "/v1/models": ("GET", self._models),
            "/health": ("GET", self._health),
            "/health_generate": ("GET", self._health_generate),
            "/model_info": ("GET", self._model_info),
            "/get_model_info": ("GET", self._model_info),
            "/server_info": ("GET", self._server_info),
            "/get_server_info": ("GET", self._server_info),
            "/flush_cache": ("POST", self._flush),
            "/abort_request": ("POST", self._abort),
            "/pause_generation": ("POST", self._pause),
            "/continue_generation": ("POST", self._continue),
        }
        for path, call in weight_routes(core, self.body).items():
            calls[path] = ("POST", call)
        routes = [Route(path, _guarded(call), methods=[method]) for path, (method, call) in calls.items()]
        self._app = Starlette(routes=routes, exception_handlers={404: _unknown, 405: _unknown})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One ASGI connection."""
        if scope["type"] == "http" and await self._gate.refused(scope, send):
            return
        await self._app(scope, receive, send)

    async def body(self, request: Request) -> Mapping[str, Any]:
        """The JSON object of a request; an empty body is an empty object. EngineError 400 or 413."""
        parts, size = [], 0
        async for part in request.stream():
            size += len(part)
            if size > self._limit:
                raise EngineError(f"expected a body of at most {self._limit} bytes, found more.", status=413)
            parts.append(part)
        if not size:
            return {}
        try:
            body = orjson.loads(b"".join(parts))
        except orjson.JSONDecodeError as error:
            raise EngineError(f"expected a JSON object as the body: {error}.", status=400) from error
        if not isinstance(body, dict):
            raise EngineError(f"expected a JSON object as the body, found {type(body).__name__}.", status=400)
        return body

    async def _generate(self, request: Request) -> Response:
        call = GenerateCall.parse(await self.body(request), self._text)
        if call.stream:
            return await _events(request, self._generate_events(call))
        completions = await _unless_gone(request, self._complete(call.jobs))
        answers = [answer(c, self._text, return_logprob=call.return_logprob) for c in completions]
        return json_response(answers if call.many else answers[0])

    async def _generate_events(self, call: GenerateCall) -> AsyncGenerator[dict[str, Any], None]:
        async with aclosing(self._progress(call.jobs)) as progress:
            async for index, completion in progress:
                yield answer(
                    completion,
                    self._text,
                    return_logprob=call.return_logprob,
                    index=index if call.many else None,
                )

    async def _chat(self, request: Request) -> Response:
        call = ChatCall.parse(await self.body(request), self._text)
        if call.stream:
            return await _events(request, self._chat_events(call))
        return json_response(call.answer(await _unless_gone(request, self._complete(call.jobs)), self._text))

    async def _chat_events(self, call: ChatCall) -> AsyncGenerator[dict[str, Any], None]:
        sent = [(0, 0)] * len(call.jobs)
        last: dict[int, Completion] = {}
        async with aclosing(self._progress(call.jobs)) as progress:
            async for index, completion in progress:
                chars, tokens = sent[index]
                chunk = call.chunk(completion, index, text=self._text, sent_chars=chars, sent_tokens=tokens)
                sent[index] = (chars + len(chunk["choices"][0]["delta"]["content"]), len(completion.output_ids))
                last[index] = completion
                yield chunk
        if call.include_usage:
            yield call.usage_chunk([last[index] for index in sorted(last)])

    async def _complete(self, jobs: Sequence[Job]) -> list[Completion]:
        """All completions, in the order of the jobs; the first failure ends the others."""
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._core.complete(j.ids, j.params, rid=j.rid)) for j in jobs]
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        return [task.result() for task in tasks]

    async def _progress(self, jobs: Sequence[Job]) -> AsyncGenerator[tuple[int, Completion], None]:
        """Completions of all jobs as they grow, with the number of the job."""
        arrived: asyncio.Queue[tuple[int, Completion] | Exception | None] = asyncio.Queue()

        async def follow(index: int, job: Job) -> None:
            try:
                stream = self._core.generate(job.ids, job.params, rid=job.rid, stream=True)
                async with aclosing(stream):
                    async for completion in stream:
                        arrived.put_nowait((index, completion))
                arrived.put_nowait(None)
            except MilesError as error:
                arrived.put_nowait(error)

        tasks = [asyncio.create_task(follow(index, job)) for index, job in enumerate(jobs)]
        try:
            left = len(tasks)
            while left:
                item = await arrived.get()
                if item is None:
                    left -= 1
                elif isinstance(item, Exception):
                    raise item
                else:
                    yield item
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _models(self, _: Request) -> Response:
        model = {"id": self._core.model_dir, "object": "model", "owned_by": "miles", "created": 0}
        return json_response({"object": "list", "data": [{**model, "max_model_len": self._core.context_length}]})

    async def _health(self, _: Request) -> Response:
        return json_response({"status": "ok"})

    async def _health_generate(self, _: Request) -> Response:
        params = SamplingParams(max_new_tokens=1, temperature=0.0)
        try:
            async with asyncio.timeout(self._health_timeout_s):
                completion = await self._core.complete([0], params)
        except TimeoutError:
            raise DeadlineError(f"waited {self._health_timeout_s:g} s for the engine to generate a token.") from None
        if not completion.output_ids:
            raise EngineError(f"the engine generated no token: {completion.finish}.", status=503)
        return json_response({"status": "ok"})

    async def _model_info(self, _: Request) -> Response:
        return json_response(self._core.model_info())

    async def _server_info(self, _: Request) -> Response:
        return json_response({**self._core.model_info(), **self._core.counters()})

    async def _flush(self, _: Request) -> Response:
        await self._core.flush_cache()
        return json_response({"success": True})

    async def _abort(self, request: Request) -> Response:
        body = await self.body(request)
        rid = body.get("rid")
        if body.get("abort_all") is True:
            return json_response({"success": True, "aborted": await self._core.abort()})
        if not isinstance(rid, str) or not rid:
            raise EngineError('expected {"rid": "..."} or {"abort_all": true}.', status=400)
        return json_response({"success": True, "aborted": await self._core.abort(rid)})

    async def _pause(self, request: Request) -> Response:
        mode = (await self.body(request)).get("mode", "abort")
        if mode not in PAUSE_MODES:
            raise EngineError(f"mode: expected one of {', '.join(PAUSE_MODES)}, found {mode!r}.", status=400)
        await self._core.pause(mode)
        return json_response({"status": "ok", "mode": mode})

    async def _continue(self, _: Request) -> Response:
        await self._core.resume()
        return json_response({"status": "ok"})


def json_response(content: Any, status: int = 200) -> Response:
    """A JSON answer."""
    return Response(orjson.dumps(content), status_code=status, media_type="application/json")


def error_response(error: MilesError) -> Response:
    """The answer for a failure: the error's own status, 400 for weights that do not fit, 504 for a deadline."""
    status = 500
    if isinstance(error, EngineError):
        status = error.status or 500
    elif isinstance(error, WeightSyncError):
        status = 400
    elif isinstance(error, DeadlineError):
        status = 504
    body = error_body(str(error), kind=error_type(status))
    return json_response({**body, "success": False} if isinstance(error, WeightSyncError) else body, status)


def _guarded(call: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    async def guarded(request: Request) -> Response:
        try:
            return await call(request)
        except ClientDisconnect:
            return Response(status_code=CLIENT_GONE)
        except MilesError as error:
            return error_response(error)

    return guarded


async def _unknown(request: Request, _: Exception) -> Response:
    message = f"{request.method} {request.url.path}: this engine has no such call."
    return json_response(error_body(message, kind=error_type(404)), 404)


async def _unless_gone(request: Request, work: Awaitable[T]) -> T:
    """The result of `work`, which is cancelled, and with it the generation, when the caller hangs up."""
    task = asyncio.ensure_future(work)
    gone = asyncio.create_task(_wait_gone(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        for pending in (task, gone):
            pending.cancel()
            with suppress(asyncio.CancelledError, MilesError):
                await pending


async def _wait_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _events(request: Request, events: AsyncGenerator[dict[str, Any], None]) -> Response:
    """Server-sent events, then `[DONE]`; a failure before the first one is an ordinary error answer."""

    async def start() -> dict[str, Any]:
        async for event in events:
            return event
        raise EngineError("the engine produced no event.", status=500)

    try:
        first = await _unless_gone(request, start())
    except BaseException:
        await events.aclose()
        raise

    async def lines() -> AsyncIterator[bytes]:
        async with aclosing(events):
            yield b"data: " + orjson.dumps(first) + b"\n\n"
            try:
                async for event in events:
                    yield b"data: " + orjson.dumps(event) + b"\n\n"
            except MilesError as error:
                yield b"data: " + orjson.dumps(error_body(str(error), kind="server_error")) + b"\n\n"
            yield b"data: [DONE]\n\n"

    return StreamingResponse(lines(), media_type="text/event-stream")
