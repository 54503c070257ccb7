"""A low-precision working copy of a policy whose master weights stay in float32.

Autocast casts every weight again in every forward pass and keeps the residual stream in float32; a copy that is cast
once an update does neither, and sampling can use it too. Gradients are handed to the master weights as they arrive and
add up there in float32, as FSDP2's mixed precision does for sharded models.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn


class Replica:
    """The working copy of one model. Not an `nn.Module`, so that it enters no state dict and no optimizer.

    Args:
        master: The model that holds the weights, with float32 parameters, on its final device.
        dtype: Type of the copy.
    """

    def __init__(self, master: nn.Module, dtype: torch.dtype) -> None:
        self.model: Any = copy.deepcopy(master).to(dtype)
        self._pairs = list(zip(master.parameters(), self.model.parameters(), strict=True))
        for weight, twin in self._pairs:
            twin.grad = None
            twin.requires_grad_(weight.requires_grad)
            if weight.requires_grad:
                twin.register_post_accumulate_grad_hook(_hand_over(weight))

    @torch.no_grad()
    def refresh(self) -> None:
        """Copies the master weights; needed after every update and after loading a checkpoint."""
        for weight, twin in self._pairs:
            twin.copy_(weight)


def _hand_over(weight: nn.Parameter) -> Any:
    def hook(twin: Tensor) -> None:
        assert twin.grad is not None
        if weight.grad is None:
            weight.grad = twin.grad.to(weight.dtype)
        else:
            weight.grad.add_(twin.grad)
        twin.grad = None

    return hook
