"""The HTTP application around a library in this process: endpoints, limits, and what it says when it is busy."""

import asyncio
import threading
from dataclasses import replace

import httpx2
import pytest
from fault_injection import FaultInjection

from rpl.core.errors import RetrieverError
from rpl.retrieval.library.library import LocalLibrary
from rpl.retrieval.serving.app import create_app
from rpl.retrieval.serving.service import RetrievalService
from rpl.retrieval.serving.service_config import ServiceConfig


def ask(service, *requests, app=None):
    """Sends requests at the same time; returns their responses."""
    app = app or create_app(service)

    async def send():
        transport = httpx2.ASGITransport(app=app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://s") as http:
            return await asyncio.gather(*(http.request(method, path, **more) for method, path, more in requests))

    return asyncio.run(send())


def post(path, **body):
    return ("POST", path, {"json": body})


def body(content, kind="application/json"):
    return ("POST", "/retrieve", {"content": content, "headers": {"content-type": kind}})


def get(path):
    return ("GET", path, {})


@pytest.fixture
def service(library):
    made = RetrievalService(lambda: library, ServiceConfig(threads=4, queue=2, request_calls=8, request_mb=1))
    made.start().join()
    return made


def test_calls_answer_what_the_library_answers(service, library):
    calls = [
        {"name": "dense", "args": {"query": "river bridge", "k": 2}},
        {"name": "bm25", "args": {"query": "zeppelin"}},
        {"name": "read", "args": {"passage_id": "nope"}},
    ]
    (response,) = ask(service, post("/call", calls=calls))
    reply = response.json()
    assert reply["fingerprint"] == library.fingerprint
    wanted = library.call("dense", {"query": "river bridge", "k": 2}).passages
    assert reply["results"][0]["passages"] == [[p.id, p.title, p.text, p.score] for p in wanted]
    assert reply["results"][1] == {"status": "empty"}
    assert reply["results"][2]["status"] == "refused"
    assert "no passage with id 'nope'" in reply["results"][2]["message"]


def test_retrieve_has_the_form_of_search_r1(service, library):
    (scored, bare) = ask(
        service,
        post("/retrieve", queries=["river bridge", "castle"], topk=2, return_scores=True),
        post("/retrieve", queries=["river bridge"]),
    )
    wanted = library.call("dense", {"query": "river bridge", "k": 3}).passages
    first = scored.json()["result"][0]
    assert [(hit["document"]["id"], hit["score"]) for hit in first] == [(p.id, p.score) for p in wanted[:2]]
    assert first[0]["document"]["contents"] == f'"{wanted[0].title}"\n{wanted[0].text}'
    assert len(scored.json()["result"]) == 2
    assert [document["id"] for document in bare.json()["result"][0]] == [p.id for p in wanted]


@pytest.mark.parametrize(
    ("request_", "status", "detail"),
    [
        (post("/call", calls=[]), 422, ""),
        (post("/call", calls=[{"name": "bm25", "args": {}}], k=1), 422, "unknown key 'k'; POST /call takes JSON"),
        (post("/call"), 422, "the key 'calls' is missing; POST /call takes JSON"),
        (post("/retrieve", queries=["x"], k=1), 422, "unknown key 'k'; POST /retrieve takes JSON with the header"),
        (post("/retrieve", queries="x"), 422, "queries: Input should be a valid list"),
        (post("/retrieve", queries=["x"], topk="many"), 422, "topk: Input should be a valid integer"),
        (("POST", "/retrieve", {"json": ["x"]}), 422, "the body is not a JSON object"),
        (("POST", "/retrieve", {}), 422, "the body is empty"),
        (body('{"queries": ["x"]}', "application/x-www-form-urlencoded"), 422, "sent as application/x-www-form"),
        (body("queries=x"), 422, "the body is not JSON (Expecting value)"),
        (body(b'{"queries": ["\xff"]}'), 422, "the body is not JSON in UTF-8"),
        (post("/call", calls=[{"name": "bm25", "args": {"query": "x"}}] * 9), 413, "at most 8 calls"),
        (post("/retrieve", queries=["x"], topk=0), 422, "topk must be from 1 to 100"),
        (post("/retrieve", queries=["x"] * 9), 413, "at most 8 queries"),
        (post("/retrieve", queries=["x" * (1 << 20)]), 413, "bytes a request"),
        (body(b"{"), 422, "the body is not JSON"),
        (get("/nothing"), 404, ""),
    ],
)
def test_bad_requests_are_told_so(service, request_, status, detail):
    (response,) = ask(service, request_)
    assert response.status_code == status
    assert detail in response.json()["detail"]


def test_one_query_that_is_wrong_fails_alone(service, library):
    queries = ["", "river bridge", "the", "x" * 3000, 7, " \n", "zeppelin"]
    service.config = replace(service.config, search="bm25")
    reply = ask(service, post("/retrieve", queries=queries, topk=2))[0].json()
    wanted = [p.id for p in library.call("bm25", {"query": "river bridge", "k": 2}).passages]
    assert [[document["id"] for document in hits] for hits in reply["result"]] == [[], wanted, [], [], [], [], []]
    assert sorted(reply["errors"]) == ["3", "4"]
    assert "the query has 3000 characters" in reply["errors"]["3"]
    assert "needs a query (a string), got 7" in reply["errors"]["4"]
    service.config = replace(service.config, search="dense")
    reply = ask(service, post("/retrieve", queries=["", "river bridge"], topk=2))[0].json()
    assert [len(hits) for hits in reply["result"]] == [0, 2]
    assert "errors" not in reply


def test_one_call_that_is_wrong_fails_alone(service):
    fine = {"name": "bm25", "args": {"query": "river bridge", "k": 1}}
    calls = [
        fine,
        7,
        {"name": "bm25"},
        {"name": ["bm25"], "args": {}},
        {**fine, "k": 2},
        {"name": "x", "args": {}},
        fine,
    ]
    results = ask(service, post("/call", calls=calls))[0].json()["results"]
    assert [r["status"] for r in results] == ["ok", *["refused"] * 5, "ok"]
    assert results[0]["passages"] == results[-1]["passages"]
    assert """a call has the keys "name" (a string) and "args" (an object), got {'name': 'bm25'}""" in str(
        results[2]["message"]
    )


def test_a_service_that_loads_is_alive_and_not_ready(library):
    go = threading.Event()

    def open_library():
        go.wait()
        return library

    service = RetrievalService(open_library)
    loading = service.start()
    alive, ready, about, call = ask(
        service, get("/health"), get("/ready"), get("/library"), post("/retrieve", queries=["x"])
    )
    assert alive.json() == {"status": "alive"}
    assert {r.status_code for r in (ready, about, call)} == {503}
    assert ready.headers["retry-after"] == "1"
    assert "loading" in ready.text
    go.set()
    loading.join()
    ready, about = ask(service, get("/ready"), get("/library"))
    assert ready.json() == {"status": "ready", "fingerprint": library.fingerprint}
    assert about.json()["primitives"] == list(library.primitives)
    assert len(about.json()["canaries"]) == 8
    service.stop()
    (response,) = ask(service, get("/ready"))
    assert (response.status_code, "stopping" in response.text) == (503, True)


def test_a_library_that_cannot_be_opened_is_an_error_and_not_a_wait():
    def open_library():
        raise RetrieverError("index damaged")

    service = RetrievalService(open_library)
    service.start().join()
    (response,) = ask(service, get("/ready"))
    assert (response.status_code, "index damaged" in response.text) == (500, True)
    assert service.failure == "RetrieverError: index damaged"


def test_ready_means_that_canary_queries_are_answered_now(corpus, retrievers, monkeypatch):
    library = LocalLibrary(corpus, retrievers["memory"])
    service = RetrievalService(lambda: library, ServiceConfig(canary_every_s=1e-9))
    service.start().join()
    monkeypatch.setattr("rpl.retrieval.library.health.BACKOFF_S", 0.0)
    monkeypatch.setattr(type(retrievers["memory"]), "search", lambda self, queries, k: [[] for _ in queries])
    (response,) = ask(service, get("/ready"))
    assert (response.status_code, "0 of 8 passages" in response.text) == (503, True)


def test_more_requests_than_fit_are_sent_away_and_the_others_answered(service, library, monkeypatch):
    inside, go = threading.Semaphore(0), threading.Event()
    call_many = library.call_many

    def slow(calls):
        inside.release()
        go.wait()
        return call_many(calls)

    monkeypatch.setattr(library, "call_many", slow)
    app = create_app(service)
    first: list = []
    requests = [post("/retrieve", queries=[f"river {i}"]) for i in range(6)]
    busy = threading.Thread(target=lambda: first.extend(ask(service, *requests, app=app)))
    busy.start()
    for _ in range(4):
        inside.acquire()
    while service._inside < 6:
        pass
    (refused,) = ask(service, post("/retrieve", queries=["river"]), app=app)
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert "queue is full (6 requests)" in refused.text
    go.set()
    busy.join()
    assert [r.status_code for r in first] == [200] * 6
    assert service._inside == 0


def test_work_that_hangs_frees_its_caller_and_keeps_its_place(library, monkeypatch):
    service = RetrievalService(lambda: library, ServiceConfig(threads=1, queue=0, request_s=0.05))
    service.start().join()
    go = threading.Event()
    monkeypatch.setattr(library, "call_many", lambda calls: go.wait() and [])
    late, refused = ask(service, post("/retrieve", queries=["x"]), post("/retrieve", queries=["x"]))
    assert sorted(r.status_code for r in (late, refused)) == [503, 504]
    go.set()


def test_failures_of_retrieval_are_server_errors_and_are_counted(library):
    faulty = FaultInjection(library, 1, primitives=["dense"])
    service = RetrievalService(lambda: faulty)
    service.start().join()
    whole, part, metrics = ask(
        service,
        post("/retrieve", queries=["x"]),
        post("/call", calls=[{"name": "dense", "args": {"query": "x"}}, {"name": "bm25", "args": {"query": "river"}}]),
        get("/health"),
    )
    assert (whole.status_code, "injected fault" in whole.text) == (500, True)
    assert [r["status"] for r in part.json()["results"]] == ["infra_error", "ok"]
    (metrics,) = ask(service, get("/metrics"))
    assert 'rpl_retrieval_calls_total{outcome="failed",primitive="dense"} 2.0' in metrics.text
    assert 'rpl_retrieval_calls_total{outcome="ok",primitive="bm25"} 1.0' in metrics.text
    assert 'rpl_retrieval_responses_total{endpoint="retrieve",status="500"} 1.0' in metrics.text


def test_batches_are_measured(service, library):
    ask(service, post("/retrieve", queries=["river", "castle", "king"]))
    (metrics,) = ask(service, get("/metrics"))
    assert 'rpl_retrieval_batch_queries_bucket{le="4.0",primitive="dense"}' in metrics.text
