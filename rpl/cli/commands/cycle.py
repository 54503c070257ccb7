"""`rpl cycle`: runs a whole schedule of phases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rpl.cli.commands.parsing import call


def run(args: Sequence[str]) -> Any:
    """Parses and executes `rpl cycle`."""
    from rpl.schedule import cycle

    return call("cycle", cycle, args)
