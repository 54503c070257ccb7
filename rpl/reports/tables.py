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


def format_table(results: Mapping[str, Any]) -> str:
    """Renders the rows of a results document for a terminal: aligned, at most 110 columns.

    EM carries its 95 % interval; the report has one for every column.

    Args:
        results: A document as `rpl.reports.results` describes it.
    """
    header = ["system", "EM", "F1", "recall", "all gold", "tokens", "turns", "calls", "invalid", "n"]
    lines = [header]
    for row in results["rows"]:
        values = row["metrics"]
        star = " *" if row.get("best") else ""
        cells = [_shorten(row_label(row), _TERMINAL_NAME - len(star)) + star]
        cells.append(format_estimate(metric_of(values, "em"), 2))
        cells += [format_estimate(metric_of(values, name), 2, interval=False) for name in ("f1", "recall", "all_gold")]
        cells.append(format_estimate(metric_of(values, "printed_tokens"), 0, interval=False))
        cells += [format_estimate(metric_of(values, name), 2, interval=False) for name in ("turns", "calls", "invalid")]
        lines.append([*cells, str(metric_of(values, "em").n)])
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    text = [
        "  ".join([line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True))]).rstrip()
        for line in lines
    ]
    text.insert(1, "-" * len(text[0]))
    if any(row.get("best") for row in results["rows"]):
        text.append("* best k of the fixed program")
    return "\n".join(text)


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]], numbers_from: int = 1) -> str:
    """Renders a Markdown table; columns from `numbers_from` on are aligned to the right."""
    rule = ["---" if i < numbers_from else "---:" for i in range(len(header))]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in (header, rule, *rows)
    )


def main_table(rows: Sequence[Mapping[str, Any]], names: Sequence[str] = MAIN_METRICS) -> str:
    """Renders all rows with the named metrics and their intervals."""
    header = ["system", *(label_of(name) for name in names), "n"]
    body = []
    for row in rows:
        cells = [
            format_estimate(metric_of(row["metrics"], name), digits_of(name), name not in _BARE)
            if name in row["metrics"]
            else MISSING
            for name in names
        ]
        label = row_label(row)
        body.append(
            [f"**{label}**, best k" if row.get("best") else label, *cells, str(metric_of(row["metrics"], "em").n)]
        )
    return markdown_table(header, body)


def group_table(rows: Sequence[Mapping[str, Any]], field: str, metric: str) -> str:
    """Renders one metric by question type or data set, one column a group.

    Args:
        rows: Rows of a results document.
        field: `by_type` or `by_dataset`.
        metric: A name in `METRICS`.
    """
    groups = sorted({name for row in rows for name in row.get(field, {})})
    body = [
        [
            row_label(row),
            *(
                format_estimate(metric_of(row.get(field, {}).get(g, {}), metric), digits_of(metric))
                if g in row.get(field, {})
                else MISSING
                for g in groups
            ),
        ]
        for row in rows
    ]
    sizes = {g: max(metric_of(row.get(field, {}).get(g, {}), "em").n for row in rows) for g in groups}
    return markdown_table([label_of(metric), *(f"{g} (n = {sizes[g]})" for g in groups)], body)


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
