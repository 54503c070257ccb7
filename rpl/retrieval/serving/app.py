"""The HTTP application: Search-R1's `/retrieve`, batched primitives, liveness, readiness and metrics."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Annotated, Any, TypeVar

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from rpl import __version__
from rpl.core.errors import ProgramError, RetrieverError
from rpl.retrieval.base import MAX_K
from rpl.retrieval.serving.metrics import CONTENT_TYPE
from rpl.retrieval.serving.service import RetrievalService, Unavailable

T = TypeVar("T")


class CallRequest(BaseModel):
    """One primitive call."""

    model_config = ConfigDict(extra="forbid")

    name: str
    args: dict[str, Any]


class CallsRequest(BaseModel):
    """Calls that are answered together."""

    model_config = ConfigDict(extra="forbid")

    calls: Annotated[list[CallRequest], Field(min_length=1)]


class RetrieveRequest(BaseModel):
    """The request of Search-R1's server; unknown fields are ignored, as it does."""

    queries: list[str]
    topk: int | None = None
    return_scores: bool = False


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

    async def answer(endpoint: str, work: Callable[[], Any]) -> Response:
        started = time.perf_counter()
        response = await _respond(service, work)
        service.metrics.seconds.labels(endpoint).observe(time.perf_counter() - started)
        service.metrics.responses.labels(endpoint, str(response.status_code)).inc()
        return response

    @app.post("/call")
    async def call(body: CallsRequest) -> Response:
        """Runs primitive calls; see `rpl.retrieval.serving.wire` for the reply."""
        if len(body.calls) > service.config.request_calls:
            return _problem(413, f"at most {service.config.request_calls} calls a request, got {len(body.calls)}")
        return await answer("call", lambda: service.call([(c.name, c.args) for c in body.calls]))

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


def _problem(status: int, detail: str) -> Response:
    return Response(json.dumps({"detail": detail}), status, media_type="application/json")
