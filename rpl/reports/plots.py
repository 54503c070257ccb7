"""The report's two pictures: learning curves over the phases, and EM against what it costs in context.

Colours are Okabe and Ito's, which remain distinct under the common forms of colour blindness; series also differ in
marker and line style, so that nothing is told by colour alone. Drawn with matplotlib's Agg canvas and no global state.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rpl.core.files import replacing
from rpl.evaluation.statistics import Estimate
from rpl.reports.tables import metric_of, row_label

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#000000")
_MARKERS = "osD^vPX*"  # one more than colours, so that pairs repeat late
_SMOOTH = 10  # iterations in the moving mean that is drawn through noisy training values


@dataclass(frozen=True, slots=True)
class Point:
    """One logged value: a line of `metrics.jsonl`."""

    phase: str
    iteration: int
    name: str
    value: float


def learning_figure(points: Sequence[Point], names: Sequence[str]) -> Any:
    """Draws logged values over iterations, one panel a phase with a common vertical axis.

    Names that begin with `train/` are drawn as faint values with a moving mean, all others as marked points.

    Args:
        points: The logged values; panels stand side by side in the order in which phases first appear.
        names: Which to draw, in the order of the legend; at least one point must bear one of them.

    Returns:
        A matplotlib figure.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    wanted = [point for point in points if point.name in names]
    drawn = {point.phase for point in wanted}
    phases = [phase for phase in dict.fromkeys(point.phase for point in points) if phase in drawn]
    present = [name for name in names if any(point.name == name for point in wanted)]
    figure = Figure(figsize=(max(6.0, 2.4 * len(phases) + 2.5), 4.2), dpi=150, layout="constrained")
    panels = figure.subplots(1, len(phases), sharey=True, squeeze=False)[0]
    for axes, phase in zip(panels, phases, strict=True):
        for index, name in enumerate(present):
            colour, marker = COLOURS[index % len(COLOURS)], _MARKERS[index % len(_MARKERS)]
            series = sorted((p.iteration, p.value) for p in wanted if p.name == name and p.phase == phase)
            xs, ys = [iteration for iteration, _ in series], [value for _, value in series]
            if name.startswith("train/"):
                axes.plot(xs, ys, color=colour, alpha=0.25, linewidth=1)
                # a single value has no line to see
                ends = [-1] if series else None
                axes.plot(xs, _moving_mean(ys), color=colour, linewidth=2, label=name, marker=marker, markevery=ends)
            else:
                axes.plot(xs, ys, color=colour, linewidth=1, linestyle="--", marker=marker, markersize=6, label=name)
        axes.set_title(phase, fontsize=10)
        axes.set_xlabel("iteration")
        axes.set_xlim(-0.5, max(point.iteration for point in points if point.phase == phase) + 0.5)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))
        axes.grid(color="#dddddd", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("value")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False, fontsize=8)
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
    with replacing(path) as file:
        figure.savefig(file, format="png")


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
