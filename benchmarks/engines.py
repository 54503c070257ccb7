"""What each engine finds: recall of gold passages, and all of them, among the first 5 and 20, on sets of questions.

A set is a folder with `questions.jsonl` and `corpus.jsonl` or `corpus.jsonl.gz`. The question is the query. Figures are
appended to `--out` as they come, one line a set and engine, and what stands there already is not measured again; so
an engine that needs another environment (Lucene wants a JDK) may be added later. The table is made from that file.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from benchmarks.report import machine
from rpl.core.errors import RPLError
from rpl.core.files import append_jsonl, read_appended, read_jsonl
from rpl.core.progress import progress_bar, say
from rpl.core.records import Passage
from rpl.retrieval.corpus.corpus import Corpus, read_corpus
from rpl.retrieval.engines import KEYWORD_ENGINES, Analysis, KeywordEngine, make
from rpl.retrieval.fusion import reciprocal_rank_fusion
from rpl.retrieval.indexing.folder import ensure_index, load_encoder, load_index
from rpl.retrieval.library_config import LibraryConfig

ENGINES = ("bm25s", "bm25s-nostem", "lucene", "dense", "rrf", "rrf+rerank")
CUTS = (5, 20)
DEPTH = 100
"""How many passages each list has that is fused."""
_BATCH = 64


@dataclass(frozen=True)
class Asked:
    """A question with what it should find."""

    query: str
    gold: frozenset[str]
    """All of them are needed."""
    silver: frozenset[str]
    """Each of them is a hit."""


class Bench:
    """One set, with its engines opened as they are needed."""

    def __init__(self, folder: Path, work: Path, args: argparse.Namespace) -> None:
        self.folder, self.work, self.args = folder, work, args
        self.questions = read_asked(folder / "questions.jsonl")[: args.questions]

    @cached_property
    def corpus(self) -> Corpus:
        """The passages."""
        plain = self.folder / "corpus.jsonl"
        return read_corpus(plain if plain.exists() else plain.with_suffix(".jsonl.gz"))

    @cached_property
    def loaded(self) -> Any:
        """The default index: bm25s and MiniLM, flat."""
        args = self.args
        config = LibraryConfig(dense=True, encoder=args.encoder, encoder_precision=args.precision)
        encoder = load_encoder(config)
        ensure_index(self.corpus, self.work / self.folder.name / "index", config, encoder, say)
        return load_index(self.work / self.folder.name / "index", config, self.corpus.fingerprint, encoder)

    def keyword(self, name: str, analysis: Analysis) -> Callable[[Sequence[str]], list[list[Passage]]]:
        """Builds a keyword engine where there is none yet, and opens it."""
        folder = self.work / self.folder.name / f"{name}-{analysis.stemmer}"
        engine = make("bm25", name, KeywordEngine, KEYWORD_ENGINES)  # type: ignore[type-abstract]
        folder.parent.mkdir(parents=True, exist_ok=True)
        if not folder.exists():
            engine.build(self.corpus, folder, analysis)
        retriever = engine.load(self.corpus, folder, analysis)
        return lambda queries: retriever.search(queries, DEPTH)

    def run(self, engine: str) -> dict[str, Any]:
        """Asks all questions and returns the figures."""
        questions = self.questions
        if engine == "rrf+rerank" and self.args.rerank_questions is not None:
            step = max(1, len(questions) // self.args.rerank_questions)
            questions = questions[::step][: self.args.rerank_questions]
        search = self.engine(engine)
        started = time.perf_counter()
        found: list[list[Passage]] = []
        with progress_bar(len(questions), f"{self.folder.name} {engine}", "question") as bar:
            for start in range(0, len(questions), _BATCH):
                found += search([q.query for q in questions[start : start + _BATCH]])
                bar.update(len(found) - start)
        seconds = time.perf_counter() - started
        line = {"set": self.folder.name, "engine": engine, "passages": len(self.corpus)}
        line |= score(questions, [[p.id for p in hits] for hits in found])
        line |= {"seconds": round(seconds, 2)}
        if engine == "lucene":
            ours = self.engine("bm25s")([q.query for q in questions])
            line["overlap_with_bm25s_at_20"] = round(overlap(found, ours, 20), 4)
        return line

    def engine(self, name: str) -> Callable[[Sequence[str]], list[list[Passage]]]:
        """Returns the search of an engine."""
        if name in ("bm25s", "lucene"):
            return self.keyword(name, Analysis())
        if name == "bm25s-nostem":
            return self.keyword("bm25s", Analysis(stemmer="none"))
        loaded = self.loaded
        if name == "dense":
            return lambda queries: loaded.dense.search(queries, DEPTH)
        if name == "rrf":
            return self.fused
        from rpl.retrieval.rerank.rerankers import LateInteractionReranker

        reranker = LateInteractionReranker(loaded.encoder, self.args.rerank_cache_mb)
        depth = self.args.rerank_depth
        return lambda queries: [
            reranker.rerank(query, hits[:depth]) for query, hits in zip(queries, self.fused(queries), strict=True)
        ]

    def fused(self, queries: Sequence[str]) -> list[list[Passage]]:
        """Fuses the lists of bm25s and of dense search."""
        pairs = zip(self.loaded.bm25.search(queries, DEPTH), self.loaded.dense.search(queries, DEPTH), strict=True)
        return [reciprocal_rank_fusion(pair) for pair in pairs]


def read_asked(path: Path) -> list[Asked]:
    """Reads questions that say what they should find; the others are left out."""
    asked = []
    for _, record in read_jsonl(path):
        gold, silver = (frozenset(record.get(name) or ()) for name in ("gold_docs", "silver_docs"))
        if gold or silver:
            asked.append(Asked(record["question"], gold, silver))
    return asked


def score(questions: Sequence[Asked], lists: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Returns recall, all-gold and any-hit figures among the first 5 and 20.

    Mean recall of gold and the share of questions with all gold found are taken over the questions that have gold, the
    share with any gold or silver found over all.

    Args:
        questions: What should be found.
        lists: Passage ids, best first, one list a question.
    """
    figures: dict[str, Any] = {"n": len(questions), "n_gold": sum(bool(q.gold) for q in questions)}
    for cut in CUTS:
        recalls, alls, anys = [], [], []
        for question, ids in zip(questions, lists, strict=True):
            top = set(ids[:cut])
            anys.append(bool(top & (question.gold | question.silver)))
            if question.gold:
                recalls.append(len(top & question.gold) / len(question.gold))
                alls.append(question.gold <= top)
        for name, values in (("recall", recalls), ("all", alls), ("any", anys)):
            figures[f"{name}@{cut}"] = round(math.fsum(values) / len(values), 4) if values else None
    return figures


