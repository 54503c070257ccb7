"""A retriever that fails voids rollouts and stops the run with its cause; nothing is trained on it."""

from pathlib import Path

import pytest
from fault_injection import FaultInjection
from helpers_rollouts import ScriptedSampler
from helpers_server import ServerProcess

from rpl.core.errors import RetrieverError
from rpl.environment.environment import Environment, EnvironmentConfig
from rpl.retrieval.library.health import HealthConfig
from rpl.retrieval.library.opening import open_library
from rpl.retrieval.library_config import LibraryConfig, RemoteConfig
from rpl.training.lightning_cli import RPLCLI

CONFIGS = Path(__file__).parents[2] / "configs"
PROGRAM = "<program>\nfor p in bm25(question, k=1):\n    print(p)\n</program>"


def write(seed, turn):
    """Every other rollout prints a passage, so that the rewards of a group differ and there is something to learn."""
    return PROGRAM if turn == 0 and seed % 2 else "<answer>no</answer>"


def fit(tmp_path, fail_every=None, environment=None, write=write):
    args = [x for name in ("base", "rl", "tiny") for x in ("-c", str(CONFIGS / f"{name}.yaml"))]
    args += ["--trainer.logger.save_dir", str(tmp_path), "--trainer.default_root_dir", str(tmp_path)]
    args += ["--trainer.max_steps", "2", "--trainer.limit_val_batches", "0", "--model.rollout.max_new_tokens", "96"]
    args += ["--model.reward", '{"printed_tokens": 1.0}']
    cli = RPLCLI(args, run=False)
    if environment is None:
        config = EnvironmentConfig(LibraryConfig(corpus="atlas-mini"), workers=1, infra_retries=1)
        environment = Environment(config, library=FaultInjection(open_library(config.library), fail_every))
    cli.model.engine.environment = environment
    cli.model.engine.sampler = ScriptedSampler(write)
    cli.model.configure_model()
    before = {name: weight.clone() for name, weight in cli.model.model.state_dict().items()}
    error = None
    try:
        cli.trainer.fit(cli.model, cli.datamodule)
    except RetrieverError as caught:
        error = caught
    changed = [name for name, weight in cli.model.model.state_dict().items() if not weight.equal(before[name])]
    return error, changed, list(tmp_path.rglob("policy"))


def test_a_broken_retriever_stops_the_run_before_anything_is_learnt(tmp_path):
    error, changed, policies = fit(tmp_path, fail_every=1)
    assert error is not None
    assert "injected fault in bm25" in str(error)
    assert changed == []
    assert policies == []


def test_a_healthy_retriever_trains_in_the_same_set_up(tmp_path):
    """The twin: without faults the same run ends, and the weights change."""
    error, changed, policies = fit(tmp_path, fail_every=10**9)
    assert error is None
    assert changed
    assert len(policies) == 1


@pytest.mark.parametrize("fail_every", [5])
def test_a_fault_that_a_retry_mends_voids_nothing(tmp_path, fail_every):
    error, changed, _ = fit(tmp_path, fail_every)
    assert error is None
    assert changed


def test_a_server_that_is_killed_in_mid_run_stops_it_before_anything_is_learnt(tmp_path):
    server = ServerProcess(tmp_path)
    written = []

    def write_then_kill(seed, turn):
        written.append(seed)
        if len(written) == 3:
            server.kill()
        return write(seed, turn)

    library = LibraryConfig(corpus=server.url, remote=RemoteConfig(timeout_s=1.0))
    config = EnvironmentConfig(library, workers=1, infra_retries=1, health=HealthConfig(wait_s=0.5))
    try:
        error, changed, policies = fit(tmp_path, environment=Environment(config), write=write_then_kill)
    finally:
        server.kill()
    assert len(written) >= 3
    assert "retrieval did not come back within" in str(error)
    assert "refused" in str(error)
    assert (changed, policies) == ([], [])
