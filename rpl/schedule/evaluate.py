"""The `eval` phase: all policies so far, the start model without retrieval, and the fixed program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from rpl.agents.baselines import Direct, FixedProgram, Policy
from rpl.agents.system import System, agent_class
from rpl.core.records import Question
from rpl.environment.environment import Environment
from rpl.environment.gold import check_gold
from rpl.evaluation.comparison import best_k, compare
from rpl.evaluation.protocol import evaluate
from rpl.evaluation.records import EvalResult
from rpl.policy.bundle import check_primitives
from rpl.reports.results import add_comparison, add_result
from rpl.sampling.opening import OpenedPolicy, open_policy
from rpl.schedule.phases import EvalConfig, Schedule


def evaluate_policies(
    run_dir: Path,
    out: Path,
    questions: Sequence[Question],
    policies: Mapping[str, Path],
    environment: Environment,
    schedule: Schedule,
    config: EvalConfig,
    settings: Mapping[str, Any],
) -> dict[str, Any]:
    """Measures all rows of the results table and writes them, and their comparisons, to `results.json`.

    The fixed program is read by the weights of the last policy, at every depth of `config.fixed_k`; the depth with the
    best EM *on these very questions* is the baseline, a choice that can only favour the baseline.

    Args:
        run_dir: The run folder.
        out: Folder for the records, one file a row; rows that are there already are not measured again.
        questions: The questions.
        policies: Name of each training phase and the policy it left, in order; at least one.
        environment: Where programs run.
        schedule: How policies are opened and asked.
        config: What to measure.
        settings: What identifies the run, kept with every row.

    Returns:
        The headline figures: EM of the last policy and of the best fixed program.
    """
    coverage = check_gold(questions, environment, "questions to evaluate")
    shared: dict[str, Any] = {"settings": settings, "batch": config.batch_size, "allow_void": config.allow_void}
    batch = config.batch_size

    def measure(system: System, phase: str, file: str = "") -> EvalResult:
        result = evaluate(system, questions, out=out / f"{file or system.name}-{phase}.jsonl", phase=phase, **shared)
        add_result(run_dir, result, coverage=coverage)
        return result

    if config.direct:
        loaded = open_policy(schedule.policy, schedule.style, schedule.thinking, schedule.opening)
        measure(Direct(loaded.renderer, loaded.sampler, batch_size=batch, identity=loaded.identity), "start")
    results: list[EvalResult] = []
    last = list(policies)[-1]
    for phase, folder in policies.items():
        loaded = open_policy(str(folder), schedule.style, schedule.thinking, schedule.opening)
        check_primitives(loaded.contract, environment.library.primitives, folder)
        environment.connect(loaded.renderer.count_tokens)
        identity = {**loaded.identity, **environment.identity}
        policy = Policy(loaded.renderer, loaded.sampler, environment.executor, schedule.rollout, identity=identity)
        results.append(measure(policy, phase))

    def fixed(k: int, loaded: OpenedPolicy = loaded) -> FixedProgram:
        return FixedProgram(
            loaded.renderer,
            loaded.sampler,
            environment.executor,
            k=k,
            max_new_tokens=schedule.rollout.max_new_tokens,
            batch_size=batch,
            identity=identity,
        )

    best = best_k(fixed, config.fixed_k, questions, out=lambda k: out / f"fixed-{k}-{last}.jsonl", phase=last, **shared)
    for k, result in best.results.items():
        add_result(run_dir, result, best=k == best.k, coverage=coverage)
    final, baseline = results[-1], best.results[best.k]
    others = []
    for path in config.agents:
        make: Any = agent_class(path)
        agent = make(loaded.renderer, loaded.sampler, environment.executor, schedule.rollout, identity=identity)
        others.append(measure(agent, last, make.__name__))
    known = final.metrics()
    for metric in ("em", "f1", "all_gold", "printed_tokens"):
        if not known[metric].n:
            continue  # evidence cannot be compared on questions without gold
        for result in (final, *others):
            add_comparison(run_dir, compare(result, baseline, metric))
        for before, after in pairwise(results):
            add_comparison(run_dir, compare(after, before, metric))
    return {"em": known["em"].to_json(), "fixed_em": baseline.metrics()["em"].to_json(), "fixed_k": best.k}
