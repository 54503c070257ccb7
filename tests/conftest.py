"""Fixtures for all tests: a private cache, no network, no bars, no traces left behind."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

# The same examples in every run, so that a run says something about the change before it; other ones on request.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("explore", max_examples=1000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

RANK_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "NODE_RANK", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")


@pytest.fixture(scope="session", autouse=True)
def _private_cache(tmp_path_factory):
    """One cache for the whole session, so that the tiny model and the Atlas index are built once."""
    patch = pytest.MonkeyPatch()
    patch.setenv("RPL_HOME", str(tmp_path_factory.mktemp("rpl-home")))
    patch.setenv("RPL_PROGRESS", "0")
    patch.setenv("HF_HUB_OFFLINE", "1")
    patch.setenv("TOKENIZERS_PARALLELISM", "false")
    yield
    patch.undo()


@pytest.fixture(autouse=True)
def _leaves_nothing_behind():
    """Restores rank variables, destroys a forgotten process group, and refuses YAML files in the working directory."""
    before = {name: os.environ.get(name) for name in RANK_VARIABLES}
    files = set(Path.cwd().glob("*.yaml"))
    yield
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    try:
        import torch.distributed as dist
    except ImportError:  # pragma: no cover
        return
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
    assert set(Path.cwd().glob("*.yaml")) == files, "a test wrote a YAML file into the working directory"
