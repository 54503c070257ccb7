"""`results.json` of a run folder: what the report is built from.

Layout::

    {
      "rows": [{
        "name": "policy", "phase": "rl",
        "metrics": {"em": {"mean": 0.57, "low": 0.50, "high": 0.64, "n": 200}, ...},
        "by_type": {"two_hop": {"em": {...}, ...}, ...},
        "by_dataset": {...}, "macro": {...},           # only where there are several data sets
        "settings": {"k": 3, "style": "compact", ...},
        "records": "eval/policy-rl.jsonl",             # relative to the run folder
        "answerable": 180, "with_gold": 190,           # questions whose gold the corpus has, of those that name any
        "void": 0,                                     # questions that infrastructure failed and no metric counts
        "retrieval": {"attempted": 812, "ok": 800, "empty": 12, "refused": 3, "failed": 0, "cached": 40},
        "best": true                                   # the fixed program's winning k; only there
      }],
      "comparisons": [{
        "a": "policy (rl)", "b": "fixed bm25 k=3 (rl)", "metric": "em",
        "difference": {...}, "ratio": {...} or null,
        "mcnemar": {"only_a": 9, "only_b": 2, "p_value": 0.065} or null,
        "differing": ["k"]                             # settings that are not the same in both
      }],
      "repair": {                                      # every key may be missing
        "failures": 120,                               # failed programs that were searched
        "verdicts": {"repaired": 60, "budget": 50, "exhausted": 10},
        "arms": [{"name": "mutation", "repaired": {...}, "executions": 900, "executions_per_repair": {...} or null},
                 {"name": "resample control", ...}],
        "comparisons": [{...}],                        # as above: mutation against each control, share repaired
        "benefit": [{"name": "repaired program's evidence", "metrics": {"em": {...}, ...}}, ...],
        "benefit_comparisons": [{...}]
      }
    }

`mean`, `low` and `high` are null where nothing could be measured (`n` is 0: no gold passages known); `high` alone is
null where a ratio has no upper bound. Files are replaced as a whole, so that a killed run leaves the last good one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rpl.core.errors import DataError
from rpl.core.files import write_json
from rpl.evaluation.comparison import Comparison
from rpl.evaluation.records import EvalResult
from rpl.retrieval.corpus.coverage import GoldCoverage

FILE = "results.json"

Document = dict[str, Any]


def document(
    results: Sequence[EvalResult],
    comparisons: Sequence[Comparison] = (),
    repair: Mapping[str, Any] | None = None,
) -> Document:
    """Builds a results document in memory."""
    return {
        "rows": [result.row() for result in results],
        "comparisons": [comparison.to_json() for comparison in comparisons],
        "repair": dict(repair or {}),
    }


def read_results(run_dir: Path) -> Document:
    """Reads `results.json`; a run folder that has none yet gives an empty document.

    Raises:
        DataError: The file is not a results document.
    """
    path = run_dir / FILE
    if not path.exists():
        return document([])
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise DataError(f"{path}:{error.lineno}: not JSON ({error.msg})") from error
    if not isinstance(data, dict) or not isinstance(data.get("rows"), list):
        raise DataError(f"{path}: not a results file: field 'rows' must be a list")
    for number, row in enumerate(data["rows"]):
        missing = [key for key in ("name", "phase", "metrics") if key not in row]
        if missing:
            raise DataError(f"{path}: rows[{number}] has no field {missing[0]!r}")
    return {"comparisons": [], "repair": {}, **data}


def add_result(run_dir: Path, result: EvalResult, *, best: bool = False, coverage: GoldCoverage | None = None) -> None:
    """Adds a row, or replaces the one of the same name and phase.

    Args:
        run_dir: The run folder.
        result: What was measured.
        best: Marks the winning k of a fixed program.
        coverage: Of the questions' gold by the corpus, so that the report says how many could be answered from it.
    """
    row = result.row()
    if coverage is not None and coverage.known:
        row |= {"answerable": coverage.answerable, "with_gold": coverage.with_gold}
    if result.path is not None:
        row["records"] = Path(os.path.relpath(result.path, run_dir)).as_posix()
    if best:
        row["best"] = True
    data = read_results(run_dir)
    _put(data["rows"], row, ("name", "phase"))
    write_json(run_dir / FILE, data)


def add_comparison(run_dir: Path, comparison: Comparison) -> None:
    """Adds a comparison, or replaces the one of the same two systems and metric."""
    data = read_results(run_dir)
    _put(data["comparisons"], comparison.to_json(), ("a", "b", "metric"))
    write_json(run_dir / FILE, data)


def set_repair(run_dir: Path, summary: Mapping[str, Any]) -> None:
    """Sets the repair section, as `rpl.reports.repairs.repair_summary` makes it."""
    data = read_results(run_dir)
    data["repair"] = dict(summary)
    write_json(run_dir / FILE, data)


def _put(entries: list[dict[str, Any]], entry: dict[str, Any], key: Sequence[str]) -> None:
    for i, old in enumerate(entries):
        if all(old.get(name) == entry.get(name) for name in key):
            entries[i] = entry
            return
    entries.append(entry)
