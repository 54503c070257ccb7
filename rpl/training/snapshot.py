"""Copies the trained weights and the optimizer state of this rank, so that training can go back to them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from rpl.core.errors import CheckpointError


@torch.no_grad()
def take_state(parameters: dict[str, nn.Parameter], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Copies weights and optimizer state to CPU memory; of sharded ones, this rank's shards.

    Args:
        parameters: Trained parameters by name.
        optimizer: What trains them.

    Returns:
        Plain tensors and numbers: `weights` by name, `optimizer` by name and key.
    """
    kept: dict[str, dict[str, Any]] = {}
    for name, parameter in parameters.items():
        if parameter in optimizer.state:
            kept[name] = {key: _copy(value) for key, value in optimizer.state[parameter].items()}
    return {"weights": {name: _copy(parameter) for name, parameter in parameters.items()}, "optimizer": kept}


@torch.no_grad()
def put_state(state: dict[str, Any], parameters: dict[str, nn.Parameter], optimizer: torch.optim.Optimizer) -> None:
    """Puts weights and optimizer state back, bit for bit. Learning rates stay: the schedule goes on.

    Args:
        state: What `take_state` returned for the same model on the same rank.
        parameters: Trained parameters by name.
        optimizer: What trains them.

    Raises:
        CheckpointError: The state is that of another model, or of another number of ranks.
    """
    for name, parameter in parameters.items():
        kept = state["weights"].get(name)
        if kept is None or kept.shape != _local(parameter).shape:
            raise CheckpointError(
                f"the kept state does not fit at {name}; did the model or the number of ranks change?"
            )
    for name, parameter in parameters.items():
        _local(parameter).copy_(state["weights"][name])
        if name not in state["optimizer"]:
            optimizer.state.pop(parameter, None)  # it was taken before the first update
            continue
        current = optimizer.state[parameter]
        for key, value in state["optimizer"][name].items():
            if isinstance(value, Tensor):
                _local(current[key]).copy_(value)
            else:
                current[key] = value


def _local(value: Tensor) -> Tensor:
    return value.to_local() if isinstance(value, DTensor) else value


def _copy(value: Any) -> Any:
    return _local(value).detach().to("cpu", copy=True) if isinstance(value, Tensor) else value
