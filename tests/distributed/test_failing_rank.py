"""A rank that fails alone takes the others with it: soon, with a bad exit status, and with its cause on rank 0."""

import time

import pytest
from patience import patience
from sharded_runs import Runs, start

pytestmark = pytest.mark.dist
TORCHRUN = ("-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone")


def seconds_since_the_fault(folder):
    return time.time() - float((folder / "run" / "crashed").read_text())


def fail(folder, launcher=(), **options):
    """Runs a script of two processes of which rank 1 fails; returns it and the seconds from the fault to its end."""
    done = start(folder, options, 2, launcher)
    return done, seconds_since_the_fault(folder)


def test_an_exception_on_rank_1_ends_both_with_its_cause(tmp_path):
    done, seconds = fail(tmp_path / "r", strategy="fsdp", crash="raise")
    assert done.returncode != 0
    assert seconds < patience(30)
    assert "rpl: rank 1 failed: ValueError: a made-up fault (" in done.stderr


def test_an_exception_on_rank_0_ends_both_with_its_cause(tmp_path, forks):
    runs = Runs(tmp_path, {"run": {"crash": "raise", "crash_rank": 0}}, forks, 2, "fsdp")
    assert seconds_since_the_fault(tmp_path) < patience(30)
    assert runs.exit_codes == [1, 1]
    assert "ValueError: a made-up fault" in runs.said(0)


def test_a_killed_rank_ends_the_other_with_a_cause(tmp_path):
    done, seconds = fail(tmp_path / "r", strategy="ddp", crash="kill")
    assert done.returncode != 0
    assert seconds < patience(30)
    assert "rpl: rank 1 failed: its process ended with signal 9" in done.stderr


@pytest.mark.slow
def test_the_cause_reaches_rank_0_under_torchrun(tmp_path):
    done, seconds = fail(tmp_path / "r", TORCHRUN, strategy="fsdp", crash="raise")
    assert done.returncode != 0
    assert seconds < patience(60)
    assert "rpl: rank 1 failed: ValueError: a made-up fault (" in done.stderr
