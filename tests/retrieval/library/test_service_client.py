"""The client end: one deadline, and no reply that is read as "nothing found" unless it says so."""

import json
import time

import httpx2
import pytest
from patience import patience

from rpl.core.errors import ConfigError, PrimitiveError, RetrieverError
from rpl.core.records import Passage
from rpl.retrieval.library.client import Client
from rpl.retrieval.library.opening import open_library
from rpl.retrieval.library.remote import SearchR1Library, ServiceLibrary
from rpl.retrieval.library.wire import pack_hit, read_hits, read_passages, read_results
from rpl.retrieval.library_config import LibraryConfig, RemoteConfig
from rpl.retrieval.serving.service_config import ServiceConfig

PASSAGES = [Passage(f"p{i}", f"Title {i}", f"text number {i}", 2.0 - i / 8, i) for i in range(4)]


def client(handler, **settings):
    return Client("http://server", RemoteConfig(**settings), httpx2.MockTransport(handler))


def answers(*replies):
    """A handler that gives one reply after the other, and the list of what it was asked."""
    asked = []

    def handler(request):
        asked.append(json.loads(request.content) if request.content else None)
        reply = replies[min(len(asked), len(replies)) - 1]
        if isinstance(reply, Exception):
            raise reply
        return reply if isinstance(reply, httpx2.Response) else httpx2.Response(200, json=reply)

    return handler, asked


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_server_is_asked_again_when_it_says(status):
    busy = httpx2.Response(status, headers={"retry-after": "0.05"})
    handler, asked = answers(busy, busy, {"fine": 1})
    assert client(handler).post("/call", {"x": 1}) == {"fine": 1}
    assert asked == [{"x": 1}] * 3


@pytest.mark.parametrize(
    "failure",
    [
        httpx2.ConnectError("refused"),
        httpx2.ReadError("reset"),
        httpx2.RemoteProtocolError("cut off"),
        httpx2.ReadTimeout("slow"),
        httpx2.Response(500, text="oops"),
        httpx2.Response(503, text="no word on when"),
        httpx2.Response(422, text="no"),
        httpx2.Response(404),
        httpx2.Response(200, text="<html>"),
    ],
)
def test_a_fault_is_told_at_once_and_not_tried_again(failure):
    handler, asked = answers(failure)
    with pytest.raises(RetrieverError, match="http://server/call"):
        client(handler).post("/call", {})
    assert len(asked) == 1


def test_a_busy_server_is_waited_for_until_the_deadline():
    handler, asked = answers(httpx2.Response(503, headers={"retry-after": "0.2"}))
    started = time.monotonic()
    with pytest.raises(RetrieverError, match="HTTP 503"):
        client(handler, timeout_s=0.7).get("/library")
    assert time.monotonic() - started < patience(1.5)
    assert 1 <= len(asked) <= 4


def test_the_deadline_holds_for_a_reply_that_comes_drop_by_drop():
    class Drops(httpx2.SyncByteStream):
        def __iter__(self):
            for _ in range(100):
                time.sleep(0.05)
                yield b" "

    started = time.monotonic()
    with pytest.raises(RetrieverError, match=r"did not answer within 0\.3 s"):
        client(lambda request: httpx2.Response(200, stream=Drops()), timeout_s=0.3).get("/library")
    assert time.monotonic() - started < patience(1.5)


def packed(passage):
    return [passage.id, passage.title, passage.text, passage.score]


def test_results_are_read_as_they_were_sent():
    reply = {
        "results": [
            {"status": "ok", "passages": [packed(p) for p in PASSAGES], "cached": False},
            {"status": "empty"},
            {"status": "refused", "message": "read: there is no passage with id 'x'"},
            {"status": "infra_error", "message": "index gone"},
        ]
    }
    ok, empty, refused, failed = read_results(reply, 4, "server")
    assert (ok, empty) == (PASSAGES, [])
    assert isinstance(refused, PrimitiveError)
    assert isinstance(failed, RetrieverError)
    assert str(failed) == "server: index gone"


