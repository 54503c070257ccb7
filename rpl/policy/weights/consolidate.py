"""A training checkpoint, a file or a folder of shards, to an ordinary model folder: in one process, without a GPU."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint import FileSystemReader, load
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from rpl.core.errors import CheckpointError
from rpl.policy.bundle import contract_file, contract_from, read_contract
from rpl.policy.loading import export_policy, load_policy
from rpl.policy.weights.checkpoint_files import UNREADABLE, read_header, verify
from rpl.policy.weights.lora import LoRAConfig, add_lora, check_frozen, frozen_sums
from rpl.policy.weights.sharding import full_model


def export_checkpoint(checkpoint: Path, out: Path, start_model: str | None = None) -> Path:
    """Writes the policy of a checkpoint as a Hugging Face folder, adapters folded in.

    Args:
        checkpoint: What `ModelCheckpoint` wrote: a file, or the folder of a sharded run.
        out: The folder; an earlier one of this name is replaced.
        start_model: Where the run's start model is now; by default where it was. Gives config and tokenizer, and under
            adapters the frozen weights.

    Returns:
        `out`.

    Raises:
        CheckpointError: The checkpoint is damaged or not one of RPL's, or does not belong to the start model.
    """
    weights, counters = read_checkpoint(checkpoint)
    name = start_model or counters.get("start_model")
    if name is None:
        raise CheckpointError(f"{checkpoint} does not say which model it started from; give --start_model")
    lora = None if counters.get("lora") is None else LoRAConfig(**counters["lora"])
    model, tokenizer = load_policy(name, "float32" if lora is None else lora.base_dtype)
    expected = set(model.state_dict())
    if lora is not None:
        add_lora(model, lora)
        expected = {n for n, p in model.named_parameters() if p.requires_grad}
        check_frozen(frozen_sums(model), counters, name)
    if wrong := sorted(set(weights) ^ expected):
        raise CheckpointError(f"{checkpoint}: {len(wrong)} weights do not fit {name!r}, such as {wrong[0]}")
    try:
        model.load_state_dict(weights, strict=False)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:200]
        raise CheckpointError(f"{checkpoint}: does not fit {name!r}: {reason}") from error
    told = counters.get("contract")
    contract = read_contract(name) if told is None else contract_from(told, f"{checkpoint} (contract)")
    return export_policy(full_model(model), tokenizer, out, contract_file(contract))


def read_checkpoint(checkpoint: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Reads the policy's weights and RPL's counters, and nothing else, from a checkpoint.

    Args:
        checkpoint: A file, or the folder of a sharded run.

    Returns:
        Weights by their name in the policy, and what the module added in `on_save_checkpoint`.

    Raises:
        CheckpointError: There is no such checkpoint, it is damaged, or it is not one of RPL's.
    """
    verify(checkpoint)
    counters = read_header(checkpoint)["rpl"]
    try:
        if checkpoint.is_dir():
            state = _read_shards(checkpoint)
        else:
            state = torch.load(checkpoint, map_location="cpu", weights_only=True, mmap=True)["state_dict"]
    except UNREADABLE as error:
        raise CheckpointError(f"{checkpoint}: not a checkpoint of RPL, or damaged: {error}") from error
    weights = {name.removeprefix("model."): value for name, value in state.items() if name.startswith("model.")}
    return weights, counters


def _read_shards(folder: Path) -> dict[str, Tensor]:
    prefix = "state_dict."
    tensors: dict[str, Tensor] = {
        key.removeprefix(prefix): torch.empty(entry.size, dtype=entry.properties.dtype)
        for key, entry in FileSystemReader(folder).read_metadata().state_dict_metadata.items()
        if key.startswith(prefix) and isinstance(entry, TensorStorageMetadata)
    }
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # which is what was asked for
        load({"state_dict": tensors}, checkpoint_id=folder, no_dist=True)
    return tensors
