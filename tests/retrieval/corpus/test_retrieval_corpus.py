import gzip
import json

import pytest

from rpl.core.errors import DataError
from rpl.retrieval.corpus.corpus import Corpus, contents, read_corpus

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


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'{"id": "b", "text": "\xe9"}\n', r":2: cannot be read as UTF-8 \(byte 0xe9 at position 22\); save the file"),
        (b'{"id": "b", "text": "\xc3', r":2: cannot be read as UTF-8 \(byte 0xc3 at position 22\)"),
        (b'{"id": "b", "text": "\0x"}\n', r":2: cannot be read as UTF-8 \(it has zero bytes, as UTF-16 does\)"),
        (b'{"id": "b", "n": ' + b"9" * 5000 + b"}\n", r":2: not JSON that can be read"),
        (b'{"id": ' + b"[" * 100_000 + b"\n", r":2: not JSON"),
    ],
)
def test_lines_that_are_no_text(tmp_path, data, message):
    (tmp_path / "c.jsonl").write_bytes(b'{"id": "a", "text": "x"}\n' + data)
    with pytest.raises(DataError, match=message):
        read_corpus(tmp_path / "c.jsonl")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_utf16(tmp_path, encoding):
    (tmp_path / "c.jsonl").write_text(json.dumps(GOOD) + "\n", encoding=encoding)
    with pytest.raises(
        DataError, match=r"c\.jsonl:1: cannot be read as UTF-8 \(it .* as UTF-16 does\); save the file as UTF-8"
    ):
        read_corpus(tmp_path / "c.jsonl")


def test_a_byte_order_mark_and_windows_line_ends_do_no_harm(tmp_path):
    (tmp_path / "c.jsonl").write_bytes(b"\xef\xbb\xbf" + json.dumps(GOOD).encode() + b"\r\n\r\n")
    assert read_corpus(tmp_path / "c.jsonl").titles == ["Lyon"]


def test_a_packed_file_with_rubbish_inside(tmp_path):
    packed = gzip.compress((json.dumps(GOOD) + "\n").encode() * 1000)
    (tmp_path / "c.jsonl.gz").write_bytes(packed[:40] + b"rubbish" + packed[47:])
    with pytest.raises(DataError, match="cannot be read"):
        read_corpus(tmp_path / "c.jsonl.gz")


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
