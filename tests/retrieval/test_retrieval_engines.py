"""How YAML names an engine, how manifests remember it, and that engines from outside work like the built-in ones."""

import importlib.metadata
import json
from dataclasses import asdict, dataclass, replace
from typing import ClassVar

import pytest

from rpl.cli.commands.parsing import make_parser
from rpl.core.errors import ConfigError, DataError
from rpl.core.files import write_jsonl
from rpl.environment.environment import EnvironmentConfig
from rpl.retrieval.dense.faiss_indexes import HNSW, IVFPQ, SQ8, Flat
from rpl.retrieval.engines import (
    DENSE_INDEXES,
    KEYWORD_ENGINES,
    DenseIndex,
    KeywordEngine,
    RerankEngine,
    config_values,
    dense_index,
    describe,
    keyword_engine,
    make,
    rerank_engine,
)
from rpl.retrieval.indexing.folder import build_index, load_index
from rpl.retrieval.indexing.manifest import index_settings, read_manifest
from rpl.retrieval.indexing.plan import Plan
from rpl.retrieval.keyword.bm25 import BM25S
from rpl.retrieval.keyword.memory import MemoryBM25
from rpl.retrieval.keyword.tokens import Tokenizer
from rpl.retrieval.library.opening import open_library
from rpl.retrieval.library_config import LibraryConfig
from rpl.retrieval.rerank.rerankers import CrossEncoder, LateInteraction
from rpl.retrieval.rerank.yes_no import YesNo

HERE = __name__

FAISS = "rpl.retrieval.dense.faiss_indexes"


@dataclass(frozen=True)
class Backwards(KeywordEngine):
    """An engine from outside, with a setting and a file of its own."""

    subfolder: ClassVar[str | None] = "backwards"
    package: ClassVar[str | None] = "PyYAML"

    letters: int = 3

    def build(self, corpus, folder, analysis):
        folder.mkdir()
        (folder / "letters").write_text(str(self.letters))

    def load(self, corpus, folder, analysis):
        assert (folder / "letters").read_text() == str(self.letters)
        return MemoryBM25(corpus, Tokenizer(analysis.stemmer, analysis.stop_words), analysis.k1, analysis.b)


@pytest.fixture
def corpus_file(corpus, tmp_path):
    path = tmp_path / "corpus.jsonl"
    write_jsonl(path, [{"id": p.id, "title": p.title, "text": p.text} for p in corpus])
    return path


def run(environment: EnvironmentConfig = EnvironmentConfig()):
    """Stands for a command."""
    return environment


def parse(*args):
    parser = make_parser("run", run)
    return parser.instantiate(parser.parse_args(list(args)))["environment"].library


@pytest.mark.parametrize(
    ("base", "names"), [(KeywordEngine, KEYWORD_ENGINES), (DenseIndex, DENSE_INDEXES)], ids=["keyword", "dense"]
)
def test_every_short_name_is_a_class_and_comes_back_as_itself(base, names):
    for name, path in names.items():
        engine = make("key", name, base, names)
        assert isinstance(engine, base)
        assert f"{type(engine).__module__}.{type(engine).__name__}" == path
        assert describe(engine) == name
        assert make("key", json.loads(json.dumps(describe(engine))), base, names) == engine


@pytest.mark.parametrize("engine", [HNSW(neighbours=8), IVFPQ(lists=3, gpu=False), SQ8(rescore=False), Flat(gpu=True)])
def test_changed_settings_are_described_whole(engine):
    described = json.loads(json.dumps(describe(engine)))
    assert described["class_path"] == f"rpl.retrieval.dense.faiss_indexes.{type(engine).__name__}"
    assert make("dense_index", described, DenseIndex, DENSE_INDEXES) == engine


def test_yaml_by_name_and_by_class():
    assert parse().bm25 == "bm25s"
    assert parse("--environment.library.dense_index", "sq8").dense_index == "sq8"
    yaml = "{class_path: " + FAISS + ".HNSW, init_args: {neighbours: 16}}"
    assert parse("--environment.library.dense_index", yaml).dense_index == HNSW(neighbours=16)
    assert keyword_engine(parse("--environment.library.bm25", "rpl.retrieval.keyword.bm25.BM25S")) == BM25S()
    yaml = f"{{class_path: {HERE}.Backwards, init_args: {{letters: 5}}}}"
    assert parse("--environment.library.bm25", yaml).bm25 == Backwards(5)
    yaml = "{class_path: rpl.retrieval.rerank.yes_no.YesNo, init_args: {model: some/model}}"
    assert parse("--environment.library.reranker", yaml).reranker == YesNo("some/model")
    assert parse("--environment.library.reranker", "BAAI/bge-reranker-v2-m3").reranker == "BAAI/bge-reranker-v2-m3"


def test_yaml_written_from_a_config_reads_back(tmp_path):
    import yaml

    library = LibraryConfig(bm25=Backwards(4), dense_index=IVFPQ(lists=7), reranker=YesNo("some/model", max_tokens=99))
    text = yaml.safe_dump({"environment": config_values(EnvironmentConfig(library))})
    (tmp_path / "run.yaml").write_text(text)
    assert parse("-c", str(tmp_path / "run.yaml")) == library


