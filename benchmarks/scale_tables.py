"""The figures of the scale benchmark as Markdown tables, and what they say about a library of another size.

A projection takes a figure that was measured and multiplies it by how its cause grows; `RULES` has a rule for each
figure, with its reason. Where two sizes were measured, the same rule from the smaller to the larger one says how far it
can be trusted.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rpl.core.files import read_appended
from rpl.retrieval.engines import DENSE_INDEXES, DenseIndex, make

Line = dict[str, Any]


@dataclass(frozen=True)
class Size:
    """Of a library."""

    passages: int
    dim: int


@dataclass(frozen=True)
class Rule:
    """How a figure grows."""

    name: str
    """In words."""
    factor: Callable[[Size, Size, Line], float]
    """From one size to another, for the line it was measured in."""


def _linear(a: Size, b: Size, _: Line) -> float:
    return b.passages * b.dim / (a.passages * a.dim)


def _passages(a: Size, b: Size, _: Line) -> float:
    return b.passages / a.passages


def _graph_build(a: Size, b: Size, line: Line) -> float:
    return _linear(a, b, line) * math.log(b.passages) / math.log(a.passages)


def _graph_walk(a: Size, b: Size, _: Line) -> float:
    return b.dim / a.dim * math.log(b.passages) / math.log(a.passages)


def _lists_scan(a: Size, b: Size, _: Line) -> float:
    return b.dim / a.dim * math.sqrt(b.passages / a.passages)


def _lists_build(a: Size, b: Size, _: Line) -> float:
    return _lists_products(b) / _lists_products(a)


def _lists_products(size: Size) -> float:
    """Multiplications of k-means (ten rounds over its sample) and of assigning every passage to its list."""
    lists = 4 * math.sqrt(size.passages)
    rows = min(size.passages, max(100_000, 64 * lists))
    return size.dim * lists * (10.0 * rows + size.passages)


def _cost(field: str) -> Callable[[Size, Size, Line], float]:
    """The growth of what `DenseIndex.cost` says, which tests compare with what was measured."""

    def factor(a: Size, b: Size, line: Line) -> float:
        engine: DenseIndex = make("dense_index", line["engine"], DenseIndex, DENSE_INDEXES)  # type: ignore[type-abstract]
        costs = [getattr(engine.cost(size.passages, size.dim), field) for size in (a, b)]
        return float(costs[1] / costs[0]) if costs[0] else 1.0

    return factor


SCAN = Rule("n · dim", _linear)
PASSAGES = Rule("n", _passages)
DISK = Rule("n · dim · bytes of a number, and links or codes", _cost("disk"))
MEMORY = Rule("as the files", _cost("memory"))
RULES: dict[str, dict[str, Rule]] = {
    "flat": {"single": SCAN, "batch": SCAN, "memory": MEMORY},
    "fp16": {"seconds": SCAN, "disk": DISK, "single": SCAN, "batch": SCAN, "memory": MEMORY},
    "sq8": {"seconds": SCAN, "disk": DISK, "single": SCAN, "batch": SCAN, "memory": MEMORY},
    "hnsw": {
        "seconds": Rule("n · log n · dim", _graph_build),
        "disk": DISK,
        "single": Rule("log n · dim", _graph_walk),
        "batch": Rule("log n · dim", _graph_walk),
        "memory": MEMORY,
    },
    "ivfpq": {
        "seconds": Rule("lists · (10 · sample + n) · dim", _lists_build),
        "disk": DISK,
        "single": Rule("√n · dim", _lists_scan),
        "batch": Rule("√n · dim", _lists_scan),
        "memory": MEMORY,
    },
    "bm25": {"seconds": PASSAGES, "disk": PASSAGES, "single": PASSAGES, "batch": PASSAGES, "memory": PASSAGES},
}
RULES["hnsw-sq8"] = RULES["hnsw"]


def tables(lines: Sequence[Line]) -> str:
    """Returns what was built and how it is searched, as two Markdown tables."""
    built = ["| index | build | memory of the build | on disk | bytes a passage | `cost` / measured |"]
    built.append("| --- | ---: | ---: | ---: | ---: | --- |")
    served = ["| index | search | one query, median / p95 | not in memory yet | in a batch of 64 | recall@10 / @100 "]
    served[0] += "| own memory + index + vectors or texts |"
    served.append("| --- | --- | ---: | ---: | ---: | ---: | ---: |")
    for line in lines:
        figures = line["figures"]
        if line["phase"] == "build":
            cells = [f"{figures['seconds']:.0f} s", _bytes(figures["build_anonymous"]), _bytes(figures["disk"])]
            cells += [f"{figures['disk'] / line['passages']:.0f}", _estimates(figures)]
            built.append(f"| {line['case']} | {' | '.join(cells)} |")
            continue
        single, cold, batch = figures["single"], figures["cold"], figures["batch"]
        cells = [_search(line), f"{single['median_ms']:.2f} / {single['p95_ms']:.2f} ms", f"{cold['median_ms']:.2f} ms"]
        cells.append(f"{batch['median_ms']:.2f} ms" if batch else "")
        cells.append(f"{figures['recall@10']:.3f} / {figures['recall@100']:.3f}" if "recall@10" in figures else "")
        cells.append(" + ".join(_bytes(figures["memory"][kind]) for kind in ("anonymous", "index", "data")))
        served.append(f"| {line['case']} | {' | '.join(cells)} |")
    return "\n".join([*built, "", *served])


def projection(lines: Sequence[Line], target: Size) -> str:
    """Returns what the figures become at another size, as a Markdown table that shows the arithmetic."""
    rows = [
        "| index | figure | measured | grows with | factor | projected |",
        "| --- | --- | ---: | --- | ---: | ---: |",
    ]
    for line in lines:
        here = Size(line["passages"], line["dim"])
        for figure, rule in RULES[line["case"]].items():
            value = measured(line, figure)
            if value is not None:
                factor = rule.factor(here, target, line)
                name = _search(line) if line["phase"] == "serve" else "build"
                cells = [_show(figure, value), rule.name, f"{factor:.2f}", _show(figure, value * factor)]
                rows.append(f"| {line['case']} {name} | {figure} | {' | '.join(cells)} |")
    return "\n".join(rows)


def check(small: Sequence[Line], large: Sequence[Line]) -> str:
    """Returns, for what was measured at two sizes, how the rules' predictions from the smaller one came out."""
    rows = ["| index | figure | predicted | measured | predicted / measured |", "| --- | --- | ---: | ---: | ---: |"]
    for line in large:
        same = [old for old in small if all(old[key] == line[key] for key in ("case", "phase", "engine", "threads"))]
        for figure, rule in RULES[line["case"]].items() if same else ():
            before, after = measured(same[0], figure), measured(line, figure)
            if before is None or after is None:
                continue
            sizes = [Size(x["passages"], x["dim"]) for x in (same[0], line)]
            predicted = before * rule.factor(sizes[0], sizes[1], line)
            name = _search(line) if line["phase"] == "serve" else "build"
            cells = [_show(figure, predicted), _show(figure, after), f"{predicted / after:.2f}"]
            rows.append(f"| {line['case']} {name} | {figure} | {' | '.join(cells)} |")
    return "\n".join(rows)


