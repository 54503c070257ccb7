"""Index folders: built once and whole, refused when stale or damaged, equal after a reload."""

import json
import multiprocessing
import time

import numpy as np
import pytest

from rpl import atlas
from rpl.cli.commands.index import run as index_command
from rpl.core.errors import ConfigError, DataError, RetrieverError
from rpl.core.files import cache_dir, write_jsonl
from rpl.core.locks import folder_lock
from rpl.retrieval.canary import probe
from rpl.retrieval.corpus.corpus import Corpus, read_corpus
from rpl.retrieval.corpus.coverage import gold_coverage
from rpl.retrieval.corpus.questions import read_questions
from rpl.retrieval.dense.encoders import HashEncoder
from rpl.retrieval.indexing import folder as index_folder
from rpl.retrieval.indexing.folder import build_index, load_index
from rpl.retrieval.indexing.manifest import check_all_files, describe_manifest, read_manifest
from rpl.retrieval.keyword import bm25
from rpl.retrieval.library.health import require_healthy
from rpl.retrieval.library.opening import open_library
from rpl.retrieval.library_config import LibraryConfig

CONFIG = LibraryConfig(dense=True, encoder="hash")
CALLS = [
    ("bm25", {"query": "river bridge", "k": 10}),
    ("dense", {"query": "castle king", "k": 10}),
    ("rerank", {"query": "castle", "passages": ["p1", "p2", "p3"], "k": 2}),
    ("links", {"passage": "p3", "k": 5}),
]


@pytest.fixture
def corpus_file(corpus, tmp_path):
    path = tmp_path / "corpus.jsonl"
    write_jsonl(path, [{"id": p.id, "title": p.title, "text": p.text} for p in corpus])
    return path


@pytest.fixture
def index(corpus_file, tmp_path):
    return build_index(corpus_file, tmp_path / "index", CONFIG)


def config(corpus, **settings):
    return LibraryConfig(corpus=str(corpus), **{"dense": True, "encoder": "hash", **settings})


def test_an_index_folder_answers_like_its_corpus_file(corpus_file, index):
    from_file, from_folder = open_library(config(corpus_file)), open_library(config(index))
    for call in CALLS:
        assert from_file.call(*call).passages == from_folder.call(*call).passages
    assert from_file.fingerprint == from_folder.fingerprint


def test_what_is_in_the_folder(index, corpus):
    names = {path.name for path in index.iterdir()}
    assert names == {"corpus", "bm25", "links", "embeddings.npy", "manifest.json"}
    manifest = json.loads((index / "manifest.json").read_text())
    assert manifest["passages"] == len(corpus)
    assert manifest["dim"] == 64
    assert manifest["corpus_fingerprint"] == corpus.fingerprint
    assert manifest["settings"]["encoder"] == "hash"
    assert manifest["built_with"]["bm25s"]
    assert manifest["files"]["embeddings.npy"]["bytes"] == (index / "embeddings.npy").stat().st_size
    assert [path.name for path in index.parent.iterdir() if "building" in path.name] == []


def test_the_cached_index_is_built_once(corpus_file, monkeypatch):
    lines = []
    first = open_library(config(corpus_file), lines.append)
    assert any("building index" in line and "120 passages" in line for line in lines)
    assert len([p for p in (cache_dir() / "indexes").iterdir() if p.is_dir()]) == 1
    monkeypatch.setattr(index_folder, "IndexBuild", None)
    again = open_library(config(corpus_file), lines.append)
    assert first.fingerprint == again.fingerprint


def test_other_settings_get_another_cached_index(corpus_file):
    prints = {
        open_library(config(corpus_file, **settings)).fingerprint
        for settings in ({}, {"bm25_k1": 1.2}, {"embedding_dtype": "float16"}, {"dense": False}, {"reranker": "none"})
    }
    assert len(prints) == 5
    # The reranker is no part of the index.
    assert len([p for p in (cache_dir() / "indexes").iterdir() if p.is_dir()]) == 4