def test_a_config_without_engines_is_written_as_before():
    assert config_values(EnvironmentConfig()) == json.loads(json.dumps(asdict(EnvironmentConfig())))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"bm25": "rpl.retrieval.keyword.bm25.Nothing"},
            r"library\.bm25: there is no class '.*\.bm25\.Nothing'",
        ),
        ({"bm25": "nowhere.Nothing"}, r"library\.bm25: there is no class 'nowhere\.Nothing'"),
        ({"bm25": f"{FAISS}.HNSW"}, r"library\.bm25: .*HNSW is no KeywordEngine"),
        (
            {"dense_index": {"class_path": f"{FAISS}.HNSW", "init_args": {"m": 5}}},
            "HNSW takes .*'m'",
        ),
    ],
)
def test_engines_that_are_none(settings, message):
    config = LibraryConfig(**settings)
    with pytest.raises(ConfigError, match=message):
        keyword_engine(config), dense_index(config)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "{class_path: " + FAISS + ".HNSW, init_args: {m: 5}}",
            "HNSW takes .*neighbours.* not take 'm'",
        ),
        (
            "{class_path: " + FAISS + ".Tree}",
            "there is no class '.*faiss_indexes.Tree'",
        ),
        (
            "{class_path: " + FAISS + ".HNSW, init_args: {neighbours: many}}",
            "HNSW cannot be made .*many",
        ),
        ("annoy", "must be one of flat, fp16, sq8, hnsw, ivfpq, milvus, or a class_path; got 'annoy'"),
    ],
)
def test_mistakes_on_the_command_line(text, message):
    with pytest.raises((ConfigError, ValueError), match=rf"library\.dense_index:? {message}"):
        parse("--environment.library.dense_index", text)


def test_an_engine_from_outside(corpus_file, tmp_path):
    config = LibraryConfig(corpus=str(corpus_file), bm25=Backwards(6))
    assert [p.id for p in open_library(config).call("bm25", {"query": "castle", "k": 3}).passages]
    index = build_index(corpus_file, tmp_path / "index", config)
    assert (index / "backwards" / "letters").read_text() == "6"
    assert load_index(index, LibraryConfig()).config.bm25 == Backwards(6)
    assert read_manifest(index).built_with["PyYAML"] == importlib.metadata.version("PyYAML")
    with pytest.raises(ConfigError, match=r"library\.bm25 is 'memory' but the index .* was built with .*Backwards"):
        load_index(index, LibraryConfig(bm25="memory"))
    (index / "backwards" / "letters").write_text("7")
    with pytest.raises(DataError, match="content has changed"):
        load_index(index, LibraryConfig())


def test_the_index_decides_what_the_config_leaves_open(corpus_file, tmp_path):
    built = LibraryConfig(dense=True, encoder="hash", dense_index=HNSW(neighbours=8))
    index = build_index(corpus_file, tmp_path / "index", built)
    assert (index / "dense" / "index.faiss").is_file()
    loaded = load_index(index, LibraryConfig(dense=True, encoder="hash"))
    assert loaded.config.dense_index == HNSW(neighbours=8)
    kept = load_index(index, LibraryConfig(dense=True, encoder="hash", dense_index=HNSW(neighbours=8, candidates=150)))
    assert kept.dense.index.candidates == 120
    for other in ("sq8", HNSW(neighbours=9)):
        with pytest.raises(ConfigError, match=r"library\.dense_index is .* but the index .* was built with .*HNSW"):
            load_index(index, LibraryConfig(dense=True, encoder="hash", dense_index=other))


def test_an_index_may_be_searched_in_another_way_than_it_was_built_for(corpus_file, tmp_path):
    built = LibraryConfig(dense=True, encoder="hash", dense_index=IVFPQ(lists=4, bits=4, probes=4))
    index = build_index(corpus_file, tmp_path / "index", built)
    wanted = IVFPQ(lists=4, bits=4, probes=2, rescore=False)
    opened = load_index(index, replace(built, dense_index=wanted))
    assert opened.config.dense_index == wanted
    assert opened.dense.index.index.nprobe == 2
    libraries = [open_library(replace(built, corpus=str(index), dense_index=i)) for i in (built.dense_index, wanted)]
    assert libraries[0].fingerprint != libraries[1].fingerprint
    with pytest.raises(ConfigError, match=r"was built with .*'lists': 4"):
        load_index(index, replace(built, dense_index=IVFPQ(lists=5, bits=4)))


def test_a_flat_index_is_not_mistaken_for_another(corpus_file, tmp_path):
    """It stands in no manifest, as in those that were written when there was no other."""
    index = build_index(corpus_file, tmp_path / "index", LibraryConfig(dense=True, encoder="hash"))
    assert "dense_index" not in json.loads((index / "manifest.json").read_text())["settings"]
    assert not (index / "dense").exists()
    with pytest.raises(ConfigError, match=r"library\.dense_index is 'sq8' but the index .* was built with 'flat'"):
        load_index(index, LibraryConfig(dense=True, encoder="hash", dense_index="sq8"))


