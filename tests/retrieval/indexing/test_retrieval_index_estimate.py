"""What an index is said to cost, against what it costs, and the refusals."""

import gzip
import json
import os
import random
import shutil

import pytest

from rpl.cli.commands.index import build
from rpl.core.errors import ConfigError, DataError
from rpl.core.files import write_jsonl
from rpl.retrieval.corpus.corpus import Corpus
from rpl.retrieval.corpus.fingerprints import file_fingerprint
from rpl.retrieval.dense.encoders import HashEncoder
from rpl.retrieval.engines import Analysis
from rpl.retrieval.indexing import estimate as estimating
from rpl.retrieval.indexing.estimate import Estimate, PartCost, estimate, free_room, require_room
from rpl.retrieval.indexing.folder import build_index, plan_index
from rpl.retrieval.indexing.manifest import read_manifest
from rpl.retrieval.indexing.sampling import sample_corpus, sample_file
from rpl.retrieval.keyword import bm25_arrays
from rpl.retrieval.keyword.bm25 import BM25S
from rpl.retrieval.library_config import LibraryConfig

CONFIG = LibraryConfig(dense=True, encoder="hash", dense_index="sq8")
WORDS = ["river", "bridge", "castle", "market", "garden", "composer", "queen", "treaty", "copper", "coffee"]


@pytest.fixture(scope="module")
def passages():
    """1,500 passages in articles of two, of words whose number grows with the text."""
    rng = random.Random(0)
    rows = []
    for number in range(1_500):
        words = [f"{rng.choice(WORDS)}{int(rng.paretovariate(0.7))}" for _ in range(rng.randint(20, 80))]
        rows.append({"id": f"p{number}", "title": f"Article {number // 2}", "text": " ".join(words)})
    return rows


@pytest.fixture(scope="module")
def corpus_file(passages, tmp_path_factory):
    path = tmp_path_factory.mktemp("source") / "corpus.jsonl"
    write_jsonl(path, passages)
    os.utime(path, (1, 1))
    return path


@pytest.fixture(scope="module")
def index(corpus_file, tmp_path_factory):
    return build_index(corpus_file, tmp_path_factory.mktemp("built") / "index", CONFIG)


@pytest.fixture(scope="module")
def sizes(index):
    manifest = read_manifest(index)
    return {
        name: sum(entry["bytes"] for file, entry in manifest.files.items() if file.startswith(part["path"]))
        for name, part in manifest.parts.items()
    }


TOLERANCE = {"corpus": 0.1, "keyword": 0.25, "links": 0.6, "embeddings": 0.05, "dense": 0.05}


def fitting(cost, sizes):
    return {part.name for part in cost.parts if part.disk == pytest.approx(sizes[part.name], rel=TOLERANCE[part.name])}


def test_sizes_against_a_real_build(corpus_file, sizes):
    cost = estimate(sample_file(corpus_file), CONFIG, HashEncoder())
    assert cost.passages == pytest.approx(1_500, rel=0.05)
    assert fitting(cost, sizes) == set(sizes)
    assert cost.disk == pytest.approx(sum(sizes.values()), rel=0.15)


def test_the_tolerances_see_a_corpus_of_twice_the_size(passages, tmp_path, sizes):
    write_jsonl(tmp_path / "c.jsonl", passages + [{**row, "id": f"x{row['id']}"} for row in passages])
    assert fitting(estimate(sample_file(tmp_path / "c.jsonl"), CONFIG, HashEncoder()), sizes) == set()


def test_all_kinds_of_samples_say_the_same(passages, corpus_file, tmp_path):
    packed = tmp_path / "c.jsonl.gz"
    with gzip.open(packed, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in passages)
    corpus = Corpus(*([row[name] for row in passages] for name in ("id", "title", "text")))
    for sample in (sample_file(corpus_file), sample_file(packed), sample_corpus(corpus)):
        assert sample.passages == pytest.approx(1_500, rel=0.05)
        assert sample.titles == pytest.approx(0.5, abs=0.05)
        assert 200 <= len(sample.rows) <= 1_100
        assert set(sample.rows) <= {(row["id"], row["title"], row["text"]) for row in passages}


def test_samples_of_small_and_wrong_files(tmp_path):
    path = tmp_path / "c.jsonl"
    path.write_text('{"id": "a", "text": "x"}\n\n{"id": "b", \n{"id": "c", "text": "y"}\n')
    sample = sample_file(path)
    assert sample.rows == [("a", "", "x"), ("c", "", "y")]
    path.write_text("[]\n")
    with pytest.raises(DataError, match=r"c\.jsonl:1: expected a JSON object"):
        sample_file(path)
    with pytest.raises(DataError, match="no such file"):
        sample_file(tmp_path / "missing.jsonl")


