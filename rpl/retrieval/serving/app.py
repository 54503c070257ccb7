"""The HTTP application: Search-R1's `/retrieve`, batched primitives, liveness, readiness and metrics."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Annotated, Any, TypeVar

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException

from rpl import __version__
from rpl.core.errors import ProgramError, RetrieverError
from rpl.retrieval.base import MAX_K
from rpl.retrieval.serving.metrics import CONTENT_TYPE
from rpl.retrieval.serving.service import RetrievalService, Unavailable

T = TypeVar("T")


class CallsRequest(BaseModel):
    """Calls that are answered together; each is checked by itself, so that a wrong one fails alone."""

    model_config = ConfigDict(extra="forbid")

    calls: Annotated[list[Any], Field(min_length=1)]


class RetrieveRequest(BaseModel):
    """The request of Search-R1's server; each query is checked by itself."""

    model_config = ConfigDict(extra="forbid")

    queries: list[Any]
    topk: int | None = None
    return_scores: bool = False


BODIES = {
    "/call": '{"calls": [{"name": "bm25", "args": {"query": "…", "k": 3}}, …]}',
    "/retrieve": '{"queries": ["…", …], "topk": 3, "return_scores": true}, of which queries alone is required',
}
"""What a request must hold, for messages."""

DEFAULT_TOPK = 3
"""The `topk` of a `/retrieve` that does not name one, as in Search-R1."""


def create_app(service: RetrievalService) -> FastAPI:
    """Builds the application around a service, which it starts and closes with itself."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.start()
        yield
        service.close()

    app = FastAPI(title="RPL retrieval", version=__version__, lifespan=lifespan)
    limit = service.config.request_mb * 1024 * 1024
    app.add_middleware(BodyLimit, limit=limit)

    @app.exception_handler(RequestValidationError)
    async def wrong_body(request: Request, error: RequestValidationError) -> Response:
        return _problem(422, f"{_what_is_wrong(error, request)}; {_expected(request)}")

    @app.exception_handler(HTTPException)
    async def no_answer(request: Request, error: HTTPException) -> Response:
        if error.status_code == 400 and request.url.path in BODIES:  # what FastAPI cannot decode
            return _problem(422, f"the body is not JSON in UTF-8; {_expected(request)}")
        return _problem(error.status_code, str(error.detail))

    async def answer(endpoint: str, work: Callable[[], Any]) -> Response:
        started = time.perf_counter()
        response = await _respond(service, work)
        service.metrics.seconds.labels(endpoint).observe(time.perf_counter() - started)
        service.metrics.responses.labels(endpoint, str(response.status_code)).inc()
        return response

    @app.post("/call")
    async def call(body: CallsRequest) -> Response:
        """Runs primitive calls; see `rpl.retrieval.library.wire` for the reply."""
        if len(body.calls) > service.config.request_calls:
            return _problem(413, f"at most {service.config.request_calls} calls a request, got {len(body.calls)}")
        return await answer("call", lambda: service.call(body.calls))

    @app.post("/retrieve")
    async def retrieve(body: RetrieveRequest) -> Response:
        """Searches, in the request and response form of Search-R1's server."""
        k = DEFAULT_TOPK if body.topk is None else body.topk
        if len(body.queries) > service.config.request_calls:
            return _problem(413, f"at most {service.config.request_calls} queries a request, got {len(body.queries)}")
        if not 1 <= k <= MAX_K:
            return _problem(422, f"topk must be from 1 to {MAX_K}, got {k}")
        return await answer("retrieve", lambda: service.retrieve(body.queries, k, body.return_scores))

    @app.get("/library")
    async def library() -> Response:
        """Says what is served."""
        return await _respond(service, service.about)

    @app.get("/health")
    async def health() -> dict[str, str]:
        """Says that the process is alive, whatever it may be able to do."""
        return {"status": "alive"}

    @app.get("/ready")
    async def ready() -> Response:
        """Says that the index is loaded and answers canary queries; 503 with the reason otherwise."""

        def work() -> dict[str, Any]:
            service.require_ready()
            return {"status": "ready", "fingerprint": service.library.fingerprint}

        return await _respond(service, work)

    @app.get("/metrics")
    async def metrics() -> Response:
        """Gives the metrics to Prometheus."""
        return Response(service.metrics.text(), media_type=CONTENT_TYPE)

    return app


class BodyLimit:
    """Refuses request bodies that are too long, before anything reads them.

    Args:
        app: What handles the others.
        limit: In bytes.
    """

    def __init__(self, app: Callable[..., Awaitable[None]], limit: int) -> None:
        self._app, self._limit = app, limit

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Handles one connection, as ASGI asks."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        length = Request(scope).headers.get("content-length", "0")
        if not length.isdigit() or int(length) > self._limit:
            await _problem(413, f"at most {self._limit} bytes a request")(scope, receive, send)
            return
        size = 0

        async def counted() -> Any:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > self._limit:  # a body without a stated length
                return {"type": "http.disconnect"}
            return message

        await self._app(scope, counted, send)


async def _respond(service: RetrievalService, work: Callable[[], Any]) -> Response:
    """Runs work in its turn and gives every kind of failure its HTTP status."""
    try:
        _ = service.library
        value = await service.run(work)
    except Unavailable as error:
        response = _problem(error.status, str(error))
        response.headers["retry-after"] = f"{error.retry_after_s:g}"
        return response
    except ProgramError as error:
        return _problem(422, error.message)
    except RetrieverError as error:
        return _problem(500, str(error))
    return Response(json.dumps(value, ensure_ascii=False, allow_nan=False), media_type="application/json")


def _expected(request: Request) -> str:
    path = request.url.path
    return f"POST {path} takes JSON with the header Content-Type: application/json, in the form {BODIES.get(path)}"


def _what_is_wrong(error: RequestValidationError, request: Request) -> str:
    """Names the first thing that is wrong with a body, in words of JSON."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"][1:])
    kind = request.headers.get("content-type", "")
    match first["type"]:
        case "extra_forbidden":
            return f"unknown key {where!r}"
        case "missing" if where:
            return f"the key {where!r} is missing"
        case "missing":
            return "the body is empty"
        case "json_invalid":
            return f"the body is not JSON ({first['ctx']['error']})"
        case _ if not where and "json" not in kind:
            return f"the body was sent as {kind or 'no content type'}"
        case _ if not where:
            return "the body is not a JSON object"
    return f"{where}: {first['msg']}"


def _problem(status: int, detail: str) -> Response:
    return Response(json.dumps({"detail": detail}), status, media_type="application/json")
