"""Trainings for all tests of this folder, on one process and on two, in as few processes as possible."""

import pytest
from sharded_runs import Runs


@pytest.fixture(scope="session")
def one(made_once, forks):
    cases = {
        "grpo": {},
        "padded": {"steps": 2, "packing": "plain"},
        "sft": {"task": "sft", "steps": 3},
        "lora": {"steps": 4, "lora": True},
    }
    return made_once("one", lambda folder: Runs(folder, cases, forks))


@pytest.fixture(scope="session")
def two(made_once, forks):
    cases = {
        "grpo": {},
        "short": {"steps": 2},
        "lopsided": {"lopsided": True},
        "sampled": {"precision": "bf16-mixed", "real": True},
        "sft": {"task": "sft", "steps": 3, "strategy": "ddp"},
        "lora": {"steps": 4, "lora": True},
        "short lora": {"steps": 2, "lora": True},
        "guard": {"guard": True},
        "fault": {"fault": 1},  # the last one: after it, all processes believe in a failure
    }
    return made_once("two", lambda folder: Runs(folder, cases, forks, 2, "fsdp"))


@pytest.fixture(scope="session")
def resumed(two, made_once, forks):
    """In other processes than those that wrote the checkpoints."""
    cases = {
        "grpo": {"ckpt": str(two.folder / "short" / "checkpoint.ckpt")},
        "lora": {"steps": 4, "lora": True, "ckpt": str(two.folder / "short lora" / "checkpoint.ckpt")},
    }
    return made_once("resumed", lambda folder: Runs(folder, cases, forks, 2, "fsdp"))