@pytest.mark.parametrize(
    "reply",
    [
        None,
        [],
        {"results": []},
        {"results": [{"status": "empty"}, {"status": "empty"}]},
        {"results": [{"status": "ok", "passages": []}]},
        {"results": [{"status": "ok", "passages": [["p", "t", "x"]]}]},
        {"results": [{"status": "ok", "passages": [["p", "t", "x", True]]}]},
        {"results": [{"status": "ok", "passages": [["", "t", "x", 1.0]]}]},
        {"results": [{"status": "ok", "passages": [["p", "t", "x", float("nan")]]}]},
        {"results": [{"status": "ok", "passages": [["p", "t", "x", 1.0], ["p", "t", "x", 1.0]]}]},
        {"results": [{"status": "fine"}]},
        {"results": [None]},
    ],
)
def test_malformed_results_are_faults(reply):
    with pytest.raises(RetrieverError):
        read_results(reply, 1, "server")


def test_hits_of_search_r1_in_its_forms():
    scored = {"result": [[pack_hit(p, with_score=True) for p in PASSAGES], []]}
    assert read_hits(scored, 2, 4, "server") == [PASSAGES, []]
    bare = {"result": [[pack_hit(p, with_score=False) for p in PASSAGES]]}
    assert [(p.id, p.text, p.rank) for p in read_hits(bare, 1, 2, "server")[0]] == [
        ("p0", "text number 0", 0),
        ("p1", "text number 1", 1),
    ]
    loose = {"result": [[{"document": {"id": 7, "title": "T", "text": "x"}, "score": 0.5}] * 2]}
    assert read_hits(loose, 1, 3, "server") == [[Passage("7", "T", "x", 0.5, 0)]]


@pytest.mark.parametrize(
    "reply", [{}, {"result": [[]] * 2}, {"result": [None]}, {"result": [["x"]]}, {"result": [[{"id": "p"}]]},
              {"result": [[{"document": {"id": "p", "contents": "x"}, "score": "high"}]]},
              {"result": [[{"contents": "x"}]]}]
)  # fmt: skip
def test_malformed_hits_are_faults(reply):
    with pytest.raises(RetrieverError):
        read_hits(reply, 1, 3, "server")


def service(handler, fingerprint="f", **settings):
    return ServiceLibrary(client(handler, **settings), fingerprint, ("bm25", "read"), PASSAGES, 4, 100)


def found(*lists):
    results = [{"status": "ok", "passages": [packed(p) for p in ps]} if ps else {"status": "empty"} for ps in lists]
    return {"fingerprint": "f", "results": results}


def test_an_empty_result_is_believed_only_beside_answered_canary_queries():
    handler, asked = answers(found([]), found([], *([p] for p in PASSAGES)))
    library = service(handler)
    assert library.call("bm25", {"query": "nothing"}).status == "empty"
    assert [len(request["calls"]) for request in asked] == [1, 5]
    handler, _ = answers(found([]), found([], [], [], [], []))
    with pytest.raises(RetrieverError, match="found nothing, and canary queries fail: 0 of 4"):
        service(handler).call("bm25", {"query": "nothing"})
    handler, _ = answers(found([]), found([], *[[PASSAGES[0]]] * 4))
    with pytest.raises(RetrieverError, match="same first result"):
        service(handler).call("bm25", {"query": "nothing"})
    handler, asked = answers(found(PASSAGES[:2]))
    assert len(service(handler).call("bm25", {"query": "something"}).passages) == 2
    assert len(asked) == 1


def test_another_fingerprint_is_a_fault_and_is_not_cached():
    handler, _ = answers(found(PASSAGES), {**found(PASSAGES), "fingerprint": "g"}, {"results": []})
    library = service(handler)
    library.call("bm25", {"query": "one"})
    with pytest.raises(RetrieverError, match="another index than when the run began: fingerprint 'g' now, 'f' then"):
        library.call("bm25", {"query": "two"})
    with pytest.raises(RetrieverError, match="without the fingerprint"):
        library.call("bm25", {"query": "two"})
    assert library.call("bm25", {"query": "one"}).cached
    assert library.counter.total.failed == 2


def test_arguments_are_checked_before_anything_is_sent():
    handler, asked = answers(found([]))
    with pytest.raises(PrimitiveError, match="k must be from 1"):
        service(handler).call("bm25", {"query": "x", "k": 0})
    with pytest.raises(PrimitiveError, match="dense is not available"):
        service(handler).call("dense", {"query": "x"})
    assert asked == []
    refused = {"fingerprint": "f", "results": [{"status": "refused", "message": "read: there is no passage 'q'"}]}
    with pytest.raises(PrimitiveError, match="no passage 'q'"):
        service(answers(refused)[0]).call("read", {"passage_id": "q"})
    with pytest.raises(KeyError):
        service(answers(refused)[0]).passage("q")


