"""An index and its encoder: what either was built with is what it is searched with, or the difference is named."""

import itertools
import json
import shutil

import numpy as np
import pytest
import tiny_models

from rpl.cli.commands.index import run as index_command
from rpl.core.errors import ConfigError, DataError, RetrieverError
from rpl.core.files import write_jsonl
from rpl.retrieval.indexing.folder import build_index, load_index
from rpl.retrieval.indexing.manifest import read_manifest
from rpl.retrieval.library.opening import open_library
from rpl.retrieval.library_config import LibraryConfig

WORDS = ["river", "castle", "king", "queen"]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A corpus file, an encoder that has prompts of its own, and an index of both, built from beside the encoder."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
    from transformers import BertModel

    folder = tmp_path_factory.mktemp("built")
    config, tokenizer = tiny_models.bert_parts(folder / "parts")
    BertModel(config).save_pretrained(folder / "bert")
    tokenizer.save_pretrained(folder / "bert")
    layer = Transformer(str(folder / "bert"))
    prompts = {"query": "query : ", "passage": "passage : "}
    model = SentenceTransformer(modules=[layer, Pooling(16)], prompts=prompts, device="cpu")
    model.save(str(folder / "enc"), create_model_card=False)
    texts = [" ".join([*[one] * 20, *[two] * 8]) for one, two in itertools.permutations(WORDS, 2)]
    write_jsonl(folder / "c.jsonl", [{"id": f"p{i}", "title": "", "text": text} for i, text in enumerate(texts)])
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        build_index("c.jsonl", "index", LibraryConfig(dense=True, encoder="./enc"))
    return folder


@pytest.fixture
def place(built, tmp_path, monkeypatch):
    """A copy of everything under the path where it was built; the original is out of the way meanwhile."""
    kept = tmp_path / "kept"
    shutil.copytree(built, kept)
    monkeypatch.chdir(tmp_path)
    yield built
    shutil.rmtree(built)
    shutil.copytree(kept, built)


def change_prompts(place, **prompts):
    path = place / "enc" / "config_sentence_transformers.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"prompts": prompts}))


def change_weights(place):
    path = place / "enc" / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-4000:-2000] = bytes(2000)
    path.write_bytes(data)


def commands(place):
    """What opens an index: the library, `index check` and `index search`."""
    folder = str(place / "index")
    yield lambda: load_index(folder, LibraryConfig(dense=True))
    yield lambda: open_library(LibraryConfig(corpus=folder, dense=True))
    yield lambda: index_command(["check", folder])
    yield lambda: index_command(["check", folder, "--full"])
    yield lambda: index_command(["search", "river castle king", "--corpus", folder, "--primitive", "dense"])


def refused(place, kind, message):
    for command in commands(place):
        with pytest.raises(kind, match=message):
            command()


def test_the_check_looks_at_all_that_is_in_the_folder(place, capsys):
    index_command(["check", str(place / "index")])
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert set(lines) == {"corpus", "bm25", "dense", "read", "links", "embeddings"}
    assert all(line.split()[1] == "ok" for line in lines.values())
    assert "cosine 1.0000 with their rows" in lines["embeddings"]


def test_a_check_of_an_index_without_embeddings_needs_no_encoder(place, capsys):
    build_index(place / "c.jsonl", place / "plain", LibraryConfig())
    shutil.rmtree(place / "enc")
    index_command(["check", str(place / "plain")])
    assert {line.split()[0] for line in capsys.readouterr().out.splitlines()} == {"corpus", "bm25", "read", "links"}


def test_the_manifest_says_what_is_in_force(place, capsys):
    manifest = read_manifest(place / "index")
    assert (manifest.query_prefix, manifest.passage_prefix) == ("query : ", "passage : ")
    assert "model.safetensors" in manifest.encoder_files
    assert manifest.settings["encoder"] == str(place / "enc")
    index_command(["info", str(place / "index")])
    said = capsys.readouterr().out
    assert '  put before queries: "query : "\n' in said
    assert '  put before passages: "passage : "\n' in said


def test_replaced_weights_are_refused_by_name(place):
    change_weights(place)
    refused(place, DataError, r"(the weights|model\.safetensors).* of encoder .*enc'.* changed since")


def test_weights_that_differ_in_their_middle_are_refused(place, monkeypatch):
    """The fingerprint reads both ends of large files alone."""
    monkeypatch.setattr("rpl.retrieval.dense.encoders.model_fingerprint", lambda folder: "the same")
    build_index(place / "c.jsonl", place / "other", LibraryConfig(dense=True, encoder=str(place / "enc")))
    load_index(place / "other", LibraryConfig(dense=True))
    change_weights(place)
    with pytest.raises(DataError, match=r"model\.safetensors of encoder .* changed since the index was built"):
        load_index(place / "other", LibraryConfig(dense=True))


def test_a_replaced_tokenizer_is_refused(place):
    path = place / "enc" / "tokenizer.json"
    text = path.read_text()
    path.write_text(text.replace('"river"', '"\u0000"').replace('"king"', '"river"').replace('"\u0000"', '"king"'))
    assert path.read_text() != text
    refused(place, DataError, r"tokenizer\.json of encoder .* changed since the index was built")


