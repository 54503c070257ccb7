"""Checkpoints say whose they are and show damage; what was due when one was written is made up for."""

import json
import resource
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from patience import patience
from safetensors.torch import load_file, save_file

from rpl.cli.main import main
from rpl.core.errors import CheckpointError
from rpl.policy.loading import export_policy, load_policy
from rpl.policy.weights import checkpoint_files
from rpl.policy.weights.checkpoint_files import newest_whole, verify

CONFIGS = Path(__file__).parents[2] / "configs"
FILES = [part for name in ("base", "rl", "tiny") for part in ("-c", str(CONFIGS / f"{name}.yaml"))]
QUIET = ["--trainer.enable_progress_bar", "false"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The log folder of a run of two steps."""
    folder = tmp_path_factory.mktemp("trained")
    main(["fit", *FILES, *QUIET, "--trainer.logger.save_dir", str(folder), "--model.beta", "0.1"])
    return folder / "fit" / "version_0"


@pytest.fixture
def checkpoint(trained, tmp_path):
    (path,) = trained.glob("checkpoints/*.ckpt")
    return Path(shutil.copy(path, tmp_path / "a.ckpt"))


def resume(checkpoint, *more):
    folder = checkpoint.parent / "runs"
    main(["fit", *FILES, *QUIET, "--trainer.logger.save_dir", str(folder), "--ckpt_path", str(checkpoint), *more])
    return folder / "fit" / "version_0"


def refusal(capsys, checkpoint, *more):
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        resume(checkpoint, *more)
    assert stop.value.code == 1
    text = capsys.readouterr().err
    assert "Traceback" not in text
    line: str = text.splitlines()[-1]
    assert line.startswith(f"rpl: CheckpointError: {checkpoint}")
    return line


def test_a_finished_run_that_is_resumed_writes_its_policy(trained, checkpoint, capsys):
    log = resume(checkpoint, "--model.beta", "0.1")
    assert "nothing is left to train" in capsys.readouterr().err
    before, after = (load_policy(folder / "policy")[0].state_dict() for folder in (trained, log))
    assert all(torch.equal(before[name], value) for name, value in after.items())


@pytest.mark.parametrize("damage", ["missing", "empty", "half", "flipped", "foreign"])
def test_damage_is_one_line_that_names_the_file(damage, checkpoint, capsys, tmp_path):
    data = bytearray(checkpoint.read_bytes())
    if damage == "missing":
        checkpoint.unlink()
    elif damage == "empty":
        checkpoint.write_bytes(b"")
    elif damage == "half":
        checkpoint.write_bytes(data[: len(data) // 2])
    elif damage == "flipped":
        middle = len(data) // 2
        data[middle : middle + 4] = bytes(b ^ 0xFF for b in data[middle : middle + 4])
        checkpoint.write_bytes(data)
    else:
        torch.save({"state_dict": {}}, checkpoint)
    refusal(capsys, checkpoint)
    with pytest.raises(SystemExit) as stop:
        main(["export", str(checkpoint), "--out", str(tmp_path / "out")])
    assert stop.value.code == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert str(checkpoint) in line
    assert not (tmp_path / "out").exists()


def test_the_newest_whole_checkpoint_is_found_and_the_damaged_one_named(checkpoint, tmp_path):
    torch.save({"global_step": 1, "rpl": {"iteration": 1}}, tmp_path / "older.ckpt")
    data = checkpoint.read_bytes()
    assert newest_whole(tmp_path) == (checkpoint, [])
    checkpoint.write_bytes(data[:-100])
    found, (reason,) = newest_whole(tmp_path)
    assert found == tmp_path / "older.ckpt"
    assert reason.startswith(str(checkpoint))


def write_without_room(folder, report):
    """What a started process does: no file may grow beyond 20,000 bytes, as on a disk that is full."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
    model, tokenizer = load_policy("tiny")
    for write in (
        lambda: checkpoint_files.save_file({"state_dict": model.state_dict()}, folder / "a.ckpt"),
        lambda: export_policy(model, tokenizer, folder / "policy"),
    ):
        try:
            write()
        except CheckpointError as error:
            report.put(str(error))


def test_where_the_disk_is_full_one_line_says_so_and_what_was_there_stays(checkpoint, tmp_path, forks):
    before = checkpoint.read_bytes()
    (tmp_path / "policy").mkdir()
    (tmp_path / "policy" / "earlier").touch()
    report = forks.Queue()
    process = forks.Process(target=write_without_room, args=(tmp_path, report))
    process.start()
    process.join(patience(60))
    assert process.exitcode == 0
    assert report.get() == f"{checkpoint}: the checkpoint cannot be written: File too large"
    line = report.get()
    assert line.startswith(f"{tmp_path / 'policy'}: the model folder cannot be written: ")
    assert "File too large" in line
    assert checkpoint.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.ckpt", "policy"]
    assert [path.name for path in (tmp_path / "policy").iterdir()] == ["earlier"]


def test_a_run_leaves_a_checkpoint_every_so_many_minutes(tmp_path):
    timed = {"class_path": "rpl.training.callbacks.TimedCheckpoint", "init_args": {"minutes": 1e-6}}
    assert timed["class_path"] in (CONFIGS / "base.yaml").read_text()
    main(["fit", *FILES, *QUIET, "--trainer.logger.save_dir", str(tmp_path), "--trainer.limit_val_batches", "0",
          "--trainer.callbacks", json.dumps([timed])])  # fmt: skip
    (path,) = tmp_path.rglob("*.ckpt")
    assert path.name == "step=2.ckpt"
    assert torch.load(path, weights_only=True)["rpl"]["iteration"] == 2


def test_a_damaged_shard_is_found(tmp_path):
    from rpl.policy.weights.checkpoint_files import file_digests, finish_folder

    (tmp_path / "__0_0.distcp").write_bytes(b"weights")
    torch.save({"rpl": {"iteration": 1}}, tmp_path / "meta.pt")
    with pytest.raises(CheckpointError, match="not written to the end"):
        verify(tmp_path)
    finish_folder(tmp_path, file_digests([tmp_path / "__0_0.distcp"]))
    verify(tmp_path)
    (tmp_path / "__0_0.distcp").write_bytes(b"weighty")
    with pytest.raises(CheckpointError, match=r"__0_0\.distcp is not what was written"):
        verify(tmp_path)


def test_the_checkpoint_of_another_module_is_refused(checkpoint, capsys):
    state = torch.load(checkpoint, weights_only=True)
    state["run"]["module"] = "rpl.modules.sft.SFTModule"
    torch.save(state, checkpoint)
    assert "rpl.modules.sft.SFTModule" in refusal(capsys, checkpoint, "--model.beta", "0.1")


def test_another_start_model_is_refused_where_training_compares_with_it(trained, checkpoint, capsys, tmp_path):
    moved = shutil.copytree(trained / "policy", tmp_path / "moved")
    weights = load_file(moved / "model.safetensors")
    save_file({name: value + 0.01 for name, value in weights.items()}, moved / "model.safetensors", {"format": "pt"})
    other = ["--model.init_from", str(moved)]
    assert "same start model" in refusal(capsys, checkpoint, "--model.beta", "0.1", *other)
    resume(checkpoint, *other)  # without a KL term, the start model does not matter
    assert "started from 'tiny'" in capsys.readouterr().err


def test_another_architecture_is_one_line(checkpoint, capsys, tmp_path):
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    from rpl.policy.loading import resolve_model

    folder = tmp_path / "other"
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    tokenizer = AutoTokenizer.from_pretrained(resolve_model("tiny"))
    LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **sizes)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    assert "does not fit" in refusal(capsys, checkpoint, "--model.policy", str(folder))


