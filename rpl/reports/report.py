"""The report of a run: `report.md` with tables, verdicts and two pictures, from `results.json` and `metrics.jsonl`.

`metrics.jsonl` holds one logged value a line, `{"phase", "iteration", "name", "value"}`; where a resumed run logged the
same value again, the later line counts. Wording: an interval that includes 0 is reported as "no difference shown",
whatever its middle.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rpl.core.errors import CheckpointError, DataError
from rpl.core.files import write_text
from rpl.evaluation.statistics import Estimate
from rpl.reports.plots import Point, frontier_figure, learning_figure, save_png
from rpl.reports.results import FILE, read_results
from rpl.reports.tables import (
    comparison_table,
    format_estimate,
    group_table,
    main_table,
    markdown_table,
    metric_of,
    row_label,
)

METRICS_FILE = "metrics.jsonl"
CURVES = ("train/reward", "train/reward_em", "val/em", "val/evidence_recall", "val/all_gold", "test/em")
"""What the learning curve shows, of what was logged."""

_RESULTS_NOTE = (
    "Each cell is `value [low, high]` with a 95 % interval over questions (Wilson for rates, bootstrap for means). "
    "Evidence recall and all gold are measured by passage id, on questions with known gold passages only."
)
_COMPARISONS_NOTE = (
    "Same questions, both systems greedy. Differences carry a paired bootstrap interval (95 %); the exact McNemar test "
    "compares the questions that only one of the two gets right, its p-values adjusted by Holm over this table."
)
_REPAIR_NOTE = (
    "Repairs are verified with gold on training questions. The share repaired says how much training data repair "
    "yields; it is not an accuracy."
)
_LEARNING_NOTE = (
    "Training values are means over the iteration's rollouts at training temperature, with a moving mean; validation "
    "and test values are greedy."
)
_COST_METRICS = ("completion_tokens", "program_errors", "printed_nothing", "precision", "evidence_f1", "seconds")


def write_report(run_dir: Path) -> Path:
    """Writes `report.md`, `learning.png` and `frontier.png` into a run folder and returns the path of the report.

    Sections without data are left out.

    Raises:
        CheckpointError: The folder holds neither results nor logged values.
        DataError: A file is damaged; the message names file and line.
    """
    results = read_results(run_dir)
    rows = results["rows"]
    points = with_measured(read_metrics(run_dir / METRICS_FILE), rows)
    if not rows and not points:
        raise CheckpointError(f"{run_dir}: nothing to report: no rows in {FILE} and no {METRICS_FILE}")
    parts = ["# Report"]
    if rows:
        parts += _results_section(rows)
        if any(metric_of(row["metrics"], "em").n for row in rows):
            save_png(frontier_figure(rows), run_dir / "frontier.png")
            parts += ["## EM and its cost in context", "![EM against printed tokens](frontier.png)"]
        parts += _kinds_section(rows)
    if results["comparisons"]:
        parts += [
            "## Paired comparisons",
            _COMPARISONS_NOTE,
            comparison_table(results["comparisons"]),
        ]
        parts += _differing_note(results["comparisons"])
    if results["repair"]:
        parts += _repair_section(results["repair"])
    if any(point.name in CURVES for point in points):
        save_png(learning_figure(points, CURVES), run_dir / "learning.png")
        parts += [
            "## Learning",
            _LEARNING_NOTE,
            "![Learning curves](learning.png)",
        ]
    path = run_dir / "report.md"
    write_text(path, "\n\n".join(parts) + "\n")
    return path


def read_metrics(path: Path) -> list[Point]:
    """Reads logged values in order of first appearance; a later value of the same phase, iteration and name counts.

    A last line that is still being written is left alone, so that a running job can be reported.

    Raises:
        DataError: A line is not a logged value.
    """
    if not path.exists():
        return []
    raw = path.read_text(encoding="utf-8")
    points: dict[tuple[str, int, str], Point] = {}
    for number, line in enumerate(raw[: raw.rfind("\n") + 1].splitlines(), start=1):
        if not line.strip():
            continue
        try:
            data = json.loads(line)
            point = Point(str(data["phase"]), int(data["iteration"]), str(data["name"]), float(data["value"]))
        except (json.JSONDecodeError, KeyError, TypeError, ValueError) as error:
            raise DataError(
                f"{path}:{number}: expected {{phase, iteration, name, value}}: {type(error).__name__}: {error}"
            ) from error
        if math.isfinite(point.value):
            points[point.phase, point.iteration, point.name] = point
    return list(points.values())


def with_measured(points: Sequence[Point], rows: Sequence[Mapping[str, Any]]) -> list[Point]:
    """Adds the EM that was measured after each phase, as `test/em` at the phase's last logged iteration."""
    last: dict[str, int] = {}
    for point in points:
        last[point.phase] = max(last.get(point.phase, 0), point.iteration)
    measured = {row["phase"]: metric_of(row["metrics"], "em") for row in rows if row["name"] == "policy"}
    return [*points, *(Point(p, last[p], "test/em", em.mean) for p, em in measured.items() if p in last and em.n)]


