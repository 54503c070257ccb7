"""Reports: pieces of the text, honest wording, readable pictures."""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from evaluation_fakes import FakeSystem, questions

from rpl.core.errors import CheckpointError, DataError
from rpl.core.files import append_jsonl, write_json
from rpl.evaluation.comparison import best_k, compare
from rpl.evaluation.protocol import evaluate
from rpl.evaluation.records import EvalResult
from rpl.evaluation.statistics import NOTHING, Estimate
from rpl.reports.repairs import Attempt, repair_summary
from rpl.reports.report import read_metrics, write_report
from rpl.reports.results import add_comparison, add_result, document, read_results, set_repair
from rpl.reports.tables import (
    comparison_table,
    format_estimate,
    format_p,
    format_signed,
    group_table,
    main_table,
    markdown_table,
    terminal_table,
    verdict,
)


def _result(right: int, name: str = "policy", phase: str = "", n: int = 40, **settings: Any) -> EvalResult:
    system = FakeSystem(lambda i: i < right, name=name, tokens=10 * int(settings.get("k", 4)), settings=settings)
    return evaluate(system, questions(n), progress=False, phase=phase)


def _pixels(path: Path) -> tuple[int, int, bytes]:
    """Returns width, height and the unfiltered-or-not scan lines of a PNG."""
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", data[16:24])
    body, position = b"", 8
    while position < len(data):
        (length,) = struct.unpack(">I", data[position : position + 4])
        if data[position + 4 : position + 8] == b"IDAT":
            body += data[position + 8 : position + 8 + length]
        position += 12 + length
    return width, height, zlib.decompress(body)


