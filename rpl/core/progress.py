"""Progress bars and lines on standard error for work that takes more than a few seconds."""

from __future__ import annotations

import os
import sys
from typing import Any

from rpl.core.terminal import visible


def progress_bar(total: int | None, description: str, unit: str = "it", initial: int = 0) -> Any:
    """Opens a tqdm bar (a context manager with `update(n)`), with `initial` already done.

    Set `RPL_PROGRESS=0` to turn all bars off. Where standard error is not a terminal the bar prints a line every
    ten seconds instead of redrawing itself.

    Args:
        total: Of what `unit` counts.
        description: What is being done.
        unit: What is counted; bytes (`B`) are shown in kB, MB and GB.
        initial: How much of it was done before, which counts as done but not as work of this process.
    """
    from tqdm import tqdm

    return tqdm(
        total=total,
        desc=description,
        unit=unit,
        unit_scale=unit == "B",
        initial=initial,
        file=sys.stderr,
        mininterval=0.2 if sys.stderr.isatty() else 10.0,
        dynamic_ncols=True,
        disable=os.environ.get("RPL_PROGRESS") == "0",
    )


def say(text: str) -> None:
    """Writes one line about the run to standard error."""
    sys.stderr.write(f"rpl: {visible(text)}\n")
    sys.stderr.flush()
