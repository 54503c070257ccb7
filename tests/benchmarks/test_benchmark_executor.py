"""The executor benchmark: its sides do the same work, and its arithmetic."""

import json

import pytest

from benchmarks import executor, executor_side
from benchmarks.sides import Measured


def test_the_sides_print_the_same(tmp_path, capsys):
    out = tmp_path / "results.jsonl"
    assert executor.main(["--sides", "rpl", "exec", "--quick", "--out", str(out)]) == 0
    line = json.loads(out.read_text())
    assert set(line["sides"]) == {"rpl", "exec"}
    assert line["sides"]["rpl"]["facts"]["printed"] == line["sides"]["exec"]["facts"]["printed"]
    assert line["ratios"]["exec"]["speed_search"] < 1
    assert "over exec" in capsys.readouterr().out


def test_a_fresh_interpreter_prints_the_same():
    programs = executor_side.texts("search", 0, 1)
    assert executor_side.make_subprocess()(programs) == executor_side.make_exec()(programs) != [""]


def test_new_programs_are_new():
    assert len(set(executor_side.texts("search_new", 4, 50))) == 50
    assert len(set(executor_side.texts("search", 4, 50))) == 1


def test_sides_that_print_something_else_are_no_comparison(monkeypatch, capsys):
    results = {name: Measured(facts={"printed": name}) for name in ("rpl", "exec")}
    monkeypatch.setattr(executor, "take_turns", lambda *_: results)
    assert executor.main(["--sides", "rpl", "exec", "--quick"]) == 1
    assert "did not print the same" in capsys.readouterr().err


def test_smolagents_needs_its_interpreter(capsys):
    with pytest.raises(SystemExit):
        executor.main(["--sides", "smolagents"])
    assert "--smolagents-python" in capsys.readouterr().err


def test_figures_of_a_call_and_of_the_overhead():
    args = executor.parse(["--sides", "rpl", "exec"])
    rpl = {"empty_ms": 0.2, "search_ms": 0.5, "search_new_ms": 2.0, "calls_ms": 2.2, "programs_per_s": 3000.0}
    bare = {"empty_ms": 0.1, "search_ms": 0.1, "search_new_ms": 0.1, "calls_ms": 0.3, "programs_per_s": 9000.0}
    results = {n: Measured([{**turn, "seconds": 1.0}] * 3) for n, turn in (("rpl", rpl), ("exec", bare))}
    line = executor.summarise(args, results)
    assert line["sides"]["rpl"]["call_ms"] == pytest.approx(0.1)
    assert line["overhead"] == pytest.approx({"program_ms": 0.1, "search_ms": 0.4, "call_ms": 0.09})
    assert line["ratios"]["exec"] == pytest.approx({"speed_search": 0.2, "speed_search_new": 0.05, "throughput": 0.333})
