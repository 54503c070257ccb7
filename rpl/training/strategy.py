"""FSDP2 over all processes, as a Lightning strategy that takes one line of YAML."""

from __future__ import annotations

import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.strategies import ModelParallelStrategy

from rpl.core.errors import CheckpointError
from rpl.policy.loading import put_folder
from rpl.policy.weights.checkpoint_files import UNREADABLE, file_digests, finish_folder


class FSDP2Strategy(ModelParallelStrategy):
    """Shards weights, gradients and optimizer state over all processes of the run, on any number of machines.

    Lightning's `ModelParallelStrategy` takes `data_parallel_size: auto` for the number of *machines*, and refuses to
    start with several devices unless their number is written down.

    Args:
        save_distributed_checkpoint: Every process writes its own part, into a folder (`rpl export` makes a model folder
            of it); otherwise rank 0 gathers everything into one file.
        process_group_backend: `nccl` or `gloo`; by default what suits the devices.
        timeout_s: Seconds after which a process gives up waiting for another one that is alive.
    """

    def __init__(
        self,
        save_distributed_checkpoint: bool = True,
        process_group_backend: str | None = None,
        timeout_s: float = 1800.0,
    ) -> None:
        super().__init__(
            data_parallel_size="auto",
            tensor_parallel_size=1,
            save_distributed_checkpoint=save_distributed_checkpoint,
            process_group_backend=process_group_backend,
            timeout=timedelta(seconds=timeout_s),
        )

    def setup_environment(self) -> None:
        """As in Lightning, once the number of processes is known."""
        self._data_parallel_size = self.num_nodes * self.num_processes
        super().setup_environment()

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        """As in Lightning; a folder of shards appears under its name when it is complete, with digests. Collective."""
        if not self._save_distributed_checkpoint:
            super().save_checkpoint(checkpoint, filepath, storage_options)
            return
        path = Path(self.broadcast(filepath))
        temporary = path.with_name(f".{path.name}.new")
        if self.global_rank == 0:
            shutil.rmtree(temporary, ignore_errors=True)
        self.barrier()
        super().save_checkpoint(checkpoint, temporary, storage_options)
        parts: list[dict[str, str]] = [{} for _ in range(self.world_size)]
        own = file_digests(sorted(temporary.glob(f"__{self.global_rank}_*.distcp")))
        torch.distributed.all_gather_object(parts, own)
        if self.global_rank == 0:
            finish_folder(temporary, {name: value for part in parts for name, value in part.items()})
            if path.is_file():
                path.unlink()
            put_folder(temporary, path)
        self.barrier()

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        """As in Lightning.

        Raises:
            CheckpointError: The checkpoint does not fit the model.
        """
        try:
            return super().load_checkpoint(checkpoint_path, weights_only)
        except (*UNREADABLE, torch.distributed.checkpoint.api.CheckpointException) as error:
            reason = " ".join(str(error).split())[:300]
            raise CheckpointError(f"{checkpoint_path}: does not fit this model: {reason}") from error
