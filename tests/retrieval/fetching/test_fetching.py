"""What others have published, from a local server: index folders, data sets of the hub, vectors with their corpus."""

import gzip
import hashlib
import json
import shutil
import struct
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from file_server import COMMIT, serving

from rpl.cli.main import run
from rpl.core.errors import ConfigError, DataError, DownloadError
from rpl.core.files import write_jsonl
from rpl.retrieval.dense.encoders import HashEncoder
from rpl.retrieval.fetching import downloads
from rpl.retrieval.fetching import plan as fetch_plan
from rpl.retrieval.fetching import published_corpora as published
from rpl.retrieval.fetching.downloads import Downloader
from rpl.retrieval.fetching.index_folders import fetch_index
from rpl.retrieval.fetching.plan import work_folder
from rpl.retrieval.fetching.sources import HubDataset, WebFolder, open_source
from rpl.retrieval.indexing.folder import build_index, load_index
from rpl.retrieval.library_config import LibraryConfig

CONFIG = LibraryConfig(dense=True, encoder="hash")
OWNER = "PeterJinGo"


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch):
    monkeypatch.setattr(downloads, "BACKOFF_S", 1e-5)


@pytest.fixture
def server(tmp_path):
    folder = tmp_path / "served"
    folder.mkdir()
    with serving(folder) as running:
        yield running


@pytest.fixture
def hub(server, monkeypatch):
    """The server in the role of the hub, online and without anybody's token."""
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", "/nowhere")
    monkeypatch.setenv("HF_TOKEN", "")
    return server


@pytest.fixture(scope="module")
def index(corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("index")
    write_jsonl(folder / "c.jsonl", [{"id": p.id, "title": p.title, "text": p.text} for p in corpus])
    return build_index(folder / "c.jsonl", folder / "index", CONFIG)


@pytest.fixture
def served(server, index):
    shutil.copytree(index, server.folder / "index")
    return WebFolder(f"{server.url}/index/")


def names(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_an_index_folder_over_http(served, index, tmp_path):
    said = []
    out = fetch_index(served, tmp_path / "mine", said.append)
    assert names(out) == names(index)
    assert all((out / name).read_bytes() == (index / name).read_bytes() for name in names(index))
    assert load_index(out, CONFIG).dense is not None
    text = "\n".join(said)
    assert hashlib.sha256((index / "embeddings.npy").read_bytes()).hexdigest() in text
    assert "to fetch; " in text
    assert " free at " in text
    assert not work_folder(out).exists()


def test_two_who_fetch_one_index_fetch_it_once(served, server, tmp_path):
    server.pause = 0.001
    with ThreadPoolExecutor(2) as pool:
        said = []
        jobs = [pool.submit(fetch_index, served, tmp_path / "mine", said.append) for _ in range(2)]
        assert [job.result() for job in jobs] == [tmp_path / "mine"] * 2
    assert [r for r in server.ranges_asked("embeddings.npy") if r is None] == [None]
    assert any("waiting for another process" in line for line in said)


def test_an_index_that_is_there_is_kept(served, server, tmp_path):
    fetch_index(served, tmp_path / "mine", print)
    server.asked.clear()
    fetch_index(served, tmp_path / "mine", print)
    assert server.asked == []


def test_an_interrupted_index_goes_on(served, server, tmp_path, monkeypatch):
    monkeypatch.setattr(downloads, "TRIES", 0)
    server.cut_after, server.cuts = 20_000, 1  # within embeddings.npy
    with pytest.raises(DownloadError, match=r"embeddings\.npy.*what has arrived is kept"):
        fetch_index(served, tmp_path / "mine", print)
    assert not (tmp_path / "mine").exists()
    before, said = server.sent, []
    fetch_index(served, tmp_path / "mine", said.append)
    assert any("are here already" in line for line in said)
    assert server.sent - before < sum(f.stat().st_size for f in (tmp_path / "mine").rglob("*") if f.is_file())
    assert "bytes=20000-" in server.ranges_asked("embeddings.npy")


def test_an_index_that_changes_between_two_runs(served, server, index, tmp_path, monkeypatch):
    monkeypatch.setattr(downloads, "TRIES", 0)
    server.cut_after, server.cuts = 20_000, 1
    with pytest.raises(DownloadError):
        fetch_index(served, tmp_path / "mine", print)
    # The other one has no embeddings: what had arrived of them must not stay in the index.
    keyword = build_index(index.parent / "c.jsonl", tmp_path / "keyword", LibraryConfig())
    shutil.rmtree(server.folder / "index")
    shutil.copytree(keyword, server.folder / "index")
    out = fetch_index(served, tmp_path / "mine", print)
    assert names(out) == names(keyword)


def test_a_file_that_is_not_the_manifests(served, server, tmp_path):
    path = server.folder / "index" / "embeddings.npy"
    path.write_bytes(path.read_bytes()[:-1] + b"\1")
    with pytest.raises(DownloadError, match=r"embeddings\.npy: what came has sha256 \w+ instead of \w+; it was"):
        fetch_index(served, tmp_path / "mine", print)
    assert not (tmp_path / "mine").exists()


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        ("<html>not found</html>", "is not JSON"),
        ("[]", "index format None, this version reads"),
        ({"format": 1}, "index format 1, this version reads"),
        ({"files": {}}, "names no files"),
        ({"files": {"../evil": {"bytes": 1, "sha256": "0" * 64}}}, r"names '\.\./evil', which is no path inside"),
        ({"files": {"/etc/evil": {"bytes": 1, "sha256": "0" * 64}}}, "which is no path inside"),
        ({"files": {"a/../../evil": {"bytes": 1, "sha256": "0" * 64}}}, "which is no path inside"),
        ({"files": {"a": {"bytes": 1, "sha256": None}}}, "gives no size and SHA-256 of 'a'"),
        ({"files": {"a": {"bytes": -1, "sha256": "0" * 64}}}, "gives no size and SHA-256"),
        ({"files": {"a": 7}}, "gives no size and SHA-256"),
    ],
)
def test_a_manifest_that_cannot_be_trusted(server, tmp_path, manifest, message):
    from rpl.retrieval.indexing.manifest import FORMAT

    text = manifest if isinstance(manifest, str) else json.dumps({"format": FORMAT, **manifest})
    (server.folder / "manifest.json").write_text(text)
    with pytest.raises(DataError, match=message):
        fetch_index(WebFolder(server.url), tmp_path / "mine", print)
    assert not (tmp_path / "mine").exists()