def _assert_drawn(path: Path) -> None:
    width, height, raw = _pixels(path)
    assert width >= 900
    assert height >= 600
    # an empty page has a handful of byte values; axes, letters and curves have many
    assert len(set(raw)) > 100


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A finished run: a base row, fixed programs, two phases, comparisons, repair, logged values."""
    out = tmp_path / "run"
    direct = _result(4, "direct", "base")
    base, tuned = _result(12, phase="sft"), _result(36, phase="rl")
    fixed = best_k(
        lambda k: FakeSystem(lambda i: i < 10 + k, name=f"fixed bm25 k={k}", tokens=60 * k, settings={"k": k}),
        [1, 3, 5],
        questions(40),
        out=lambda k: out / "eval" / f"fixed-{k}.jsonl",
        progress=False,
        phase="rl",
    )
    for result in (direct, base, tuned):
        add_result(out, result)
    for k, result in fixed.results.items():
        add_result(out, result, best=k == fixed.k)
    add_comparison(out, compare(tuned, base))
    add_comparison(out, compare(base, fixed.results[3]))
    mutation = [Attempt(f"q{i}", repaired=i % 2 == 0, executions=9) for i in range(100)]
    control = [Attempt(f"q{i}", repaired=False, executions=9) for i in range(100)]
    readings = {
        "repaired evidence": {f"q{i}": {"em": float(i % 4 == 0), "gold_logprob": -1.0} for i in range(0, 100, 2)},
        "failed evidence": {f"q{i}": {"em": 0.0, "gold_logprob": -2.0} for i in range(100)},
    }
    verdicts = ["repaired", "budget"] * 50
    arms = {"mutation": mutation, "resample control": control}
    set_repair(out, repair_summary(arms, verdicts=verdicts, benefit=readings))
    lines = [
        {"phase": phase, "iteration": i, "name": "train/reward", "value": 0.2 + 0.01 * i + 0.1 * (i % 3)}
        for phase in ("sft", "rl")
        for i in range(1, 21)
    ]
    lines += [
        {"phase": p, "iteration": i, "name": "val/em", "value": i / 40} for p in ("sft", "rl") for i in (0, 10, 20)
    ]
    append_jsonl(out / "metrics.jsonl", lines)
    return out


def test_report_pieces(run_dir: Path) -> None:
    path = write_report(run_dir)
    text = path.read_text()
    assert path == run_dir / "report.md"
    main = text.split("### Cost")[0]
    assert "| policy (rl) | 0.900 [0.769, 0.960] |" in main
    assert "| **fixed bm25 k=5 (rl)**, best k | 0.375 [" in main
    assert "| direct (base) | 0.100 [0.040, 0.231] |" in main
    assert "| policy (rl) − policy (sft) | EM | +0.600 [" in text
    assert "| 24 / 0 | < 0.001 (< 0.001) | 40 | a higher |" in text
    assert "| 40 | no difference shown |" in text
    assert "| two_hop (n = 14) |" in text
    assert "Unweighted mean over data sets" in text
    assert "Failed programs searched: 100 (repaired 50, budget 50)." in text
    assert "| mutation | 0.500 [0.404, 0.596] | 100 | 900 | 18.0 [15.0, " in text
    assert "| resample control | 0.000 [0.000, 0.037] | 100 | 900 | none repaired |" in text
    assert "| mutation − resample control | share repaired | +0.500 [+0.400, +0.600] | – | 50 / 0 | < 0.001" in text
    assert "| repaired evidence | 0.500 [0.366, 0.634] | -1.000 [-1.000, -1.000] | 50 |" in text
    assert "| repaired evidence − failed evidence | gold_logprob | +1.000 [+1.000, +1.000] | – | – | – | 50 |" in text
    assert "| 0.500 [0.400, 0.583] | 0.00 | 40 |" in text  # seconds are shared within a batch: no interval
    assert "nan" not in text.lower()
    for name in ("learning.png", "frontier.png"):
        assert f"]({name})" in text
        _assert_drawn(run_dir / name)
    assert not [p for p in run_dir.iterdir() if p.name.startswith(".")]


def test_reporting_again_changes_nothing(run_dir: Path) -> None:
    first = write_report(run_dir).read_bytes()
    picture = (run_dir / "frontier.png").read_bytes()
    assert write_report(run_dir).read_bytes() == first
    assert (run_dir / "frontier.png").read_bytes() == picture


def test_sections_without_data_are_left_out(tmp_path: Path) -> None:
    add_result(tmp_path, _result(3))
    text = write_report(tmp_path).read_text()
    assert "Paired" not in text
    assert "Repair" not in text
    assert "Learning" not in text
    assert not (tmp_path / "learning.png").exists()
    logged = tmp_path / "logged"
    append_jsonl(logged / "metrics.jsonl", [{"phase": "rl", "iteration": 1, "name": "train/reward", "value": 0.5}])
    assert "## Results" not in write_report(logged).read_text()
    _assert_drawn(logged / "learning.png")


def test_nothing_to_report_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="nothing to report"):
        write_report(tmp_path)


def test_useless_retrieval_is_said(tmp_path: Path) -> None:
    add_result(tmp_path, _result(10, "direct"))
    add_result(tmp_path, _result(10, "policy"))
    assert "**policy** is not above direct answering" in write_report(tmp_path).read_text()
    add_result(tmp_path, _result(11, "policy"))
    assert "not above direct" not in write_report(tmp_path).read_text()


def test_results_replace_rows_of_the_same_name_and_phase(tmp_path: Path) -> None:
    out = tmp_path / "eval" / "a.jsonl"
    result = evaluate(FakeSystem(), questions(4), out=out, progress=False, phase="rl")
    add_result(tmp_path, result)
    add_result(tmp_path, result, best=True)
    add_result(tmp_path, _result(1, "fake", "sft"))
    rows = read_results(tmp_path)["rows"]
    assert [(row["name"], row["phase"], row.get("best")) for row in rows] == [
        ("fake", "rl", True),
        ("fake", "sft", None),
    ]
    assert rows[0]["records"] == "eval/a.jsonl"
    for _ in range(2):
        add_comparison(tmp_path, compare(result, result))
    assert len(read_results(tmp_path)["comparisons"]) == 1


def test_damaged_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text("{")
    with pytest.raises(DataError, match=r"results.json:1: not JSON"):
        read_results(tmp_path)
    write_json(tmp_path / "results.json", {"rows": [{"name": "a", "metrics": {}}]})
    with pytest.raises(DataError, match=r"rows\[0\] has no field 'phase'"):
        read_results(tmp_path)
    write_json(tmp_path / "results.json", [])
    with pytest.raises(DataError, match="'rows' must be a list"):
        read_results(tmp_path)


def test_metrics_last_value_counts_and_a_torn_line_is_left(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    line = {"phase": "rl", "iteration": 1, "name": "val/em", "value": 0.1}
    append_jsonl(
        path, [line, {**line, "iteration": 2}, {**line, "value": 0.3}, {**line, "iteration": 3, "value": None}]
    )
    with pytest.raises(DataError, match=r"metrics.jsonl:4: expected"):
        read_metrics(path)
    append = [line, {**line, "iteration": 2, "value": float("nan")}, {**line, "value": 0.3}]
    path.write_text("".join(json.dumps(item) + "\n" for item in append) + '{"phase": "r')
    assert [(p.iteration, p.value) for p in read_metrics(path)] == [(1, 0.3)]
    assert path.read_text().endswith('{"phase": "r')


def test_verdicts_never_overstate() -> None:
    assert verdict(Estimate(0.05, 0.0, 0.1, 9)) == "no difference shown"
    assert verdict(Estimate(0.05, 0.001, 0.1, 9)) == "a higher"
    assert verdict(Estimate(-0.05, -0.1, -0.001, 9)) == "a lower"
    assert verdict(NOTHING) == "no difference shown"
    item = {"a": "x", "b": "y", "metric": "em", "difference": Estimate(0.05, 0.001, 0.1, 9).to_json(), "ratio": None}
    tests = [{"only_a": 9, "only_b": 2, "p_value": p} for p in (0.03, 0.04)]
    table = comparison_table([{**item, "mcnemar": test} for test in tests])
    assert table.count("0.060") == 2
    assert table.count("no difference shown after Holm") == 2
    assert "a higher" in comparison_table([{**item, "mcnemar": tests[0]}])


def test_cells() -> None:
    assert format_estimate(NOTHING) == "no gold"
    assert format_signed(NOTHING) == "no gold"
    assert format_estimate(Estimate(2.0, 1.0, float("inf"), 4), 1) == "2.0 [1.0, unbounded]"
    assert format_p(0.0004) == "< 0.001"
    assert markdown_table(["a", "b"], [["x|y", "1"]]) == "| a | b |\n| --- | ---: |\n| x\\|y | 1 |"


def test_tables_say_no_gold() -> None:
    row = evaluate(FakeSystem(), questions(4, gold=False), progress=False).row()
    assert main_table([row]).count("no gold") == 2
    assert "no gold" in group_table([row], "by_type", "recall")
    other = {**row, "by_type": {}}
    assert "–" in group_table([row, other], "by_type", "em")


def test_every_count_is_that_of_the_number_beside_it() -> None:
    asked = [replace(q, gold_docs=q.gold_docs if q.id in ("q0", "q1") else ()) for q in questions(10)]
    row = evaluate(FakeSystem(), asked, progress=False).row()
    recall = group_table([row], "by_dataset", "recall")
    assert "| even (n = 1) | odd (n = 1) |" in recall
    assert "| even (n = 5) | odd (n = 5) |" in group_table([row], "by_dataset", "em")
    main = main_table([row]).splitlines()[-1]
    assert main.endswith("| 10 |")
    assert main.count("(n = 2)") == 2  # recall and all gold, and no other cell
    cells = [cell.strip() for cell in main.split("|")]
    assert cells[4].endswith("(n = 2)")
    assert main_table([row], ("recall", "em")).splitlines()[-1].endswith("(n = 10) | 2 |")
    text = terminal_table({"rows": [row]}).splitlines()
    assert text[0].endswith("n  n gold")
    assert text[2].split()[-2:] == ["10", "2"]
    assert max(map(len, text)) <= 110


def test_a_column_over_different_numbers_of_questions_counts_in_each_cell() -> None:
    asked = questions(10)
    whole = evaluate(FakeSystem(name="whole"), asked, progress=False).row()
    part = evaluate(FakeSystem(name="part", fail_on="q0"), asked, progress=False, allow_void=True, batch=5).row()
    table = group_table([whole, part], "by_dataset", "em")
    head, _, first, second = table.splitlines()
    assert "| even | odd (n = 5) |" in head
    assert "(n = 5)" in first.split("|")[2]
    assert "(n = 4)" in second.split("|")[2]
    assert "(n =" not in first.split("|")[3] + second.split("|")[3]
    without = {**part, "by_dataset": {**part["by_dataset"], "odd": {}}}
    assert "odd |" in group_table([whole, without], "by_dataset", "em").splitlines()[0]  # not the n of "no gold"


def test_settings_that_all_rows_share_stand_in_one_line(tmp_path: Path) -> None:
    add_result(tmp_path, _result(3, "one", k=3, seed=0))
    add_result(tmp_path, _result(3, "two", k=5, seed=0))
    settings = write_report(tmp_path).read_text().split("### Settings")[1]
    assert "seed 0" in next(line for line in settings.splitlines() if line.startswith("In all rows: "))
    table = [line for line in settings.splitlines() if line.startswith("|")]
    assert "| k |" in table[0]
    assert "seed" not in table[0]
    assert "| 3 |" in table[2]
    assert "| 5 |" in table[3]


def test_outcomes_of_all_questions_are_not_counted_as_searched_programs(tmp_path: Path) -> None:
    attempts = {"mutation": [Attempt("q0", repaired=True, executions=2)]}
    add_result(tmp_path, _result(3))
    set_repair(tmp_path, repair_summary(attempts, verdicts=["repaired", "solved", "solved"]))
    text = write_report(tmp_path).read_text()
    assert "Failed programs searched: 1. Outcomes of all 3 questions: solved 2, repaired 1." in text


def test_terminal_table_is_aligned_and_narrow() -> None:
    results = document([_result(3, "direct"), _result(20, "a policy with a long name", "reinforcement")])
    results["rows"][1]["best"] = True
    for values in (row["metrics"] for row in results["rows"]):
        values["em"]["n"] = values["recall"]["n"] = values["all_gold"]["n"] = 9999
        values["printed_tokens"]["mean"] = 1024.0
    results["rows"][0]["metrics"]["recall"] = NOTHING.to_json()
    lines = terminal_table(results).splitlines()
    assert lines[0].split() == [
        *("system", "EM", "F1", "recall", "all", "gold", "tokens", "turns", "calls", "invalid", "n")
    ]
    assert set(lines[1]) == {"-"}
    assert max(map(len, lines)) <= 110
    assert len({len(line) for line in lines[:4]}) == 1
    assert "0.07 [0.03, 0.20]" in lines[2]
    assert "no gold" in lines[2]
    assert "… *" in lines[3]
    assert lines[4].startswith("* best k")
