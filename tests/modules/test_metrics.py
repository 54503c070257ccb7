import math
import socket
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from rpl.core.answers import exact_match, token_f1
from rpl.modules.parts.question_metrics import (
    AllGold,
    EvidenceF1,
    EvidencePrecision,
    EvidenceRecall,
    ExactMatch,
    MeanPerQuestion,
    TokenF1,
)

PREDS = ["Euro", None, "the Swiss Franc", "Paris", "A"]
ANSWERS = [["Euro", "EUR"], ["Oslo"], ["Franc"], ["Lyon"], ["A"]]
PRINTED = [["p1", "p2"], [], ["p9"], ["p1", "p1", "p3"], ["p1"]]
GOLD = [["p1", "p2"], ["p1"], ["p1", "p2"], ["p1"], []]


def test_answer_scores_are_means_of_the_text_functions() -> None:
    em, f1 = ExactMatch(), TokenF1()
    for part in (slice(0, 2), slice(2, 5)):
        em.update(PREDS[part], ANSWERS[part])
        f1.update(PREDS[part], ANSWERS[part])
    assert em.compute().item() == pytest.approx(2 / 5)
    assert em.compute().item() == pytest.approx(sum(map(exact_match, PREDS, ANSWERS)) / 5)
    assert f1.compute().item() == pytest.approx(sum(map(token_f1, PREDS, ANSWERS)) / 5)


@pytest.mark.parametrize(
    ("metric", "by_hand"),
    [
        (EvidencePrecision, (1 + 0 + 0 + 1 / 2) / 4),
        (EvidenceRecall, (1 + 0 + 0 + 1) / 4),
        (EvidenceF1, (1 + 0 + 0 + 2 / 3) / 4),
        (AllGold, (1 + 0 + 0 + 1) / 4),
    ],
)
def test_evidence_scores(metric: type, by_hand: float) -> None:
    score = metric()
    score.update(PRINTED, GOLD)
    assert score.compute().item() == pytest.approx(by_hand)
    assert score.num_without_gold == 1
    score.reset()
    assert score.num_without_gold == 0


def test_partial_evidence_is_not_all_gold() -> None:
    recall, every = EvidenceRecall(), AllGold()
    for score in (recall, every):
        score.update([["p1", "p7"]], [["p1", "p2"]])
    assert recall.compute() == 0.5
    assert every.compute() == 0.0


@pytest.mark.parametrize("metric", [ExactMatch, TokenF1, EvidenceRecall, AllGold, MeanPerQuestion])
def test_no_question_gives_nan_and_no_warning(metric: type) -> None:
    score = metric()
    assert math.isnan(score.compute())
    score.update(*([[]] * (1 if metric is MeanPerQuestion else 2)))
    assert math.isnan(score.compute())


def test_only_questions_without_gold_give_nan() -> None:
    score = EvidenceF1()
    score.update([["p1"]], [[]])
    assert math.isnan(score.compute())
    assert score.num_without_gold == 1


def test_lengths_must_agree() -> None:
    with pytest.raises(ValueError, match="zip"):
        ExactMatch().update(["x"], [])
    with pytest.raises(ValueError, match="zip"):
        AllGold().update([], [["p1"]])


def test_mean_per_question_weights_questions_and_not_batches() -> None:
    mean = MeanPerQuestion()
    mean.update([1.0])
    mean.update([4.0, 4.0, 4.0])
    assert mean.compute().item() == pytest.approx(13 / 4)
    assert mean.compute().item() != pytest.approx(2.5)


def _rank_main(rank: int, port: int, out: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    em, evidence, idle = ExactMatch(), EvidenceRecall(), MeanPerQuestion()
    # Uneven: four questions on the first process, one on the second; one metric only ever sees the first.
    part = slice(0, 4) if rank == 0 else slice(4, 5)
    em.update(PREDS[part], ANSWERS[part])
    evidence.update(PRINTED[part], GOLD[part])
    if rank == 0:
        idle.update([3.0])
    values = [em.compute().item(), evidence.compute().item(), idle.compute().item()]
    Path(out, f"{rank}.txt").write_text(" ".join(map(str, values)))
    dist.destroy_process_group()


@pytest.mark.dist
@pytest.mark.usefixtures("forks")
def test_two_processes_give_the_mean_over_all_questions(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.start_processes(_rank_main, args=(port, str(tmp_path)), nprocs=2, start_method="forkserver")
    for rank in range(2):
        em, recall, idle = map(float, (tmp_path / f"{rank}.txt").read_text().split())
        assert em == pytest.approx(2 / 5), "the mean of the two processes' means would be 5/8"
        assert recall == pytest.approx(1 / 2)
        assert idle == 3.0
