"""Progress bars and lines on standard error for work that takes longer than a breath."""

from __future__ import annotations

import os
import sys
from typing import Any


def progress_bar(total: int | None, description: str, unit: str = "it") -> Any:
    """Opens a tqdm bar (a context manager with `update(n)`).

    Set `RPL_PROGRESS=0` to turn all bars off. Where standard error is not a terminal the bar prints a line every
    ten seconds instead of redrawing itself.
    """
    from tqdm import tqdm

    return tqdm(
        total=total,
        desc=description,
        unit=unit,
        file=sys.stderr,
        mininterval=0.2 if sys.stderr.isatty() else 10.0,
        dynamic_ncols=True,
        disable=os.environ.get("RPL_PROGRESS") == "0",
    )


def say(text: str) -> None:
    """Writes one line about the run to standard error."""
    sys.stderr.write(f"rpl: {text}\n")
    sys.stderr.flush()