def test_temporary_files_against_a_real_build(passages, corpus_file, tmp_path, monkeypatch):
    used = []
    original = bm25_arrays._Runs.remove

    def measured(runs):
        used.append(sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()))
        original(runs)

    monkeypatch.setattr(bm25_arrays._Runs, "remove", measured)
    corpus = Corpus(*([row[name] for row in passages] for name in ("id", "title", "text")))
    BM25S().build(corpus, tmp_path / "bm25", Analysis())
    keyword = estimate(sample_file(corpus_file), LibraryConfig(), None).parts[1]
    assert used == [pytest.approx(keyword.disk + keyword.temporary, rel=0.3)]
    assert used != [pytest.approx(keyword.disk, rel=0.3)]


def test_parts_add_up():
    parts = (
        PartCost("corpus", disk=10, build_memory=5),
        PartCost("keyword", disk=20, temporary=50, build_memory=9, memory=3, seconds=2.0),
        PartCost("dense", disk=40, build_memory=7, memory=4, seconds=None),
    )
    cost = Estimate(100, parts)
    assert (cost.disk, cost.peak_disk, cost.build_memory, cost.memory, cost.seconds) == (70, 80, 9, 7, 2.0)
    assert "without dense" in str(cost)
    assert cost.table().splitlines()[3].endswith("not known")


def test_float16_and_a_smaller_index_cost_less(corpus_file):
    sample, encoder = sample_file(corpus_file), HashEncoder()
    full = {part.name: part for part in estimate(sample, CONFIG, encoder).parts}
    half = LibraryConfig(dense=True, encoder="hash", embedding_dtype="float16")
    less = {part.name: part for part in estimate(sample, half, encoder).parts}
    assert less["embeddings"].disk * 2 == full["embeddings"].disk == sample.passages * 64 * 4
    assert less["dense"].disk == 0
    assert [part.name for part in estimate(sample, LibraryConfig(), None).parts] == ["corpus", "keyword", "links"]


def test_a_full_disk_is_noticed_before_the_work(corpus_file, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(estimating.shutil, "disk_usage", lambda path: usage)
    message = r"library\.index_dir: building the index needs about .* only 1 kB are free .*; choose another folder"
    with pytest.raises(ConfigError, match=message):
        build_index(corpus_file, tmp_path / "index", CONFIG)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".index.lock"]


def test_too_little_memory_is_noticed_before_the_work(tmp_path, monkeypatch):
    monkeypatch.setattr(estimating, "_available_memory", lambda: 10**9)
    small = PartCost("keyword", build_memory=10**8)
    require_room(Estimate(1, (small,)), tmp_path)
    large = PartCost("dense", build_memory=10**10)
    message = r"10\.0 GB of memory, for the part dense, but only 1\.0 GB .* embedding_dtype: float16, or a smaller"
    with pytest.raises(ConfigError, match=message):
        require_room(Estimate(1, (small, large)), tmp_path)


def test_this_machine_says_how_much_room_it_has(tmp_path):
    free, available = free_room(tmp_path)
    assert free == pytest.approx(shutil.disk_usage(tmp_path).free, rel=0.1)
    assert available is None or 10**7 < available < 10**14


def test_a_dry_run_builds_nothing(corpus_file, tmp_path, capsys):
    build(str(corpus_file), str(tmp_path / "index"), CONFIG, dry_run=True)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{corpus_file}: about ")
    assert lines[-1].startswith("here: ")
    assert f"free at {tmp_path}, " in lines[-1]
    assert [line.split()[0] for line in lines[2:-2]] == [
        "part",
        "corpus",
        "keyword",
        "links",
        "embeddings",
        "dense",
        "in",
    ]
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_already_costs_nothing(corpus_file, index):
    assert not any(part.reused for part in plan_index(corpus_file, index, CONFIG).parts), "not read yet"
    file_fingerprint(corpus_file)
    again = plan_index(corpus_file, index, LibraryConfig(dense=True, encoder="hash", dense_index="fp16"))
    assert {part.name for part in again.parts if part.reused} == {"corpus", "keyword", "links", "embeddings"}
    assert again.disk == next(part.disk for part in again.parts if part.name == "dense") > 0
