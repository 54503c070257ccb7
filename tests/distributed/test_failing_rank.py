"""A rank that fails alone takes the others with it: soon, with a bad exit status, and with its cause on rank 0."""

import time

import pytest
from sharded_runs import start

pytestmark = [pytest.mark.dist, pytest.mark.timeout(300)]
TORCHRUN = ("-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone")


def fail(out, **options):
    """Runs two processes of which one fails; returns the finished run and the seconds from the fault to its end."""
    done = start(out, processes=2, **options)
    return done, time.time() - float(out.with_suffix(".crashed").read_text())


@pytest.mark.parametrize("rank", [0, 1])
def test_an_exception_on_one_rank_ends_both_with_its_cause(rank, tmp_path):
    done, seconds = fail(tmp_path / "r", strategy="fsdp", crash="raise", crash_rank=rank)
    assert done.returncode != 0
    assert seconds < 30
    assert "ValueError: a made-up fault" in done.stderr
    if rank == 1:  # only rank 0 writes lines that begin like this
        assert "rpl: rank 1 failed: ValueError: a made-up fault (" in done.stderr


def test_a_killed_rank_ends_the_other_with_a_cause(tmp_path):
    done, seconds = fail(tmp_path / "r", strategy="ddp", crash="kill")
    assert done.returncode != 0
    assert seconds < 30
    assert "rpl: rank 1 failed: its process ended with signal 9" in done.stderr


@pytest.mark.slow
def test_the_cause_reaches_rank_0_under_torchrun(tmp_path):
    done, seconds = fail(tmp_path / "r", strategy="fsdp", crash="raise", launcher=TORCHRUN)
    assert done.returncode != 0
    assert seconds < 60
    assert "rpl: rank 1 failed: ValueError: a made-up fault (" in done.stderr
