"""Evaluation runs: scoring, resuming, stopping, comparing, choosing k."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from evaluation_fakes import FakeSystem, questions

from rpl.core.errors import CheckpointError, ConfigError, DataError, RetrieverError
from rpl.core.evidence import evidence_scores
from rpl.core.records import Question, Rollout
from rpl.evaluation.comparison import best_k, compare
from rpl.evaluation.protocol import evaluate, load_result
from rpl.evaluation.records import METRICS, EvalResult
from rpl.evaluation.statistics import rate_interval
from rpl.reports.tables import terminal_table
from rpl.retrieval.library.counting import CallCounts


def _timeless(result: EvalResult) -> list[object]:
    return [replace(record, seconds=0.0) for record in result.records]


def test_evidence_by_hand() -> None:
    scores = evidence_scores(["a", "b", "b", "x"], ["a", "b", "c"])
    assert scores is not None
    assert scores.precision == pytest.approx(2 / 3)
    assert scores.recall == pytest.approx(2 / 3)
    assert scores.f1 == pytest.approx(2 / 3)
    assert scores.all_gold == 0.0
    assert evidence_scores([], ["a"]) == (0.0, 0.0, 0.0, 0.0)
    assert evidence_scores(["a", "x"], ["a"]) == (0.5, 1.0, pytest.approx(2 / 3), 1.0)
    assert evidence_scores(["a"], []) is None


def test_records_and_metrics_by_hand() -> None:
    result = evaluate(FakeSystem(), questions(10), progress=False)
    first, last = result.records[0], result.records[9]
    assert (first.em, first.recall, first.printed_ids) == (1.0, 0.0, ())
    assert (last.em, last.recall, last.precision, last.all_gold) == (0.0, 1.0, 0.5, 1.0)
    assert last.error_kinds == ("runtime",)
    assert (last.turns, last.calls, last.printed_tokens, last.completion_tokens) == (2, 1, 40, 3)
    metrics = result.metrics()
    assert metrics["em"] == rate_interval([1, 0] * 5)
    assert metrics["all_gold"].mean == metrics["recall"].mean == pytest.approx(0.7)
    assert metrics["printed_nothing"].mean == pytest.approx(0.3)
    assert metrics["program_errors"].mean == pytest.approx(0.2)
    assert metrics["invalid"].mean == 0
    assert metrics["printed_tokens"].low == metrics["printed_tokens"].high == 40
    assert set(metrics) == set(METRICS)


def test_evidence_metrics_say_no_gold() -> None:
    mixed = [*questions(4), *(replace(q, id=f"q{10 + i}") for i, q in enumerate(questions(3, gold=False)))]
    metrics = evaluate(FakeSystem(), mixed, progress=False).metrics()
    assert (metrics["em"].n, metrics["recall"].n, metrics["all_gold"].n, metrics["precision"].n) == (7, 4, 4, 4)
    none = evaluate(FakeSystem(), questions(3, gold=False), progress=False).metrics()
    assert none["recall"].n == none["evidence_f1"].n == 0
    assert none["recall"].to_json()["mean"] is None


def test_rows_by_type_data_set_and_macro() -> None:
    result = evaluate(FakeSystem(), questions(9), progress=False, phase="rl")
    row = result.row()
    assert row["by_type"]["two_hop"]["em"]["n"] == 3
    assert row["by_type"]["one_hop"]["em"]["n"] == 6
    assert row["by_dataset"]["even"]["em"]["mean"] == 1.0
    assert row["by_dataset"]["odd"]["em"]["mean"] == 0.0
    assert row["macro"]["em"]["mean"] == 0.5
    assert row["metrics"]["em"]["mean"] == pytest.approx(5 / 9)
    assert json.loads(json.dumps(row)) == row
    single = evaluate(FakeSystem(), [replace(q, dataset="d") for q in questions(3)], progress=False)
    assert "macro" not in single.row()


@pytest.mark.parametrize("kept", [0, 1, 4, 5, 8, 10])
def test_a_killed_evaluation_resumes_with_the_same_numbers(tmp_path: Path, kept: int) -> None:
    asked = questions(10)
    whole = evaluate(FakeSystem(), asked, out=tmp_path / "whole.jsonl", progress=False, batch=4)
    lines = (tmp_path / "whole.jsonl").read_text().splitlines(keepends=True)
    assert len(lines) == 11
    # killed in the middle of a line after `kept` records
    torn = lines[kept + 1][:20] if kept < 10 else ""
    (tmp_path / "killed.jsonl").write_text("".join(lines[: kept + 1]) + torn)
    system = FakeSystem()
    resumed = evaluate(system, asked, out=tmp_path / "killed.jsonl", progress=False, batch=4)
    assert _timeless(resumed) == _timeless(whole)
    assert [batch[0] for batch in system.batches] == [
        q for q, last in (("q0", 4), ("q4", 8), ("q8", 10)) if kept < last
    ]
    assert load_result(tmp_path / "killed.jsonl").records == resumed.records


def test_batches_do_change_the_fake_so_that_resuming_is_really_tested() -> None:
    a = evaluate(FakeSystem(), questions(10), progress=False, batch=4)
    b = evaluate(FakeSystem(), questions(10), progress=False, batch=3)
    assert _timeless(a) != _timeless(b)


def test_a_failing_retriever_stops_and_keeps_finished_batches(tmp_path: Path) -> None:
    out = tmp_path / "eval.jsonl"
    with pytest.raises(RetrieverError, match=r"'q5': index server gone; 4 finished question.* kept"):
        evaluate(FakeSystem(fail_on="q5"), questions(10), out=out, progress=False, batch=4)
    with pytest.raises(DataError, match="unfinished evaluation: 4 of 10"):
        load_result(out)
    mended = FakeSystem()
    evaluate(mended, questions(10), out=out, progress=False, batch=4)
    assert mended.batches[0][0] == "q4"
    with pytest.raises(RetrieverError, match=r"'q0': index server gone$"):
        evaluate(FakeSystem(fail_on="q0"), questions(1), progress=False)


def test_a_score_over_void_questions_is_made_only_when_told_and_says_so(tmp_path: Path) -> None:
    asked, out = questions(10), tmp_path / "eval.jsonl"
    broken = FakeSystem(fail_on="q4")
    with pytest.raises(RetrieverError, match="'q4': index server gone"):
        evaluate(broken, asked, out=out, progress=False, batch=4)
    told = evaluate(broken, asked, out=out, progress=False, batch=4, allow_void=True)
    row = told.row()
    assert (row["void"], row["metrics"]["em"]["n"], row["by_type"]["one_hop"]["em"]["n"]) == (1, 9, 5)
    assert told.records[4].void == "index server gone"
    assert row["metrics"]["em"]["mean"] == pytest.approx(4 / 9)  # q4 would have been right, and wrong is not 0 either
    assert told.macro("em").n == 9
    assert terminal_table({"rows": [row]}).splitlines()[2].startswith("fake, 1 void")
    assert load_result(out).num_void == 1
    healthy = FakeSystem()
    mended = evaluate(healthy, asked, out=out, progress=False, batch=4)  # not told: what is void is answered
    assert healthy.batches == [["q4", "q5", "q6", "q7"]]
    assert (mended.num_void, mended.row()["metrics"]["em"]["n"]) == (0, 10)
    assert load_result(out).records == mended.records
    with pytest.raises(RetrieverError, match="'q0'"):
        evaluate(SimpleSystem(), asked, progress=False, batch=4, allow_void=True)  # a whole batch is no accident


class SimpleSystem(FakeSystem):
    def _one(self, question: Question) -> Rollout:
        self.fail_on = question.id
        return super()._one(question)


def test_void_questions_are_left_out_of_both_sides_of_a_comparison() -> None:
    whole = evaluate(FakeSystem(), questions(10), progress=False)
    part = evaluate(FakeSystem(name="b", fail_on="q0"), questions(10), progress=False, allow_void=True)
    assert compare(whole, part).difference.n == 9
    assert compare(whole, part).difference.mean == 0.0


def test_calls_of_retrieval_are_counted_over_resumes(tmp_path: Path) -> None:
    asked, out = questions(8), tmp_path / "eval.jsonl"
    with pytest.raises(RetrieverError, match=r"\(20 calls attempted, 16 succeeded \(0 of them empty\), 4 failed\)"):
        evaluate(FakeSystem(fail_on="q5", calls_each=2), asked, out=out, progress=False, batch=4)
    result = evaluate(FakeSystem(calls_each=2), asked, out=out, progress=False, batch=4)
    assert result.retrieval == CallCounts(ok=16, failed=4)
    assert result.row()["retrieval"] == {
        "ok": 16, "empty": 0, "refused": 0, "failed": 4, "cached": 0, "attempted": 20,
    }  # fmt: skip
    assert load_result(out).retrieval == result.retrieval
    assert load_result(out).records == result.records


def test_a_file_of_another_evaluation_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "eval.jsonl"
    evaluate(FakeSystem(), questions(4), out=out, progress=False, settings={"checkpoint": "a", "path": Path("x")})
    evaluate(FakeSystem(), questions(4), out=out, progress=False, settings={"checkpoint": "a", "path": Path("x")})
    for system, asked, settings in (
        (FakeSystem(), questions(4), {"checkpoint": "b", "path": Path("x")}),
        (FakeSystem(settings={"k": 5}), questions(4), {"checkpoint": "a", "path": Path("x")}),
        (FakeSystem(), questions(5), {"checkpoint": "a", "path": Path("x")}),
        (FakeSystem(), questions(4, gold=False), {"checkpoint": "a", "path": Path("x")}),
    ):
        with pytest.raises(CheckpointError, match="belongs to another evaluation"):
            evaluate(system, asked, out=out, progress=False, settings=settings)


def test_another_system_of_the_same_name_never_gets_the_first_one_s_answers(tmp_path: Path) -> None:
    out, settings = tmp_path / "eval.jsonl", {"checkpoint": "a"}
    right = FakeSystem(lambda _: True)
    assert evaluate(right, questions(4), out=out, progress=False, settings=settings).metrics()["em"].mean == 1.0
    before = out.read_bytes()
    with pytest.raises(CheckpointError, match=r"another evaluation \(weights: '\w+' there, '\w+' here\); delete it"):
        evaluate(FakeSystem(lambda _: False), questions(4), out=out, progress=False, settings=settings)
    assert out.read_bytes() == before
    again = evaluate(FakeSystem(lambda _: True), questions(4), out=out, progress=False, settings=settings)
    assert again.metrics()["em"].mean == 1.0


@pytest.mark.parametrize("field", ["question", "answers", "gold_docs", "dataset", "type"])
def test_questions_that_were_changed_in_place_are_refused(tmp_path: Path, field: str) -> None:
    asked, out = questions(4), tmp_path / "eval.jsonl"
    evaluate(FakeSystem(), asked, out=out, progress=False)
    changed = [replace(asked[0], **{field: ("other",) if field in ("answers", "gold_docs") else "other"}), *asked[1:]]
    with pytest.raises(CheckpointError, match=r"another evaluation \(questions: "):
        evaluate(FakeSystem(), changed, out=out, progress=False)
    with pytest.raises(CheckpointError, match=r"another evaluation \(batch: 64 there, 2 here\)"):
        evaluate(FakeSystem(), asked, out=out, progress=False, batch=2)


def test_a_file_without_an_identity_is_refused_from_either_side(tmp_path: Path) -> None:
    class Nameless(FakeSystem):
        def __init__(self) -> None:
            super().__init__()
            self.identity = None

    out = tmp_path / "nameless.jsonl"
    assert evaluate(Nameless(), questions(4), out=out, progress=False).metrics()["em"].n == 4
    for system in (Nameless(), FakeSystem()):
        with pytest.raises(CheckpointError, match=r"does not say by content what answered.*; delete it"):
            evaluate(system, questions(4), out=out, progress=False)
    assert load_result(out).metrics()["em"].n == 4  # it can still be read
    known = tmp_path / "known.jsonl"
    evaluate(FakeSystem(), questions(4), out=known, progress=False)
    with pytest.raises(CheckpointError, match=r"fake has no identity.*; delete it"):
        evaluate(Nameless(), questions(4), out=known, progress=False)
    lines = known.read_text().splitlines(keepends=True)
    header = json.loads(lines[0])
    del header["evaluation"]["identity"], header["evaluation"]["batch"]
    known.write_text(json.dumps(header) + "\n" + "".join(lines[1:]))  # as an earlier version wrote it
    with pytest.raises(CheckpointError, match="an earlier version wrote it"):
        evaluate(FakeSystem(), questions(4), out=known, progress=False)


def test_rows_say_by_content_what_answered() -> None:
    row = evaluate(FakeSystem(settings={"k": 3}), questions(4), progress=False, settings={"seed": 1}).row()
    assert row["settings"] == {"weights": FakeSystem().identity["weights"], "tokens": 40, "k": 3, "seed": 1}
    other = evaluate(FakeSystem(lambda _: False, settings={"k": 3}), questions(4), progress=False, settings={"seed": 1})
    same = evaluate(FakeSystem(settings={"k": 3}), questions(4), progress=False, settings={"seed": 1})
    assert compare(same, other).differing == ("weights",)


def test_bad_inputs_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no question"):
        evaluate(FakeSystem(), [], progress=False)
    with pytest.raises(DataError, match="'q0' stands twice"):
        evaluate(FakeSystem(), [*questions(1), *questions(1)], progress=False)
    with pytest.raises(ConfigError, match="batch"):
        evaluate(FakeSystem(), questions(1), progress=False, batch=0)
    (tmp_path / "other.jsonl").write_text('{"id": 1}\n')
    with pytest.raises(DataError, match="no header in line 1"):
        load_result(tmp_path / "other.jsonl")


def test_a_system_that_drops_a_question_is_refused() -> None:
    class Dropping(FakeSystem):
        def answer(self, questions):
            return super().answer(questions)[:-1]

    with pytest.raises(ValueError, match="one rollout a question"):
        evaluate(Dropping(), questions(3), progress=False)


def test_compare_pairs_by_id() -> None:
    asked = questions(40)
    a = evaluate(FakeSystem(lambda i: i % 4 != 0, name="a", settings={"k": 3, "style": "s"}), asked, progress=False)
    b = evaluate(
        FakeSystem(lambda i: i % 2 == 0, name="b", settings={"k": 5, "style": "s"}), asked[::-1], progress=False
    )
    got = compare(a, b)
    # right: a on 30, b on 20, both on i = 2 mod 4: 10
    assert got.difference.mean == pytest.approx(10 / 40)
    assert got.ratio is not None
    assert got.ratio.mean == pytest.approx(1.5)
    assert got.mcnemar is not None
    assert (got.mcnemar.only_a, got.mcnemar.only_b) == (20, 10)
    assert got.differing == ("weights", "k")
    back = compare(b, a)
    assert back.difference.mean == pytest.approx(-0.25)
    assert compare(a, b, "printed_tokens").mcnemar is None
    assert compare(a, a, "recall").difference.mean == 0
    assert json.loads(json.dumps(got.to_json()))["mcnemar"]["only_a"] == 20


def test_compare_refuses_other_questions_and_missing_gold() -> None:
    a = evaluate(FakeSystem(), questions(4), progress=False)
    b = evaluate(FakeSystem(), questions(5), progress=False)
    with pytest.raises(DataError, match=r"1 question.* 'q4'"):
        compare(a, b)
    bare = evaluate(FakeSystem(), questions(4, gold=False), progress=False)
    with pytest.raises(DataError, match="no question has known gold"):
        compare(bare, bare, "recall")
    with pytest.raises(ConfigError, match="unknown metric 'accuracy'; known: em"):
        compare(a, a, "accuracy")
    nothing = evaluate(FakeSystem(lambda _: False), questions(4), progress=False)
    assert compare(a, nothing).ratio is None


def test_best_k_prefers_em_then_fewer_tokens(tmp_path: Path) -> None:
    right = {1: 3, 2: 6, 3: 6, 5: 5}

    def system(k: int) -> FakeSystem:
        return FakeSystem(lambda i: i < right[k], name=f"fixed bm25 k={k}", tokens=10 * k, settings={"k": k})

    got = best_k(system, [5, 3, 2, 1], questions(8), out=lambda k: tmp_path / f"k{k}.jsonl", progress=False)
    assert got.k == 2
    assert list(got.results) == [1, 2, 3, 5]
    assert all((tmp_path / f"k{k}.jsonl").exists() for k in right)
    right[3] = 7
    assert best_k(system, [1, 2, 3], questions(8), progress=False).k == 3
    with pytest.raises(ConfigError, match="at least one k"):
        best_k(system, [], questions(8), progress=False)
