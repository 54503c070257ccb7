import math
import socket
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from rpl.modules.parts.question_metrics import MeanPerQuestion


def test_no_question_gives_nan_and_no_warning() -> None:
    score = MeanPerQuestion()
    assert math.isnan(score.compute())
    score.update([])
    assert math.isnan(score.compute())


def test_mean_per_question_weights_questions_and_not_batches() -> None:
    mean = MeanPerQuestion()
    mean.update([1.0])
    mean.update([4.0, 4.0, 4.0])
    assert mean.compute().item() == pytest.approx(13 / 4)
    assert mean.compute().item() != pytest.approx(2.5)


def _rank_main(rank: int, port: int, out: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    em, evidence, idle = MeanPerQuestion(), MeanPerQuestion(), MeanPerQuestion()
    # Uneven: four questions on the first process, one on the second; one metric only ever sees the first.
    em.update([1.0, 0.0, 0.0, 0.0] if rank == 0 else [1.0])
    evidence.update([1.0, 0.0, 0.0, 1.0] if rank == 0 else [])  # the last question has no gold
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
