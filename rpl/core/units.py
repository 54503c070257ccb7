"""Numbers, sizes and durations as people read them, and figures in columns."""

from __future__ import annotations

from collections.abc import Sequence


def size_text(count: float) -> str:
    """Returns a number of bytes in decimal units.

    >>> size_text(64_559_075_373), size_text(5_120), size_text(0)
    ('64.6 GB', '5 kB', '0 kB')
    """
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count / 1e3:.0f} kB"


def duration_text(seconds: float) -> str:
    """Returns a duration, rounded.

    >>> duration_text(0.2), duration_text(75), duration_text(600), duration_text(10_000)
    ('less than a second', '75 s', '10 min', '2.8 h')
    """
    if seconds < 1:
        return "less than a second"
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def count_text(count: int, noun: str) -> str:
    """Returns a number with its noun, in the plural where it is not one.

    >>> count_text(1, "passage"), count_text(1_200, "passage")
    ('1 passage', '1,200 passages')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


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
