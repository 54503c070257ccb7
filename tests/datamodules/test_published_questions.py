"""Published question sets: converted, kept apart from what is tested on, and readable by the data modules."""

import json

import pytest
from file_server import serving

from rpl.cli.main import run
from rpl.core.errors import ConfigError, DataError, DownloadError
from rpl.datamodules import published_questions as published
from rpl.datamodules.published_questions import SETS, convert_record, fetch_questions
from rpl.datamodules.readers import load_splits
from rpl.retrieval.corpus.questions import read_questions
from rpl.retrieval.fetching import downloads
from rpl.retrieval.fetching.plan import work_folder

FLASHRAG = published.DATASET


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub with all seven sets: two questions a split, one of them the same in all splits of all sets."""
    folder = tmp_path / "hub"
    for name, known in SETS.items():
        for split in known.splits:
            write(folder, name, split, [f"who is {name} {split}", "Who is tested everywhere?"])
    monkeypatch.setattr(downloads, "BACKOFF_S", 1e-5)
    with serving(folder) as running:
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        yield running


def write(folder, name, split, questions, **more):
    path = folder / FLASHRAG / name / f"{split}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [{"id": f"{split}_{i}", "question": q, "golden_answers": ["a"], **more} for i, q in enumerate(questions)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def test_one_set(hub, tmp_path):
    said = []
    files = fetch_questions("nq", tmp_path, said.append)
    assert files == [tmp_path / "nq" / f"{split}.jsonl" for split in ("test", "dev", "train")]
    test, dev, train = (read_questions(path) for path in files)
    assert [q.id for q in test] == ["nq:test_0", "nq:test_1"]
    assert test[0].question == "who is nq test?"
    assert (test[0].dataset, test[0].split, test[0].answers) == ("nq", "test", ("a",))
    # The question that is tested on is in no other split.
    assert [q.id for q in dev] == ["nq:dev_0"]
    assert [q.id for q in train] == ["nq:train_0"]
    assert any("1 questions, without 1 that are tested on or in dev" in line for line in said)
    assert any("the literature tests on 3,610" in line for line in said)
    assert not work_folder(tmp_path / "nq").exists()


def test_the_suite_trains_on_nothing_that_any_set_tests_on(hub, tmp_path):
    run(["data", "fetch", "search-r1", "--out", str(tmp_path)])
    tests = [tmp_path / name / f"{known.splits[0]}.jsonl" for name, known in SETS.items()]
    trains = [tmp_path / name / "train.jsonl" for name in ("nq", "hotpotqa")]
    splits = load_splits([str(p) for p in trains], test_questions=[str(p) for p in tests], val_fraction=0.0)
    assert len(splits.train) == 2
    assert len(splits.test) == 14


def test_without_the_guard_the_run_is_refused(hub, tmp_path):
    """The twin: the same files with the tested question left in train."""
    run(["data", "fetch", "search-r1", "--out", str(tmp_path)])
    leaked = tmp_path / "leaked.jsonl"
    leaked.write_text(json.dumps({"id": "x", "question": "who is tested EVERYWHERE", "answers": ["a"]}) + "\n")
    with pytest.raises(DataError, match="both in train and in test"):
        load_splits(str(leaked), test_questions=str(tmp_path / "popqa" / "test.jsonl"), val_fraction=0.0)


def test_what_is_there_is_kept_and_still_counts(hub, tmp_path):
    fetch_questions("nq", tmp_path, print)
    stamp = (tmp_path / "nq" / "test.jsonl").stat().st_mtime_ns
    (tmp_path / "nq" / "train.jsonl").unlink()
    hub.asked.clear()
    fetch_questions("nq", tmp_path, print)
    assert {path.rpartition("/")[2] for _, path, _ in hub.asked} == {"train.jsonl"}
    assert (tmp_path / "nq" / "test.jsonl").stat().st_mtime_ns == stamp
    assert [q.id for q in read_questions(tmp_path / "nq" / "train.jsonl")] == ["nq:train_0"]


def test_an_interrupted_fetch_goes_on(hub, tmp_path, monkeypatch):
    monkeypatch.setattr(downloads, "TRIES", 0)
    hub.cut_after, hub.cuts = 50, 1
    with pytest.raises(DownloadError):
        fetch_questions("popqa", tmp_path, print)
    assert not (tmp_path / "popqa").exists()
    fetch_questions("popqa", tmp_path, print)
    assert "bytes=50-" in hub.ranges_asked("test.jsonl")
    assert len(read_questions(tmp_path / "popqa" / "test.jsonl")) == 2


def test_questions_as_they_are(hub, tmp_path):
    run(["data", "fetch", "popqa", "--out", str(tmp_path), "--question_mark", "false"])
    assert read_questions(tmp_path / "popqa" / "test.jsonl")[0].question == "who is popqa test"


def test_a_dry_run(hub, tmp_path, capsys):
    run(["data", "fetch", "search-r1", "--out", str(tmp_path / "new"), "--dry_run"])
    assert "2wikimultihopqa/train.jsonl" in capsys.readouterr().out
    assert not (tmp_path / "new").exists()
    assert {method for method, _, _ in hub.asked} == {"HEAD"}


def test_metadata_that_we_keep():
    facts = {"title": ["Ed Wood", "Scott Derrickson", "Ed Wood"], "sent_id": [0, 1, 2]}
    metadata = {"type": "comparison", "supporting_facts": facts, "context": {"title": ["x"]}}
    record = {"id": "dev_1", "question": "Same?", "golden_answers": [" yes", "yes", ""], "metadata": metadata}
    found = convert_record(record, "hotpotqa", "dev", "f:1")
    assert found["gold_titles"] == ["Ed Wood", "Scott Derrickson"]
    assert (found["type"], found["answers"], found["gold_docs"]) == ("comparison", ["yes"], [])


@pytest.mark.parametrize("metadata", [None, {}, {"supporting_facts": None}, {"supporting_facts": [], "type": None}, 7])
def test_metadata_that_is_not_there(metadata):
    record = {"id": "1", "question": "q", "golden_answers": ["a"], "metadata": metadata}
    assert set(convert_record(record, "nq", "dev", "f:1")) == {
        "id",
        "question",
        "answers",
        "dataset",
        "split",
        "gold_docs",
    }


def test_a_question_without_an_answer_is_left_out():
    assert convert_record({"id": "1", "question": "q", "golden_answers": [" "]}, "nq", "dev", "f:1") is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"golden_answers": None}, "f:1: field 'golden_answers' must be a list of strings, got None"),
        ({"golden_answers": [3]}, "field 'golden_answers' must be a list of strings"),
        ({"question": " "}, "f:1: field 'question' is empty"),
        ({"id": 5}, "f:1: field 'id' must be a string"),
    ],
)
def test_records_in_another_form(change, message):
    record = {"id": "1", "question": "q", "golden_answers": ["a"], **change}
    with pytest.raises(DataError, match=message):
        convert_record(record, "nq", "dev", "f:1")


def test_repeated_ids_are_named(hub, tmp_path):
    path = hub.folder / FLASHRAG / "bamboogle" / "test.jsonl"
    path.write_text(path.read_text() + path.read_text().splitlines()[0] + "\n")
    with pytest.raises(DataError, match=r"test\.jsonl:3: id 'test_0' was already used in line 1"):
        fetch_questions("bamboogle", tmp_path, print)
    assert not (tmp_path / "bamboogle").exists()


def test_an_unknown_set(tmp_path):
    with pytest.raises(ConfigError, match="'squad' is not published; there is nq, "):
        fetch_questions("squad", tmp_path, print)
