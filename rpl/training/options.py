"""The options of Lightning that RPL's loop honours; others are refused by name before anything is loaded."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import yaml

from rpl.core.errors import ConfigError
from rpl.modules.base import PRECISIONS
from rpl.training.metric_names import is_documented

ACCELERATORS = ("auto", "cpu", "gpu", "cuda", "mps")
FEW_PROCESSES = 4
"""So many may share a CPU of fewer cores, to try out what runs on several devices."""
STRATEGIES = ("auto", "ddp", "single_device")
STRATEGY_CLASSES = ("DDPStrategy", "SingleDeviceStrategy", "FSDP2Strategy")

TOP = ("seed_everything", "trainer", "model", "data", "ckpt_path", "weights_only", "verbose", "return_predictions")
"""The keys of a configuration file."""

# Trainer option -> the values that are honoured, and what to use instead of others.
HONOURED: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "accumulate_grad_batches": ((1,), "use data.batch_size for larger updates; memory is model.tokens_per_micro_batch"),
    "gradient_clip_val": ((None,), "use model.gradient_clip"),
    "gradient_clip_algorithm": ((None,), "model.gradient_clip clips the global norm"),
    "overfit_batches": ((0, 0.0), "use data.num_train to train on the same few questions in every epoch"),
    "limit_train_batches": (
        (None, 1.0),
        "use data.num_train for fewer questions and trainer.max_steps for a shorter run",
    ),
    "use_distributed_sampler": ((False,), "the data modules share out questions themselves, without padding"),
    "reload_dataloaders_every_n_epochs": ((0,), "the data modules shuffle by themselves"),
    "sync_batchnorm": ((False,), "policies have no batch normalisation"),
    "barebones": ((False,), "RPL needs its callbacks"),
    "fast_dev_run": ((False, 0), "it would write no checkpoint, policy or metrics; use trainer.max_steps"),
}

CALLBACKS: Mapping[str, str] = {
    "GradientAccumulationScheduler": "use data.batch_size",
    "StochasticWeightAveraging": "RPL makes the optimizer steps itself",
    "WeightAveraging": "RPL makes the optimizer steps itself",
    "EMAWeightAveraging": "RPL makes the optimizer steps itself",
    "LearningRateFinder": "set model.optimizer.init_args.lr",
    "BatchSizeFinder": "set model.tokens_per_micro_batch, which changes memory and no result",
    "BackboneFinetuning": "use model.lora",
    "ModelPruning": "use model.lora",
    "OnExceptionCheckpoint": "one failed process cannot save what belongs to all; signals leave a checkpoint anyway",
}

# What SFT logs while it trains; everything else under `train/` and all of `rollout/` is GRPO's.
_SFT = (
    "train/loss",
    "train/grad_norm",
    "train/tokens",
    "train/lr",
    "train/restores",
    "time/update_s",
    "time/tokens_per_s",
)
_LIGHTNING = ("step", "epoch")


def check_options(config: Mapping[str, Any], command: str | None) -> None:
    """Refuses what would do something else than it says.

    Args:
        config: The parsed configuration of the command, as plain values.
        command: `fit`, `validate`, `test` or `predict`; `None` where nothing is run on this machine, as for estimates.

    Raises:
        ConfigError: An option cannot be honoured; the message names it and what to use.
    """
    trainer = config.get("trainer") or {}
    for name, (values, instead) in HONOURED.items():
        value = trainer.get(name, values[0])
        if not any(value == allowed and type(value) is type(allowed) for allowed in values):
            raise ConfigError(f"trainer.{name} must be {' or '.join(map(repr, values))}, got {value!r}: {instead}")
    if (every := trainer.get("check_val_every_n_epoch")) is not None and every < 1:
        raise ConfigError(
            f"trainer.check_val_every_n_epoch must be at least 1, or null to count iterations; got {every}; "
            "trainer.limit_val_batches 0 turns validation off"
        )
    if command == "fit" and 0 in (trainer.get("max_steps"), trainer.get("max_epochs")):
        name = "max_steps" if trainer.get("max_steps") == 0 else "max_epochs"
        raise ConfigError(f"trainer.{name} must be at least 1, or -1 for no end, got 0: nothing would be trained")
    if plugins := trainer.get("plugins"):
        _check_plugins(plugins if isinstance(plugins, list) else [plugins])
    precision = trainer.get("precision")
    if precision not in (None, "auto", "32", 32, *PRECISIONS):
        raise ConfigError(f"trainer.precision must be one of {', '.join(PRECISIONS)}, got {precision!r}")
    if trainer.get("accelerator", "auto") not in ACCELERATORS:
        allowed = ", ".join(ACCELERATORS)
        raise ConfigError(f"trainer.accelerator must be one of {allowed}, got {trainer['accelerator']!r}")
    if command is not None and trainer.get("accelerator") in ("gpu", "cuda") and not torch.cuda.is_available():
        raise ConfigError(
            f"trainer.accelerator is {trainer['accelerator']!r}, and no GPU can be used here; to try it on a CPU: "
            "--trainer.accelerator cpu --trainer.devices 2 --trainer.precision 32-true"
        )
    on_cpu = trainer.get("accelerator") == "cpu" or not torch.cuda.is_available()
    if command is not None and on_cpu and trainer.get("accelerator") != "mps":
        _check_processes(trainer.get("devices", 1))
    _check_strategy(trainer.get("strategy", "auto"))
    if command is not None and (path := config.get("ckpt_path")) in ("best", "hpc", "registry"):
        raise ConfigError(f"--ckpt_path takes the path of a checkpoint, or `last`; got {path!r}")
    for number, callback in enumerate(trainer.get("callbacks") or ()):
        _check_callback(number, callback, config, command)


def _check_processes(devices: Any) -> None:
    """Refuses a number of processes that a CPU cannot run."""
    most = max(FEW_PROCESSES, os.cpu_count() or 1)
    number = int(devices) if str(devices).isdecimal() else 0
    if devices != "auto" and not 1 <= number <= most:
        raise ConfigError(f"trainer.devices must be 'auto' or from 1 to {most} processes on this CPU, got {devices!r}")


def _check_plugins(plugins: Sequence[Any]) -> None:
    """Refuses all but cluster environments: precision and checkpoint files are RPL's own."""
    for plugin in plugins:
        short = str(_class_path(plugin)).rpartition(".")[2]
        if not short.endswith("Environment"):
            raise ConfigError(
                f"trainer.plugins takes cluster environments of Lightning, such as SLURMEnvironment; got {short!r}: "
                "precision is trainer.precision, and checkpoints are written by RPL"
            )


