"""Indexes over imported vectors: equal to encoded ones, refused where the vectors are of something else."""

import numpy as np
import pytest

from rpl.core.errors import ConfigError, DataError
from rpl.core.files import write_json, write_jsonl
from rpl.retrieval.canary import canary_query
from rpl.retrieval.corpus.corpus import Corpus
from rpl.retrieval.dense.encoders import HashEncoder
from rpl.retrieval.fetching import importing
from rpl.retrieval.fetching.importing import import_index, write_embeddings
from rpl.retrieval.fetching.vectors import VectorFile
from rpl.retrieval.indexing.folder import build_index, load_index
from rpl.retrieval.library_config import LibraryConfig

CONFIG = LibraryConfig(dense=True, encoder="hash")


@pytest.fixture(scope="module")
def encoded(corpus):
    return HashEncoder().encode([corpus.contents(i) for i in range(len(corpus))], "passage")


@pytest.fixture
def corpus_file(corpus, tmp_path):
    path = tmp_path / "corpus.jsonl"
    write_jsonl(path, [{"id": p.id, "title": p.title, "text": p.text} for p in corpus])
    return path


def flat_parts(folder, rows, *sizes):
    """A flat faiss index in parts, as the published one is."""
    faiss = pytest.importorskip("faiss")
    index = faiss.IndexFlatIP(rows.shape[1])
    index.add(np.ascontiguousarray(rows, dtype=np.float32))
    faiss.write_index(index, str(folder / "whole"))
    data, parts = (folder / "whole").read_bytes(), []
    (folder / "whole").unlink()
    for number, size in enumerate([*sizes, len(data)]):
        parts.append(folder / f"part_a{'abc'[number]}")
        parts[-1].write_bytes(data[:size])
        data = data[size:]
    return parts


def test_an_imported_index_answers_like_an_encoded_one(corpus, corpus_file, encoded, tmp_path):
    ours = load_index(build_index(corpus_file, tmp_path / "ours", CONFIG), CONFIG)
    parts = flat_parts(tmp_path, encoded, 9_999)
    theirs = load_index(import_index(corpus_file, parts, tmp_path / "theirs", CONFIG), CONFIG)
    queries = [canary_query(corpus.passage(i)) for i in range(0, len(corpus), 7)]
    assert theirs.dense.search(queries, 10) == ours.dense.search(queries, 10)
    assert (tmp_path / "theirs" / "embeddings.npy").read_bytes() == (tmp_path / "ours" / "embeddings.npy").read_bytes()


def test_another_index_over_the_same_vectors_encodes_nothing(corpus_file, encoded, tmp_path):
    out = import_index(corpus_file, flat_parts(tmp_path, encoded), tmp_path / "index", CONFIG)
    said = []
    build_index(corpus_file, out, LibraryConfig(dense=True, encoder="hash", dense_index="sq8"), said.append)
    assert f"embeddings: taken from {out}" in said


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("use_up", [False, True])
def test_the_rows_are_those_of_the_file(corpus, encoded, tmp_path, monkeypatch, dtype, use_up):
    monkeypatch.setattr(importing, "_SLICE", 17)
    parts = flat_parts(tmp_path, encoded, 5_000)
    before = sum(part.stat().st_size for part in parts)
    write_embeddings(VectorFile(parts), corpus, HashEncoder(), tmp_path / "e.npy", dtype, use_up=use_up)
    assert np.array_equal(np.load(tmp_path / "e.npy"), encoded.astype(dtype))
    assert sum(part.stat().st_size for part in parts) == (45 if use_up else before)
    assert sorted(path.name for path in tmp_path.glob(".*")) == []


