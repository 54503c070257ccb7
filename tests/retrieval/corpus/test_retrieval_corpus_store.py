"""Corpora that are mapped from disk, against the same ones in memory; and what is remembered about corpus files."""

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rpl.core.errors import DataError
from rpl.core.files import cache_dir, write_jsonl
from rpl.retrieval.corpus import fingerprints as known_corpora
from rpl.retrieval.corpus import store as corpus_store
from rpl.retrieval.corpus.corpus import Corpus, read_corpus
from rpl.retrieval.corpus.fingerprints import Reading, file_fingerprint, known_fingerprint
from rpl.retrieval.corpus.store import RepeatedIdError, open_store, store_corpus_file, store_rows


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch):
    monkeypatch.setattr(corpus_store, "BATCH_ROWS", 7)


def stored(corpus, folder):
    assert store_rows(((p.id, p.title, p.text) for p in corpus), folder) == corpus.fingerprint
    return open_store(folder)


def test_a_mapped_corpus_is_like_one_in_memory(corpus, tmp_path):
    mapped = stored(corpus, tmp_path)
    assert list(mapped) == list(corpus)
    assert mapped.fingerprint == corpus.fingerprint
    assert Corpus(mapped.ids, mapped.titles, mapped.texts).fingerprint == corpus.fingerprint
    for name in ("ids", "titles", "texts"):
        column, plain = getattr(mapped, name), getattr(corpus, name)
        assert list(column) == plain
        for place in (0, 6, 7, 119, -1, -120, slice(3, 40), slice(None, None, 9), slice(115, 999), slice(5, 2)):
            assert column[place] == plain[place]
        for place in (120, -121):
            with pytest.raises(IndexError):
                column[place]
    for place, id_ in enumerate(corpus.ids):
        assert mapped.position(id_) == place
    assert mapped.get("p7") == corpus.get("p7")
    assert mapped.passage(5, 0.5, 2) == corpus.passage(5, 0.5, 2)
    assert mapped.contents_between(5, 30) == [corpus.contents(place) for place in range(5, 30)]
    for unknown in ("p120", "", "P7", "\ud800", 7, None):
        assert unknown not in mapped
        assert unknown not in corpus
    with pytest.raises(KeyError):
        mapped.get("p120")


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.text(min_size=1), st.text(), st.text(min_size=1)), min_size=1, unique_by=lambda row: row[0])
)
def test_any_texts_survive(tmp_path_factory, rows):
    rows = [row for row in rows if all(value.encode("utf-8", "ignore").decode() == value for value in row)]
    if rows:
        corpus = Corpus(*map(list, zip(*rows, strict=True)))
        mapped = stored(corpus, tmp_path_factory.mktemp("any"))
        assert list(mapped) == list(corpus)
        assert [mapped.position(id_) for id_ in corpus.ids] == list(range(len(rows)))


def test_ids_whose_hashes_collide(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus_store, "id_hash", lambda id_: len(id_))
    mapped = stored(Corpus(["a", "bb", "c", "dd", "e"], [""] * 5, ["x"] * 5), tmp_path)
    assert [mapped.position(id_) for id_ in ("a", "bb", "c", "dd", "e")] == [0, 1, 2, 3, 4]
    assert "f" not in mapped
    assert "ff" not in mapped
    with pytest.raises(RepeatedIdError) as error:
        store_rows([(id_, "", "x") for id_ in ("a", "b", "cc", "b", "a", "b")], tmp_path)
    assert (error.value.id_, error.value.first, error.value.again) == ("b", 1, 3)


def test_the_first_repeat_is_told_by_its_lines(tmp_path):
    path = tmp_path / "c.jsonl"
    path.write_text('{"id": "a", "text": "x"}\n\n{"id": "b", "text": "x"}\n{"id": "b", "text": "x"}\n' * 2)
    for read in (read_corpus, lambda path: store_corpus_file(path, tmp_path)):
        with pytest.raises(DataError, match=r"c\.jsonl:4: id 'b' was already used in line 3; ids must be unique"):
            read(path)


def test_a_file_is_stored_as_it_is_read(corpus, tmp_path):
    write_jsonl(tmp_path / "c.jsonl", [{"id": p.id, "title": p.title, "text": p.text} for p in corpus])
    assert store_corpus_file(tmp_path / "c.jsonl", tmp_path) == corpus.fingerprint
    assert list(open_store(tmp_path)) == list(read_corpus(tmp_path / "c.jsonl"))


@pytest.mark.parametrize("name", ["corpus.arrow", "ids.npy", "corpus.json"])
@pytest.mark.parametrize("damage", [lambda p: p.unlink(), lambda p: p.write_bytes(p.read_bytes()[:-20])])
def test_damage_is_noticed(corpus, tmp_path, name, damage):
    stored(corpus, tmp_path)
    damage(tmp_path / name)
    with pytest.raises(DataError, match=r"the corpus cannot be read .*; delete the index folder"):
        open_store(tmp_path)


def test_files_of_two_corpora_do_not_pass_for_one(corpus, tmp_path):
    for name, size in (("one", 100), ("two", 50)):
        (tmp_path / name).mkdir()
        stored(Corpus(corpus.ids[:size], corpus.titles[:size], corpus.texts[:size]), tmp_path / name)
    for name in ("corpus.arrow", "ids.npy"):
        kept = (tmp_path / "one" / name).read_bytes()
        (tmp_path / "one" / name).write_bytes((tmp_path / "two" / name).read_bytes())
        with pytest.raises(DataError, match="the corpus cannot be read"):
            open_store(tmp_path / "one")
        (tmp_path / "one" / name).write_bytes(kept)


@pytest.fixture
def corpus_file(corpus, tmp_path):
    path = tmp_path / "c.jsonl"
    write_jsonl(path, [{"id": p.id, "title": p.title, "text": p.text} for p in corpus])
    os.utime(path, (1, 1))
    return path


def test_a_fingerprint_is_computed_once(corpus, corpus_file, monkeypatch):
    assert known_fingerprint(corpus_file) is None
    assert file_fingerprint(corpus_file) == corpus.fingerprint
    with monkeypatch.context() as patch:
        patch.setattr(known_corpora, "read_passages", None)
        assert file_fingerprint(corpus_file) == known_fingerprint(corpus_file) == corpus.fingerprint
    # Any change of the file ends it: its time, its size, or another file of its name.
    os.utime(corpus_file, (2, 2))
    assert known_fingerprint(corpus_file) is None
    assert file_fingerprint(corpus_file) == corpus.fingerprint
    other = corpus_file.with_name("other")
    other.write_bytes(corpus_file.read_bytes())
    os.utime(other, (2, 2))
    os.replace(other, corpus_file)
    assert known_fingerprint(corpus_file) is None


def test_a_file_that_was_just_written_is_not_remembered(corpus_file):
    os.utime(corpus_file)
    file_fingerprint(corpus_file)
    assert known_fingerprint(corpus_file) is None
    assert not (cache_dir() / "corpora").exists()


def test_a_file_that_changes_while_it_is_read(corpus_file):
    reading = Reading(corpus_file)
    os.utime(corpus_file, (3, 3))
    with pytest.raises(DataError, match="has changed while it was read"):
        reading.remember("x")


def test_a_damaged_memory_is_no_memory(corpus, corpus_file):
    file_fingerprint(corpus_file)
    (memory,) = (cache_dir() / "corpora").iterdir()
    for text in ("{", "[1]", "{}"):
        memory.write_text(text)
        assert known_fingerprint(corpus_file) is None
    assert file_fingerprint(corpus_file) == corpus.fingerprint