def test_an_index_in_a_named_folder(corpus_file, tmp_path):
    folder = tmp_path / "named"
    open_library(config(corpus_file, index_dir=str(folder)))
    stamp = (folder / "manifest.json").stat().st_mtime_ns
    open_library(config(corpus_file, index_dir=str(folder)))
    assert (folder / "manifest.json").stat().st_mtime_ns == stamp


def test_a_changed_corpus_makes_the_index_stale(corpus_file, index, corpus):
    records = [{"id": p.id, "title": p.title, "text": p.text + " more"} for p in corpus]
    write_jsonl(corpus_file, records)
    with pytest.raises(DataError, match="built from another corpus"):
        open_library(config(corpus_file, index_dir=str(index)))
    with pytest.raises(DataError, match="built from another corpus"):
        build_index(corpus_file, index, CONFIG)


def test_building_again(corpus_file, index):
    def stamp():
        return (index / "manifest.json").stat().st_mtime_ns

    before = stamp()
    build_index(corpus_file, index, CONFIG)
    assert stamp() == before
    build_index(corpus_file, index, LibraryConfig(bm25_k1=1.5))
    assert stamp() != before
    assert not (index / "embeddings.npy").exists()
    assert [path.name for path in index.parent.iterdir() if "building" in path.name] == []


def test_a_folder_with_other_files_is_left_alone(corpus_file, tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    (folder / "cat.jpg").write_text("meow")
    with pytest.raises(DataError, match="holds files that are not an index"):
        build_index(corpus_file, folder, CONFIG)
    assert (folder / "cat.jpg").read_text() == "meow"
    with pytest.raises(DataError, match="is a file"):
        build_index(corpus_file, corpus_file, CONFIG)


def truncate(path):
    path.write_bytes(path.read_bytes()[:-10])


def flip(path):
    data = bytearray(path.read_bytes())
    data[-5] ^= 0xFF
    path.write_bytes(bytes(data))


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("manifest.json", truncate, "manifest.json: cannot be read"),
        ("manifest.json", lambda p: p.write_text('{"format": 99}'), "index format 99, this version reads 2"),
        ("manifest.json", lambda p: p.write_text('{"format": 2}'), "manifest.json: damaged"),
        ("embeddings.npy", truncate, "bytes instead of"),
        ("embeddings.npy", lambda p: p.unlink(), "embeddings.npy: missing"),
        ("embeddings.npy", flip, "its content has changed"),
        ("corpus/corpus.arrow", flip, "its content has changed"),
        ("links/offsets.npy", flip, "its content has changed"),
        ("bm25/data.csc.index.npy", flip, "its content has changed"),
        ("bm25/vocab.index.json", lambda p: p.unlink(), "vocab.index.json: missing"),
    ],
)
def test_damage_is_noticed(index, name, damage, message):
    damage(index / name)
    with pytest.raises(DataError, match=message):
        load_index(index, CONFIG)


def test_another_tokeniser_makes_the_index_stale(index, monkeypatch):
    monkeypatch.setattr("rpl.retrieval.indexing.manifest.TOKENIZER_VERSION", 2)
    with pytest.raises(DataError, match="made by tokeniser 1, now 2"):
        load_index(index, CONFIG)


def test_changed_encoder_files_make_the_index_stale(index, monkeypatch):
    encoder = HashEncoder()
    encoder.fingerprint = "other"
    with pytest.raises(DataError, match="the weights, pooling or passage prefix of encoder 'hash' have changed"):
        load_index(index, CONFIG, encoder=encoder)
    encoder.name = "other"
    with pytest.raises(ConfigError, match=r"library\.encoder is 'other' but the index .* was built with 'hash'"):
        load_index(index, CONFIG, encoder=encoder)


def test_settings_that_disagree_with_an_index(corpus_file, tmp_path):
    index = build_index(corpus_file, tmp_path / "i", LibraryConfig(bm25_k1=1.2, encoder="hash"))
    assert load_index(index, LibraryConfig()).config.bm25_k1 == 1.2
    with pytest.raises(ConfigError, match=r"library\.bm25_k1 is 1\.5 but the index .* was built with 1\.2"):
        load_index(index, LibraryConfig(bm25_k1=1.5))
    with pytest.raises(ConfigError, match=r"library\.dense is true but .* holds no embeddings"):
        load_index(index, LibraryConfig(dense=True, encoder="hash"))