def measured(line: Line, figure: str) -> float | None:
    """Returns a figure of a line: seconds, bytes or milliseconds; `None` where the line has no such figure."""
    figures = line["figures"]
    if figure in ("seconds", "disk"):
        return figures[figure] if line["phase"] == "build" else None
    if line["phase"] == "build" or not figures.get(figure):
        return None
    if figure == "memory":
        # An index without files of its own is the vectors; how many of others' vectors are touched depends on queries.
        return float(figures["memory"]["anonymous"] + (figures["memory"]["index"] or figures["memory"]["data"]))
    return float(figures[figure]["median_ms"])


def _show(figure: str, value: float) -> str:
    if figure in ("disk", "memory"):
        return _bytes(value)
    if figure == "seconds":
        return f"{value:.0f} s" if value < 600 else f"{value / 60:.0f} min" if value < 7200 else f"{value / 3600:.1f} h"
    return f"{value:.2f} ms" if value < 100 else f"{value:.0f} ms"


def _bytes(value: float) -> str:
    return f"{value / 1e9:.2f} GB" if abs(value) >= 1e9 else f"{value / 1e6:.0f} MB"


def _search(line: Line) -> str:
    engine = line["engine"]
    given = {} if isinstance(engine, str) else engine["init_args"]
    shown = ("probes", "search_effort", "candidates", "rescore")
    defaults = {"candidates": 200, "rescore": True}
    return (
        ", ".join(f"{k} {given[k]}".lower() for k in shown if k in given and given[k] != defaults.get(k)) or "as it is"
    )


def _estimates(figures: dict[str, Any]) -> str:
    cost = figures["cost"]
    if not cost or not figures["disk"]:
        return ""
    return f"disk {cost['disk'] / figures['disk']:.2f}, build {cost['build_memory'] / figures['build_anonymous']:.2f}"


def main(arguments: list[str] | None = None) -> int:
    """Prints the tables of a file of figures, and a projection where one is asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale_tables", description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--passages", type=int, default=1_000_000, help="show what was measured at this size")
    parser.add_argument("--project", metavar="N:DIM", help="such as 21015324:768")
    parser.add_argument("--check", type=int, metavar="N", help="predict from this smaller size")
    args = parser.parse_args(arguments)
    lines = read_appended(args.file)
    shown = [line for line in lines if line["passages"] == args.passages]
    print(tables(shown))
    if args.check is not None:
        print("\n" + check([line for line in lines if line["passages"] == args.check], shown))
    if args.project is not None:
        passages, _, dim = args.project.partition(":")
        print("\n" + projection(shown, Size(int(passages), int(dim))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
