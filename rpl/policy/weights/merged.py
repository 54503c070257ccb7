"""A policy's weights as an ordinary model file would hold them: whole, with adapters folded in, one at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

_ADAPTER_PARTS = (".lora_A.", ".lora_B.")


def policy_weights(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yields names and values of all weights; the model stays as it is.

    One gathered or merged weight is in memory at a time. Tied weights come under each of their names.

    Args:
        model: A transformers model; its weights may be sharded (FSDP2), and its linear layers may carry LoRA adapters
            of peft (arXiv:2106.09685), whose sum is added. Collective if weights are sharded: every rank must go
            through all of them.

    Yields:
        The name in Hugging Face's files, and the tensor, detached, on the model's device.
    """
    adapted = {f"{name}.base_layer.weight": layer for name, layer in model.named_modules() if _is_adapted(layer)}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if any(part in name for part in _ADAPTER_PARTS):
            continue
        value = _whole(parameter)
        if name in adapted:
            value = _merged(value, adapted[name])
        yield name.replace(".base_layer.", "."), value


def folder_digest(folder: Path) -> str:
    """Returns a digest of the weight files of a model folder: equal weights, equal digests, whatever the folder's name.

    Reads all of them, about a second a gigabyte.
    """
    state = hashlib.sha256()
    for path in sorted([*folder.glob("*.safetensors"), *folder.glob("*.bin")]):
        with path.open("rb") as file:
            state.update(f"{path.name} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return state.hexdigest()[:16]


@torch.no_grad()
def fingerprint(model: nn.Module) -> Tensor:
    """Sums the bits of each of this rank's parameters, as integers: another result after any update, however small.

    Returns:
        `(parameters,)`, int64, on the CPU.
    """
    sums = []
    for parameter in model.parameters():
        local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        words = torch.int16 if local.element_size() == 2 else torch.int32
        sums.append(local.detach().contiguous().view(words).sum())
    return torch.stack(sums).cpu()


def _is_adapted(layer: Any) -> bool:
    return hasattr(layer, "base_layer") and len(getattr(layer, "lora_A", ())) > 0


def _merged(value: Tensor, layer: Any) -> Tensor:
    if layer.merged:
        return value
    total = value.float()
    for adapter in layer.active_adapters:
        if adapter in layer.lora_A:
            delta = _whole(layer.lora_B[adapter].weight).float() @ _whole(layer.lora_A[adapter].weight).float()
            total = total + (delta.T if layer.fan_in_fan_out else delta) * layer.scaling[adapter]
    return total


def _whole(parameter: Tensor) -> Tensor:
    value = parameter.detach()
    return value.full_tensor() if isinstance(value, DTensor) else value