def test_dense_may_stay_off(index):
    library = open_library(LibraryConfig(corpus=str(index)))
    assert "dense" not in library.primitives
    assert "rerank" not in library.primitives


def test_late_interaction_without_dense(index):
    library = open_library(LibraryConfig(corpus=str(index), encoder="hash", reranker="late-interaction"))
    assert library.primitives == ("bm25", "rerank", "read", "links")


def test_the_reference_backend(corpus_file):
    memory = open_library(LibraryConfig(corpus=str(corpus_file), bm25="memory"))
    fast = open_library(LibraryConfig(corpus=str(corpus_file)))
    for query in ("river bridge", "castle"):
        one = memory.call("bm25", {"query": query, "k": 5}).passages
        two = fast.call("bm25", {"query": query, "k": 5}).passages
        assert [p.id for p in one] == [p.id for p in two]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"corpus": "nowhere.jsonl"}, r"library\.corpus: 'nowhere\.jsonl' does not exist; give atlas"),
        ({"corpus": ""}, r"library\.corpus is empty"),
        (
            {"bm25": "elastic"},
            r"library\.bm25 must be one of bm25s, memory, lucene, or a class_path; got 'elastic'",
        ),
        ({"bm25_b": 1.5}, r"library\.bm25_b must be in \[0, 1\], got 1\.5"),
        ({"bm25_k1": -1.0}, r"library\.bm25_k1 must be at least 0"),
        ({"bm25_k1": float("nan")}, r"library\.bm25_k1 must be at least 0"),
        ({"embedding_dtype": "int8"}, r"library\.embedding_dtype must be one of float32, float16"),
        ({"dense_index": "annoy"}, r"library\.dense_index must be one of flat, fp16, sq8, hnsw, .*; got 'annoy'"),
        ({"encoder_pooling": "max"}, r"library\.encoder_pooling must be one of mean, cls, last, got 'max'"),
        ({"encoder_max_tokens": 0}, r"library\.encoder_max_tokens must be at least 1, got 0"),
        ({"encoder": ""}, r"library\.encoder is empty"),
        ({"encoder_batch_size": 0}, r"library\.encoder_batch_size must be at least 1, got 0"),
        ({"cache_size": -1}, r"library\.cache_size must be at least 0, got -1"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(ConfigError, match=message):
        open_library(LibraryConfig(**settings))


def test_a_folder_without_an_index_is_no_corpus(tmp_path, index):
    with pytest.raises(ConfigError, match="is a folder without an index"):
        open_library(LibraryConfig(corpus=str(tmp_path)))
    with pytest.raises(ConfigError, match=r"library\.index_dir must be left out"):
        open_library(LibraryConfig(corpus=str(index), index_dir=str(tmp_path / "x")))


def test_an_index_that_answers_nonsense_is_refused(corpus_file, tmp_path, monkeypatch):
    """Passages shifted by half the corpus against their index: sizes fit, results come, and all of them are wrong."""
    right = bm25.build_arrays

    def shifted(corpus, *rest):
        ids = [*corpus.ids[60:], *corpus.ids[:60]]
        moved = Corpus(ids, [corpus.get(i).title for i in ids], [corpus.get(i).text for i in ids])
        return right(moved, *rest)

    monkeypatch.setattr(bm25, "build_arrays", shifted)
    with pytest.raises(RetrieverError, match=r"keyword index fails its self-test: [01] of 8 passages"):
        build_index(corpus_file, tmp_path / "index", CONFIG)
    assert not (tmp_path / "index").exists()


def test_embeddings_that_fit_no_passage_are_refused(corpus_file, tmp_path, monkeypatch):
    def constant(corpus, encoder, path, dtype, state):
        np.save(path, np.full((len(corpus), encoder.dim), encoder.dim**-0.5, dtype=dtype))

    monkeypatch.setattr("rpl.retrieval.indexing.plan.embed_corpus", constant)
    with pytest.raises(RetrieverError, match=r"dense index fails its self-test: .* same first result"):
        build_index(corpus_file, tmp_path / "index", CONFIG)


def test_canaries(corpus, retrievers):
    report = probe(retrievers["bm25s"].search, corpus)
    assert report.ok
    assert (report.tried, report.found) == (8, 8)
    first = corpus.passage(0)
    stuck = probe(lambda queries, k: [[first]] * len(queries), corpus)
    assert not stuck.ok
    assert "same first result" in str(stuck)
    assert not probe(lambda queries, k: [[]] * len(queries), corpus).ok


def test_a_corpus_of_one_passage(tmp_path):
    write_jsonl(tmp_path / "c.jsonl", [{"id": "a", "title": "Lyon", "text": "A city."}])
    library = open_library(config(tmp_path / "c.jsonl"))
    assert [p.id for p in library.call("dense", {"query": "city", "k": 5}).passages] == ["a"]


def _build_in_child(corpus_file, folder, log):
    lines = []
    build_index(corpus_file, folder, CONFIG, lines.append)
    with open(log, "a", encoding="utf-8") as file:
        file.write(f"{sum('index ready' in line for line in lines)}\n")


def test_two_builders_build_once(corpus_file, tmp_path):
    context = multiprocessing.get_context("spawn")
    log = tmp_path / "log"
    folder = tmp_path / "index"
    with folder_lock(folder):
        children = [
            context.Process(target=_build_in_child, args=(corpus_file, folder, log), daemon=True) for _ in range(2)
        ]
        for child in children:
            child.start()
        time.sleep(0.3)
        assert not folder.exists()
    for child in children:
        child.join(60)
    assert sorted(log.read_text().split()) == ["0", "1"]
    assert len(load_index(folder, CONFIG).corpus) == len(read_corpus(corpus_file))


def test_the_embedded_corpus():
    library = open_library(LibraryConfig(corpus="atlas-mini"))
    require_healthy(library)
    questions = read_questions(atlas.materialise("atlas-mini") / "questions.jsonl")
    assert gold_coverage(questions, library).share == 1.0


def test_a_full_check_hashes_files_of_any_size(index, monkeypatch):
    assert check_all_files(index) == sum(path.stat().st_size for path in index.rglob("*.*") if path.is_file()) - (
        (index / "manifest.json").stat().st_size
    )
    flip(index / "embeddings.npy")
    monkeypatch.setattr("rpl.retrieval.indexing.manifest.HASHED_AT_LOAD", 0)
    read_manifest(index)
    with pytest.raises(DataError, match=r"embeddings\.npy: its content has changed"):
        check_all_files(index)


def test_a_manifest_as_text(index, corpus):
    text = describe_manifest(read_manifest(index))
    assert f"120 passages, corpus {corpus.fingerprint}, embeddings of length 64" in text
    assert [line.split()[0] for line in text.splitlines()[2:8]] == [
        "part",
        "corpus",
        "keyword",
        "links",
        "embeddings",
        "dense",
    ]
    assert '  encoder: "hash"\n' in text
    assert "pyarrow" in text


def test_the_command_with_a_file_of_options(corpus_file, tmp_path, capsys):
    options = tmp_path / "index.yaml"
    options.write_text(
        f"corpus: {corpus_file}\nout: {tmp_path / 'index'}\nlibrary: {{dense: true, encoder: hash, dense_index: sq8}}\n"
    )
    index_command(["build", "-c", str(options), "--dry_run"])
    assert "embeddings" in capsys.readouterr().out
    assert not (tmp_path / "index").exists()
    folder = index_command(["build", "-c", str(options), "--library.bm25_k1", "1.2"])
    assert index_command(["info", str(folder)])["settings"]["bm25_k1"] == 1.2
    assert "1.2" in capsys.readouterr().out
    index_command(["check", str(folder), "--full", "--library.dense", "true", "--library.encoder", "hash"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("files       ok      ")
    assert {line.split()[0] for line in lines} >= {"files", "bm25", "dense"}
    index_command(["encode", str(folder)])
    assert f"{folder}: the index is finished" in capsys.readouterr().err
