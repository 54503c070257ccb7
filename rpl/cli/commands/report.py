"""`rpl report`: writes the report of a run folder again."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rpl.cli.commands.parsing import call
from rpl.core.errors import CheckpointError


def report(run_dir: str) -> Path:
    """Writes report.md and its pictures from the results of a run folder.

    Args:
        run_dir: A folder that `rpl cycle` wrote.
    """
    from rpl.reports.report import write_report

    folder = Path(run_dir)
    if not (folder / "results.json").is_file():
        raise CheckpointError(
            f"{folder}: there is no results.json; is this a run folder of `rpl cycle`, and did it end?"
        )
    path = write_report(folder)
    sys.stdout.write(f"{path}\n")
    return path


def run(args: Sequence[str]) -> Any:
    """Parses and executes `rpl report`."""
    return call("report", report, args, positional=["run_dir"])