def test_settings_of_an_index_by_default_are_those_that_older_folders_name():
    assert index_settings(LibraryConfig(dense=True)) == {
        "bm25": "bm25s",
        "bm25_k1": 0.9,
        "bm25_b": 0.4,
        "stemmer": "english",
        "stop_words": True,
        "encoder": "all-MiniLM-L6-v2",
        "passage_prefix": None,
        "embedding_dtype": "float32",
    }
    changed = index_settings(LibraryConfig(dense=True, encoder_pooling="cls", dense_index="hnsw"))
    assert (changed["encoder_pooling"], changed["dense_index"]) == ("cls", "hnsw")


@pytest.mark.parametrize("index", ["sq8", "hnsw"])
def test_another_dense_index_makes_another_library(corpus_file, index):
    config = LibraryConfig(corpus=str(corpus_file), dense=True, encoder="hash")
    flat, other = open_library(config), open_library(replace(config, dense_index=index))
    assert flat.fingerprint != other.fingerprint
    call = ("dense", {"query": "castle king", "k": 10})
    assert [p.id for p in flat.call(*call).passages] == [p.id for p in other.call(*call).passages]


def test_rerankers_by_name():
    assert rerank_engine(LibraryConfig()) is None
    assert rerank_engine(LibraryConfig(dense=True, reranker="none")) is None
    assert rerank_engine(LibraryConfig(dense=True, rerank_cache_mb=7)) == LateInteraction(7)
    assert rerank_engine(LibraryConfig(reranker="bge-reranker-v2-m3")) == CrossEncoder("bge-reranker-v2-m3")
    engine = rerank_engine(LibraryConfig(reranker=YesNo("x")))
    assert isinstance(engine, RerankEngine)
    assert engine == YesNo("x")


def test_a_damaged_dense_index_is_noticed(corpus_file, tmp_path):
    config = LibraryConfig(dense=True, encoder="hash", dense_index="sq8")
    index = build_index(corpus_file, tmp_path / "index", config)
    (index / "dense" / "index.faiss").write_bytes(b"rubbish")
    with pytest.raises(DataError, match=r"index\.faiss: 7 bytes instead of"):
        load_index(index, config)


@pytest.mark.parametrize("value", ["milvus", {"class_path": "rpl.retrieval.milvus_keyword.MilvusKeyword"}])
def test_milvus_no_longer_serves_keyword_search(corpus_file, tmp_path, value):
    with pytest.raises(ConfigError, match=r"library\.bm25: milvus is no longer offered; use one of bm25s, memory"):
        LibraryConfig(bm25=value)
    index = build_index(corpus_file, tmp_path / "index", LibraryConfig())
    rewrite_settings(index, bm25=value)
    with pytest.raises(ConfigError, match=r"the index .* was built with bm25 .*no longer offered.*build it again"):
        load_index(index, LibraryConfig())


def test_an_index_names_its_engines_as_an_earlier_version_did(corpus_file, tmp_path):
    built = LibraryConfig(dense=True, encoder="hash", dense_index=HNSW(neighbours=8))
    index = build_index(corpus_file, tmp_path / "index", built)
    settings = {"neighbours": 8, "build_effort": 200, "storage": "float32"}
    rewrite_settings(index, dense_index={"class_path": "rpl.retrieval.faiss_indexes.HNSW", "init_args": settings})
    assert load_index(index, LibraryConfig(dense=True, encoder="hash")).config.dense_index == HNSW(neighbours=8)
    assert load_index(index, built).config.dense_index == HNSW(neighbours=8)
    with pytest.raises(ConfigError, match="was built with"):
        load_index(index, replace(built, dense_index=HNSW(neighbours=9)))


def test_a_config_that_names_an_engine_as_an_earlier_version_did_is_told_the_new_name():
    with pytest.raises((ConfigError, ValueError), match=r"faiss_indexes\.HNSW is now rpl\.retrieval\.dense\.faiss_ind"):
        parse("--environment.library.dense_index", "{class_path: rpl.retrieval.faiss_indexes.HNSW}")
    with pytest.raises(ConfigError, match=r"yes_no\.YesNo is now rpl\.retrieval\.rerank\.yes_no\.YesNo"):
        rerank_engine(LibraryConfig(reranker="{class_path: rpl.retrieval.yes_no.YesNo}"))


def rewrite_settings(index, **settings):
    manifest = json.loads((index / "manifest.json").read_text())
    manifest["settings"] |= settings
    (index / "manifest.json").write_text(json.dumps(manifest))


def test_the_package_of_an_engine_from_outside_decides_whether_its_part_is_made_again(monkeypatch):
    def keyword_key():
        return Plan(LibraryConfig(bm25=Backwards()), None, "f").keys["keyword"]

    before, version = keyword_key(), importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "99.1.2" if name == "PyYAML" else version(name))
    assert keyword_key() != before
