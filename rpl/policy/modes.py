"""Training and evaluation mode of a model's parts: set for a while, or for reinforcement learning."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Puts a model into evaluation mode; afterwards each of its parts is in the mode that it was in."""
    training = [module for module in model.modules() if module.training]
    try:
        model.eval()
        yield
    finally:
        for module in training:
            module.training = True


def without_dropout(model: Any, activation_checkpointing: bool) -> None:
    """Turns off whatever is random or different in training, so that the model computes what the sampler computed.

    Every part is in evaluation mode, whatever dropout the model's configuration asks for, and gradients flow as ever.
    Decoder layers that are computed again in the backward pass must be in training mode to do so; they stay in it, and
    their own dropout is set to 0.

    Args:
        model: A transformers model.
        activation_checkpointing: Whether its layers are computed again.
    """
    model.eval()
    if not activation_checkpointing:
        return
    for module in model.modules():
        if getattr(module, "gradient_checkpointing", False):
            module.training = True
            for name, value in vars(module).items():
                if "drop" in name and isinstance(value, float):
                    setattr(module, name, 0.0)
