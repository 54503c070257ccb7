"""The search on a real library with the real sandbox: does it repair each kind of question, from the seed program?"""

from collections import defaultdict

import pytest

from rpl.atlas.build import materialise
from rpl.core.files import read_jsonl
from rpl.core.records import Question, from_dict
from rpl.environment.environment import Environment, EnvironmentConfig
from rpl.executors.base import ExecutionLimits
from rpl.mutation.search import RepairConfig, repair
from rpl.mutation.verify import GoldVerifier
from rpl.programs.grammar import parse
from rpl.repair.harvest import SEED_PROGRAM
from rpl.retrieval.library_config import LibraryConfig

LIMIT = 400


@pytest.fixture(scope="module")
def repairs():
    path = materialise("atlas-mini") / "questions.jsonl"
    questions = [from_dict(Question, record) for _, record in read_jsonl(path)]
    config = EnvironmentConfig(
        library=LibraryConfig(corpus="atlas-mini", bm25="memory"), limits=ExecutionLimits(printed_tokens=LIMIT)
    )
    found = defaultdict(list)
    with Environment(config) as environment:
        environment.connect(lambda text: (len(text) + 3) // 4)
        verifier = GoldVerifier(environment.library.passage)
        for question in questions:
            if question.split == "train":
                result = repair(
                    question,
                    parse(SEED_PROGRAM),
                    environment.executor,
                    verifier,
                    RepairConfig(max_printed_tokens=LIMIT),
                    without=("dense", "rerank"),
                )
                found[question.type].append((question, result))
    return dict(found)


@pytest.mark.parametrize(
    ("kind", "share"), [("one_hop", 0.95), ("two_hop", 0.95), ("comparison", 0.85), ("loop", 0.8), ("corpus", 0.8)]
)
def test_most_questions_of_each_kind_are_repaired(kind, share, repairs):
    verdicts = [result.verdict for _, result in repairs[kind]]
    assert sum(v in ("repaired", "already_verified") for v in verdicts) >= share * len(verdicts), verdicts


def test_repairs_are_real_and_cheap(repairs):
    results = [pair for pairs in repairs.values() for pair in pairs]
    for question, result in results:
        assert result.executions <= 60
        if result.verdict == "repaired":
            assert result.trace is not None
            assert set(question.gold_docs) <= set(result.trace.printed_ids)
            assert result.trace.printed_tokens <= LIMIT
            assert len(result.edits) <= 3
    repaired = [result.executions for _, result in results if result.verdict == "repaired"]
    assert sum(repaired) / len(repaired) < 35


def test_the_seed_program_alone_solves_no_question_of_several_hops(repairs):
    assert not any(r.verdict == "already_verified" for kind in ("two_hop", "loop") for _, r in repairs[kind])
