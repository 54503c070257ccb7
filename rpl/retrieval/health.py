"""Health of an open library, for `rpl doctor` and before every run: a broken backend must never train a policy."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from rpl.errors import RetrieverError
from rpl.retrieval.canary import canary_query, probe
from rpl.retrieval.library import Library

_LINK_SAMPLE = 50
_RERANK_LISTS = 4
_RERANK_LENGTH = 5


@dataclass(frozen=True, slots=True)
class HealthResult:
    """The outcome of one check."""

    name: str
    ok: bool
    detail: str
    """What was found, in one line."""
    seconds: float


def check(library: Library) -> list[HealthResult]:
    """Runs canary queries through every backend of a library; never raises for a backend that fails."""
    checks: list[tuple[str, Callable[[Library], tuple[bool, str]]]] = [("corpus", _corpus), ("bm25", _bm25)]
    if library.dense is not None:
        checks.append(("dense", _dense))
    if library.reranker is not None:
        checks.append(("rerank", _rerank))
    checks.append(("links", _links))
    return [_run(name, library, function) for name, function in checks]


def require_healthy(library: Library) -> None:
    """Stops a run whose retrieval does not work.

    Raises:
        RetrieverError: A check failed; the message names all that did.
    """
    failed = [result for result in check(library) if not result.ok]
    if failed:
        raise RetrieverError("; ".join(f"{result.name}: {result.detail}" for result in failed))


def _run(name: str, library: Library, function: Callable[[Library], tuple[bool, str]]) -> HealthResult:
    started = time.perf_counter()
    try:
        ok, detail = function(library)
    except Exception as error:  # a health check reports whatever a backend raises
        ok, detail = False, f"{type(error).__name__}: {error}"
    return HealthResult(name, ok, detail, time.perf_counter() - started)


def _corpus(library: Library) -> tuple[bool, str]:
    corpus = library.corpus
    untitled = sum(not title for title in corpus.titles)
    note = f", {untitled} without a title (no links lead to them)" if untitled else ""
    return True, f"{len(corpus)} passages, fingerprint {corpus.fingerprint}{note}"


def _bm25(library: Library) -> tuple[bool, str]:
    report = probe(library.bm25.search, library.corpus)
    return report.ok, str(report)


def _dense(library: Library) -> tuple[bool, str]:
    assert library.dense is not None
    report = probe(library.dense.search, library.corpus)
    return report.ok, str(report)


def _rerank(library: Library) -> tuple[bool, str]:
    """A passage's own text as the query must lift that passage to the top of a short list, most of the time."""
    assert library.reranker is not None
    corpus = library.corpus
    size = min(_RERANK_LENGTH, len(corpus))
    lists = min(_RERANK_LISTS, len(corpus))
    first = 0
    for number in range(lists):
        start = number * len(corpus) // lists
        passages = [corpus.passage((start + i * max(1, len(corpus) // size)) % len(corpus)) for i in range(size)]
        best = library.reranker.rerank(canary_query(passages[0]), passages[::-1])[0]
        first += (best.title, best.text) == (passages[0].title, passages[0].text)
    return first * 2 >= lists, f"{first} of {lists} passages ranked first for their own text"


def _links(library: Library) -> tuple[bool, str]:
    step = max(1, len(library.corpus) // _LINK_SAMPLE)
    sample = library.corpus.ids[::step]
    linked = sum(bool(library.link_graph.links(id_, 1)) for id_ in sample)
    return True, f"{linked} of {len(sample)} sampled passages mention the title of another"
