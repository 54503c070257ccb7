"""Fixtures for all tests: a private cache, no network, no bars, no traces left behind."""

import multiprocessing
import os
import pickle
from multiprocessing import forkserver
from pathlib import Path

import pytest
from filelock import FileLock
from hypothesis import settings

# The same examples in every run, so that a run says something about the change before it; other ones on request.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("explore", max_examples=1000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

# One thread a test process, and for every process that a test starts: they share the cores, and threads that wait for
# one another stall on a busy machine. This stands before anything imports torch.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Files that take longest, the longest first; processes take files in turn.
LONG_FILES = (
    *("test_cycle_resume", "test_stopping", "test_docs", "test_failing_rank", "test_sharded_training", "test_resuming"),
    *("test_sharded_checkpoints", "test_inputs", "test_fuel_bounds_time", "test_budgeted_run", "test_modules_cli"),
)

RANK_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "NODE_RANK", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")


def pytest_collection_modifyitems(items):
    """Begins with the files that take longest, so that no process has one left when the others are done."""
    ranks = {name: rank for rank, name in enumerate(LONG_FILES)}
    items.sort(key=lambda item: ranks.get(item.path.stem, len(ranks)))


@pytest.fixture(scope="session")
def made_once(tmp_path_factory):
    """Makes something costly once for all test processes: `made_once(name, make)` calls `make(folder)` in one of them.

    What is made must be picklable, and is not to be changed: others read it, too.
    """

    def made(name, make):
        root = tmp_path_factory.getbasetemp()
        if "PYTEST_XDIST_WORKER" in os.environ:
            root = root.parent
        file = root / f"{name}.pickle"
        with FileLock(root / f"{name}.lock"):
            if not file.exists():
                file.write_bytes(pickle.dumps(make(root / name)))
        return pickle.loads(file.read_bytes())

    return made


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


@pytest.fixture(scope="session")
def forks(_private_cache):
    """Makes processes that need not import torch and Lightning: forks of one that has done so, and nothing else.

    A context of `multiprocessing`; `forks.Process(target=..., args=...)` takes functions of test modules.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["rpl.training.lightning_cli", "rpl.training.callbacks", "transformers.models.llama.modeling_llama"]
    )
    forkserver.ensure_running()  # now, with the environment that all tests begin with
    return context


@pytest.fixture(scope="session")
def tiny():
    """Model and tokenizer of the tiny policy; tests that change weights load their own."""
    import torch

    from rpl.policy.loading import load_policy

    torch.set_num_threads(1)
    return load_policy("tiny")


@pytest.fixture(scope="session")
def tokenizer(tiny):
    return tiny[1]


@pytest.fixture(scope="session")
def finished_cycle(made_once):
    """The run folder of a whole schedule with the tiny model; tests that change it take a copy."""
    from rpl.cli.main import run

    def make(folder):
        config = Path(__file__).parents[1] / "configs" / "tiny_cycle.yaml"
        run(["cycle", "-c", str(config), "--run_dir", str(folder / "run")])
        return folder / "run"

    return made_once("cycle", make)


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