def _results_section(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    parts = [
        "## Results",
        _RESULTS_NOTE,
        main_table(rows),
    ]
    if any(row.get("best") for row in rows):
        parts.append("Best k: the fixed program's best by EM, ties to fewer printed tokens. All tried k are listed.")
    parts += _answerable_note(rows) + _warnings(rows)
    parts += ["### Cost and symptoms", main_table(rows, _COST_METRICS)]
    if calls := _calls_table(rows):
        parts += ["### Calls of retrieval", calls]
    if settings := _settings_table(rows):
        parts += ["### Settings", settings]
    return parts


def _answerable_note(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Says of how many questions the corpus has all gold; the others can only be answered from memory."""
    counts = dict.fromkeys((row["answerable"], row["with_gold"]) for row in rows if row.get("with_gold"))
    return [
        f"Answerable here: n = {answerable}. The corpus has all gold passages of {answerable} of the {with_gold} "
        "questions that name any; the others count in every score."
        for answerable, with_gold in counts
    ]


def _warnings(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names what looks like retrieval that is broken or useless; a plain table would hide it."""
    notes = []
    direct = [metric_of(row["metrics"], "em").mean for row in rows if row["name"] == "direct"]
    for row in rows:
        if row.get("void"):
            notes.append(
                f"- **{row['name']}**: infrastructure failed {row['void']} question(s), and no score counts them. "
                "Scores over fewer questions are not comparable with others."
            )
        em, nothing = metric_of(row["metrics"], "em"), metric_of(row["metrics"], "printed_nothing")
        if row["name"] != "direct" and direct and em.n and em.mean <= max(direct):
            notes.append(f"- **{row_label(row)}** is not above direct answering in EM: check what it retrieves.")
        if nothing.n and nothing.mean > 0.5:
            share = f"{nothing.mean:.0%}"
            notes.append(f"- **{row_label(row)}**: on {share} of the questions its programs printed no passage.")
    return ["\n".join(notes)] if notes else []


def _calls_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Renders what became of the calls of retrieval, for the rows that made any."""
    body = []
    for row in rows:
        calls = row.get("retrieval", {})
        if calls.get("attempted"):
            succeeded = calls["ok"] + calls["empty"]
            numbers = (calls["attempted"], succeeded, calls["empty"], calls["failed"], calls["cached"])
            body.append([row_label(row), *map(str, numbers)])
    header = ["system", "attempted", "succeeded", "of them empty", "failed", "cached"]
    return markdown_table(header, body) if body else ""


def _settings_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Renders what decided the answers: what all rows share in one line, and a column for each setting that differs."""
    shown = [{name: _setting(value) for name, value in row.get("settings", {}).items()} for row in rows]
    names = list(dict.fromkeys(name for row in shown for name in row))
    common = [name for name in names if len({row.get(name) for row in shown}) == 1]
    differing = [name for name in names if name not in common]
    parts = ["In all rows: " + ", ".join(f"{name} {shown[0][name]}" for name in common) + "."] if common else []
    if differing:
        body = [[row_label(row), *(s.get(name, "–") for name in differing)] for row, s in zip(rows, shown, strict=True)]
        parts.append(markdown_table(["system", *differing], body, numbers_from=len(differing) + 1))
    return "\n\n".join(parts)


def _setting(value: object) -> str:
    if value is None:
        return "–"
    text = str(value).strip().replace("\n", " ⏎ ")
    return f"`{text}`" if "⏎" in text else text


def _kinds_section(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    parts = []
    for field, title in (("by_type", "question kind"), ("by_dataset", "data set")):
        if len({name for row in rows for name in row.get(field, {})}) > 1:
            parts += [f"## By {title}", group_table(rows, field, "em"), group_table(rows, field, "recall")]
    averaged = [row for row in rows if row.get("macro")]
    if averaged:
        names = ("em", "f1", "recall", "all_gold")
        table = main_table([{**row, "metrics": row["macro"]} for row in averaged], names)
        parts += ["Unweighted mean over data sets (questions resampled within each):", table]
    return parts


def _differing_note(comparisons: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = [
        f"- {item['a']} and {item['b']} differ in: {', '.join(item['differing'])}."
        for item in comparisons
        if item.get("differing")
    ]
    return ["\n".join(dict.fromkeys(lines))] if lines else []


def _repair_section(repair: Mapping[str, Any]) -> list[str]:
    parts = [
        "## Repair of failed programs",
        _REPAIR_NOTE,
    ]
    if "failures" in repair:
        counts = repair.get("verdicts", {})
        verdicts, looked_at = ", ".join(f"{name} {count}" for name, count in counts.items()), sum(counts.values())
        if looked_at == repair["failures"] or not verdicts:
            parts.append(f"Failed programs searched: {repair['failures']}{f' ({verdicts})' if verdicts else ''}.")
        else:
            parts.append(
                f"Failed programs searched: {repair['failures']}. Outcomes of all {looked_at} questions: {verdicts}."
            )
    if arms := repair.get("arms"):
        body = []
        for arm in arms:
            each = arm.get("executions_per_repair")
            body.append(
                [
                    arm["name"],
                    format_estimate(Estimate.from_json(arm["repaired"])),
                    str(arm["repaired"]["n"]),
                    str(arm["executions"]),
                    "none repaired" if each is None else format_estimate(Estimate.from_json(each), 1),
                ]
            )
        header = ["arm (equal budget)", "share repaired", "n", "program executions", "executions per repair"]
        parts.append(markdown_table(header, body))
    if comparisons := repair.get("comparisons"):
        parts.append(comparison_table(comparisons))
    if benefit := repair.get("benefit"):
        parts += [
            "Answer benefit: the same weights answer from each program's evidence, within the same token budget.",
            main_table(benefit, list(dict.fromkeys(name for row in benefit for name in row["metrics"]))),
        ]
    if comparisons := repair.get("benefit_comparisons"):
        parts.append(comparison_table(comparisons))
    return parts
