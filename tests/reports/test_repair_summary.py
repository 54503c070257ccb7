"""The repair section of the results: yields, reach and benefit, paired by question."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from rpl.core.errors import DataError
from rpl.core.files import write_jsonl
from rpl.core.records import Benefit, Benefits, Control, Repair, to_dict
from rpl.reports.repairs import Attempt, attempts_of, repair_summary, report_repairs
from rpl.reports.results import read_results


def _attempts(right: set[int], n: int = 10, executions: int = 6) -> list[Attempt]:
    return [Attempt(f"q{i}", i in right, executions) for i in range(n)]


def test_only_searched_failures_count() -> None:
    verdicts = ["repaired", "budget", "exhausted", "already_verified", "no_gold"]
    records = [Repair(f"q{i}", "p", None, executions=i, verdict=verdict) for i, verdict in enumerate(verdicts)]
    assert attempts_of(records) == [Attempt("q0", True, 0), Attempt("q1", False, 1), Attempt("q2", False, 2)]


def test_yield_and_reach_by_hand() -> None:
    summary = repair_summary({"mutation": _attempts({0, 1, 2, 3}), "control": _attempts({3, 4}, executions=5)[::-1]})
    mutation, control = summary["arms"]
    assert (mutation["repaired"]["mean"], mutation["executions"]) == (0.4, 60)
    assert mutation["executions_per_repair"]["mean"] == pytest.approx(15.0)
    assert control["executions_per_repair"]["mean"] == pytest.approx(25.0)
    (comparison,) = summary["comparisons"]
    assert comparison["difference"]["mean"] == pytest.approx(0.2)
    assert (comparison["mcnemar"]["only_a"], comparison["mcnemar"]["only_b"]) == (3, 1)
    assert comparison["ratio"]["mean"] == pytest.approx(2.0)
    assert json.loads(json.dumps(summary)) == summary


def test_no_repairs_and_no_arms() -> None:
    summary = repair_summary({"mutation": _attempts(set())}, verdicts=["budget"] * 3 + ["no_gold"])
    assert summary["arms"][0]["executions_per_repair"] is None
    assert summary["verdicts"] == {"budget": 3, "no_gold": 1}
    assert repair_summary({"mutation": [], "control": []})["comparisons"] == []
    assert repair_summary({})["failures"] == 0


def test_unpaired_arms_are_refused() -> None:
    with pytest.raises(DataError, match=r"1 question.* 'q9'"):
        repair_summary({"mutation": _attempts({0}), "control": _attempts({0}, n=9)})
    with pytest.raises(DataError, match="'q0' twice"):
        repair_summary({"mutation": [*_attempts({0}), *_attempts({0})]})


def test_benefit_is_compared_on_shared_questions() -> None:
    readings = {
        "repaired": {"q0": {"em": 1.0, "gold_logprob": -1.0}, "q1": {"em": 0.0, "gold_logprob": -3.0}},
        "failed": {"q0": {"em": 0.0, "gold_logprob": -2.0}, "q2": {"em": 0.0, "gold_logprob": -9.0}},
    }
    summary = repair_summary({}, benefit=readings)
    assert summary["benefit"][0]["metrics"]["gold_logprob"]["mean"] == -2.0
    em, logprob = summary["benefit_comparisons"]
    assert (em["metric"], em["difference"]["mean"], em["difference"]["n"]) == ("em", 1.0, 1)
    assert (logprob["difference"]["mean"], logprob["mcnemar"], logprob["ratio"]) == (1.0, None, None)
    apart = {"repaired": readings["repaired"], "failed": {"q2": readings["failed"]["q2"]}}
    assert repair_summary({}, benefit=apart)["benefit_comparisons"] == []


def test_the_file_of_a_harvest_fills_the_section_of_the_results(tmp_path: Path) -> None:
    better, worse = Benefit(1.0, -1.0, "a"), Benefit(0.0, -2.0, "b")
    control = Control(None, 5, 5, None, 0.5, 3, 40)
    records = [
        Repair(
            "q0", "p", "c", executions=4, verdict="repaired", control=control, benefit=Benefits(better, worse, worse)
        ),
        Repair("q1", "p", None, executions=6, verdict="budget", control=replace(control, child="c")),
        Repair("q2", "p", None, executions=6, verdict="exhausted"),
        Repair("q3", "p", None, verdict="gold_missing"),
    ]
    write_jsonl(tmp_path / "repairs.jsonl", [to_dict(record) for record in records])
    report_repairs(tmp_path, tmp_path / "repairs.jsonl")
    section = read_results(tmp_path)["repair"]
    assert section["failures"] == 3
    assert section["verdicts"] == {"repaired": 1, "budget": 1, "exhausted": 1, "gold_missing": 1}
    assert [(arm["name"], arm["repaired"]["mean"], arm["executions"]) for arm in section["arms"]] == [
        ("mutation, all failures", pytest.approx(1 / 3), 16),
        ("mutation, where the control ran", 0.5, 10),
        ("resample control, where the control ran", 0.5, 10),
    ]
    assert [arm["metrics"]["em"]["mean"] for arm in section["benefit"]] == [1.0, 0.0, 0.0]
