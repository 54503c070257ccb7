"""Dense search with Milvus Lite: index folders and failures."""

import json

import pytest

from rpl.core.errors import ConfigError, DataError, MissingDependencyError, RetrieverError
from rpl.core.files import write_jsonl
from rpl.retrieval.dense import milvus
from rpl.retrieval.dense.milvus_dense import MilvusDense
from rpl.retrieval.indexing.folder import build_index, load_index
from rpl.retrieval.indexing.manifest import index_settings
from rpl.retrieval.library_config import LibraryConfig

QUERIES = ["river bridge", "castle", "composer of the copper king", "garden garden valley", "Market 17 treaty"]


@pytest.fixture(scope="module", autouse=True)
def _installed():
    pytest.importorskip("pymilvus")
    pytest.importorskip("milvus_lite")


@pytest.fixture(scope="module")
def index(corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("milvus")
    write_jsonl(folder / "corpus.jsonl", [{"id": p.id, "title": p.title, "text": p.text} for p in corpus])
    config = LibraryConfig(dense=True, encoder="hash", dense_index="milvus")
    return build_index(folder / "corpus.jsonl", folder / "index", config)


def test_an_index_folder(index, corpus, retrievers):
    """The files of the database change while they are read: opening twice is the test that no manifest lists them."""
    listed = json.loads((index / "manifest.json").read_text())["files"]
    assert "dense/milvus.json" in listed
    assert not any(milvus.LIVE_FOLDER in name for name in listed)
    for _ in range(2):
        loaded = load_index(index, LibraryConfig(dense=True, encoder="hash"))
        for query in QUERIES:
            wanted = retrievers["dense"].search([query], 10)[0]
            assert [p.id for p in loaded.dense.search([query], 10)[0]] == [p.id for p in wanted]
        loaded.dense.close()


def test_a_collection_of_another_size_is_refused(index, corpus):
    with pytest.raises(DataError, match=r"holds 120 passages, the corpus 119; delete the index folder"):
        milvus.Collection(MilvusDense(), index / "dense", 119)


def test_a_folder_that_names_no_collection(tmp_path):
    with pytest.raises(DataError, match=r"milvus\.json: cannot be read"):
        milvus.Collection(MilvusDense(), tmp_path, 3)
    (tmp_path / "milvus.json").write_text('{"collection": "rpl_gone"}')
    with pytest.raises(RetrieverError, match="Milvus failed to load"):
        milvus.Collection(MilvusDense(), tmp_path, 3)


def test_a_failed_build_leaves_no_collection(tmp_path):
    def batches():
        yield 0, [[1.0, 0.0]]
        raise OSError("disk is gone")

    with pytest.raises(OSError, match="disk is gone"):
        milvus.build_collection(MilvusDense(), tmp_path, 2, batches())
    assert not (tmp_path / "milvus.json").exists()
    client = milvus._connect(MilvusDense(), tmp_path)
    assert client.list_collections() == []
    client.close()


def test_rows_that_milvus_refuses(tmp_path):
    with pytest.raises(RetrieverError, match="Milvus failed to insert"):
        milvus.build_collection(MilvusDense(), tmp_path, 2, [(0, [[1.0, 0.0, 0.0]])])


def test_a_server_that_is_not_there(tmp_path):
    with pytest.raises(RetrieverError, match=r"Milvus failed to connect to http://127\.0\.0\.1:9"):
        milvus.build_collection(MilvusDense(uri="http://127.0.0.1:9", timeout_s=0.5), tmp_path, 2, [])


def test_settings(monkeypatch):
    with pytest.raises(ConfigError, match="timeout_s of milvus must be above 0, got 0"):
        MilvusDense(timeout_s=0)
    monkeypatch.delenv("MILVUS_TOKEN", raising=False)
    with pytest.raises(ConfigError, match=r"token of milvus is \$MILVUS_TOKEN but that variable is not set"):
        milvus.from_environment("token", "$MILVUS_TOKEN")
    monkeypatch.setenv("MILVUS_TOKEN", "root:x")
    assert milvus.from_environment("token", "$MILVUS_TOKEN") == "root:x"
    assert milvus.from_environment("token", "plain") == "plain"


def test_no_secret_gets_into_the_manifest():
    engine = MilvusDense(uri="$MILVUS_URI", token="root:x", timeout_s=5.0)
    described = index_settings(LibraryConfig(dense=True, dense_index=engine))["dense_index"]
    assert described["init_args"] == {"uri": "$MILVUS_URI", "index_type": "AUTOINDEX", "index_params": {}}


def test_missing_packages_give_the_install_line(tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "milvus_lite", None)
    with pytest.raises(
        MissingDependencyError, match=r"pip install 'retrieval-program-learning\[milvus\]', or give the uri of a server"
    ):
        milvus._connect(MilvusDense(), tmp_path)
    monkeypatch.setitem(sys.modules, "pymilvus", None)
    with pytest.raises(MissingDependencyError, match=r"milvus needs pymilvus: .*learning\[milvus\]'"):
        milvus._connect(MilvusDense(uri="http://x:1"), tmp_path)
