"""The proxy that one writes first: FastAPI takes the request, httpx sends it on. `fastapi_httpx.py PORT WORKER`."""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import uvicorn
from fastapi import FastAPI, Request
from starlette.responses import StreamingResponse

PORT, WORKER = int(sys.argv[1]), sys.argv[2]


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """One client for all calls."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(base_url=WORKER, limits=limits, timeout=60) as app.state.client:
        yield


app = FastAPI(lifespan=lifespan)


@app.api_route("/{path:path}", methods=["GET", "POST"])
async def forward(path: str, request: Request) -> StreamingResponse:
    """Send the request on and stream its answer back."""
    client: httpx.AsyncClient = request.app.state.client
    headers = [(name, value) for name, value in request.headers.items() if name not in ("host", "content-length")]
    outgoing = client.build_request(request.method, "/" + path, headers=headers, content=await request.body())
    answer = await client.send(outgoing, stream=True)

    async def body() -> AsyncIterator[bytes]:
        try:
            async for piece in answer.aiter_raw():
                yield piece
        finally:
            await answer.aclose()

    kept = {
        name: value for name, value in answer.headers.items() if name not in ("transfer-encoding", "date", "server")
    }
    return StreamingResponse(body(), status_code=answer.status_code, headers=kept)


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=PORT, log_level="error", access_log=False, backlog=2048)
