"""A run whose questions are of another corpus is refused before it begins; otherwise the share is said."""

import dataclasses
import json
import re

import pytest

from rpl import atlas
from rpl.cli.main import run
from rpl.core.errors import ConfigError, DataError
from rpl.core.records import Question
from rpl.environment.environment import Environment, EnvironmentConfig
from rpl.environment.gold import check_gold
from rpl.retrieval.library_config import LibraryConfig


@pytest.fixture
def environment(tmp_path):
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps({"id": f"p{i}", "title": "T", "text": f"text {i}"}) + "\n" for i in range(3)))
    with Environment(EnvironmentConfig(library=LibraryConfig(corpus=str(corpus), bm25="memory"))) as opened:
        yield opened


def asked(*gold):
    return [Question(f"q{i}", "Who?", ("x",), gold_docs=ids) for i, ids in enumerate(gold)]


def test_none_within_reach_is_refused_with_what_to_do(environment):
    with pytest.raises(DataError) as error:
        check_gold(asked(("zz1", "zz2"), ("zz3",), ()), environment, "training questions")
    text = str(error.value)
    assert text.startswith("training questions: 0 of 2 questions with gold can be answered from this corpus")
    assert "'zz1' of question 'q0'" in text
    assert "environment.library.corpus" in text
    assert "environment.min_answerable (0.05)" in text
    assert "\n" not in text


def test_a_share_is_said_and_half_the_gold_is_not_enough(environment):
    told = []
    coverage = check_gold(asked(("p0",), ("p1", "zz"), ()), environment, "questions", told.append)
    assert told == [
        "questions: 1 of 2 questions with gold can be answered from this corpus (1 gold id is not in the corpus)"
    ]
    assert (coverage.answerable, coverage.with_gold) == (1, 2)
    check_gold(asked((), ()), environment, "questions", told.append)
    assert len(told) == 1  # nothing to say where no gold is known


@pytest.mark.parametrize(("least", "refused"), [(0.0, False), (0.5, False), (0.51, True), (1.0, True)])
def test_the_least_share_is_a_setting(environment, least, refused):
    environment.config = dataclasses.replace(environment.config, min_answerable=least)
    if not refused:
        check_gold(asked(("p0",), ("zz",)), environment)
        return
    with pytest.raises(DataError, match="1 of 2 questions"):
        check_gold(asked(("p0",), ("zz",)), environment)


def test_a_share_is_between_0_and_1():
    with pytest.raises(ConfigError, match=r"environment.min_answerable must be in \[0, 1\], got 5"):
        EnvironmentConfig(min_answerable=5)


@pytest.fixture
def foreign(tmp_path):
    """Training questions without any gold in the corpus."""
    source = atlas.materialise("atlas-mini") / "questions.jsonl"
    text = re.sub(r'"gold_docs": \["', '"gold_docs": ["zz', source.read_text())
    assert "zz" in text
    (tmp_path / "questions.jsonl").write_text(text)
    return str(tmp_path / "questions.jsonl")


CONFIGS = ("configs/base.yaml", "configs/rl.yaml", "configs/tiny.yaml")
FIT = [part for name in CONFIGS for part in ("-c", name)]


@pytest.mark.parametrize(
    ("command", "what"),
    [
        (["fit", *FIT, "--data.questions", "FILE", "--trainer.default_root_dir", "DIR"], "training questions"),
        (["validate", *FIT, "--data.questions", "FILE", "--trainer.default_root_dir", "DIR"], "validation questions"),
        (
            ["harvest", "--checkpoint", "tiny", "--out", "DIR/r.jsonl", "--questions", "FILE",
             "--environment.library.corpus", "atlas-mini"],
            "training questions to harvest",
        ),
        (["cycle", "-c", "configs/tiny_cycle.yaml", "--run_dir", "DIR/run", "--data.questions", "FILE"],
         "training questions"),
    ],
)  # fmt: skip
def test_every_command_that_needs_gold_looks_first(command, what, foreign, tmp_path, monkeypatch):
    from rpl.executors.parent.sandbox import SandboxExecutor

    monkeypatch.setattr(SandboxExecutor, "run_many", lambda *_: pytest.fail("a program was run"))
    args = [part.replace("FILE", foreign).replace("DIR", str(tmp_path)) for part in command]
    with pytest.raises(DataError, match=rf"^{what}: 0 of \d+ questions with gold can be answered"):
        run(args)
