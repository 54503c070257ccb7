"""FSDP2 over all processes, as a Lightning strategy that takes one line of YAML."""

from __future__ import annotations

from datetime import timedelta

from lightning.pytorch.strategies import ModelParallelStrategy


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
