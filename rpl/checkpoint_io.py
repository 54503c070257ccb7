"""Checkpoint files that are whole or absent: written under a temporary name, then renamed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO


class AtomicCheckpointIO(TorchCheckpointIO):
    """Lightning's plain checkpoint format, safe against a process that is killed while it writes."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None) -> None:
        """Writes the checkpoint next to its final name and renames it into place."""
        temporary = Path(f"{path}.{os.getpid()}.partial")
        try:
            super().save_checkpoint(checkpoint, temporary, storage_options)
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
