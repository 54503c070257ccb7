"""Figures in columns, for a terminal."""

from __future__ import annotations

from collections.abc import Sequence


def format_table(rows: Sequence[Sequence[str]]) -> str:
    """Returns rows as lines of text in columns, the first aligned left and the others right.

    >>> print(format_table([("part", "size"), ("links", "1.2 GB")]), end="")
    part     size
    links  1.2 GB
    """
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))]
        lines.append("  ".join(cells).rstrip() + "\n")
    return "".join(lines)
