"""One side of the retrieval benchmarks; started by `benchmarks.retrieval`."""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import httpx2

from benchmarks.turns import Turns
from rpl.core.files import digest
from rpl.environment.environment import Environment, EnvironmentConfig
from rpl.retrieval.corpus.corpus import read_corpus
from rpl.retrieval.library.library import LocalLibrary
from rpl.retrieval.library.open_local import resolve_corpus
from rpl.retrieval.library.opening import open_library
from rpl.retrieval.library_config import LibraryConfig

Work = Callable[[int], Any]
"""Does one turn of the given number and returns its answers."""


def titles(corpus: str, count: int, turn: int) -> list[str]:
    """Queries: titles of passages that are spread over the corpus, others in each turn."""
    known = read_corpus(resolve_corpus(corpus)).titles
    return [f"{known[(i * 7919 + turn * 104729) % len(known)]} {i}" for i in range(count)]


def programs(side: str, args: argparse.Namespace, stack: ExitStack) -> Work:
    """The same programs in the sandbox, with dense calls gathered or each a search of its own."""
    config = EnvironmentConfig(
        LibraryConfig(corpus=args.corpus, dense=True, reranker="none", cache_size=0, encoder_batch_size=64),
        workers=args.programs,
    )
    library = stack.enter_context(open_library(config.library))
    assert isinstance(library, LocalLibrary)
    if side == "single":
        library.batchers.clear()
    environment = stack.enter_context(Environment(config, library=library))
    source = f"for i in range({args.calls}):\n    print(dense(question + ' ' + str(i), k={args.k})[0])\n"

    def work(turn: int) -> Any:
        traces = environment.executor.run_many([(source, q) for q in titles(args.corpus, args.programs, turn)])
        assert all(trace.error is None and trace.infra_error is None for trace in traces), traces
        return [[call.result_ids for call in trace.calls] for trace in traces]

    return work


def service(side: str, args: argparse.Namespace, stack: ExitStack) -> Work:
    """Threads that send requests to a server."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [sys.executable, "-m", "rpl", "serve-retrieval", "--corpus", args.corpus, "--port", port]
    if side == "one-by-one":
        command = [sys.executable, "-m", "benchmarks.one_by_one_server", args.corpus, port]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    stack.callback(server.wait)
    stack.callback(server.terminate)
    url = f"http://127.0.0.1:{port}/retrieve"
    http = stack.enter_context(httpx2.Client(timeout=60.0, limits=httpx2.Limits(max_connections=args.clients)))
    _await(http, url, server)
    threads = stack.enter_context(ThreadPoolExecutor(args.clients))

    def send(queries: Sequence[str]) -> Any:
        response = http.post(url, json={"queries": queries, "topk": args.k, "return_scores": True})
        response.raise_for_status()
        return [[hit["document"]["id"] for hit in hits] for hits in response.json()["result"]]

    return _split(args, lambda requests: list(threads.map(send, requests)))


def pyserini(side: str, args: argparse.Namespace, stack: ExitStack) -> Work:
    """Lucene's batch search, in this process and with as many threads."""
    library = stack.enter_context(open_library(LibraryConfig(corpus=args.corpus, bm25="lucene")))
    searcher = library.bm25._searcher  # type: ignore[attr-defined]

    def batch(requests: Sequence[Sequence[str]]) -> Any:
        answers = []
        for queries in requests:
            found = searcher.batch_search(
                queries, [str(i) for i in range(len(queries))], k=args.k, threads=args.clients
            )
            answers.append([[hit.docid for hit in found[str(i)]] for i in range(len(queries))])
        return answers

    return _split(args, batch)


def _split(args: argparse.Namespace, answer: Callable[[list[list[str]]], Any]) -> Work:
    def work(turn: int) -> Any:
        queries = titles(args.corpus, args.clients * args.requests * args.queries, turn)
        return answer([queries[i : i + args.queries] for i in range(0, len(queries), args.queries)])

    return work


def _await(http: httpx2.Client, url: str, server: subprocess.Popen[bytes]) -> None:
    while server.poll() is None:
        try:
            if http.post(url, json={"queries": ["ready"], "topk": 1}).status_code == 200:
                return
        except httpx2.TransportError:
            pass
        time.sleep(0.1)
    raise SystemExit(f"the server ended with status {server.returncode}")


def main() -> None:
    """Sets the side up and takes its turns."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=("programs", "service"))
    parser.add_argument("side")
    parser.add_argument("--corpus", required=True)
    for name in ("turns", "programs", "calls", "clients", "requests", "queries", "k"):
        parser.add_argument(f"--{name}", type=int, required=True)
    args = parser.parse_args()
    turns = Turns()
    with ExitStack() as stack:
        make = pyserini if args.side == "pyserini" else programs if args.kind == "programs" else service
        work = make(args.side, args, stack)
        work(0)
        turns.ready()
        for number in range(args.turns):
            turns.wait()
            began = time.perf_counter()
            answers = work(number + 1)
            turns.done(time.perf_counter() - began, answers=digest(json.dumps(answers)))
        turns.finish()


if __name__ == "__main__":
    main()
