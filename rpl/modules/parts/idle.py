"""Counts iterations in which nothing can be learnt, reports them, and ends the run if the user asked for that."""

from __future__ import annotations

SAY_AFTER = 5
"""Idle iterations in a row after which a line says so; then again whenever their number has doubled."""


class IdleIterations:
    """Counts iterations whose groups all have equal rewards, so that the weights stay as they are.

    Args:
        stop_after: So many in a row end the run; `None` never does.
    """

    def __init__(self, stop_after: int | None) -> None:
        self.stop_after = stop_after
        self.total = 0
        """Over the run, resumes included."""
        self.in_a_row = 0

    def count(self, idle: bool) -> str | None:
        """Counts an iteration and returns the line that is due, if one is."""
        self.total += idle
        self.in_a_row = self.in_a_row + 1 if idle else 0
        if self.stops:
            return f"{self._what}; the run stops here, as model.stop_after_idle says"
        doublings, rest = divmod(self.in_a_row, SAY_AFTER)
        if rest or not doublings or doublings & (doublings - 1):
            return None
        return (
            f"{self._what}; these steps count, but the weights stay as they are. Questions that are all solved or all "
            "failed teach nothing: warm-start from SFT, or change model.reward, model.group_size or the temperature"
        )

    @property
    def stops(self) -> bool:
        """Whether the run is to end."""
        return self.stop_after is not None and self.in_a_row >= self.stop_after

    def summary(self, iterations: int) -> str | None:
        """Returns a line for the end of a run of so many iterations, or `None` where each had something to learn."""
        return f"nothing could be learnt in {self.total} of {iterations} iterations" if self.total else None

    @property
    def _what(self) -> str:
        times = "iteration" if self.in_a_row == 1 else f"{self.in_a_row} iterations in a row"
        return f"nothing to learn in {times}: the rewards within each group are equal"
