"""Tables of results: plain text for the terminal, Markdown for the report. Pure functions of a results document."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rpl.evaluation.records import METRICS
from rpl.evaluation.statistics import NOTHING, Estimate, holm

NO_GOLD = "no gold"
MISSING = "–"
MAIN_METRICS = ("em", "f1", "recall", "all_gold", "printed_tokens", "turns", "calls", "invalid")
_TERMINAL_NAME = 28
_BARE = {metric.name for metric in METRICS.values() if not metric.shows_interval}


def format_estimate(estimate: Estimate, digits: int = 3, interval: bool = True) -> str:
    """Renders `value [low, high]`.

    >>> format_estimate(Estimate(0.5, 0.25, 0.75, 8), digits=2)
    '0.50 [0.25, 0.75]'
    """
    if estimate.n == 0:
        return NO_GOLD
    if not interval:
        return f"{estimate.mean:.{digits}f}"
    high = f"{estimate.high:.{digits}f}" if math.isfinite(estimate.high) else "unbounded"
    return f"{estimate.mean:.{digits}f} [{estimate.low:.{digits}f}, {high}]"


def metric_of(values: Mapping[str, Any], name: str) -> Estimate:
    """Returns one estimate of a `metrics` object; `NOTHING` where it is missing."""
    return Estimate.from_json(values[name]) if name in values else NOTHING


def label_of(metric: str) -> str:
    """Returns how tables call a metric; one that is not in `METRICS` keeps its name."""
    return METRICS[metric].label if metric in METRICS else metric


def digits_of(metric: str) -> int:
    """Returns how many decimals a metric is shown with."""
    return METRICS[metric].digits if metric in METRICS else 3


def row_label(row: Mapping[str, Any]) -> str:
    """Returns what a row is called: its name, its phase in brackets, and how many questions it leaves out as void."""
    label = f"{row['name']} ({row['phase']})" if row.get("phase") else str(row["name"])
    return f"{label}, {row['void']} void" if row.get("void") else label


def terminal_table(results: Mapping[str, Any]) -> str:
    """Renders the rows of a results document for a terminal: aligned, at most 110 columns.

    EM carries its 95 % interval; the report has one for every column. `n` counts the questions behind a row; where
    fewer of them have known gold passages, `n gold` counts those behind recall and all gold.

    Args:
        results: A document as `rpl.reports.results` describes it.
    """
    rows = results["rows"]
    fewer = any(metric_of(row["metrics"], "recall").n not in (0, metric_of(row["metrics"], "em").n) for row in rows)
    header = ["system", "EM", "F1", "recall", "all gold", "tokens", "turns", "calls", "invalid", "n"]
    header += ["n gold"] if fewer else []
    name_width = _TERMINAL_NAME - (len("  n gold") if fewer else 0)
    lines = [header]
    for row in rows:
        values = row["metrics"]
        star = " *" if row.get("best") else ""
        cells = [_shorten(row_label(row), name_width - len(star)) + star]
        cells.append(format_estimate(metric_of(values, "em"), 2))
        cells += [format_estimate(metric_of(values, name), 2, interval=False) for name in ("f1", "recall", "all_gold")]
        cells.append(format_estimate(metric_of(values, "printed_tokens"), 0, interval=False))
        cells += [format_estimate(metric_of(values, name), 2, interval=False) for name in ("turns", "calls", "invalid")]
        cells.append(str(metric_of(values, "em").n))
        lines.append([*cells, str(metric_of(values, "recall").n)] if fewer else cells)
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    text = [
        "  ".join([line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True))]).rstrip()
        for line in lines
    ]
    text.insert(1, "-" * len(text[0]))
    if any(row.get("best") for row in rows):
        text.append("* best k of the fixed program")
    return "\n".join(text)


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]], numbers_from: int = 1) -> str:
    """Renders a Markdown table; columns from `numbers_from` on are aligned to the right."""
    rule = ["---" if i < numbers_from else "---:" for i in range(len(header))]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in (header, rule, *rows)
    )


def main_table(rows: Sequence[Mapping[str, Any]], names: Sequence[str] = MAIN_METRICS) -> str:
    """Renders all rows with the named metrics and their intervals.

    The last column counts the questions behind the first metric that a row has; a cell that rests on another number of
    questions says so.
    """
    body = []
    for row in rows:
        estimates = {name: metric_of(row["metrics"], name) for name in names if name in row["metrics"]}
        n = next((estimate.n for estimate in estimates.values()), 0)
        label = f"**{row_label(row)}**, best k" if row.get("best") else row_label(row)
        cells = [_cell(name, estimates[name], n) if name in estimates else MISSING for name in names]
        body.append([label, *cells, str(n)])
    return markdown_table(["system", *(label_of(name) for name in names), "n"], body)


def group_table(rows: Sequence[Mapping[str, Any]], field: str, metric: str) -> str:
    """Renders one metric by question type or data set, one column a group.

    The head of a column counts the questions behind its cells; where they rest on different numbers of questions, each
    cell has its own.

    Args:
        rows: Rows of a results document.
        field: `by_type` or `by_dataset`.
        metric: A name in `METRICS`.
    """
    groups = sorted({name for row in rows for name in row.get(field, {})})
    found = {
        group: [metric_of(row[field][group], metric) if group in row.get(field, {}) else None for row in rows]
        for group in groups
    }
    common: dict[str, int | None] = {}
    for group, estimates in found.items():
        sizes = {estimate.n for estimate in estimates if estimate is not None}
        common[group] = sizes.pop() if len(sizes) == 1 else None
    body = [
        [
            row_label(row),
            *(MISSING if (cell := found[g][i]) is None else _cell(metric, cell, common[g]) for g in groups),
        ]
        for i, row in enumerate(rows)
    ]
    heads = [group if common[group] is None else f"{group} (n = {common[group]})" for group in groups]
    return markdown_table([label_of(metric), *heads], body)


def _cell(metric: str, estimate: Estimate, said: int | None) -> str:
    """Renders an estimate, with its number of questions where the table does not say that number elsewhere."""
    text = format_estimate(estimate, digits_of(metric), metric not in _BARE)
    return text if estimate.n in (0, said) else f"{text} (n = {estimate.n})"


def verdict(difference: Estimate, adjusted_p: float | None = None) -> str:
    """Says what a difference a − b allows to say, and no more.

    Args:
        difference: With its 95 % interval.
        adjusted_p: A p-value that was adjusted for the number of tests, where there was a test.

    >>> verdict(Estimate(0.02, -0.01, 0.05, 200))
    'no difference shown'
    >>> verdict(Estimate(0.03, 0.01, 0.05, 200), adjusted_p=0.08)
    'no difference shown after Holm'
    """
    if not difference.excludes_zero:
        return "no difference shown"
    if adjusted_p is not None and adjusted_p >= 0.05:
        return "no difference shown after Holm"
    return "a higher" if difference.low > 0 else "a lower"


def comparison_table(comparisons: Sequence[Mapping[str, Any]]) -> str:
    """Renders paired comparisons; McNemar's p-values are adjusted by Holm over the table."""
    tested = [i for i, c in enumerate(comparisons) if c.get("mcnemar")]
    adjusted = dict(zip(tested, holm([comparisons[i]["mcnemar"]["p_value"] for i in tested]), strict=True))
    body = []
    for i, item in enumerate(comparisons):
        difference = Estimate.from_json(item["difference"])
        test = item.get("mcnemar")
        body.append(
            [
                f"{item['a']} − {item['b']}",
                label_of(item["metric"]),
                format_signed(difference, digits_of(item["metric"])),
                format_estimate(Estimate.from_json(item["ratio"]), 2) if item.get("ratio") else MISSING,
                f"{test['only_a']} / {test['only_b']}" if test else MISSING,
                f"{format_p(test['p_value'])} ({format_p(adjusted[i])})" if test else MISSING,
                str(difference.n),
                verdict(difference, adjusted.get(i)),
            ]
        )
    header = [
        "a − b",
        "metric",
        "difference",
        "ratio a / b",
        "only a / only b right",
        "McNemar p (Holm)",
        "n",
        "reading",
    ]
    return markdown_table(header, body)


def format_signed(estimate: Estimate, digits: int = 3) -> str:
    """Renders a difference with its sign.

    >>> format_signed(Estimate(0.02, -0.01, 0.05, 200), 2)
    '+0.02 [-0.01, +0.05]'
    """
    if estimate.n == 0:
        return NO_GOLD
    return f"{estimate.mean:+.{digits}f} [{estimate.low:+.{digits}f}, {estimate.high:+.{digits}f}]"


def format_p(p: float) -> str:
    """Renders a p-value.

    >>> format_p(0.0004), format_p(0.0412)
    ('< 0.001', '0.041')
    """
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def _shorten(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
