"""What each index costs and finds at scale: build time, memory, disk, latency and recall against exact search.

The library is synthetic (`benchmarks/synthetic.py`). Each index is built in one process and searched in others, one for
each way of searching it. Figures are appended to `--out` as they come, and what stands there already is not measured
again, so an interrupted run goes on. See docs/scale.md.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

from benchmarks import synthetic
from benchmarks.report import machine
from benchmarks.scale_tables import tables
from benchmarks.sides import Side, SideError
from benchmarks.synthetic import LibraryShape
from benchmarks.synthetic_texts import TextShape
from benchmarks.synthetic_vectors import VectorShape
from rpl.core.errors import RPLError
from rpl.core.files import append_jsonl, read_appended
from rpl.core.progress import say
from rpl.retrieval.dense.faiss_indexes import FP16, HNSW, IVFPQ, SQ8, Flat
from rpl.retrieval.engines import DenseIndex, KeywordEngine, describe
from rpl.retrieval.keyword.bm25 import BM25S


@dataclass(frozen=True)
class Case:
    """An index and the ways of searching it."""

    engine: DenseIndex | KeywordEngine
    searches: tuple[dict[str, Any], ...] = ({},)
    """Settings that steer the search only."""


CASES = {
    "flat": Case(Flat(gpu=False)),
    "bm25": Case(BM25S()),
    "sq8": Case(SQ8(), ({}, {"rescore": False})),
    "fp16": Case(FP16()),
    "ivfpq": Case(
        IVFPQ(gpu=False),
        (
            *({"probes": probes} for probes in (16, 32, 64, 128, 256)),
            {"probes": 64, "rescore": False},
            {"probes": 256, "rescore": False},
            {"probes": 64, "candidates": 1000},
            {"probes": 256, "candidates": 1000},
        ),
    ),
    "hnsw-sq8": Case(HNSW(storage="sq8"), ({"search_effort": 200}, {"search_effort": 800})),
    "hnsw": Case(
        HNSW(),
        (
            {"search_effort": 100, "candidates": 100},
            *({"search_effort": effort} for effort in (200, 400, 800)),
            {"search_effort": 200, "rescore": False},
        ),
    ),
}
"""Cases by name, the quickest to build first."""
DEFAULT = ("flat", "bm25", "sq8", "ivfpq", "hnsw")
_QUICK = ("flat", "bm25", "ivfpq")


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scale", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--passages", type=int, default=1_000_000, metavar="N", help="default 1,000,000")
    add("--dim", type=int, default=384, help="length of the vectors (default 384)")
    add("--queries", type=int, default=320, help="64 of them find nothing in memory yet (default 320)")
    add("--cases", nargs="+", choices=tuple(CASES), metavar="CASE", help=f"of {', '.join(CASES)}")
    add("--threads", type=int, default=1, metavar="N", help="threads of each process (default 1)")
    add("--seed", type=int, default=0)
    add("--work", type=Path, default=Path("runs/bench-scale"), help="library and indexes (default %(default)s)")
    add("--out", type=Path, metavar="FILE", help="file of figures (default: scale.jsonl in --work)")
    add("--keep", action="store_true", help="keep the indexes; otherwise each goes once it is measured")
    add("--quick", action="store_true", help="10,000 short vectors and few cases: a smoke test")
    args = parser.parse_args(arguments)
    if args.quick:
        args.passages, args.dim, args.queries = min(args.passages, 10_000), min(args.dim, 48), min(args.queries, 192)
    args.cases = args.cases or list(_QUICK if args.quick else DEFAULT)
    if args.passages < 1000 or args.queries < 2 or args.threads < 1:
        parser.error("--passages must be at least 1,000, --queries at least 2, --threads at least 1")
    args.out = args.out or args.work / "scale.jsonl"
    return args


def main(arguments: list[str] | None = None) -> int:
    """Measures what is missing, prints the tables, and returns the exit status."""
    args = parse(arguments)
    library = args.work / f"{args.passages}x{args.dim}"
    texts = TextShape(vocabulary=20_000) if args.quick else TextShape()
    shape = LibraryShape(args.passages, args.queries, args.seed, VectorShape(dim=args.dim), texts)
    try:
        synthetic.prepare(library, shape)
        for name in args.cases:
            run_case(name, CASES[name], library, shape, args)
    except (RPLError, SideError) as error:
        print(f"benchmarks.scale: {error}", file=sys.stderr)
        return 1
    print(tables([line for line in read_appended(args.out) if _size(line) == _size(settings(args))]))
    return 0


def run_case(name: str, case: Case, library: Path, shape: LibraryShape, args: argparse.Namespace) -> None:
    """Measures what is missing of one case."""
    built = settings(args) | {"case": name, "phase": "build", "engine": describe(case.engine, built=True)}
    engines = [replace(case.engine, **search) for search in case.searches]
    serves = [settings(args) | {"case": name, "phase": "serve", "engine": describe(engine)} for engine in engines]
    done = [_key(line) for line in read_appended(args.out)]
    missing = [line for line in [built, *serves] if _key(line) not in done]
    if not missing:
        return
    if isinstance(case.engine, DenseIndex):
        synthetic.write_vectors(library, shape)
    else:
        synthetic.write_texts(library, shape)
    folder = library / "indexes" / name
    if built in missing or not folder.exists():
        _require_space(case.engine, library, shape)
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(exist_ok=True)
        # Built under another name, so that what a killed run leaves is not taken for an index.
        temporary = folder.with_name(f".{name}")
        shutil.rmtree(temporary, ignore_errors=True)
        line = measure(built, library, temporary, args)
        temporary.rename(folder)
        if built in missing:
            append_jsonl(args.out, [line])
    for wanted in serves:
        if wanted in missing:
            append_jsonl(args.out, [measure(wanted, library, folder, args)])
    if not args.keep:
        shutil.rmtree(folder)


def measure(wanted: dict[str, Any], library: Path, folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Lets a process of its own build or search, and returns the line of figures."""
    engine = json.dumps(wanted["engine"])
    say(f"{wanted['case']}: {wanted['phase']} {engine}")
    before = machine()
    command = [sys.executable, "-m", "benchmarks.scale_side", wanted["phase"], "--engine", engine]
    command += ["--library", library.resolve(), "--folder", folder.resolve()]
    with Side(wanted["case"], command, args.threads) as side:
        figures = side.ready().turn() | side.finish()
    say(f"{wanted['case']}: {wanted['phase']} took {figures['seconds']:.1f} s")
    return {"benchmark": "scale", "date": date.today().isoformat(), **wanted, "figures": figures, "machine": before}


def settings(args: argparse.Namespace) -> dict[str, Any]:
    """Returns what decides the figures besides the case."""
    return {name: getattr(args, name) for name in ("passages", "dim", "queries", "threads", "seed")}


def _key(line: dict[str, Any]) -> str:
    names = ("case", "phase", "engine", "passages", "dim", "queries", "threads", "seed")
    return json.dumps({name: line[name] for name in names}, sort_keys=True)


def _size(line: dict[str, Any]) -> tuple[Any, ...]:
    return line["passages"], line["dim"], line["threads"], line["seed"]


def _require_space(engine: DenseIndex | KeywordEngine, library: Path, shape: LibraryShape) -> None:
    """Stops before an index that would fill the disk."""
    passages, dim = shape.passages, shape.vectors.dim
    needed = engine.cost(passages, dim).disk if isinstance(engine, DenseIndex) else 1000 * passages
    free = shutil.disk_usage(library).free
    if needed > free:
        raise SideError(f"{library}: an index of {needed / 1e9:.1f} GB does not fit into {free / 1e9:.1f} GB")


if __name__ == "__main__":
    sys.exit(main())