@pytest.mark.parametrize("now", [{}, {"query": "", "passage": "passage : "}, {"query": "q", "passage": "passage : "}])
def test_a_changed_query_prompt_is_refused_by_name(place, now):
    change_prompts(place, **now)
    what = "before queries, and put 'query : '" if now else "before passages, and put 'passage : '"
    refused(place, DataError, rf"now puts '{now.get('query', '')}' {what} when the index was built")


def test_a_changed_passage_prompt_is_refused_by_name(place):
    change_prompts(place, query="query : ", passage="")
    refused(place, DataError, r"now puts '' before passages, and put 'passage : ' when .* set library\.passage_prefix")


def test_what_the_settings_say_about_queries_counts(place):
    change_prompts(place, query="", passage="passage : ")
    folder, query = str(place / "index"), ("dense", {"query": "king", "k": 5})
    before = open_library(LibraryConfig(corpus=folder, dense=True, query_prefix="query : "))
    after = open_library(LibraryConfig(corpus=folder, dense=True, query_prefix=""))
    assert before.fingerprint != after.fingerprint
    assert [p.score for p in before.call(*query).passages] != [p.score for p in after.call(*query).passages]
    index_command(["check", folder, "--library.query_prefix", "query : "])


def test_the_prompt_in_force_decides_what_a_library_is(place):
    """Its fingerprint tells answers of different prompts apart, whoever says them."""
    folder = str(place / "index")
    own = open_library(LibraryConfig(corpus=folder, dense=True))
    named = open_library(LibraryConfig(corpus=folder, dense=True, query_prefix="query : "))
    assert own.fingerprint == named.fingerprint


def test_a_folder_of_an_earlier_version_still_opens(place):
    path = place / "index" / "manifest.json"
    manifest = json.loads(path.read_text())
    for name in ("query_prefix", "passage_prefix", "encoder_files"):
        del manifest[name]
    manifest["settings"]["encoder"] = "./enc"
    path.write_text(json.dumps(manifest))
    given = LibraryConfig(dense=True, encoder=str(place / "enc"))
    assert load_index(place / "index", given).dense.search(["king"], 1)[0]
    with pytest.raises(
        ConfigError, match=r"the index .*index was built with encoder '\./enc', a path relative to where it was built"
    ):
        load_index(place / "index", LibraryConfig(dense=True))


def test_an_encoder_that_is_elsewhere_is_named_by_the_index_that_asks_for_it(place):
    (place / "enc").rename(place / "moved")
    refused(place, ConfigError, r"the index .* was built with encoder '/.*/enc': .*; if it lies elsewhere, set library")
    assert load_index(place / "index", LibraryConfig(dense=True, encoder=str(place / "moved"))).dense is not None


def test_embeddings_of_something_else_fail_the_check(place):
    path = place / "index" / "embeddings.npy"
    rows = np.load(path)
    np.save(path, np.roll(rows, 5, axis=1))
    manifest_path = place / "index" / "manifest.json"
    manifest = json.loads(manifest_path.read_text())
    from rpl.core.files import file_digest

    manifest["files"]["embeddings.npy"]["sha256"] = file_digest(path)
    manifest_path.write_text(json.dumps(manifest))
    with pytest.raises(RetrieverError, match=r"dense|embeddings"):
        index_command(["check", str(place / "index")])


def rebuild(place, said):
    build_index(place / "c.jsonl", place / "index", LibraryConfig(dense=True, encoder=str(place / "enc")), said.append)
    load_index(place / "index", LibraryConfig(dense=True))


def test_an_index_that_is_built_again_takes_the_new_query_prompt_and_encodes_nothing(place):
    said = []
    rebuild(place, said)
    assert said == []
    change_prompts(place, query="", passage="passage : ")
    rebuild(place, said)
    assert any(line.startswith("embeddings: taken from") for line in said)
    assert read_manifest(place / "index").query_prefix == ""


def tune_weights(place):
    """A little training: other vectors, of an encoder that still works."""
    from safetensors.numpy import load_file, save_file

    path = str(place / "enc" / "model.safetensors")
    weights = load_file(path)
    noise = np.random.default_rng(0)
    save_file({name: w + (0.02 * noise.standard_normal(w.shape)).astype(w.dtype) for name, w in weights.items()}, path)


def test_an_index_that_is_built_again_takes_no_vectors_of_other_weights(place, monkeypatch):
    monkeypatch.setattr("rpl.retrieval.dense.encoders.model_fingerprint", lambda folder: "the same")
    rebuild(place, [])
    before = np.load(place / "index" / "embeddings.npy")
    tune_weights(place)
    said = []
    rebuild(place, said)
    assert any(line.startswith("corpus: taken from") for line in said)
    assert not any(line.startswith("embeddings: taken from") for line in said)
    assert not np.allclose(before, np.load(place / "index" / "embeddings.npy"), atol=1e-3)


def test_a_full_check_is_for_index_folders(place):
    with pytest.raises(ConfigError, match=r"--full is for index folders.*'.*c\.jsonl' is a corpus"):
        index_command(["check", str(place / "c.jsonl"), "--full"])
