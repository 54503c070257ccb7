"""The figures of the engine benchmark against counts by hand, and a small run from a folder to a table."""

import json

import pytest

from benchmarks import engines
from benchmarks.engines import Asked, overlap, score, table
from rpl.core.files import write_jsonl
from rpl.core.records import Passage


def asked(gold, silver=()):
    return Asked("?", frozenset(gold), frozenset(silver))


def test_figures_by_hand():
    ids = [f"p{i}" for i in range(30)]
    questions = [asked({"p0", "p10"}), asked({"p4"}), asked({"p29"}, {"p3"}), asked((), {"p19"}), asked((), {"p20"})]
    figures = score(questions, [ids] * 5)
    assert (figures["n"], figures["n_gold"]) == (5, 3)
    assert figures["recall@5"] == pytest.approx((0.5 + 1 + 0) / 3, abs=1e-4)
    assert figures["recall@20"] == pytest.approx((1 + 1 + 0) / 3, abs=1e-4)
    assert figures["all@5"] == pytest.approx(1 / 3, abs=1e-4)
    assert figures["all@20"] == pytest.approx(2 / 3, abs=1e-4)
    assert figures["any@5"] == pytest.approx(3 / 5, abs=1e-4)
    assert figures["any@20"] == pytest.approx(4 / 5, abs=1e-4)
    none = score([asked((), {"p1"})], [ids])
    assert (none["recall@5"], none["all@20"], none["any@5"]) == (None, None, 1.0)


def test_overlap_by_hand():
    def hits(*ids):
        return [Passage(i, "", "x") for i in ids]

    one = [hits("a", "b", "c"), hits("a"), hits()]
    two = [hits("b", "a", "d"), hits("b"), hits()]
    assert overlap(one, two, 2) == pytest.approx((1.0 + 0.0) / 2)
    assert overlap(one, two, 3) == pytest.approx((2 / 3 + 0.0) / 2)


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "data" / "towns"
    passages = [
        {"id": f"p{i}", "title": f"Town {i}", "text": f"Town {i} has a mayor named Person{i}."} for i in range(40)
    ]
    write_jsonl(folder / "corpus.jsonl", passages)
    questions = [{"question": f"Who is Person{i}?", "gold_docs": [f"p{i}"]} for i in range(6)]
    write_jsonl(folder / "questions.jsonl", [*questions, {"question": "nothing known"}])
    return tmp_path / "data"


def test_a_run_from_folder_to_table(data, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("RPL_PROGRESS", "0")
    command = [str(data), "--work", str(tmp_path / "work"), "--encoder", "hash"]
    assert engines.main([*command, "--engines", "bm25s", "dense"]) == 0
    assert engines.main([*command, "--engines", "bm25s", "rrf", "rrf+rerank", "--rerank-questions", "3"]) == 0
    lines = [json.loads(line) for line in (tmp_path / "work" / "engines.jsonl").read_text().splitlines()]
    assert [line["engine"] for line in lines] == ["bm25s", "dense", "rrf", "rrf+rerank"]
    assert [line["n"] for line in lines] == [6, 6, 6, 3]
    assert lines[0]["recall@5"] == lines[0]["all@20"] == 1.0
    last = capsys.readouterr().out.strip().splitlines()[-5:]
    assert last[1].startswith("| towns | bm25s | 1.000 / 1.000 | 1.000 / 1.000 |")
    assert last[-1].endswith("| 3 |")


def test_sets_that_are_not_there(tmp_path, capsys):
    with pytest.raises(SystemExit):
        engines.main([str(tmp_path)])
    with pytest.raises(SystemExit):
        engines.main([str(tmp_path), "--sets", "nowhere"])
    assert "nowhere" in capsys.readouterr().err


def test_the_table_says_the_overlap():
    line = {"set": "a", "engine": "lucene", "n": 3, "overlap_with_bm25s_at_20": 0.876}
    line |= {
        f"{figure}@{cut}": 0.5 if figure != "all" else None for figure in ("recall", "all", "any") for cut in (5, 20)
    }
    assert table([line]).splitlines()[-1] == "| a | lucene (0.88 of bm25s' top 20) | .500 / .500 |  | .500 / .500 | 3 |"
