"""Records are reused by content: whatever decides an answer and is changed in place is named, and nothing is reused."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import rpl.core.contents as contents
import rpl.retrieval.corpus.fingerprints as fingerprints
from rpl import atlas
from rpl.agents.baselines import Policy
from rpl.core.contents import file_digest
from rpl.core.errors import CheckpointError
from rpl.core.records import Question
from rpl.environment.environment import Environment, EnvironmentConfig
from rpl.evaluation.protocol import evaluate
from rpl.executors.base import ExecutionLimits
from rpl.policy.identity import renderer_identity, weights_identity
from rpl.policy.loading import resolve_model
from rpl.policy.renderer import Renderer
from rpl.retrieval.library_config import LibraryConfig
from rpl.rollouts.requests import RolloutConfig
from rpl.sampling.opening import OpeningConfig, open_policy

QUESTIONS = [Question("q0", "Who?", ("x",)), Question("q1", "Where?", ("y",))]
ROLLOUT = RolloutConfig(max_turns=1, max_new_tokens=2)


def replaced_in_place(path: Path, data: bytes) -> None:
    """Puts other bytes into the same file and gives it back its time, as careful copying does."""
    before = path.stat()
    with path.open("r+b") as file:
        file.write(data)
        file.truncate()
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_ino == before.st_ino


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A model folder, a corpus file, and the records of an evaluation of both."""
    folder = tmp_path_factory.mktemp("identity")
    shutil.copytree(resolve_model("tiny"), folder / "policy")
    shutil.copy(atlas.materialise("atlas-mini") / "corpus.jsonl", folder / "corpus.jsonl")
    ask(folder)
    return folder


@pytest.fixture
def place(made, tmp_path):
    """A copy of what was made, at another path: names and places are no part of an identity."""
    shutil.copytree(made, tmp_path / "copy")
    return tmp_path / "copy"


def ask(folder, rollout=ROLLOUT, limits=None, style="compact", dtype="float32", **library):
    config = LibraryConfig(corpus=str(folder / "corpus.jsonl"), bm25="memory")
    environment = EnvironmentConfig(library=replace(config, **library), limits=limits or ExecutionLimits(), workers=1)
    loaded = open_policy(str(folder / "policy"), style, opening=OpeningConfig("cpu", dtype))
    with Environment(environment) as opened:
        opened.connect(loaded.renderer.count_tokens)
        identity = {**loaded.identity, **opened.identity}
        policy = Policy(loaded.renderer, loaded.sampler, opened.executor, rollout, identity=identity)
        return evaluate(policy, QUESTIONS, out=folder / "records.jsonl", progress=False)


def test_equal_content_at_another_path_is_reused(place):
    before = (place / "records.jsonl").read_bytes()
    ask(place)
    assert (place / "records.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("bm25_k1", {"bm25_k1": 1.2}),
        ("bm25_b", {"bm25_b": 0.75}),
        ("stemmer", {"stemmer": "none"}),
        ("stop_words", {"stop_words": False}),
        ("bm25", {"bm25": "bm25s"}),
        ("style", {"style": "documented"}),
        ("sampling_dtype", {"dtype": "bfloat16"}),
        (r"limits\.printed_tokens", {"limits": ExecutionLimits(printed_tokens=100)}),
        ("max_turns", {"rollout": replace(ROLLOUT, max_turns=2)}),
        ("max_context_tokens", {"rollout": replace(ROLLOUT, max_context_tokens=1000)}),
        ("reranker", {"reranker": "late-interaction", "encoder": "hash"}),
        ("dense", {"dense": True, "encoder": "hash", "reranker": "none"}),
    ],
)
def test_a_changed_setting_is_named(place, name, change):
    with pytest.raises(CheckpointError, match=rf"another evaluation \(.*\b{name}: .* there, .* here.*delete it"):
        ask(place, **change)


def noise(folder):
    path = folder / "policy" / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-7] ^= 1  # one bit of one weight
    replaced_in_place(path, bytes(data))


def other_corpus(folder):
    path = folder / "corpus.jsonl"
    replaced_in_place(path, path.read_bytes().replace(b" the ", b" das ", 1))


def other_tokenizer(folder):
    path = folder / "policy" / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    tokenizer["added_tokens"][0]["lstrip"] = not tokenizer["added_tokens"][0]["lstrip"]
    replaced_in_place(path, json.dumps(tokenizer).encode())


def other_template(folder):
    for path in (folder / "policy" / "chat_template.jinja", folder / "policy" / "tokenizer_config.json"):
        if path.exists() and b"im_end" in path.read_bytes():
            replaced_in_place(path, path.read_bytes() + b"\n" if path.suffix == ".jinja" else path.read_bytes())
            return
    raise AssertionError("the tiny model has no template")


def other_config(folder):
    path = folder / "policy" / "config.json"
    config = json.loads(path.read_text())
    config["rms_norm_eps"] = 0.5
    replaced_in_place(path, json.dumps(config).encode())


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("weights", noise),
        ("corpus_digest", other_corpus),
        ("tokenizer", other_tokenizer),
        ("template", other_template),
        ("model_config", other_config),
    ],
)
def test_what_is_changed_in_place_is_named(place, name, change):
    change(place)
    with pytest.raises(CheckpointError, match=rf"another evaluation \(.*\b{name}: '\w+' there, '\w+' here"):
        ask(place)


def test_a_remembered_corpus_is_not_another_one_under_the_same_time(tmp_path, monkeypatch):
    monkeypatch.setattr(fingerprints, "_SETTLED_S", -1.0)
    path = tmp_path / "corpus.jsonl"
    path.write_text('{"id": "a", "title": "T", "text": "one"}\n')
    first = fingerprints.file_fingerprint(path)
    assert fingerprints.known_fingerprint(path) == first
    replaced_in_place(path, path.read_bytes().replace(b"one", b"two"))
    assert fingerprints.file_fingerprint(path) != first


def test_a_remembered_digest_is_not_that_of_other_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(contents, "_SMALL", 100)
    monkeypatch.setattr(contents, "_SETTLED_S", -1.0)
    path = tmp_path / "weights.safetensors"
    path.write_bytes(bytes(1 << 20))
    first = file_digest(path)
    read = []
    monkeypatch.setattr(contents.hashlib, "file_digest", lambda *a: read.append(a) or pytest.fail("read again"))
    assert file_digest(path) == first  # remembered, not read
    monkeypatch.undo()
    monkeypatch.setattr(contents, "_SMALL", 100)
    replaced_in_place(path, b"\x01" + bytes((1 << 20) - 1))
    assert file_digest(path) != first


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "weights.safetensors"
    path.write_bytes(b"one")
    whole = contents.hashlib.file_digest

    def slow(file, kind):
        found = whole(file, kind)
        path.write_bytes(b"three")
        return found

    monkeypatch.setattr(contents.hashlib, "file_digest", slow)
    with pytest.raises(contents.DataError, match="has changed while it was read"):
        file_digest(path)


def test_identities_do_not_depend_on_what_was_encoded_before(tmp_path):
    loaded = open_policy("tiny")
    before = renderer_identity(loaded.renderer)
    loaded.renderer.tokenizer(["a", "b c d"], padding=True, truncation=True, max_length=2)
    assert renderer_identity(loaded.renderer) == before
    assert renderer_identity(Renderer(loaded.renderer.tokenizer, thinking=False)) != before
    with pytest.raises(CheckpointError, match="holds no model"):
        weights_identity(tmp_path)
