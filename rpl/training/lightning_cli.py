"""LightningCLI as RPL needs it: our abstract classes, YAML that wins over checkpoints, one optimizer mechanism."""

from __future__ import annotations

import logging
import sys
import warnings

from jsonargparse import set_parsing_settings
from lightning.pytorch.cli import LightningCLI

import rpl.datamodules.qa
import rpl.datamodules.repaired
import rpl.modules.grpo
import rpl.modules.sft  # noqa: F401 - imported so that short class names resolve
from rpl.datamodules.base import RPLDataModule
from rpl.modules.base import PolicyModule
from rpl.training.trainer import RPLTrainer

# Nested settings explain themselves in `--help` by the texts under their fields.
set_parsing_settings(docstring_parse_attribute_docstrings=True)


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
        # Lightning's launcher starts further processes from sys.argv, and warns when arguments come in both ways.
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
                args=given,
                run=run,
            )
        finally:
            sys.argv = argv

    def _parse_ckpt_path(self) -> None:
        """Ignores hyper-parameters stored in a checkpoint: YAML and flags alone decide (a checkpoint holds state)."""
