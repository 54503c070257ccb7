"""The report's two pictures: learning curves over the phases, and EM against what it costs in context.

Colours are Okabe and Ito's, which remain distinct under the common forms of colour blindness; series also differ in
marker and line style, so that nothing is told by colour alone. Drawn with matplotlib's Agg canvas and no global state.
"""

from __future__ import annotations

import io
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rpl.evaluation.statistics import Estimate
from rpl.evaluation.tables import metric_of, row_label

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#000000")
_MARKERS = "osD^vPX*"  # one more than colours, so that pairs repeat late
_NARROW = 0.12  # a phase shorter than this share of all iterations has no room for an upright name
_SMOOTH = 10  # iterations in the moving mean that is drawn through noisy training values


@dataclass(frozen=True, slots=True)
class Point:
    """One logged value: a line of `metrics.jsonl`."""

    phase: str
    iteration: int
    name: str
    value: float


def learning_figure(points: Sequence[Point], names: Sequence[str]) -> Any:
    """Draws logged values over iterations, phases side by side.

    Names that begin with `train/` are drawn as faint values with a moving mean, all others as marked points.

    Args:
        points: The logged values, in any order.
        names: Which to draw, in the order of the legend; at least one point must bear one of them.

    Returns:
        A matplotlib figure.
    """
    from matplotlib.figure import Figure

    wanted = [point for point in points if point.name in names]
    starts, edges = _phase_offsets(wanted)
    figure = Figure(figsize=(9, 4.5), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    for index, name in enumerate(name for name in names if any(point.name == name for point in wanted)):
        colour, marker = COLOURS[index % len(COLOURS)], _MARKERS[index % len(_MARKERS)]
        label = name
        for phase, offset in starts.items():
            series = sorted((p.iteration, p.value) for p in wanted if p.name == name and p.phase == phase)
            if not series:
                continue
            xs, ys = [offset + iteration for iteration, _ in series], [value for _, value in series]
            if name.startswith("train/"):
                axes.plot(xs, ys, color=colour, alpha=0.25, linewidth=1)
                # a single value has no line to see
                axes.plot(xs, _moving_mean(ys), color=colour, linewidth=2, label=label, marker=marker, markevery=[-1])
            else:
                axes.plot(xs, ys, color=colour, linewidth=1, linestyle="--", marker=marker, markersize=6, label=label)
            label = "_nolegend_"
    end = max(right for _, right in edges.values())
    narrow = any(right - left < _NARROW * end for left, right in edges.values())
    for phase, (left, right) in edges.items():
        if left > 0:
            axes.axvline(left, color="#888888", linewidth=0.8)
        axes.text(
            (left + right) / 2,
            1.01,
            phase,
            ha="left" if narrow else "center",
            va="bottom",
            rotation=30 if narrow else 0,
            transform=axes.get_xaxis_transform(),
        )
    axes.set_xlabel("iteration (all phases)")
    axes.set_ylabel("value")
    axes.set_xlim(-0.02 * end, 1.02 * end)
    _finish(axes)
    return figure


def frontier_figure(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Draws EM against printed tokens: one point a row, with the 95 % intervals of both; fixed programs are joined.

    Args:
        rows: Rows of a results document; at least one.

    Returns:
        A matplotlib figure.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 5), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    families: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        families[_family(row)].append(row)
    for index, (family, members) in enumerate(families.items()):
        colour, marker = COLOURS[index % len(COLOURS)], _MARKERS[index % len(_MARKERS)]
        pairs = [(metric_of(row["metrics"], "printed_tokens"), metric_of(row["metrics"], "em")) for row in members]
        pairs.sort(key=lambda pair: pair[0].mean)
        cost, em = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        axes.errorbar(
            [e.mean for e in cost],
            [e.mean for e in em],
            xerr=_bars(cost),
            yerr=_bars(em),
            color=colour,
            marker=marker,
            linestyle=":" if len(members) > 1 else "none",
            linewidth=1,
            elinewidth=1,
            capsize=2,
            label=family,
        )
        for row in members:
            tokens, right = metric_of(row["metrics"], "printed_tokens"), metric_of(row["metrics"], "em")
            if len(members) > 1:
                axes.annotate(
                    _point_label(row), (tokens.mean, right.mean), (5, 5), textcoords="offset points", fontsize=8
                )
    axes.set_xlabel("printed tokens a question (95 % interval)")
    axes.set_ylabel("exact match (95 % interval)")
    axes.margins(x=0.15)  # room for the labels of the outermost points
    axes.set_ylim(bottom=0)
    _finish(axes)
    return figure


def save_png(figure: Any, path: Path) -> None:
    """Writes a figure under a temporary name, then renames it into place."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(buffer.getvalue())
    os.replace(temporary, path)


def _phase_offsets(points: Iterable[Point]) -> tuple[dict[str, int], dict[str, tuple[int, int]]]:
    last: dict[str, int] = {}
    for point in points:
        last[point.phase] = max(last.get(point.phase, 0), point.iteration)
    starts: dict[str, int] = {}
    edges: dict[str, tuple[int, int]] = {}
    position = 0
    for phase, iterations in last.items():
        starts[phase] = position
        edges[phase] = (position, position + max(iterations, 1))
        position += max(iterations, 1)
    return starts, edges


def _moving_mean(values: Sequence[float]) -> list[float]:
    out = []
    for i in range(len(values)):
        window = values[max(0, i + 1 - _SMOOTH) : i + 1]
        out.append(sum(window) / len(window))
    return out


def _stem(row: Mapping[str, Any]) -> tuple[str, str]:
    """Splits `fixed bm25 k=3` into the program's name and its k."""
    k = row.get("settings", {}).get("k")
    suffix = "" if k is None else f" k={k}"
    name = str(row["name"])
    return (name.removesuffix(suffix), suffix.strip()) if suffix and name.endswith(suffix) else (name, "")


def _family(row: Mapping[str, Any]) -> str:
    # the same program at several k, with the same weights, is one curve
    return row_label({"name": _stem(row)[0], "phase": row.get("phase")})


def _point_label(row: Mapping[str, Any]) -> str:
    return f"{_stem(row)[1]} (best)" if row.get("best") else _stem(row)[1]


def _bars(estimates: Sequence[Estimate]) -> list[list[float]]:
    return [[max(0.0, e.mean - e.low) for e in estimates], [max(0.0, e.high - e.mean) for e in estimates]]


def _finish(axes: Any) -> None:
    axes.grid(visible=True, color="#DDDDDD", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize=8)
