import gzip
import json

import pytest

from rpl.errors import DataError
from rpl.retrieval.corpus import Corpus, contents, read_corpus

GOOD = {"id": "a", "title": "Lyon", "text": "A city."}


def write(path, *records):
    lines = [record if isinstance(record, str) else json.dumps(record) for record in records]
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


def test_both_forms_give_the_same_corpus(tmp_path):
    plain = read_corpus(write(tmp_path / "a.jsonl", GOOD, {"id": "b", "title": 'The "X"', "text": "One.\nTwo."}))
    other = read_corpus(
        write(
            tmp_path / "b.jsonl",
            {"id": "a", "contents": '"Lyon"\nA city.'},
            "",
            {"id": "b", "contents": '"The "X""\nOne.\nTwo.'},
        )
    )
    assert list(plain) == list(other)
    assert plain.fingerprint == other.fingerprint
    assert other.get("b").title == 'The "X"'
    assert plain.contents(0) == '"Lyon"\nA city.'
    assert contents("", "A city.") == "A city."


def test_contents_without_a_title_line(tmp_path):
    passage = read_corpus(write(tmp_path / "a.jsonl", {"id": "a", "contents": "Just text."})).get("a")
    assert (passage.title, passage.text) == ("", "Just text.")


def test_gzip(tmp_path):
    path = tmp_path / "a.jsonl.gz"
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.write(json.dumps(GOOD) + "\n")
    assert read_corpus(path).titles == ["Lyon"]
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DataError, match="cannot be read"):
        read_corpus(path)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"title": "x", "text": "y"}, r":2: field 'id' is missing; this line has 'title', 'text'"),
        ({"id": "", "text": "y"}, r":2: field 'id' is empty"),
        ({"id": 7, "text": "y"}, r":2: field 'id' must be a string, got int 7"),
        ({"id": "a", "text": "y"}, r":2: id 'a' was already used in line 1"),
        ({"id": "b", "title": "x"}, r":2: field 'text' is missing"),
        ({"id": "b", "title": "x", "text": " \n"}, r":2: field 'text' is empty"),
        ({"id": "b", "title": ["x"], "text": "y"}, r":2: field 'title' must be a string, got list"),
        ({"id": "b", "text": None}, r":2: field 'text' is missing"),
        ({"id": "b", "contents": '"T"\n '}, r":2: field 'contents' has a title line but no text"),
        ({"id": "b", "contents": 3}, r":2: field 'contents' must be a string, got int 3"),
        ('{"id": "b", "text": "\\ud800"}', r":2: field 'text' holds a lone surrogate"),
        ('{"id": "b", ', r":2: not JSON"),
        ("[1]", r":2: expected a JSON object, got list"),
    ],
)
def test_bad_lines(tmp_path, record, message):
    with pytest.raises(DataError, match=message):
        read_corpus(write(tmp_path / "c.jsonl", GOOD, record))


def test_bad_files(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        read_corpus(tmp_path / "missing.jsonl")
    with pytest.raises(DataError, match="no passages in this file"):
        read_corpus(write(tmp_path / "empty.jsonl"))
    (tmp_path / "latin.jsonl").write_bytes(b'{"id": "a", "text": "\xe9"}\n')
    with pytest.raises(DataError, match="cannot be read"):
        read_corpus(tmp_path / "latin.jsonl")


def test_lookup_and_order():
    corpus = Corpus(["b", "a"], ["B", "A"], ["x", "y"])
    assert [p.id for p in corpus] == ["b", "a"]
    assert len(corpus) == 2
    assert "a" in corpus
    assert "c" not in corpus
    assert corpus.position("a") == 1
    with pytest.raises(KeyError):
        corpus.get("c")


def test_fingerprint_depends_on_every_column_and_on_order():
    base = Corpus(["a", "b"], ["A", "B"], ["x", "y"]).fingerprint
    others = [
        Corpus(["a", "c"], ["A", "B"], ["x", "y"]),
        Corpus(["a", "b"], ["A", "C"], ["x", "y"]),
        Corpus(["a", "b"], ["A", "B"], ["x", "z"]),
        Corpus(["b", "a"], ["B", "A"], ["y", "x"]),
        Corpus(["a", "b"], ["Ax", "B"], ["", "y"]),
    ]
    assert len({base, *(corpus.fingerprint for corpus in others)}) == 6


def test_constructor_refuses_nonsense():
    with pytest.raises(DataError, match="do not fit together"):
        Corpus(["a"], [], ["x"])
    with pytest.raises(DataError, match="'a' is used by more than one"):
        Corpus(["a", "a"], ["", ""], ["x", "y"])
    with pytest.raises(DataError, match="no passages"):
        Corpus([], [], [])
