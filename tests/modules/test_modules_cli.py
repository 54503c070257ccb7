"""The modules under the command line: composed from YAML, run on real data and a real sandbox, saved and read again."""

import sys

import pytest
import yaml


@pytest.mark.filterwarnings("ignore:Precision bf16-mixed is not supported by the model summary")
def test_yaml_builds_runs_and_saves_a_config_that_says_everything(tmp_path, monkeypatch):
    from rpl.training.lightning_cli import RPLCLI

    monkeypatch.setattr(sys, "argv", ["rpl"])
    environment = {"library": {"corpus": "atlas-mini", "bm25": "memory"}}
    config = {
        "trainer": {
            "accelerator": "cpu",
            "devices": 1,
            "max_steps": 1,
            "precision": "bf16-mixed",
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "use_distributed_sampler": False,
            "num_sanity_val_steps": 0,
            "limit_val_batches": 1,
            "val_check_interval": 1,
            "check_val_every_n_epoch": None,
            "log_every_n_steps": 1,
            "default_root_dir": str(tmp_path),
            "logger": {"class_path": "lightning.pytorch.loggers.CSVLogger", "init_args": {"save_dir": str(tmp_path)}},
        },
        "model": {
            "class_path": "GRPOModule",
            "init_args": {
                "policy": "tiny",
                "group_size": 2,
                "reward": {"em": 1.0},
                "environment": environment,
                "rollout": {"max_turns": 2, "max_new_tokens": 8},
            },
        },
        "data": {"class_path": "QADataModule", "init_args": {"questions": "atlas-mini", "batch_size": 2}},
    }
    path = tmp_path / "rl.yaml"
    path.write_text(yaml.safe_dump(config))
    cli = RPLCLI(["fit", "-c", str(path)])
    assert cli.trainer.global_step == 1
    assert cli.model.iteration == 1
    (saved,) = tmp_path.rglob("version_0/config.yaml")
    first = yaml.safe_load(saved.read_text())
    optimizer = first["model"]["init_args"]["optimizer"]
    assert optimizer["class_path"] == "torch.optim.AdamW"
    assert optimizer["init_args"]["lr"] == 1e-5
    RPLCLI(["fit", "-c", str(saved)])
    (again,) = tmp_path.rglob("version_1/config.yaml")
    assert yaml.safe_load(again.read_text()) == first
