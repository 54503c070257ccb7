"""LightningCLI as RPL needs it: our abstract classes, YAML that wins over checkpoints, one optimizer mechanism."""

from __future__ import annotations

import difflib
import logging
import re
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any, NoReturn

import lightning.pytorch as pl
from jsonargparse import set_parsing_settings
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import Callback, ProgressBar
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI

import rpl.datamodules.qa
import rpl.datamodules.repaired
import rpl.modules.grpo
import rpl.modules.sft  # noqa: F401 - imported so that short class names resolve
from rpl.core import signals
from rpl.core.errors import CheckpointError, ConfigError, MissingDependencyError, RPLError
from rpl.core.progress import say
from rpl.datamodules.base import RPLDataModule
from rpl.modules.base import PolicyModule
from rpl.policy.weights.checkpoint_files import newest_whole
from rpl.training.callbacks import ExportPolicy
from rpl.training.options import check_one_task, check_options
from rpl.training.predictions import PredictionWriter
from rpl.training.resuming import CheckpointFiles, FitLoop, Resumption, check_checkpoint
from rpl.training.stopping import SafeStop
from rpl.training.trainer import RPLTrainer

# Nested settings explain themselves in `--help` by the texts under their fields.
set_parsing_settings(docstring_parse_attribute_docstrings=True)


# What Lightning would do otherwise does not fit RPL's loop, or buries its lines.
TRAINER_DEFAULTS: dict[str, Any] = {
    "logger": {"class_path": "lightning.pytorch.loggers.CSVLogger", "init_args": {"save_dir": "runs", "name": "fit"}},
    "max_epochs": -1,  # training ends with trainer.max_steps
    "log_every_n_steps": 1,
    "num_sanity_val_steps": 0,
    "use_distributed_sampler": False,
    "enable_model_summary": False,
}


class Parser(LightningArgumentParser):
    """Names are given in full, and a mistake is one line, with the nearest name that there is."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs | {"allow_abbrev": False})

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Writes one line and ends with status 2."""
        parser: Any = getattr(ex, "subcommand_parser", None) or self
        text = readable(" ".join(message.split()))
        options = [option for action in parser._actions for option in action.option_strings]
        for dashes, wrong in re.findall(r"(--|[Oo]ption ')([\w.]+)", text):
            if f"--{wrong}" not in options and (near := nearest(f"--{wrong}", options)):
                near = near if dashes == "--" else near.removeprefix("--")
                text += f"; did you mean {near}?"
                break
        prog = parser.prog.replace(" [options]", "")
        sys.stderr.write(f"rpl: error: {text} (`{prog} --help` shows all options)\n")
        raise SystemExit(2)


def readable(message: str) -> str:
    """Says in few words what the parser says of a value that is none of several types.

    >>> readable("Does not validate against any of the Union subtypes Subtypes: [<class 'bool'>, <class 'NoneType'>] "
    ...          "Errors: - Expected a <class 'bool'> Given value type: <class 'str'> Given value: often")
    "must be bool or null, got 'often'"
    """
    pattern = (
        r"(?:- )?Does not validate against any of the Union subtypes Subtypes: \[(.*?)\] Errors: .*Given value: (.*)"
    )
    if not (found := re.search(pattern, message)):
        return message
    names = re.sub(r"<class '(?:[\w.]*\.)?(\w+)'>", r"\1", found[1]).replace("NoneType", "null")
    names = re.sub(r"(?:\w+\.)+(?=\w)", "", re.sub(r"typing\.Literal\[(.*?)\]", r"\1", names))
    return f"{message[: found.start()]}must be {' or '.join(names.split(', '))}, got {found[2]!r}"


def nearest(name: str, names: list[str]) -> str | None:
    """The name most like a wrong one."""
    return next(iter(difflib.get_close_matches(name, names, 1, 0.6)), None)