def test_settings_of_the_optimizer_that_the_checkpoint_beats_are_said(checkpoint, capsys):
    resume(checkpoint, "--trainer.max_steps", "3", "--model.optimizer.init_args.lr", "0.01")
    assert "lr 1e-05 (given: 0.01)" in capsys.readouterr().err


def test_a_validation_that_was_due_is_made_up_for_once(tmp_path, monkeypatch, capsys):
    """The run ends between an epoch's last checkpoint and its validation, and again after the validation."""
    patch = tmp_path / "patch.yaml"
    recorder = {"class_path": "rpl.training.callbacks.RunRecorder", "init_args": {"run_dir": str(tmp_path)}}
    saver = {"class_path": "lightning.pytorch.callbacks.ModelCheckpoint"}
    saver["init_args"] = {"dirpath": str(tmp_path / "ckpt"), "every_n_train_steps": 1, "save_top_k": -1}
    settings = {"max_steps": 4, "logger": False, "default_root_dir": str(tmp_path), "callbacks": [recorder, saver]}
    patch.write_text(yaml.safe_dump({"trainer": settings, "data": {"init_args": {"num_train": 8}}}))
    args = ["fit", *FILES, "-c", str(patch), *QUIET]
    main(args)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    validations = [(x["iteration"], x["name"], x["value"]) for x in lines if x["name"].startswith("val/")]
    assert {iteration for iteration, _, _ in validations} == {1, 3}
    kept = [line for line in lines if not line["name"].startswith("val/")]
    for left in ([], [x for x in lines if x["name"].startswith("val/") and x["iteration"] == 1]):
        rows = [x for x in kept if x["iteration"] < 2] + left
        (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(x) + "\n" for x in rows))
        main([*args, "--ckpt_path", str(tmp_path / "ckpt" / "epoch=0-step=2.ckpt")])
        again = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
        assert [(x["iteration"], x["name"], x["value"]) for x in again if x["name"].startswith("val/")] == validations
