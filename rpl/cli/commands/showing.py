"""Writes what a command found to standard output, safe for the terminal that reads it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TypeVar

from rpl.core.records import to_dict
from rpl.core.terminal import visible, visible_json

T = TypeVar("T")


def write_record(record: T, describe: Callable[[T], str], as_json: bool) -> None:
    """Writes a record as a line of JSON or as text, with control characters shown by name.

    Args:
        record: What was found.
        describe: Returns it as text, line breaks included.
        as_json: Whether to write JSON.
    """
    sys.stdout.write(visible_json(to_dict(record)) + "\n" if as_json else visible(describe(record)))
