import json

import pytest

from rpl.core.errors import DataError
from rpl.retrieval.corpus.questions import read_questions

GOOD = {"id": "q1", "question": "Where is Lyon?", "answers": ["France"], "gold_docs": ["a"], "hops": 1, "fold": "test"}


def write(path, *records):
    path.write_text("".join((json.dumps(r) if r else "") + "\n" for r in records), encoding="utf-8")
    return path


def test_reads_all_fields_and_ignores_others(tmp_path):
    record = {**GOOD, "dataset": "d", "split": "dev", "type": "bridge", "gold_docs": ["a", "b", "a"]}
    question = read_questions(write(tmp_path / "q.jsonl", record))[0]
    assert question.answers == ("France",)
    assert question.gold_docs == ("a", "b")
    assert (question.dataset, question.split, question.type, question.hops) == ("d", "dev", "bridge", 1)


def test_a_single_answer_may_be_a_string_and_other_fields_null(tmp_path):
    nothing = dict.fromkeys(("gold_docs", "dataset", "split", "type", "hops"))
    path = write(tmp_path / "q.jsonl", {"id": "q", "question": "Where?", "answers": "France", **nothing})
    question = read_questions(path)[0]
    assert question.answers == ("France",)
    assert (question.gold_docs, question.type, question.hops) == ((), "", 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"id": None}, "field 'id' is missing"),
        ({"id": "q1"}, "id 'q1' was already used in line 1"),
        ({"question": " "}, "field 'question' is empty"),
        ({"answers": []}, "field 'answers' is missing or empty"),
        ({"answers": [""]}, "field 'answers' holds an empty string"),
        ({"answers": [3]}, "field 'answers' must hold strings, got int 3"),
        ({"answers": {"a": 1}}, "field 'answers' must be a string or a list of strings, got dict"),
        ({"gold_docs": [3]}, "field 'gold_docs' must hold strings"),
        ({"hops": "2"}, "field 'hops' must be a whole number"),
        ({"hops": -1}, "field 'hops' must be a whole number"),
        ({"type": 3}, "field 'type' must be a string"),
    ],
)
def test_bad_lines(tmp_path, change, message):
    path = write(tmp_path / "q.jsonl", GOOD, None, {**GOOD, "id": "q2", **change})
    with pytest.raises(DataError, match=f"q.jsonl:3: {message}"):
        read_questions(path)


def test_no_answers_field(tmp_path):
    with pytest.raises(DataError, match=r"q\.jsonl:1: field 'answers' is missing"):
        read_questions(write(tmp_path / "q.jsonl", {"id": "q", "question": "Where?"}))


def test_empty_file(tmp_path):
    with pytest.raises(DataError, match="no questions"):
        read_questions(write(tmp_path / "q.jsonl"))
