import json
from pathlib import Path
from typing import Any

import pytest

from rpl.atlas import build
from rpl.core.errors import ConfigError, DataError
from rpl.core.records import Question
from rpl.datamodules.readers import carve, load_splits, question_files


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    base = {"answers": ["x"], "dataset": "d"}
    path.write_text("".join(json.dumps(base | row) + "\n" for row in rows))
    return str(path)


def row(id_: str, question: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"id": id_, "question": question or f"Question {id_}?", **fields}


def ids(questions: tuple[Question, ...]) -> list[str]:
    return [q.id for q in questions]


def test_atlas_has_its_own_splits() -> None:
    splits = load_splits("atlas-mini")
    assert [len(part) for part in (splits.train, splits.val, splits.test)] == [60, 20, 20]
    assert splits.train + splits.val + splits.test == build(mini=True).questions


def test_official_split_names(tmp_path: Path) -> None:
    file = write(
        tmp_path / "q.jsonl",
        [
            row("a", split="train"),
            row("b", split="dev"),
            row("c", split="validation"),
            row("d", split="test"),
            row("e", split="val"),
            row("f"),
        ],
    )
    splits = load_splits(file)
    assert (ids(splits.train), ids(splits.val), ids(splits.test)) == (["a", "f"], ["b", "c", "e"], ["d"])


def test_fold_decides_over_split(tmp_path: Path) -> None:
    rows = [row(f"t{i}", split="dev", fold="train") for i in range(40)] + [row("x", split="train", fold="test")]
    splits = load_splits(write(tmp_path / "q.jsonl", rows))
    assert ids(splits.test) == ["x"]
    assert "x" not in ids(splits.train) + ids(splits.val)
    assert len(splits.train) + len(splits.val) == 40
    assert 1 <= len(splits.val) <= 12


def test_carving_keeps_equal_texts_together_and_ignores_order() -> None:
    questions = [Question(f"q{i}", f"Who wrote book {i // 2}?", ("x",)) for i in range(400)]
    left, carved = carve(questions, 0.25)
    assert 60 <= len(carved) <= 140
    assert {q.question for q in left}.isdisjoint({q.question for q in carved})
    _, again = carve(questions[::-1], 0.25)
    assert set(again) == set(carved)
    assert carve(questions, 0.0) == (questions, [])


@pytest.mark.parametrize(
    ("first", "second", "what"),
    [("train", "test", "train and in test"), ("train", "dev", "train and in val"), ("dev", "test", "val and in test")],
)
def test_equal_texts_in_two_splits_are_refused_by_name(tmp_path: Path, first: str, second: str, what: str) -> None:
    rows = [row("a", "Who wrote the Iliad?", split=first), row("b", "who  wrote Iliad", split=second)]
    rows.append(row("c", split="dev"))
    with pytest.raises(DataError, match=rf"1 question texts are both in {what}: 'who  wrote Iliad' \('a' and 'b'\)"):
        load_splits(write(tmp_path / "q.jsonl", rows))


def test_equal_ids_in_two_files_are_refused_by_name(tmp_path: Path) -> None:
    one = write(tmp_path / "1.jsonl", [row("a", "One?", split="train")])
    two = write(tmp_path / "2.jsonl", [row("a", "Two?", split="train")])
    with pytest.raises(DataError, match=r"train: question ids repeat across files: 'a'"):
        load_splits([one, two], val_fraction=0.0)
    with pytest.raises(DataError, match=r"question ids are both in train and in test: 'a'"):
        load_splits(one, test_questions=two, val_fraction=0.0)


def test_files_for_one_purpose(tmp_path: Path) -> None:
    train = write(tmp_path / "train.jsonl", [row("a"), row("b")])
    val = write(tmp_path / "val.jsonl", [row("c", split="train"), row("d", fold="test"), row("e", fold="train")])
    test = write(tmp_path / "test.jsonl", [row("f", split="dev"), row("g", fold="train"), row("h", fold="test")])
    splits = load_splits(train, val_questions=val, test_questions=test)
    assert (ids(splits.train), ids(splits.val), ids(splits.test)) == (["a", "b"], ["c", "e"], ["f", "h"])
    mixed = write(tmp_path / "mixed.jsonl", [row("i"), row("j", split="test")])
    with pytest.raises(DataError, match="test_questions"):
        load_splits(mixed, test_questions=test)


def test_testing_on_dev_never_selects_on_it(tmp_path: Path) -> None:
    rows = [row(f"t{i}", split="train") for i in range(50)] + [row("d", split="dev")]
    splits = load_splits(write(tmp_path / "q.jsonl", rows), test_split="val")
    assert ids(splits.test) == ["d"]
    assert splits.val
    assert all(i.startswith("t") for i in ids(splits.val))
    with pytest.raises(DataError, match="test_split"):
        load_splits("atlas-mini", test_split="val")


@pytest.mark.parametrize(("field", "value"), [("split", "tran"), ("fold", "tests")])
def test_unknown_names_are_refused_with_their_line(tmp_path: Path, field: str, value: str) -> None:
    file = write(tmp_path / "q.jsonl", [row("a"), row("b", **{field: value})])
    with pytest.raises(DataError, match=rf"q\.jsonl:2: field '{field}' must be one of .*train.*got '{value}'"):
        load_splits(file)


def test_fraction_is_checked() -> None:
    with pytest.raises(ConfigError, match="val_fraction"):
        load_splits("atlas-mini", val_fraction=1.0)


def test_names_and_paths_mix(tmp_path: Path) -> None:
    paths = question_files(["atlas-mini", str(tmp_path / "x.jsonl")])
    assert paths[0].is_file()
    assert paths[1] == tmp_path / "x.jsonl"
    assert question_files(None) == []
    with pytest.raises(DataError, match="no such file"):
        load_splits(str(tmp_path / "x.jsonl"))


def test_a_question_bears_the_split_it_is_used_for(tmp_path):
    """Rows of an official dev set that a fold gives to training must be open to harvests, which ask for split train."""
    path = tmp_path / "q.jsonl"
    rows = [
        {"id": "a", "question": "Who?", "answers": ["x"], "split": "dev", "fold": "train"},
        {"id": "b", "question": "What?", "answers": ["y"], "split": "dev", "fold": "test"},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    splits = load_splits(str(path), val_fraction=0.0)
    assert [(q.id, q.split) for q in splits.train] == [("a", "train")]
    assert [(q.id, q.split) for q in splits.test] == [("b", "test")]