@pytest.mark.parametrize("use_up", [False, True])
def test_used_up_vectors_take_their_space_once(tmp_path, monkeypatch, use_up):
    """Blocks on disk of the source and the copy together, after every slice."""
    rows = np.random.default_rng(0).standard_normal((4_096, 64)).astype(np.float32)
    parts = flat_parts(tmp_path, rows / np.linalg.norm(rows, axis=1, keepdims=True))
    most = []

    def measure(path, state):
        most.append(sum(file.stat().st_blocks * 512 for file in [*parts, tmp_path / "e.npy"]))
        write_json(path, state)

    monkeypatch.setattr(importing, "_SLICE", 256)
    monkeypatch.setattr(importing, "write_json", measure)
    monkeypatch.setattr(importing, "require_same", lambda *args: None)
    write_embeddings(VectorFile(parts), range(4_096), None, tmp_path / "e.npy", "float32", use_up=use_up)
    once = rows.nbytes + 2 * 256 * 256
    assert (max(most) <= once) is use_up


@pytest.mark.parametrize("use_up", [False, True])
@pytest.mark.parametrize("stage", ["read", "written", "noted", "cut"])
def test_a_killed_copy_goes_on(corpus, encoded, tmp_path, monkeypatch, use_up, stage):
    """The process ends in its third slice: once it is read, once it is written, once that is noted, once it is cut."""
    monkeypatch.setattr(importing, "_SLICE", 17)
    parts, path = flat_parts(tmp_path, encoded, 5_000), tmp_path / "e.npy"

    class Killed(BaseException):
        pass

    where = {
        "read": (importing.VectorFile, "read"),
        "written": (importing, "write_at"),
        "noted": (importing, "write_json"),
        "cut": (importing.VectorFile, "cut_at"),
    }[stage]
    original, calls = getattr(*where), []

    def dying(*args, **kwargs):
        result = original(*args, **kwargs)
        calls.append(1)
        if len(calls) > (18 if stage == "read" else 3):  # sixteen reads are the sample's
            raise Killed
        return result

    with monkeypatch.context() as patch:
        patch.setattr(*where, dying)
        if stage == "cut" and not use_up:
            write_embeddings(VectorFile(parts), corpus, HashEncoder(), path, "float32")
            return
        with pytest.raises(Killed):
            write_embeddings(VectorFile(parts), corpus, HashEncoder(), path, "float32", use_up=use_up)
    # What is left of the files must do: the sample is not encoded again, and no row is read twice but the last slice.
    monkeypatch.setattr(importing, "require_same", None)
    write_embeddings(VectorFile(parts, cut=use_up), corpus, HashEncoder(), path, "float32", use_up=use_up)
    assert np.array_equal(np.load(path), encoded)


@pytest.mark.parametrize("other", ["file", "encoder"])
def test_what_something_else_began_is_not_continued(corpus, encoded, tmp_path, monkeypatch, other):
    """The state says that rows from 86 on are done, but since then another file was begun, or an encoder wrote here."""
    monkeypatch.setattr(importing, "_SLICE", 17)
    parts, path = flat_parts(tmp_path, encoded), tmp_path / "e.npy"
    np.save(path, np.zeros_like(encoded))
    origin = str((tmp_path / "elsewhere") if other == "file" else parts[0])
    importing.write_json(tmp_path / ".e.npy.imported", {"origin": origin, "left": 86})
    if other == "encoder":
        (tmp_path / importing.STATE_FILE).write_bytes(b"\1")
    write_embeddings(VectorFile(parts), corpus, HashEncoder(), path, "float32")
    assert np.array_equal(np.load(path), encoded)
    assert sorted(file.name for file in tmp_path.glob(".*")) == []


def test_used_up_vectors_without_their_copy_are_noticed(corpus, encoded, tmp_path):
    parts = flat_parts(tmp_path, encoded)
    write_embeddings(VectorFile(parts), corpus, HashEncoder(), tmp_path / "e.npy", "float32", use_up=True)
    (tmp_path / "e.npy").unlink()
    with pytest.raises(DataError, match="incomplete"):
        write_embeddings(VectorFile(parts, cut=True), corpus, HashEncoder(), tmp_path / "e.npy", "float32", use_up=True)


def shuffled(corpus):
    ids = [*corpus.ids[1:], corpus.ids[0]]
    return Corpus(ids, [corpus.get(i).title for i in ids], [corpus.get(i).text for i in ids])