class RPLCLI(LightningCLI):
    """Builds trainer, module and data from YAML and flags and runs one of `fit`, `validate`, `test`, `predict`."""

    def __init__(self, args: list[str] | None = None, run: bool = True) -> None:
        """Parses and, with `run`, executes.

        Args:
            args: The command line without the program name.
            run: Execute the subcommand that `args` begins with; `False` takes no subcommand and only builds.
        """
        # Advertisements and device reports on every start would bury RPL's own lines.
        logging.getLogger("lightning.pytorch.utilities.rank_zero").setLevel(logging.WARNING)
        warnings.filterwarnings("ignore", message=".*LeafSpec.*", category=FutureWarning)
        warnings.filterwarnings("ignore", message=".*does not have many workers.*")
        # Checkpoints hold the state after the update, which is what a resumed run goes on from.
        warnings.filterwarnings("ignore", message="Using ModelCheckpoint with manual optimization")
        warnings.filterwarnings("ignore", message="Checkpoint directory .* exists and is not empty")
        warnings.filterwarnings("ignore", message="The dirpath has changed")  # a resumed run has a folder of its own
        # Lightning's launcher starts further processes from sys.argv, and warns when arguments come in both ways.
        check_one_task(sys.argv[1:] if args is None else args)
        given, argv = args, sys.argv
        if args is not None and list(args) == argv[1:]:
            given = None
        else:
            sys.argv = argv[:1]
        try:
            super().__init__(
                PolicyModule,
                RPLDataModule,
                trainer_class=RPLTrainer,
                subclass_mode_model=True,
                subclass_mode_data=True,
                auto_configure_optimizers=False,
                seed_everything_default=0,
                save_config_kwargs={"overwrite": True},
                parser_kwargs={"prog": "rpl"},
                parser_class=Parser,
                trainer_defaults=TRAINER_DEFAULTS,
                args=given,
                run=run,
            )
        finally:
            sys.argv = argv

    def _parse_ckpt_path(self) -> None:
        """Ignores hyper-parameters stored in a checkpoint: YAML and flags alone decide (a checkpoint holds state)."""

    def before_instantiate_classes(self) -> None:
        """Refuses options that RPL does not honour, before anything is loaded."""
        config = self.config[self.subcommand] if self.subcommand else self.config
        check_options(config.as_dict(), self.subcommand)

    def instantiate_classes(self) -> None:
        """Builds what YAML and flags name, with the reasons of Lightning and torch as one line each."""
        try:
            super().instantiate_classes()
        except Exception as error:
            _reword(error)
            raise

    def instantiate_trainer(self, **kwargs: Any) -> pl.Trainer:
        """Builds the trainer, and what goes with every run: safe stops, checked checkpoints, the policy's folder."""
        settings = self._get(self.config_init, "trainer", default={})
        if settings.get("enable_progress_bar") is False and settings.get("callbacks"):  # base.yaml has a bar
            settings["callbacks"] = [c for c in settings["callbacks"] if not isinstance(c, ProgressBar)]
        trainer = super().instantiate_trainer(**kwargs)
        callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
        own: list[Callback] = [Resumption(), SafeStop(), PredictionWriter()]
        if not any(isinstance(callback, ExportPolicy) for callback in callbacks):
            own.append(ExportPolicy())
        # Checkpoints come last: they hold what the others have noted.
        callbacks[:] = trainer._callback_connector._reorder_callbacks([*callbacks, *own])
        FitLoop.replace(trainer)
        trainer.strategy.checkpoint_io = CheckpointFiles()
        # Lightning's handlers broadcast and save within a signal; `rpl.core.signals` owns these signals.
        trainer._signal_connector.register_signal_handlers = lambda: None  # type: ignore[method-assign]
        launcher: Any = trainer.strategy.launcher
        signals.one_of_several(trainer.global_rank, lambda: getattr(launcher, "procs", ()))
        return trainer

    def _run_subcommand(self, subcommand: str) -> None:
        """Runs it, with the reasons of Lightning and torch as one line each."""
        settings = self.config_init[subcommand]
        if settings.get("ckpt_path") == "last":
            settings.ckpt_path = self._last_checkpoint()
        path = settings.get("ckpt_path")
        if path is not None and "://" not in str(path) and self.trainer.global_rank == 0:
            check_checkpoint(Path(path), self.model, training=subcommand == "fit")
        try:
            super()._run_subcommand(subcommand)
        except Exception as error:
            if "loading state_dict" in str(error) or "size mismatch" in str(error):
                start = self.model.policy_model.start
                raise CheckpointError(f"{path}: does not fit {start!r}: {_one_line(error)}") from error
            _reword(error)
            raise

    def _last_checkpoint(self) -> str | None:
        """The newest whole checkpoint in the folder of the configured `ModelCheckpoint`."""
        callback: Any = self.trainer.checkpoint_callback
        if callback is None or callback.dirpath is None:
            raise ConfigError("--ckpt_path last needs a ModelCheckpoint with a dirpath in trainer.callbacks")
        path, damaged = newest_whole(Path(callback.dirpath))
        for reason in damaged:
            say(reason)
        say(f"going on from {path}" if path else f"{callback.dirpath} holds no checkpoint: the run begins afresh")
        return None if path is None else str(path)


def _reword(error: Exception) -> None:
    """Raises an error of one line in place of one by which Lightning or an optimizer refuses a setting."""
    if "jsonargparse" in _folders(error):  # it wraps what a class says of its arguments
        while isinstance(cause := error.__cause__ or error.__context__, Exception):
            error = cause
    if isinstance(error, RPLError):
        raise error
    if missing := re.search(r"Requirement '[^']*' not met", str(error)):
        raise MissingDependencyError(f"{missing[0]}: `pip install` it, or choose another class") from error
    if isinstance(error, ImportError):
        raise MissingDependencyError(_one_line(error)) from error
    if "optim" in _folders(error) and isinstance(error, (TypeError, ValueError)):
        raise ConfigError(f"model.optimizer: {_one_line(error)}") from error
    refusals = (TypeError, ValueError, RuntimeError, MisconfigurationException)
    if {"lightning", "lightning_utilities"} & _folders(error) and isinstance(error, refusals):
        raise ConfigError(f"trainer: {_one_line(error)}") from error


def _folders(error: Exception) -> set[str]:
    """The parts of the path of the file that raised an error."""
    frames = traceback.extract_tb(error.__traceback__)
    return set(Path(frames[-1].filename).parts) if frames else set()


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if len(text) < 400 else text[:400] + " …"