def test_a_disk_that_is_too_small(served, server, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)._replace(free=5_000)
    monkeypatch.setattr(fetch_plan.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(ConfigError, match=r"--out: .* are needed but only 5 kB are free at .*; choose a folder"):
        fetch_index(served, tmp_path / "mine", print)
    assert server.ranges_asked("embeddings.npy") == []


def test_a_folder_that_holds_something_else(served, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "cat.jpg").write_text("meow")
    with pytest.raises(DataError, match="holds something that is not an index"):
        fetch_index(served, tmp_path / "mine", print)
    assert (tmp_path / "mine" / "cat.jpg").read_text() == "meow"


def test_a_dry_run_fetches_nothing(served, server, tmp_path, capsys):
    run(["index", "fetch", f"{server.url}/index", "--out", str(tmp_path / "mine"), "--dry_run"])
    assert "embeddings.npy" in capsys.readouterr().out
    assert server.ranges_asked("embeddings.npy") == []
    assert not (tmp_path / "mine").exists()


def test_an_index_on_the_hub(hub, index, tmp_path):
    (hub.folder / "me").mkdir()
    shutil.copytree(index, hub.folder / "me" / "birds")
    out = run(["index", "fetch", "me/birds", "--out", str(tmp_path / "mine")])
    assert names(out) == names(index)
    # After the first answer every address names the commit, so that all files are of one state.
    paths = {path for _, path, _ in hub.asked}
    assert f"/datasets/me/birds/resolve/{COMMIT}/embeddings.npy" in paths
    assert "/datasets/me/birds/resolve/main/embeddings.npy" not in paths


def hub_file(hub, name, data, dataset=f"{OWNER}/things"):
    (hub.folder / dataset).mkdir(parents=True, exist_ok=True)
    (hub.folder / dataset / name).write_bytes(data)
    return HubDataset(dataset)


@pytest.mark.parametrize("size", [50, 5_000], ids=["in git", "large"])
def test_the_hub_tells_sizes_and_checksums(hub, size):
    data = b"x" * size
    file = hub_file(hub, "a.bin", data).look_up("a.bin")
    assert file.size == size
    state = file.checksum.start(size)
    state.update(data)
    assert state.hexdigest() == file.checksum.value
    assert file.checksum.kind == ("git" if size == 50 else "sha256")
    assert COMMIT in file.url


def test_a_token_goes_to_the_hub_and_not_to_its_store(hub, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    source = hub_file(hub, "a.bin", b"x" * 5_000)
    with serving(hub.folder) as store, Downloader(print) as downloader:
        hub.store, store.cut_after, store.cuts = store.url, 3_000, 1
        file = source.look_up("a.bin")
        downloader.fetch(file, tmp_path / "a.bin", lambda n: None)
    assert (tmp_path / "a.bin").read_bytes() == b"x" * 5_000
    assert {headers.get("Authorization") for _, _, headers in hub.asked} == {"Bearer hf_secret"}
    assert store.ranges_asked("a.bin") == [None, "bytes=3000-"]
    assert {headers.get("Authorization") for _, _, headers in store.asked} == {None}


@pytest.mark.parametrize(
    ("dataset", "name", "change", "message"),
    [
        (f"{OWNER}/things", "b.bin", {}, r"things on the hub, revision main: 'b\.bin': it has no such file"),
        ("nobody/nothing", "a.bin", {}, "there is no such data set on the hub, or it is private and needs a token"),
        (f"{OWNER}/things", "a.bin", {"gated": True}, "its owner grants access on request"),
        (f"{OWNER}/things", "a.bin", {"failures": [404]}, "HTTP|404|not found"),
    ],
)
def test_what_the_hub_refuses(hub, dataset, name, change, message):
    hub_file(hub, "a.bin", b"x")
    for key, value in change.items():
        setattr(hub, key, value)
    with pytest.raises(DownloadError, match=message):
        HubDataset(dataset).look_up(name)


def test_an_unknown_revision(hub):
    hub_file(hub, "a.bin", b"x")
    with pytest.raises(DownloadError, match=r"things on the hub, revision v9: 'a\.bin': it has no such revision"):
        HubDataset(f"{OWNER}/things", "v9").look_up("a.bin")


def test_offline_mode_is_obeyed(hub, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(DownloadError, match="HF_HUB_OFFLINE is set"):
        hub_file(hub, "a.bin", b"x").look_up("a.bin")
    assert hub.asked == []


def test_sources():
    assert str(open_source("https://host/index/")) == "https://host/index"
    assert str(open_source("datasets/me/birds", "v1")) == "me/birds on the hub, revision v1"
    with pytest.raises(ConfigError, match="--revision is for data sets on the hub"):
        open_source("https://host/index", "v1")
    with pytest.raises(ConfigError, match="is neither a URL"):
        open_source("/a/b/c")


@pytest.fixture
def wiki(hub, corpus):
    """The published corpus and vectors, in small: the same names, forms and cut through a row."""
    lines = [json.dumps({"id": p.id, "contents": f'"{p.title}"\n{p.text}'}) + "\n" for p in corpus]
    hub_file(hub, "wiki-18.jsonl.gz", gzip.compress("".join(lines).encode()), f"{OWNER}/wiki-18-corpus")
    rows = HashEncoder().encode([corpus.contents(i) for i in range(len(corpus))], "passage")
    count, dim = rows.shape
    data = struct.pack("<4siqqq?iQ", b"IxFI", dim, count, 1 << 20, 1 << 20, True, 0, count * dim) + rows.tobytes()
    hub_file(hub, "part_aa", data[:20_000], f"{OWNER}/wiki-18-e5-index")
    hub_file(hub, "part_ab", data[20_000:], f"{OWNER}/wiki-18-e5-index")
    return rows


@pytest.fixture(autouse=True)
def _small_wiki(monkeypatch):
    known = published.VECTORS["wiki18-e5"]
    small = published.PublishedVectors(
        known.dataset, known.parts, known.corpus, known.about, 1_000_000, {"encoder": "hash"}
    )
    monkeypatch.setitem(published.VECTORS, "wiki18-e5", small)


def test_the_published_vectors_become_an_index(wiki, corpus, tmp_path, capsys):
    out = run(["index", "fetch", "wiki18-e5", "--out", str(tmp_path / "index"), "--library.embedding_dtype", "float16"])
    said = capsys.readouterr().err
    assert "part_aa" in said
    assert "wiki-18.jsonl.gz" in said
    opened = load_index(out, LibraryConfig(dense=True, encoder="hash"))
    assert opened.corpus.fingerprint == corpus.fingerprint
    assert np.array_equal(np.load(out / "embeddings.npy"), wiki.astype(np.float16))
    assert opened.dense.search([f"{corpus.titles[5]} {corpus.texts[5]}"], 1)[0][0].id == corpus.ids[5]
    assert not work_folder(out).exists()


def test_a_fetch_that_was_killed_while_it_copied_needs_no_network(wiki, hub, tmp_path, monkeypatch):
    """Half of the vectors are used up and gone from the download, which must not be taken for incomplete."""
    from rpl.retrieval.fetching import importing

    monkeypatch.setattr(importing, "_SLICE", 17)
    original, calls = importing.write_at, []

    def dying(*args):
        original(*args)
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt

    command = ["index", "fetch", "wiki18-e5", "--out", str(tmp_path / "index")]
    with monkeypatch.context() as patch:
        patch.setattr(importing, "write_at", dying)
        with pytest.raises(KeyboardInterrupt):
            run(command)
    assert not (tmp_path / "index").exists()
    hub.asked.clear()
    run(command)
    assert hub.asked == []
    assert np.array_equal(np.load(tmp_path / "index" / "embeddings.npy"), wiki)


def test_a_corpus_that_is_here_is_not_fetched(wiki, hub, tmp_path):
    corpus_file = run(["data", "fetch", "wiki18", "--out", str(tmp_path)])[0]
    assert corpus_file == tmp_path / "wiki18" / "corpus.jsonl.gz"
    assert run(["data", "check", "--corpus", str(corpus_file)])["passages"] == 120
    hub.asked.clear()
    run(["index", "fetch", "wiki18-e5", "--out", str(tmp_path / "index"), "--corpus", str(corpus_file)])
    assert not any("wiki-18-corpus" in path for _, path, _ in hub.asked)
    assert corpus_file.exists()
    run(["data", "fetch", "wiki18", "--out", str(tmp_path)])
    assert not any("wiki-18-corpus" in path for _, path, _ in hub.asked)


def test_what_is_no_corpus_gets_no_name(hub, tmp_path):
    hub_file(hub, "wiki-18.jsonl.gz", gzip.compress(b"<html>not a corpus</html>\n"), f"{OWNER}/wiki-18-corpus")
    with pytest.raises(DataError, match=r"wiki-18\.jsonl\.gz:1: not JSON"):
        run(["data", "fetch", "wiki18", "--out", str(tmp_path)])
    assert not (tmp_path / "wiki18").exists()


def test_vectors_of_another_encoder_are_refused_before_the_download(hub, tmp_path):
    with pytest.raises(ConfigError, match=r"library\.encoder"):
        run(["index", "fetch", "wiki18-e5", "--out", str(tmp_path / "i"), "--library.encoder", "/no/such/folder"])
    assert hub.asked == []


def test_users_import_their_own_vectors(wiki, corpus, tmp_path, capsys):
    write_jsonl(tmp_path / "c.jsonl", [{"id": p.id, "title": p.title, "text": p.text} for p in corpus])
    np.save(tmp_path / "v.npy", wiki)
    command = ["index", "import", str(tmp_path / "c.jsonl"), "--out", str(tmp_path / "i"), "--library.encoder", "hash"]
    out = run([*command, "--vectors", str(tmp_path / "v.npy")])
    assert np.array_equal(np.load(out / "embeddings.npy"), wiki)
    assert (tmp_path / "v.npy").stat().st_size > wiki.nbytes
    with pytest.raises(ConfigError, match="no file is named like"):
        run([*command, "--vectors", str(tmp_path / "w*.npy")])


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["data", "fetch", "wiki19"], "'wiki19' is not published; there is wiki18, nq, .*, search-r1"),
        (["index", "fetch", "wiki18", "--out", "x"], "'wiki18' is not published; there is wiki18-e5, or give a URL"),
        (["index", "fetch", "http://h/i", "--out", "x", "--corpus", "c"], "--corpus: the index at .* brings its own"),
    ],
)
def test_names_that_nobody_published(command, message):
    with pytest.raises(ConfigError, match=message):
        run(command)
