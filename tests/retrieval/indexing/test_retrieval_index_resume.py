"""Builds of indexes that are killed, repeated with other settings, or shared by processes."""

import hashlib
import json
import os
import subprocess
import sys
from dataclasses import replace

import index_processes
import numpy as np
import pytest
from index_processes import CONFIG, OTHER, SHARD, STAGES
from patience import patience

from rpl.core.errors import ConfigError, DataError, RetrieverError
from rpl.core.files import cache_dir, write_jsonl
from rpl.retrieval.dense import search as dense
from rpl.retrieval.dense.encoders import HashEncoder
from rpl.retrieval.dense.faiss_indexes import IVFPQ
from rpl.retrieval.dense.shards import Shards
from rpl.retrieval.indexing import building, shared_encoding
from rpl.retrieval.indexing.folder import GivenEmbeddings, build_index, load_index
from rpl.retrieval.indexing.parts import WorkFolder
from rpl.retrieval.indexing.plan import Plan
from rpl.retrieval.library.opening import open_library
from rpl.retrieval.library_config import LibraryConfig

PARTS = ["corpus", "keyword", "links", "embeddings", "dense"]


@pytest.fixture(autouse=True)
def _small_shards(monkeypatch):
    monkeypatch.setattr(dense, "SHARD_PASSAGES", SHARD)


@pytest.fixture(scope="module")
def corpus_file(corpus, tmp_path_factory):
    path = tmp_path_factory.mktemp("source") / "corpus.jsonl"
    write_jsonl(path, [{"id": p.id, "title": p.title, "text": p.text} for p in corpus])
    os.utime(path, (1, 1))
    return path


def run_script(what, corpus_file, folder):
    command = [sys.executable, index_processes.__file__, what, str(corpus_file), str(folder)]
    environment = {**os.environ, "RPL_PROGRESS": "0", "RPL_HOME": str(folder / "home"), "OMP_NUM_THREADS": "1"}
    limit = patience(120)
    return subprocess.run(command, check=True, capture_output=True, text=True, env=environment, timeout=limit).stdout


@pytest.fixture(scope="module")
def killed(corpus_file, tmp_path_factory):
    folder = tmp_path_factory.mktemp("killed")
    run_script("kill", corpus_file, folder)
    return folder


