"""Libraries whose corpus is on a server: the same primitives, the same kinds of failure.

Three guards stand between a server that is not what it was and a rollout: each reply names the fingerprint of the
library that made it, and another one than at the start is a fault; a search without results is believed only if
canary queries are answered in the same request; and what is malformed is a fault, never an empty result.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rpl.core.errors import PrimitiveError, RetrieverError
from rpl.core.files import digest
from rpl.core.records import Passage
from rpl.programs.primitives import FULL_TEXT
from rpl.retrieval.canary import CANARIES, DEPTH, canary_query, probe_passages
from rpl.retrieval.library.arguments import check_arguments
from rpl.retrieval.library.client import Client
from rpl.retrieval.library.library import Library
from rpl.retrieval.library.wire import FORMAT, read_hits, read_passages, read_results
from rpl.retrieval.library_config import RemoteConfig

Say = Callable[[str], None]

QUESTIONS = (
    "capital of France",
    "who wrote Hamlet",
    "largest planet of the solar system",
    "inventor of the telephone",
    "year in which the second world war ended",
    "longest river in Africa",
    "chemical symbol of gold",
    "author of the theory of relativity",
)
"""What a server is asked that cannot name passages of its own; what it finds are its canary passages."""

_POLL_S = 1.0
_READS = 200
"""Passages that are read in one request; a server need not take more."""


class RemoteLibrary(Library):
    """What both kinds of servers have in common.

    Args:
        client: Talks to the server.
        fingerprint: What the server's answers must not change.
        offered: Its primitives.
        canaries: Passages that it must find by their own words.
        size: Its number of passages, where known.
        cache_size: As for `Library`.
    """

    def __init__(
        self,
        client: Client,
        fingerprint: str,
        offered: Sequence[str],
        canaries: Sequence[Passage],
        size: int | None,
        cache_size: int,
    ) -> None:
        super().__init__(fingerprint, cache_size)
        self.client = client
        self._offered, self._canaries, self._size = tuple(offered), list(canaries), size

    @property
    def primitives(self) -> tuple[str, ...]:
        """See `Library.primitives`."""
        return self._offered

    @property
    def size(self) -> int | None:
        """See `Library.size`."""
        return self._size

    def canaries(self) -> list[Passage]:
        """See `Library.canaries`."""
        return self._canaries

    def check(self, name: str, args: Mapping[str, Any]) -> dict[str, Any]:
        """See `Library.check`. Whether an id exists only the server knows."""
        return check_arguments(name, args, self._offered)

    def passage(self, id_: str) -> Passage:
        """See `Library.passage`."""
        try:
            return self.ask("read", {"passage_id": id_})[0]
        except PrimitiveError as error:
            raise KeyError(id_) from error

    def missing(self, ids: Iterable[str]) -> frozenset[str] | None:
        """See `Library.missing`. It reads the passages, many in a request."""
        if "read" not in self._offered:
            return None
        rows, absent = list(ids), set()
        for start in range(0, len(rows), _READS):
            part = rows[start : start + _READS]
            for id_, outcome in zip(part, self.send([("read", {"passage_id": id_}) for id_ in part]), strict=True):
                if isinstance(outcome, PrimitiveError):
                    absent.add(id_)
                elif isinstance(outcome, Exception):
                    raise outcome
        return frozenset(absent)

    def serve(self, calls: Sequence[tuple[str, dict[str, Any]]]) -> list[Sequence[Passage] | Exception]:
        """See `Library.serve`."""
        outcomes = self.send(calls)
        doubtful = [n for n, (name, _) in enumerate(calls) if name in FULL_TEXT and outcomes[n] == []]
        for name in {calls[n][0] for n in doubtful}:
            numbers = [n for n in doubtful if calls[n][0] == name]
            proofs = [(name, {"query": canary_query(passage), "k": DEPTH}) for passage in self._canaries]
            answers = self.send([*(calls[n] for n in numbers), *proofs])
            doubt = self._doubt(answers[len(numbers) :])
            for n, outcome in zip(numbers, answers, strict=False):
                outcomes[n] = (
                    RetrieverError(f"{self.client.url}: {name} found nothing, and {doubt}") if doubt else outcome
                )
        return outcomes

    def close(self) -> None:
        """See `Library.close`."""
        super().close()
        self.client.close()

    def _doubt(self, answers: Sequence[Sequence[Passage] | Exception]) -> str:
        """Says why the answers to canary queries show a fault; empty where they do not."""
        for answer in answers:
            if isinstance(answer, Exception):
                return f"a canary query failed: {answer}"
        report = probe_passages(lambda queries, k: [a for a in answers if not isinstance(a, Exception)], self._canaries)
        return "" if report.ok else f"canary queries fail: {report}"

    @abstractmethod
    def send(self, calls: Sequence[tuple[str, dict[str, Any]]]) -> list[Sequence[Passage] | Exception]:
        """Has the server run calls; returns the passages of each, or why there are none.

        Raises:
            RetrieverError: The server failed, or is not the one that it was.
        """


class ServiceLibrary(RemoteLibrary):
    """A library behind `rpl serve-retrieval`, with all its primitives."""

    def send(self, calls: Sequence[tuple[str, dict[str, Any]]]) -> list[Sequence[Passage] | Exception]:
        """See `RemoteLibrary.send`."""
        reply = self.client.post("/call", {"calls": [{"name": name, "args": args} for name, args in calls]})
        theirs = reply.get("fingerprint") if isinstance(reply, dict) else None
        if theirs is not None and theirs != self.fingerprint:
            raise RetrieverError(
                f"{self.client.url} serves another index than when the run began: fingerprint {theirs!r} now, "
                f"{self.fingerprint!r} then; start it with the index that it had"
            )
        if theirs is None:
            raise RetrieverError(f"{self.client.url}/call answered without the fingerprint of its library")
        return read_results(reply, len(calls), f"{self.client.url}/call")


class SearchR1Library(RemoteLibrary):
    """A server with Search-R1's `/retrieve`: one search, and nothing else.

    Its protocol has no fingerprint. That of this library is a hash of what it answers to fixed questions, and a change
    of those answers shows in the canary queries.
    """

    def __init__(self, client: Client, primitive: str, cache_size: int) -> None:
        hits = _retrieve(client, QUESTIONS, DEPTH)
        by_rank = sorted((p for found in hits for p in found), key=lambda p: p.rank)
        canaries = list({p.id: p for p in reversed(by_rank)}.values())[::-1][:CANARIES]
        if not canaries:
            raise RetrieverError(f"{client.url}/retrieve found nothing for {len(QUESTIONS)} questions")
        answers = digest(*(p.id for found in hits for p in found))
        super().__init__(client, digest("search-r1", answers), (primitive,), canaries, None, cache_size)
        self._answers = answers

    def send(self, calls: Sequence[tuple[str, dict[str, Any]]]) -> list[Sequence[Passage] | Exception]:
        """See `RemoteLibrary.send`."""
        outcomes: dict[int, Sequence[Passage]] = {}
        for k in {args["k"] for _, args in calls}:
            numbers = [n for n, (_, args) in enumerate(calls) if args["k"] == k]
            found = _retrieve(self.client, [calls[n][1]["query"] for n in numbers], k)
            outcomes.update(zip(numbers, found, strict=True))
        return [outcomes[n] for n in range(len(calls))]

    def ask_many(self, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> list[tuple[Passage, ...]]:
        """As `Library.ask_many`; canary queries also show whether the server still answers as it did."""
        answers = digest(*(p.id for found in _retrieve(self.client, QUESTIONS, DEPTH) for p in found))
        if answers != self._answers:
            raise RetrieverError(
                f"{self.client.url} answers other passages to the same questions than when the run began: it serves "
                "another index now"
            )
        return super().ask_many(calls)


def open_remote(url: str, config: RemoteConfig, cache_size: int, say: Say | None = None) -> RemoteLibrary:
    """Opens the library of a server, and waits for one that is still loading.

    Args:
        url: The server.
        config: How it is asked.
        cache_size: As for `Library`.
        say: Told what is waited for.

    Raises:
        RetrieverError: The server cannot be reached, does not get ready, or serves another index than it must.
    """
    client = Client(url, config)
    try:
        library = _wait(lambda: _connect(client, config, cache_size), config.start_s, say)
        if config.fingerprint is not None and library.fingerprint != config.fingerprint:
            raise RetrieverError(
                f"{url} serves a library with fingerprint {library.fingerprint!r}; library.remote.fingerprint asks for "
                f"{config.fingerprint!r}"
            )
    except BaseException:
        client.close()
        raise
    return library


def _connect(client: Client, config: RemoteConfig, cache_size: int) -> RemoteLibrary:
    if config.protocol == "search-r1":
        return SearchR1Library(client, config.primitive, cache_size)
    about = client.get("/library")
    match about:
        case {
            "format": int(version),
            "fingerprint": str(fingerprint),
            "primitives": [*primitives],
            "passages": int(size),
            "canaries": [_, *_] as canaries,
        }:
            if version != FORMAT:
                raise RetrieverError(
                    f"{client.url} speaks format {version}, this client {FORMAT}; update the older one"
                )
            found = read_passages(canaries, f"{client.url}/library")
            return ServiceLibrary(client, fingerprint, [str(p) for p in primitives], found, size, cache_size)
    raise RetrieverError(
        f"{client.url}/library is not that of `rpl serve-retrieval`; for a Search-R1 server set "
        "library.remote.protocol to search-r1"
    )


def _wait(connect: Callable[[], RemoteLibrary], seconds: float, say: Say | None) -> RemoteLibrary:
    deadline = time.monotonic() + seconds
    told = False
    while True:
        try:
            return connect()
        except RetrieverError as error:
            if time.monotonic() + _POLL_S >= deadline:
                raise
            if say is not None and not told:
                say(f"waiting at most {seconds:g} s for the retrieval server: {error}")
            told = True
        time.sleep(_POLL_S)


def _retrieve(client: Client, queries: Sequence[str], k: int) -> list[list[Passage]]:
    reply = client.post("/retrieve", {"queries": list(queries), "topk": k, "return_scores": True})
    return read_hits(reply, len(queries), k, f"{client.url}/retrieve")
