"""Systems side by side: the best depth of a fixed program, and two results question by question."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rpl.agents.system import System
from rpl.core.errors import ConfigError, DataError
from rpl.core.records import Question, to_dict
from rpl.evaluation.protocol import evaluate
from rpl.evaluation.records import METRICS, EvalResult
from rpl.evaluation.statistics import Estimate, McNemar, mcnemar_exact, paired_difference, ratio_of_means


@dataclass(frozen=True)
class BestK:
    """The fixed program evaluated at several k, and the k that won."""

    k: int
    results: Mapping[int, EvalResult]
    """All of them, by k: a baseline is reported at every k, not only at the winner."""


def best_k(
    system_at: Callable[[int], System],
    ks: Sequence[int],
    questions: Sequence[Question],
    *,
    out: Callable[[int], Path] | None = None,
    **options: Any,
) -> BestK:
    """Evaluates a fixed program at several k and picks the k with the best EM; ties go to fewer printed tokens.

    Choosing k on the questions that are reported favours the baseline, never the policy; choosing it on validation
    questions is the unbiased way. Say which was done.

    Args:
        system_at: Builds the system for one k.
        ks: The candidates.
        questions: As for `evaluate`.
        out: Gives the file of records for one k.
        options: Further arguments of `evaluate`.

    Raises:
        ConfigError: There is no candidate.
    """
    if not ks:
        raise ConfigError("best_k needs at least one k to try, got none")
    results = {
        k: evaluate(system_at(k), questions, out=out(k) if out is not None else None, **options)
        for k in sorted(set(ks))
    }

    def merit(k: int) -> tuple[float, float, int]:
        records = [r for r in results[k].records if r.void is None]
        n = max(1, len(records))
        return (-sum(r.em for r in records) / n, sum(r.printed_tokens for r in records) / n, k)

    return BestK(min(results, key=merit), results)


@dataclass(frozen=True)
class Comparison:
    """Two systems on the same questions."""

    a: str
    b: str
    metric: str
    difference: Estimate
    """Mean of a − b with its interval; paired."""
    ratio: Estimate | None
    """Mean of a over mean of b; `None` where b is 0 throughout."""
    mcnemar: McNemar | None
    """For metrics of zeros and ones."""
    differing: tuple[str, ...] = ()
    """Names of settings that are not the same in both."""

    def to_json(self) -> dict[str, Any]:
        """Returns the entry of `results.json`."""
        return {
            "a": self.a,
            "b": self.b,
            "metric": self.metric,
            "difference": self.difference.to_json(),
            "ratio": None if self.ratio is None else self.ratio.to_json(),
            "mcnemar": None if self.mcnemar is None else to_dict(self.mcnemar),
            "differing": list(self.differing),
        }


def compare(result_a: EvalResult, result_b: EvalResult, metric: str = "em") -> Comparison:
    """Compares two results question by question; those that infrastructure failed in either are left out of both.

    Args:
        result_a: The system whose gain is asked for.
        result_b: What it is compared with.
        metric: A name in `METRICS`. Questions on which it cannot be measured (no gold) are left out on both sides.

    Raises:
        DataError: The two did not answer the same questions, or no question can be measured.
        ConfigError: There is no such metric.
    """
    if metric not in METRICS:
        raise ConfigError(f"unknown metric {metric!r}; known: {', '.join(METRICS)}")
    a = {item.question_id: item for item in result_a.records}
    b = {item.question_id: item for item in result_b.records}
    if a.keys() != b.keys():
        odd = sorted(a.keys() ^ b.keys())
        raise DataError(
            f"{result_a.label} and {result_b.label} cannot be compared: {len(odd)} question(s) were answered by only "
            f"one of them, for example {odd[0]!r}"
        )
    value = METRICS[metric].value
    both = [i for i in a if a[i].void is None and b[i].void is None]
    pairs = [(x, y) for i in both if (x := value(a[i])) is not None and (y := value(b[i])) is not None]
    if not pairs:
        raise DataError(f"{metric} cannot be compared: no question has known gold passages")
    left, right = [x for x, _ in pairs], [y for _, y in pairs]
    settings_a, settings_b = result_a.settings or {}, result_b.settings or {}
    names = dict.fromkeys((*settings_a, *settings_b))
    return Comparison(
        result_a.label,
        result_b.label,
        metric,
        paired_difference(left, right),
        ratio_of_means(left, right) if any(right) else None,
        mcnemar_exact(left, right) if METRICS[metric].kind == "rate" else None,
        tuple(name for name in names if settings_a.get(name) != settings_b.get(name)),
    )