def overlap(one: Iterable[Sequence[Passage]], two: Iterable[Sequence[Passage]], k: int) -> float:
    """Returns the mean share of the first `k` results that two engines have in common, over queries with results."""
    shares = []
    for a, b in zip(one, two, strict=True):
        first, second = {p.id for p in a[:k]}, {p.id for p in b[:k]}
        if first or second:
            shares.append(len(first & second) / max(len(first), len(second)))
    return math.fsum(shares) / len(shares)


def table(lines: Sequence[dict[str, Any]]) -> str:
    """Returns the figures as a Markdown table: recall @5 / @20 and all gold @5 / @20, or any where there is no gold."""
    sets = list(dict.fromkeys(line["set"] for line in lines))
    rows = ["| set | engine | recall @5 / @20 | all gold @5 / @20 | any gold or silver @5 / @20 | n |"]
    rows.append("| --- | --- | --- | --- | --- | --- |")
    for name in sets:
        by_engine = {line["engine"]: line for line in lines if line["set"] == name}
        for engine in ENGINES:
            if engine not in by_engine:
                continue
            line = by_engine[engine]
            cells = [_cell(line, figure) for figure in ("recall", "all", "any")]
            extra = line.get("overlap_with_bm25s_at_20")
            label = f"{engine} ({extra:.2f} of bm25s' top 20)" if extra is not None else engine
            rows.append(f"| {name} | {label} | {' | '.join(cells)} | {line['n']} |")
    return "\n".join(rows)


def _cell(line: dict[str, Any], figure: str) -> str:
    values = [line[f"{figure}@{cut}"] for cut in CUTS]
    return "" if None in values else " / ".join(f"{value:.3f}".lstrip("0") for value in values)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.engines", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("data", type=Path, help="folder of sets")
    add("--sets", nargs="+", help="names of sets (default: all folders with questions.jsonl)")
    add("--engines", nargs="+", choices=ENGINES, default=[e for e in ENGINES if e != "lucene"])
    add("--work", type=Path, default=Path("runs/bench-engines"), help="indexes are kept here (default %(default)s)")
    add("--out", type=Path, help="file of figures (default: engines.jsonl in --work)")
    add("--encoder", default="all-MiniLM-L6-v2")
    add("--precision", choices=("float32", "bfloat16"), default="float32", help="arithmetic of the encoder")
    add("--questions", type=int, help="only the first of each set")
    add("--rerank-depth", type=int, default=50, help="passages of the fused list that are reranked (default 50)")
    add("--rerank-questions", type=int, help="rerank for so many questions only, evenly spread over the set")
    add("--rerank-cache-mb", type=int, default=2048)
    args = parser.parse_args(arguments)
    args.out = args.out or args.work / "engines.jsonl"
    names = args.sets or sorted(p.parent.name for p in args.data.glob("*/questions.jsonl"))
    args.folders = [args.data / name for name in names]
    missing = [str(f) for f in args.folders if not (f / "questions.jsonl").is_file()]
    if missing or not names:
        parser.error(f"no questions.jsonl in {', '.join(missing) or args.data}")
    return args


def main(arguments: list[str] | None = None) -> int:
    """Measures what is missing, and prints the table; returns the exit status."""
    args = parse(arguments)
    settings = {name: getattr(args, name) for name in ("encoder", "precision", "questions", "rerank_depth")}
    args.work.mkdir(parents=True, exist_ok=True)
    try:
        for folder in args.folders:
            bench = Bench(folder, args.work, args)
            for engine in args.engines:
                if any((old["set"], old["engine"]) == (folder.name, engine) for old in read_appended(args.out)):
                    continue
                line = bench.run(engine) | {"settings": settings, "machine": machine()}
                append_jsonl(args.out, [line])
                say(json.dumps({key: value for key, value in line.items() if key not in ("settings", "machine")}))
    except RPLError as error:
        print(f"benchmarks.engines: {error}", file=sys.stderr)
        return 1
    print(table(read_appended(args.out)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
