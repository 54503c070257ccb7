"""How alike real and synthetic libraries are, in what decides how hard they are to index and search.

A real set is a folder with `corpus.jsonl` or `corpus.jsonl.gz` and `questions.jsonl`; the synthetic one gets as many
passages, passages a title, and questions. The real passages are encoded with the product's encoder, unless their
vectors are given.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.engines import read_asked
from benchmarks.scale_figures import recall
from benchmarks.synthetic_texts import TextShape, TextSource
from benchmarks.synthetic_vectors import VectorShape, VectorSource
from rpl.core.errors import RPLError
from rpl.core.files import write_json
from rpl.retrieval.corpus.corpus import read_corpus
from rpl.retrieval.dense.faiss_indexes import HNSW, IVFPQ, SQ8
from rpl.retrieval.dense.faiss_search import import_faiss
from rpl.retrieval.engines import DenseIndex
from rpl.retrieval.keyword.tokens import Tokenizer
from rpl.retrieval.library_config import LibraryConfig

Array = NDArray[np.float32]

_PROBES = 2000
_NEIGHBOURS = 20
INDEXES: dict[str, tuple[DenseIndex, tuple[dict[str, Any], ...]]] = {
    "SQ8": (SQ8(), ({"rescore": False},)),
    "HNSW": (HNSW(), ({"candidates": 100, "search_effort": 100},)),
    "IVF-PQ": (IVFPQ(gpu=False), ({"probes": 8}, {"probes": 32}, {"probes": 100_000, "rescore": False})),
}
"""Indexes and searches whose recall is compared: the outcome that everything above is meant to decide."""


def vector_figures(passages: Array, queries: Array) -> dict[str, float]:
    """Returns what decides how hard vectors are to index.

    Args:
        passages: Unit vectors of shape (passages, dim), at least a few thousand.
        queries: Unit vectors of shape (queries, dim).
    """
    faiss = import_faiss()
    mean = passages.mean(axis=0)
    values = np.linalg.eigvalsh(np.cov(passages - mean, rowvar=False))[::-1]
    reached = np.cumsum(values) / values.sum()
    figures = {"length of the mean vector": float(np.linalg.norm(mean))}
    for share in (0.5, 0.9):
        figures[f"principal axes that hold {share:.0%} of the variance"] = int(np.searchsorted(reached, share)) + 1
    probes = np.random.default_rng(0).choice(len(passages), min(_PROBES, len(passages)), replace=False)
    scores, places = faiss.knn(passages[probes], passages, 101, metric=faiss.METRIC_INNER_PRODUCT)
    scores = np.clip(scores[:, 1:], -1, 1)  # the first is the passage itself
    for rank in (1, 10, 100):
        figures[f"similarity of a passage's neighbour {rank}, mean"] = float(scores[:, rank - 1].mean())
    figures["similarity of a passage's neighbour 1, standard deviation"] = float(scores[:, 0].std())
    figures["intrinsic dimension"] = intrinsic_dimension(np.sqrt(np.maximum(2 - 2 * scores[:, :_NEIGHBOURS], 1e-12)))
    counts = np.bincount(places[:, 1:11].ravel(), minlength=len(passages)).astype(float)
    figures["hubness: skewness of how often a passage is a neighbour"] = float(
        ((counts - counts.mean()) ** 3).mean() / counts.std() ** 3
    )
    found = faiss.knn(queries, passages, 100, metric=faiss.METRIC_INNER_PRODUCT)[0]
    for rank in (1, 10, 100):
        figures[f"similarity of a query's result {rank}, mean"] = float(found[:, rank - 1].mean())
    figures["similarity of a query's result 1, standard deviation"] = float(found[:, 0].std())
    return figures


def intrinsic_dimension(distances: NDArray[Any]) -> float:
    """Returns the maximum-likelihood estimate of the dimension from distances to neighbours.

    Source: Levina and Bickel, 2004, with the averaging of MacKay and Ghahramani, 2005.

    Args:
        distances: Shape (points, neighbours), rising, above zero.

    >>> intrinsic_dimension(np.array([[0.5, 1.0]]))  # one neighbour at half the distance of the next
    1.4426950408889634
    """
    logs = np.log(distances[:, -1:] / distances[:, :-1])
    return float(1 / logs.mean())


def index_figures(passages: Array, queries: Array) -> dict[str, float]:
    """Returns the recall of each of `INDEXES` among the first 10 and 100."""
    faiss = import_faiss()
    truth = faiss.knn(queries, passages, 100, metric=faiss.METRIC_INNER_PRODUCT)[1]
    figures = {}
    for name, (index, searches) in INDEXES.items():
        with tempfile.TemporaryDirectory() as folder:
            index.build(passages, Path(folder))
            for search in searches:
                opened = replace(index, **search).load(passages, Path(folder))
                places = opened.search(queries, opened.candidates or 100)[1]
                how = ", ".join(f"{key} {value}".lower() for key, value in search.items())
                for k in (10, 100):
                    figures[f"recall@{k}, {name}, {how}"] = recall(places, truth, k)[0]
                opened.close()
    return figures


def text_figures(contents: Sequence[str], questions: Sequence[str]) -> dict[str, float]:
    """Returns what decides the size of a keyword index and the work of a query.

    Args:
        contents: What is indexed of each passage.
        questions: Texts.
    """
    tokenizer = Tokenizer()
    frequency: dict[str, int] = {}
    characters = tokens = 0
    for text in contents:
        terms = tokenizer(text)
        characters += len(text)
        tokens += len(terms)
        for term in set(terms):
            frequency[term] = frequency.get(term, 0) + 1
    asked = [tokenizer(question) for question in questions]
    touched = [sum(frequency.get(term, 0) for term in set(terms)) / len(contents) for terms in asked]
    return {
        "characters of a passage": characters / len(contents),
        "terms of a passage": tokens / len(contents),
        "different terms of a passage": sum(frequency.values()) / len(contents),
        "different terms of the corpus": len(frequency),
        "terms of a question": sum(map(len, asked)) / len(asked),
        "postings of a question over passages, mean": float(np.mean(touched)),
        "postings of a question over passages, 95th percentile": float(np.quantile(touched, 0.95)),
    }


def table(rows: dict[str, tuple[float, float]]) -> str:
    """Returns the comparison as a Markdown table."""
    lines = ["| figure | real | synthetic |", "| --- | ---: | ---: |"]
    return "\n".join(lines + [f"| {name} | {_cell(a)} | {_cell(b)} |" for name, (a, b) in rows.items()])


def _cell(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _real_vectors(args: argparse.Namespace, contents: Sequence[str], questions: Sequence[str]) -> tuple[Array, Array]:
    from rpl.retrieval.indexing.folder import load_encoder

    encoder = load_encoder(LibraryConfig(encoder=args.encoder))
    if args.embeddings is not None:
        passages = np.load(args.embeddings).astype(np.float32)
    else:
        passages = encoder.encode(contents, "passage")
    return passages, encoder.encode(questions, "query")


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.likeness", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("data", type=Path, help="folder of one set")
    add("--encoder", default="all-MiniLM-L6-v2")
    add("--embeddings", type=Path, help="vectors of the passages, made by the same encoder (default: encode them)")
    add("--questions", type=int, default=500, help="at most so many (default 500)")
    add("--seed", type=int, default=0)
    add("--out", type=Path, help="write the figures to this JSON file")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Compares, prints the table, and returns the exit status."""
    args = parse(arguments)
    try:
        plain = args.data / "corpus.jsonl"
        corpus = read_corpus(plain if plain.exists() else plain.with_suffix(".jsonl.gz"))
        contents = [corpus.contents(position) for position in range(len(corpus))]
        questions = [q.query for q in read_asked(args.data / "questions.jsonl")][: args.questions]
        passages, queries = _real_vectors(args, contents, questions)
    except RPLError as error:
        print(f"benchmarks.likeness: {error}", file=sys.stderr)
        return 1
    real = vector_figures(passages, queries) | index_figures(passages, queries) | text_figures(contents, questions)
    mean = len(corpus) / len({title or number for number, title in enumerate(corpus.titles)})
    source = VectorSource(VectorShape(dim=passages.shape[1]), args.seed, mean)
    made = np.concatenate(list(source.passages(len(corpus))))
    about = np.sort(np.random.default_rng(args.seed).choice(len(made), len(queries), replace=False))
    asked = source.queries(about)
    texts = TextSource(TextShape(), args.seed, mean)
    pairs = list(texts.passages(len(corpus)))
    synthetic = vector_figures(made, asked) | index_figures(made, asked)
    synthetic |= text_figures(
        [f'"{title}"\n{text}' for title, text in pairs],
        [texts.question(*pairs[i], n) for n, i in enumerate(about.tolist())],
    )
    rows = {name: (real[name], synthetic[name]) for name in real}
    print(table(rows))
    if args.out is not None:
        write_json(args.out, {"set": args.data.name, "passages": len(corpus), "questions": len(questions), **rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
