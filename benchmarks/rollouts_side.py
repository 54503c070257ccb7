"""One side of the rollout benchmark: an iteration's rollouts a turn, by our loop or in lock step.

Started by `benchmarks.rollouts`, as `python -m benchmarks.rollouts_side SIDE POLICY …`.
"""

from __future__ import annotations

import argparse
import random
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch

from benchmarks.lockstep import LockStep
from benchmarks.rollout_requests import make_requests
from benchmarks.turns import Turns
from rpl.core.answers import exact_match
from rpl.core.files import digest
from rpl.core.records import Question, Rollout
from rpl.datamodules.readers import load_splits
from rpl.environment.environment import Environment, EnvironmentConfig
from rpl.executors.base import ExecutionLimits, Executor
from rpl.policy.loading import load_policy
from rpl.policy.renderer import Renderer
from rpl.retrieval.library_config import LibraryConfig
from rpl.rollouts.loop import run_rollouts
from rpl.rollouts.requests import RolloutConfig, RolloutRequest
from rpl.sampling.hf.sampler import HFSampler

SIDES = ("rpl", "lockstep")


def make_run(
    side: str, model: Any, renderer: Renderer, executor: Executor, config: RolloutConfig, bf16: bool
) -> Callable[[Sequence[RolloutRequest]], list[Rollout]]:
    """Returns what makes rollouts on a side, `rpl` or `lockstep`."""
    if side == "lockstep":
        return LockStep(model, renderer, executor, config, bf16).run
    sampler = HFSampler(dtype="bfloat16" if bf16 else "float32")

    def run(requests: Sequence[RolloutRequest]) -> list[Rollout]:
        sampler.connect(model, renderer.tokenizer)
        return run_rollouts(requests, renderer=renderer, sampler=sampler, executor=executor, config=config)

    return run


def facts(rollouts: Sequence[Rollout], questions: dict[str, Question]) -> dict[str, Any]:
    """Counts that show whether two sides did comparable work."""
    valid = [r for r in rollouts if r.infra_error is None]
    return {
        "finished": len(valid),
        "written_tokens": sum(sum(r.completion_mask) for r in valid),
        "observation_tokens": sum(len(t.observation_ids) for r in valid for t in r.turns),
        "programs": sum(len(r.traces) for r in valid),
        "turns": sum(len(r.turns) for r in valid),
        "em": round(
            sum(exact_match(r.answer, questions[r.question_id].answers) for r in valid) / max(1, len(valid)), 3
        ),
        "ends": dict(Counter(r.invalid or "answer" for r in valid)),
        "digests": [digest(repr(r.token_ids)) for r in rollouts],
    }


def main() -> None:
    """Loads everything and takes the asked-for number of turns."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("side", choices=SIDES)
    parser.add_argument("policy")
    parser.add_argument("--turns", type=int, required=True)
    parser.add_argument("--questions", type=int, required=True)
    parser.add_argument("--group-size", type=int, required=True)
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--max-turns", type=int, required=True)
    parser.add_argument("--max-new-tokens", type=int, required=True)
    parser.add_argument("--printed-tokens", type=int, required=True)
    parser.add_argument("--temperature", type=float, required=True)
    parser.add_argument("--corpus", required=True)
    parser.add_argument("--prompt-style", choices=("compact", "documented"), required=True)
    parser.add_argument("--precision", choices=("bf16", "fp32"), required=True)
    parser.add_argument("--device", choices=("cpu", "cuda"), required=True)
    args = parser.parse_args()

    turns = Turns()
    warnings.filterwarnings("ignore")
    model, tokenizer = load_policy(args.policy, "float32")
    model = model.to(args.device)
    renderer = Renderer(tokenizer, args.prompt_style)
    questions = list(load_splits(args.corpus).train)
    random.Random(0).shuffle(questions)
    config = RolloutConfig(
        max_turns=args.max_turns,
        max_new_tokens=args.max_new_tokens,
        temperature=args.temperature,
        batch_size=args.batch_size,
    )
    settings = EnvironmentConfig(LibraryConfig(args.corpus), ExecutionLimits(printed_tokens=args.printed_tokens))
    with Environment(settings) as environment:
        environment.connect(renderer.count_tokens)
        executor = environment.executor
        executor.run("print(bm25(question, k=1))", "warm up")  # starts the workers, opens the index
        run = make_run(args.side, model, renderer, executor, config, args.precision == "bf16")
        turns.ready(threads=torch.get_num_threads())
        by_id = {q.id: q for q in questions}
        for number in range(args.turns):
            turns.wait()
            torch.manual_seed(number)
            requests = make_requests(questions, number, args.questions, args.group_size)
            start = time.perf_counter()
            rollouts = run(requests)
            if args.device == "cuda":
                torch.cuda.synchronize()
            turns.done(time.perf_counter() - start, **facts(rollouts, by_id))
    turns.finish(args.device)


if __name__ == "__main__":
    main()
