"""A server of the plain kind: `/retrieve` answers the queries of a request one after the other, as Search-R1's does.

Written from the form of its protocol, over the same index as ours, so that only the way of serving differs.
`python -m benchmarks.one_by_one_server CORPUS PORT`.
"""

from __future__ import annotations

import sys
from typing import Any

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

from rpl.retrieval.corpus.corpus import contents
from rpl.retrieval.library.library import LocalLibrary
from rpl.retrieval.library.opening import open_library
from rpl.retrieval.library_config import LibraryConfig


class Query(BaseModel):
    """The body of a request."""

    queries: list[str]
    topk: int | None = None
    return_scores: bool = False


def main(corpus: str, port: str) -> None:
    """Serves until it is ended."""
    library = open_library(LibraryConfig(corpus=corpus))
    assert isinstance(library, LocalLibrary)
    retriever = library.bm25
    app = FastAPI()

    @app.post("/retrieve")
    def retrieve(request: Query) -> dict[str, Any]:
        result = []
        for query in request.queries:
            hits = retriever.search([query], request.topk or 3)[0]
            documents = [{"id": p.id, "contents": contents(p.title, p.text)} for p in hits]
            if request.return_scores:
                result.append([{"document": d, "score": p.score} for d, p in zip(documents, hits, strict=True)])
            else:
                result.append(documents)  # type: ignore[arg-type]
        return {"result": result}

    uvicorn.run(app, host="127.0.0.1", port=int(port), log_level="warning", access_log=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