@pytest.fixture(scope="module")
def undisturbed(corpus_file, tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed") / "index"
    return build_index(corpus_file, folder, CONFIG)


def contents(folder):
    """Hashes of all files of an index; the manifest without what differs between two builds of the same index."""
    files = {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }
    manifest = json.loads((folder / "manifest.json").read_text())
    for part in manifest["parts"].values():
        del part["seconds"]
    return {**files, "manifest.json": manifest}


@pytest.mark.parametrize("stage", STAGES)
def test_a_killed_build_goes_on(stage, killed, undisturbed, corpus_file, monkeypatch):
    folder = killed / stage / "index"
    assert (folder.parent / ".index.building").is_dir()
    assert not folder.exists()
    encoded = []
    original = dense.Shards.take
    monkeypatch.setattr(dense.Shards, "take", lambda self: (encoded.append(n) or n for n in original(self)))
    lines = []
    build_index(corpus_file, folder, CONFIG, lines.append)
    assert contents(folder) == contents(undisturbed)
    assert sorted(path.name for path in folder.parent.iterdir()) == [".index.lock", "index"]
    assert not any(path.name.startswith(".") for path in folder.iterdir())
    finished = PARTS.index(stage) if stage in PARTS else len(PARTS)
    assert [line.partition(":")[0] for line in lines if "done before" in line] == PARTS[:finished]
    # Three of eight shards were there where the build died among them; none is left when it died later.
    shards = -(-120 // SHARD)
    assert encoded == list(range(3 if stage == "embeddings" else 0, shards if finished <= 3 else 0))
    assert load_index(folder, CONFIG).dense.search(["castle king"], 3)[0]


def test_processes_share_the_encoding(corpus_file, undisturbed, tmp_path):
    """Three processes, one of which is killed with a shard in its hands: the same index, and all took part."""
    exits = json.loads(run_script("share", corpus_file, tmp_path))
    assert exits == [-9, 0, 0]
    assert contents(tmp_path / "index") == contents(undisturbed)
    workers = (tmp_path / "log").read_text().split()
    assert len(set(workers) - {"dead"}) == 3


def test_joining_where_nobody_builds(tmp_path, undisturbed):
    with pytest.raises(ConfigError, match="nobody builds this index with embeddings; start `rpl index build` first"):
        shared_encoding.join(tmp_path / ".x.building", tmp_path / "x", wait_s=0.0)
    lines = []
    shared_encoding.join(tmp_path / ".x.building", undisturbed, say=lines.append)
    assert lines == [f"{undisturbed}: the index is finished"]


def test_joining_with_another_encoder(killed, corpus_file, monkeypatch):
    encoder = HashEncoder()
    encoder.fingerprint = "other"
    monkeypatch.setattr(shared_encoding, "load_encoder", lambda config: encoder)
    folder = corpus_file.parent / ".joined.building"
    folder.mkdir()
    (folder / shared_encoding.INVITATION).write_text('{"settings": {"encoder": "hash"}, "fingerprint": "one"}')
    with pytest.raises(DataError, match="has other files here"):
        shared_encoding.join(folder, corpus_file.parent / "joined")


def test_one_changed_setting_costs_the_parts_that_it_decides(corpus_file, tmp_path):
    lines = []
    index = build_index(corpus_file, tmp_path / "index", CONFIG)
    before = (index / "embeddings.npy").stat().st_ino
    build_index(corpus_file, index, OTHER, lines.append)
    assert [line.partition(":")[0] for line in lines if "taken from" in line] == ["corpus", "links", "embeddings"]
    assert any("(corpus, links, embeddings there already)" in line for line in lines)
    assert (index / "embeddings.npy").stat().st_ino == before, "linked, not copied"
    assert contents(index) == contents(build_index(corpus_file, tmp_path / "fresh", OTHER))


def test_indexes_in_the_cache_share_their_parts(corpus_file):
    config = replace(CONFIG, corpus=str(corpus_file))
    open_library(config)
    lines = []
    open_library(replace(config, dense_index="fp16"), lines.append)
    assert [line.partition(":")[0] for line in lines if "taken from" in line] == PARTS[:-1]
    folders = [path for path in (cache_dir() / "indexes").iterdir() if path.is_dir()]
    assert len({(folder / "corpus" / "corpus.arrow").stat().st_ino for folder in folders}) == 1


def test_a_damaged_part_is_not_taken(corpus_file, tmp_path, undisturbed):
    index = build_index(corpus_file, tmp_path / "index", CONFIG)
    path = index / "links" / "offsets.npy"
    # A changed file of its own, not one that other indexes have links to.
    data = bytearray(path.read_bytes())
    path.unlink()
    data[-5] ^= 0xFF
    path.write_bytes(bytes(data))
    work = WorkFolder(tmp_path / ".other.building")
    manifest = json.loads((index / "manifest.json").read_text())
    parts = Plan(CONFIG, HashEncoder(), manifest["corpus_fingerprint"]).parts(index_processes.die)
    assert work.reuse(parts["links"], index, manifest) is None
    taken = work.reuse(parts["corpus"], index, manifest)
    assert taken is not None
    assert work.finished(parts["corpus"]) == taken


def test_a_part_that_was_damaged_in_the_work_folder_is_made_again(corpus_file, tmp_path, undisturbed, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("rpl.retrieval.dense.faiss_indexes.SQ8.build", lambda self, rows, folder: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            build_index(corpus_file, tmp_path / "index", CONFIG)
    path = tmp_path / ".index.building" / "bm25" / "data.csc.index.npy"
    path.write_bytes(path.read_bytes()[:-4])
    lines = []
    build_index(corpus_file, tmp_path / "index", CONFIG, lines.append)
    assert [line.partition(":")[0] for line in lines if "done before" in line] == ["corpus", "links", "embeddings"]
    assert contents(tmp_path / "index") == contents(undisturbed)


def test_a_wrong_input_leaves_nothing(tmp_path):
    path = tmp_path / "c.jsonl"
    write_jsonl(path, [{"id": "a", "text": "x"}, {"id": "b", "text": "y"}, {"id": "a", "text": "z"}])
    with pytest.raises(DataError, match=r"c\.jsonl:3: id 'a' was already used in line 1"):
        build_index(path, tmp_path / "index", LibraryConfig())
    assert sorted(p.name for p in tmp_path.iterdir()) == [".index.lock", "c.jsonl"]


def test_a_failure_that_is_not_the_inputs_keeps_what_is_done(corpus_file, tmp_path, monkeypatch):
    lines = []
    with monkeypatch.context() as patch:
        patch.setattr("rpl.retrieval.indexing.plan.build_links", lambda corpus, folder: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            build_index(corpus_file, tmp_path / "index", CONFIG, lines.append)
    assert lines[-1].startswith("not finished; what is done is kept in")
    build_index(corpus_file, tmp_path / "index", CONFIG, lines.append)
    assert [line for line in lines if "done before" in line] == ["corpus: done before", "keyword: done before"]


def test_given_embeddings(corpus, corpus_file, tmp_path, undisturbed):
    rows = np.load(undisturbed / "embeddings.npy")
    given = GivenEmbeddings("elsewhere", lambda path: np.save(path, rows))
    index = build_index(corpus_file, tmp_path / "index", CONFIG, embeddings=given)
    query = ["castle king"]
    assert load_index(index, CONFIG).dense.search(query, 5) == load_index(undisturbed, CONFIG).dense.search(query, 5)

    for wrong in (rows[:50], rows.astype(np.float16)):
        given = GivenEmbeddings("wrong", lambda path, wrong=wrong: np.save(path, wrong))
        with pytest.raises(
            DataError, match=r"the given embeddings are .*; this corpus and encoder 'hash' need float32"
        ):
            build_index(corpus_file, tmp_path / "wrong", CONFIG, embeddings=given)
    given = GivenEmbeddings("shifted", lambda path: np.save(path, np.roll(rows, 60, axis=0)))
    with pytest.raises(RetrieverError, match=r"dense index fails its self-test: [01] of 8 passages"):
        build_index(corpus_file, tmp_path / "shifted", CONFIG, embeddings=given)
    with pytest.raises(ConfigError, match=r"library\.dense must be true where embeddings are given"):
        build_index(corpus_file, tmp_path / "none", LibraryConfig(), embeddings=given)


def test_shards_that_the_loop_did_not_finish_are_open(tmp_path):
    Shards.create(tmp_path / "state", 3)
    with Shards(tmp_path / "state") as shards:
        for number in shards.take():
            if number == 1:
                break
        assert shards.done() == [True, False, False]
        assert list(shards.take()) == [1, 2]
        assert list(shards.take()) == []
    Shards.create(tmp_path / "state", 3)
    with Shards(tmp_path / "state") as shards:
        assert shards.done() == [True, True, True]


def test_a_corpus_that_changes_between_two_readings(corpus_file, tmp_path, monkeypatch):
    """What was read for the name of the index is not what was read for its content."""
    (tmp_path / ".index.building").mkdir()
    monkeypatch.setattr(building, "file_fingerprint", lambda path: "other")
    with pytest.raises(DataError, match=r"corpus\.jsonl: has changed while it was read"):
        build_index(corpus_file, tmp_path / "index", LibraryConfig())
    assert sorted(path.name for path in tmp_path.iterdir()) == [".index.lock"]


def test_an_older_index_that_a_killed_build_moved_comes_back(corpus_file, tmp_path):
    index = build_index(corpus_file, tmp_path / "index", LibraryConfig())
    stamp = (index / "manifest.json").stat().st_mtime_ns
    index.rename(tmp_path / ".index.replaced")
    lines = []
    build_index(corpus_file, index, LibraryConfig(), lines.append)
    assert (index / "manifest.json").stat().st_mtime_ns == stamp
    assert lines == []


def test_a_setting_that_turns_out_wrong_at_the_end_costs_no_embeddings(corpus_file, tmp_path):
    with pytest.raises(ConfigError, match="needs at least 500 passages"):
        build_index(corpus_file, tmp_path / "index", replace(CONFIG, dense_index=IVFPQ(lists=500)))
    lines = []
    build_index(corpus_file, tmp_path / "index", CONFIG, lines.append)
    assert [line.partition(":")[0] for line in lines if "done before" in line] == PARTS[:-1]


def test_a_corpus_without_words_leaves_nothing(tmp_path):
    write_jsonl(tmp_path / "c.jsonl", [{"id": "a", "text": "the"}])
    with pytest.raises(DataError, match="no passage holds a word"):
        build_index(tmp_path / "c.jsonl", tmp_path / "index", LibraryConfig())
    assert sorted(p.name for p in tmp_path.iterdir()) == [".index.lock", "c.jsonl"]
