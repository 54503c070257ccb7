"""The Trainer that the command line builds: Lightning's, which also knows `precision: auto`."""

from __future__ import annotations

from typing import Any, Literal

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.trainer.connectors.accelerator_connector import _PRECISION_INPUT

from rpl.core.machine import fastest_precision
from rpl.core.progress import say


class RPLTrainer(Trainer):
    """Lightning's Trainer with one more value of `precision`."""

    def __init__(
        self, *args: Any, precision: _PRECISION_INPUT | Literal["auto"] | None = "auto", **kwargs: Any
    ) -> None:
        """Builds Lightning's Trainer.

        Args:
            args: As for Lightning's Trainer.
            precision: As for Lightning's Trainer, or `auto`: `bf16-mixed` where the device multiplies bfloat16 faster
                than float32, `32-true` elsewhere.
            kwargs: As for Lightning's Trainer.
        """
        super().__init__(*args, precision=resolve_precision(precision, kwargs.get("accelerator", "auto")), **kwargs)


def resolve_precision(precision: Any, accelerator: Any) -> Any:
    """Returns a precision that Lightning knows; for `auto` it says what was chosen and why.

    Args:
        precision: What the user says; everything but `auto` is returned as it is.
        accelerator: The Trainer's.
    """
    if precision != "auto":
        return precision
    cuda = accelerator in ("gpu", "cuda") or (accelerator == "auto" and torch.cuda.is_available())
    chosen = fastest_precision("cuda" if cuda else "cpu")
    say(f"precision auto is {chosen.trainer}: {chosen.reason}")
    return chosen.trainer
