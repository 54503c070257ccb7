"""The JSON of a retrieval server's requests and replies, and the checks on replies.

`POST /call` takes `{"calls": [{"name": "bm25", "args": {"query": "…", "k": 3}}, …]}` and answers::

    {"fingerprint": "…", "results": [
        {"status": "ok", "passages": [["id", "title", "text", 1.25], …], "cached": false},
        {"status": "empty"},
        {"status": "refused", "message": "bm25: k must be from 1 to 100, got 0"},
        {"status": "infra_error", "message": "dense search failed: …"}]}

`GET /library` answers with what a client must know::

    {"format": 1, "fingerprint": "…", "primitives": ["bm25", …], "passages": 149,
     "canaries": [["id", "title", "text", 0.0], …]}

`POST /retrieve` is Search-R1's: `{"queries": […], "topk": 3, "return_scores": true}` gives
`{"result": [[{"document": {"id", "contents"}, "score"}, …], …]}`, and without scores lists of documents alone. The list
of a query that is not allowed is empty, and `"errors": {"4": "…"}`, which Search-R1 does not have, says why, by the
place of the query.

One call or query that is wrong fails alone in both.

A reply that does not have this form is a fault of retrieval, whatever the reason: it is never read as "nothing found".
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from rpl.core.errors import DataError, PrimitiveError, ProgramError, RetrieverError
from rpl.core.records import Passage
from rpl.retrieval.corpus.corpus import contents, text_field, title_and_text
from rpl.retrieval.library.library import Call, CallResult

FORMAT = 1
"""Version of this format."""


def pack_passage(passage: Passage) -> list[Any]:
    """Returns a passage as it is sent; its rank is its place in the list."""
    return [passage.id, passage.title, passage.text, passage.score]


def pack_outcome(outcome: CallResult | ProgramError | RetrieverError) -> dict[str, Any]:
    """Returns what became of a call as it is sent."""
    if isinstance(outcome, CallResult):
        if not outcome.passages:
            return {"status": "empty"}
        return {"status": "ok", "passages": [pack_passage(p) for p in outcome.passages], "cached": outcome.cached}
    if isinstance(outcome, ProgramError):
        return {"status": "refused", "message": outcome.message}
    return {"status": "infra_error", "message": str(outcome)}


def read_call(value: Any) -> Call:
    """Reads one call of `POST /call`.

    Raises:
        PrimitiveError: It is none.
    """
    match value:
        case {"name": str(name), "args": dict(args)} if len(value) == 2:
            return name, args
    raise PrimitiveError(f'a call has the keys "name" (a string) and "args" (an object), got {_start(value)}')


def parse_json(body: bytes, where: str) -> Any:
    """Reads a reply.

    Raises:
        RetrieverError: It is not JSON.
    """
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RetrieverError(f"{where} answered with something that is not JSON: {_start(body)}") from error


def read_results(reply: Any, count: int, where: str) -> list[Sequence[Passage] | Exception]:
    """Reads the results of `POST /call`; one outcome a call.

    Raises:
        RetrieverError: The reply does not have the form.
    """
    results = reply.get("results") if isinstance(reply, dict) else None
    if not isinstance(results, list) or len(results) != count:
        raise RetrieverError(f"{where} did not answer {count} calls with {count} results: {_start(reply)}")
    return [_read_outcome(result, where) for result in results]


def _read_outcome(result: Any, where: str) -> Sequence[Passage] | Exception:
    match result:
        case {"status": "ok", "passages": [_, *_] as passages}:
            return read_passages(passages, where)
        case {"status": "empty"}:
            return []
        case {"status": "refused", "message": str(message)}:
            return PrimitiveError(message)
        case {"status": "infra_error", "message": str(message)}:
            return RetrieverError(f"{where}: {message}")
        case _:
            raise RetrieverError(f"{where} answered a call with an unknown result: {_start(result)}")


def read_passages(values: Any, where: str) -> list[Passage]:
    """Reads a list of passages in our own form.

    Raises:
        RetrieverError: One is malformed, or an id repeats.
    """
    passages = []
    for rank, value in enumerate(values if isinstance(values, list) else [None]):
        match value:
            case [str(id_), str(title), str(text), float() | int() as score] if id_ and _is_number(score):
                passages.append(Passage(id_, title, text, float(score), rank))
            case _:
                raise RetrieverError(f"{where} sent a malformed passage: {_start(value)}")
    if len({p.id for p in passages}) != len(passages):
        raise RetrieverError(f"{where} sent a list in which an id repeats")
    return passages


def pack_hit(passage: Passage, with_score: bool) -> dict[str, Any]:
    """Returns a passage in Search-R1's form."""
    document = {"id": passage.id, "contents": contents(passage.title, passage.text)}
    return {"document": document, "score": passage.score} if with_score else document


def read_hits(reply: Any, queries: int, k: int, where: str) -> list[list[Passage]]:
    """Reads the reply of a Search-R1 server, with scores or without; one list a query.

    Documents are `{"id", "contents"}` or `{"id", "title", "text"}`; an id may be a number. Where there is no score,
    it is 1 / (rank + 1). Of an id that repeats the first is kept.

    Raises:
        RetrieverError: The reply does not have the form.
    """
    lists = reply.get("result") if isinstance(reply, dict) else None
    if not isinstance(lists, list) or len(lists) != queries or not all(isinstance(hits, list) for hits in lists):
        raise RetrieverError(f"{where} did not answer {queries} queries with {queries} lists: {_start(reply)}")
    refused = reply.get("errors")
    if refused:
        raise RetrieverError(f"{where} refused queries that are allowed here: {_start(refused)}")
    found = []
    for hits in lists:
        passages: dict[str, Passage] = {}
        for hit in hits[:k]:
            passage = _read_hit(hit, len(passages), where)
            passages.setdefault(passage.id, passage)
        found.append(list(passages.values()))
    return found


def _read_hit(hit: Any, rank: int, where: str) -> Passage:
    score: Any = 1.0 / (rank + 1)
    if isinstance(hit, dict) and "document" in hit:
        hit, score = hit["document"], hit.get("score", score)
    if not isinstance(hit, dict) or not _is_number(score):
        raise RetrieverError(f"{where} sent a malformed document: {_start(hit)}")
    id_ = hit.get("id")
    try:
        title, text = title_and_text(hit, where)
        id_ = str(id_) if isinstance(id_, int) and not isinstance(id_, bool) else text_field(hit, "id", where)
    except DataError as error:
        raise RetrieverError(f"a malformed document: {error}") from error
    return Passage(id_, title, text, float(score), rank)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _start(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 120 else text[:117] + "..."