def hits(shift=0):
    """A Search-R1 server that finds passages by their number, in another order after a shift."""

    def handler(request):
        body = json.loads(request.content)
        lists = []
        for query in body["queries"]:
            start = next((i for i, p in enumerate(PASSAGES) if p.text in query), len(query) % 4 + shift)
            order = [PASSAGES[(start + j) % 4] for j in range(4)][: body["topk"]]
            lists.append(
                [{"document": {"id": p.id, "contents": f'"{p.title}"\n{p.text}'}, "score": 1.0} for p in order]
            )
        return httpx2.Response(200, json={"result": lists})

    return handler


def test_a_search_r1_server_offers_one_search():
    library = SearchR1Library(client(hits()), "dense", 100)
    assert library.primitives == ("dense",)
    assert [p.id for p in library.call("dense", {"query": "text number 2", "k": 2}).passages] == ["p2", "p3"]
    assert len(library.canaries()) == 4
    assert library.ask("dense", {"query": "text number 1", "k": 1})[0].id == "p1"
    library.client = client(hits(shift=1))
    with pytest.raises(RetrieverError, match="serves another index now"):
        library.ask("dense", {"query": "text number 1", "k": 1})
    assert SearchR1Library(client(hits(1)), "dense", 0).fingerprint != library.fingerprint


def test_a_server_that_is_not_there_stops_the_run_before_it_begins():
    remote = RemoteConfig(timeout_s=0.3, start_s=0.0)
    with pytest.raises(RetrieverError, match=r"http://127\.0\.0\.1:9/library: ConnectError"):
        open_library(LibraryConfig(corpus="http://127.0.0.1:9", remote=remote))


@pytest.mark.parametrize(
    ("made", "settings", "key"),
    [
        (RemoteConfig, {"protocol": "grpc"}, "library.remote.protocol must be one of rpl, search-r1, got 'grpc'"),
        (RemoteConfig, {"timeout_s": 0.0}, "library.remote.timeout_s must be positive"),
        (RemoteConfig, {"connections": 0}, "library.remote.connections must be at least 1"),
        (ServiceConfig, {"threads": 0}, "service.threads must be at least 1"),
        (ServiceConfig, {"search": "lucene"}, "service.search must be auto, bm25 or dense"),
        (ServiceConfig, {"request_s": 0}, "service.request_s must be positive"),
    ],
)
def test_bad_settings_name_their_key(made, settings, key):
    with pytest.raises(ConfigError, match=key):
        made(**settings)


def test_passages_keep_unicode_and_scores():
    odd = Passage("§1", "Ærø “q”", "line\nbreak\u2028", 0.1 + 0.2, 0)
    (back,) = read_passages(json.loads(json.dumps([packed(odd)], ensure_ascii=False)), "server")
    assert back == odd


def test_a_server_says_which_ids_it_lacks_and_its_failure_is_no_missing_id():
    requests = []

    def handler(request, down=False):
        calls = json.loads(request.content)["calls"]
        requests.append(len(calls))
        results = []
        for call in calls:
            id_ = call["args"]["passage_id"]
            there = {"status": "ok", "passages": [[id_, "T", "text", 0.0]]}
            results.append({"status": "refused", "message": "none"} if id_.startswith("z") else there)
        if down:
            results[-1] = {"status": "infra_error", "message": "disk"}
        return httpx2.Response(200, json={"fingerprint": "f", "results": results})

    ids = [f"p{i}" for i in range(300)] + ["z1", "z2"]
    library = ServiceLibrary(client(handler), "f", ["bm25", "read"], PASSAGES, 4, 0)
    assert library.missing(ids) == {"z1", "z2"}
    assert requests == [200, 102]
    assert ServiceLibrary(client(handler), "f", ["bm25"], PASSAGES, 4, 0).missing(ids) is None
    failing = ServiceLibrary(client(lambda request: handler(request, down=True)), "f", ["read"], PASSAGES, 4, 0)
    with pytest.raises(RetrieverError, match="disk"):
        failing.missing(["p1"])


def test_a_query_that_a_server_refuses_is_not_one_that_finds_nothing():
    assert read_hits({"result": [[]]}, 1, 3, "s") == [[]]
    with pytest.raises(RetrieverError, match=r"^s refused queries that are allowed here: .*too long"):
        read_hits({"result": [[]], "errors": {"0": "too long"}}, 1, 3, "s")