def _check_strategy(strategy: Any) -> None:
    if isinstance(strategy, str):
        short, good = strategy, strategy in STRATEGIES
    else:
        short = str(_class_path(strategy)).rpartition(".")[2]
        good = short in STRATEGY_CLASSES
    if not good:
        allowed = ", ".join((*STRATEGIES, "rpl.training.strategy.FSDP2Strategy (configs/fsdp.yaml)"))
        raise ConfigError(f"trainer.strategy must be one of {allowed}; got {short!r}")


def _check_callback(number: int, callback: Any, config: Mapping[str, Any], command: str | None) -> None:
    name = str(_class_path(callback)).rpartition(".")[2]
    key = f"trainer.callbacks[{number}] ({name})"
    if name in CALLBACKS:
        raise ConfigError(f"{key} does not work with RPL's training: {CALLBACKS[name]}")
    if name == "ModelCheckpoint" and _arguments(callback).get("train_time_interval") is not None:
        raise ConfigError(
            f"{key}.train_time_interval has no effect where the module makes the optimizer steps itself; "
            "use rpl.training.callbacks.TimedCheckpoint"
        )
    monitor = _arguments(callback).get("monitor")
    if command != "fit" or monitor is None or monitor in _LIGHTNING:
        return
    sft = str(_class_path(config.get("model"))).endswith("SFTModule")
    validates = (config.get("trainer") or {}).get("limit_val_batches") != 0
    if not is_documented(monitor) or monitor.startswith("test/"):
        from rpl.training.metric_names import LOGGED

        near = difflib.get_close_matches(monitor, [*LOGGED, "val/em", "val/f1", "val/evidence_recall"], 1, 0.4)
        raise ConfigError(f"{key}.monitor: no run logs {monitor!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
    if sft and not monitor.startswith("val/") and monitor not in _SFT:
        raise ConfigError(f"{key}.monitor: SFT does not log {monitor!r}; it logs {', '.join(_SFT)} and val/…")
    if monitor.startswith("val/") and not validates:
        raise ConfigError(f"{key}.monitor: {monitor!r} is not logged with trainer.limit_val_batches 0")


def check_one_task(args: Sequence[str]) -> None:
    """Refuses two task files: the parser would drop settings of one, or mix those of both, without a word.

    A task file is one that names the classes of both `model` and `data`.

    Raises:
        ConfigError: There are two, or a file or flag asks for another class than the task file.
    """
    tasks: list[str] = []
    classes: dict[str, tuple[str, str]] = {}
    for option, value in _pairs(args):
        if option in ("-c", "--config"):
            settings = _read(value)
            for name in settings:
                if name not in TOP:  # the parser passes over one that is empty
                    near = difflib.get_close_matches(str(name), TOP, 1)
                    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(TOP)}"
                    raise ConfigError(f"{value}: there is no key {name!r}; {hint}")
            found = {key: _class_path(settings.get(key)) for key in ("model", "data")}
            if all(found.values()):
                tasks.append(value)
        elif option in ("--model", "--data", "--model.class_path", "--data.class_path"):
            key = option[2:].partition(".")[0]
            found = {key: value if "{" not in value and ":" not in value else None}
        else:
            continue
        for key, path in found.items():
            short = None if path is None else path.rpartition(".")[2]
            if short is None:
                continue
            first, source = classes.setdefault(key, (short, value))
            if first != short:
                raise ConfigError(f"exactly one task: {source} sets {key} to {first}, and {value} to {short}")
    files = [value for option, value in _pairs(args) if option in ("-c", "--config")]
    given = {option[2:].partition(".")[0] for option, _ in _pairs(args) if option.startswith("--")}
    missing = [key for key in ("model", "data") if key not in classes and key not in given]
    if files and missing and all(map(_read, files)) and not {"help", "print_config"} & given:
        raise ConfigError(
            f"exactly one task file: none of {', '.join(files)} says the class of {' and '.join(missing)}; "
            "give one such as -c configs/rl.yaml"
        )
    if len(tasks) > 1:
        raise ConfigError(f"exactly one task file: {', '.join(tasks)} each set model and data; leave one of them out")


def _pairs(args: Sequence[str]) -> list[tuple[str, str]]:
    pairs = []
    for index, argument in enumerate(args):
        option, equals, value = argument.partition("=")
        if not equals and index + 1 < len(args):
            value = args[index + 1]
        if argument.startswith("-c") and not argument.startswith("--") and argument != "-c":
            option, value = "-c", argument[2:].removeprefix("=")
        pairs.append((option, value))
    return pairs


def _read(path: str) -> dict[str, Any]:
    try:
        settings = yaml.safe_load(Path(path).expanduser().read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return {}  # the parser says what is wrong with it
    return settings if isinstance(settings, dict) else {}


def _class_path(value: Any) -> str | None:
    if isinstance(value, str):
        return value
    return value.get("class_path") if isinstance(value, Mapping) else None


def _arguments(value: Any) -> Mapping[str, Any]:
    return (value.get("init_args") or {}) if isinstance(value, Mapping) else {}
