"""The attack corpus on the second interpreter: the same refusals, typed ends everywhere else, and a pool that is whole.

What a program does that the language allows may end differently there (see the table in
`rpl.executors.monty.executor`).
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from executor_fakes import FakeLibrary
from executors.test_executor_fuzz import KINDS
from test_attacks import ATTACKS, CATEGORIES, PROBE, outcomes, program, timeless

from rpl.executors.base import ExecutionLimits
from rpl.executors.monty.executor import MontyExecutor

pytest.importorskip("pydantic_monty")

QUESTION = "who?"
SAME = {"syntax", "forbidden", "primitive", "budget_source", "budget_calls", "budget_passages", "budget_printed"}
"""Kinds that do not depend on the interpreter: they come from the grammar and from what both share."""

OTHERWISE = {
    "boolean operators": "syntax",  # Monty nests what CPython keeps flat
    "loops of one comprehension": "syntax",
    "print of many values": "budget_size",  # the whole call is bounded before it is printed
    "key that searches": "runtime",
}
"""Attacks with another end here, though the table's rule would have it the same."""


@pytest.fixture(scope="module")
def executor() -> Iterator[MontyExecutor]:
    made = MontyExecutor(ExecutionLimits(wall_s=1.0), workers=1)
    made.attach(FakeLibrary())  # type: ignore[arg-type]
    yield made
    made.close()


@pytest.mark.slow
@pytest.mark.parametrize("category", CATEGORIES)
def test_every_attack_ends_with_a_typed_error_or_in_peace(category: str, executor: MontyExecutor) -> None:
    healthy = timeless(executor.run(PROBE, QUESTION))
    assert healthy.error is None
    wrong = []
    for entry in (entry for name, entry in ATTACKS if name == category and "limits" not in entry):
        trace = executor.run(program(entry), QUESTION)
        kind = "ok" if trace.error is None else trace.error.kind
        expected = set(outcomes(entry, "restricted"))
        same = expected <= SAME or kind in ("syntax", "forbidden")
        fits = kind == OTHERWISE[entry["name"]] if entry["name"] in OTHERWISE else kind in expected or not same
        if trace.infra_error is not None or kind not in KINDS | {"ok"} or not fits:
            wrong.append((entry["name"], expected, kind, trace.error, trace.infra_error))
        assert set(trace.printed_ids) <= set(trace.fetched_ids)
        assert timeless(executor.run(PROBE, QUESTION)) == healthy, entry["name"]
    assert not wrong