def test_vectors_in_another_order_are_refused(corpus, encoded, tmp_path):
    """Sizes fit and every vector is one of the corpus: only encoding some passages tells."""
    parts = flat_parts(tmp_path, encoded)
    with pytest.raises(DataError, match=r"the median cosine of 16 passages is 0\.\d+ instead of at least 0\.999"):
        write_embeddings(VectorFile(parts), shuffled(corpus), HashEncoder(), tmp_path / "e.npy", "float32")
    assert not (tmp_path / "e.npy").exists()


def test_vectors_that_are_in_order_at_first_only_are_refused(corpus, encoded, tmp_path):
    """Two thirds of the corpus fit, so the median does not tell."""
    parts = flat_parts(tmp_path, np.concatenate([encoded[:80], np.roll(encoded[80:], 1, axis=0)]))
    with pytest.raises(DataError, match=r"is 1\.0000 instead of at least 0\.999, the lowest 0\.\d+ \(passage"):
        write_embeddings(VectorFile(parts), corpus, HashEncoder(), tmp_path / "e.npy", "float32")


def test_half_precision_passes_the_sample(corpus, encoded, tmp_path):
    parts = flat_parts(tmp_path, encoded.astype(np.float16))
    write_embeddings(VectorFile(parts), corpus, HashEncoder(), tmp_path / "e.npy", "float32")


def test_noise_does_not_pass_the_sample(corpus, encoded, tmp_path):
    noise = np.random.default_rng(0).standard_normal(encoded.shape) * 0.01
    noisy = encoded + noise.astype(np.float32)
    parts = flat_parts(tmp_path, noisy / np.linalg.norm(noisy, axis=1, keepdims=True))
    with pytest.raises(DataError, match=r"median cosine of 16 passages is 0\.9"):
        write_embeddings(VectorFile(parts), corpus, HashEncoder(), tmp_path / "e.npy", "float32")
    write_embeddings(VectorFile(parts), corpus, HashEncoder(), tmp_path / "e.npy", "float32", least_similarity=0.99)


def test_vectors_of_other_lengths(corpus, encoded, tmp_path):
    parts = flat_parts(tmp_path, encoded * 3.0)
    with pytest.raises(DataError, match=r"has length 3\.000 instead of 1; .* \(--normalize\)"):
        write_embeddings(VectorFile(parts), corpus, HashEncoder(), tmp_path / "e.npy", "float32")
    (tmp_path / "e.npy").unlink()
    write_embeddings(VectorFile(parts), corpus, HashEncoder(), tmp_path / "e.npy", "float32", normalize=True)
    assert np.allclose(np.load(tmp_path / "e.npy"), encoded, atol=1e-6)


@pytest.mark.parametrize("value", [0.0, np.nan, np.inf])
def test_vectors_that_are_none(corpus, encoded, tmp_path, value):
    rows = encoded.copy()
    rows[61] = value
    with pytest.raises(DataError, match="the vector in row 61 is zero or not finite"):
        write_embeddings(VectorFile(flat_parts(tmp_path, rows)), corpus, HashEncoder(), tmp_path / "e.npy", "float32")


def test_another_encoder_is_noticed_before_anything_is_built(corpus_file, encoded, tmp_path):
    rotated = np.roll(encoded, 1, axis=1)
    with pytest.raises(DataError, match="not the vectors that encoder 'hash' makes"):
        import_index(corpus_file, flat_parts(tmp_path, rotated), tmp_path / "index", CONFIG)
    assert not (tmp_path / ".index.building").exists()


@pytest.mark.parametrize(
    ("rows", "config", "message"),
    [
        (lambda e: e[:-1], CONFIG, "119 vectors for 120 passages"),
        (lambda e: e[:, :32], CONFIG, "vectors of length 32, but library.encoder 'hash' makes such of length 64"),
        (lambda e: e, LibraryConfig(encoder="hash"), r"library\.dense is false"),
    ],
)
def test_what_does_not_fit_is_refused(corpus_file, encoded, tmp_path, rows, config, message):
    with pytest.raises((DataError, ConfigError), match=message):
        import_index(corpus_file, flat_parts(tmp_path, rows(encoded)), tmp_path / "index", config)
    assert not (tmp_path / "index").exists()
