"""One side of the vLLM benchmark: a batch of completions a turn, by our rollout loop or by `LLM.generate`.

Started by `benchmarks.vllm_overhead`, as `python -m benchmarks.vllm_side SIDE POLICY …`.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.rollout_requests import make_requests
from benchmarks.turns import Turns
from rpl.core.files import digest
from rpl.core.records import Trace
from rpl.core.seeds import derive_seed
from rpl.datamodules.readers import load_splits
from rpl.executors.base import Executor, TokenCounter
from rpl.policy.loading import load_policy, resolve_model
from rpl.policy.renderer import Renderer
from rpl.rollouts.loop import run_rollouts
from rpl.rollouts.requests import RolloutConfig, RolloutRequest
from rpl.sampling.sampler import SamplingParams
from rpl.sampling.stopping import end_tokens
from rpl.sampling.vllm.sampler import VLLMSampler

SIDES = ("rpl", "generate")
Run = Callable[[Sequence[RolloutRequest]], list[tuple[int, ...]]]
"""Makes one completion a request and returns their token ids."""


class NoPrograms(Executor):
    """Rollouts of one turn end with their first completion, so nothing is ever executed."""

    def connect(self, count_tokens: TokenCounter) -> None:
        """Needs nothing."""

    def run_many(self, jobs: Sequence[tuple[str, str]]) -> list[Trace]:
        """Is not called."""
        raise AssertionError("a rollout of one turn ran a program")

    def close(self) -> None:
        """Holds nothing."""


def engine_settings(args: argparse.Namespace) -> dict[str, Any]:
    """What both engines are told."""
    return {
        "dtype": "bfloat16" if args.precision == "bf16" else "float32",
        "max_model_len": args.max_model_len,
        "gpu_memory_utilization": args.memory,
        "max_num_seqs": args.questions * args.group_size,
        "enforce_eager": args.eager,
    }


def ours(args: argparse.Namespace, facts: dict[str, Any]) -> Run:
    """Our loop over the colocated engine; the weights are brought to it before the first turn."""
    model, tokenizer = load_policy(args.policy, "float32")
    renderer = Renderer(tokenizer, args.prompt_style)
    sampler = VLLMSampler(**engine_settings(args))
    sampler.connect(model, tokenizer)
    facts |= {"gap": round(sampler.last_gap, 5), "sync_s": round(sampler.last_sync_s, 2)}
    config = RolloutConfig(
        max_turns=1,
        max_new_tokens=args.max_new_tokens,
        temperature=args.temperature,
        batch_size=args.questions * args.group_size,
        max_context_tokens=args.max_model_len,
    )

    def run(requests: Sequence[RolloutRequest]) -> list[tuple[int, ...]]:
        rollouts = run_rollouts(requests, renderer=renderer, sampler=sampler, executor=NoPrograms(), config=config)
        return [r.turns[0].completion_ids for r in rollouts]

    return run


def generate(args: argparse.Namespace, facts: dict[str, Any]) -> Run:
    """One call of `LLM.generate` with the same prompts, seeds, stop texts and log-probabilities."""
    import vllm

    folder = resolve_model(args.policy)
    model, tokenizer = load_policy(folder, "float32")
    ends = sorted(end_tokens(model, tokenizer))
    del model
    renderer = Renderer(tokenizer, args.prompt_style)
    llm = vllm.LLM(str(folder), logprobs_mode="processed_logprobs", generation_config="vllm", **engine_settings(args))
    stops = list(SamplingParams().stop)

    def run(requests: Sequence[RolloutRequest]) -> list[tuple[int, ...]]:
        prompts = [{"prompt_token_ids": list(renderer.prompt_ids(r.question.question))} for r in requests]
        params = [
            vllm.SamplingParams(
                max_tokens=args.max_new_tokens,
                temperature=args.temperature,
                seed=derive_seed(r.seed, 0),  # that of our first completion of a row
                stop=stops,
                include_stop_str_in_output=True,
                skip_special_tokens=False,
                stop_token_ids=ends,
                logprobs=0,
            )
            for r in requests
        ]
        return [tuple(o.outputs[0].token_ids) for o in llm.generate(prompts, params, use_tqdm=False)]

    return run


def main() -> None:
    """Loads everything and takes the asked-for number of turns."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("side", choices=SIDES)
    parser.add_argument("policy")
    parser.add_argument("--turns", type=int, required=True)
    parser.add_argument("--questions", type=int, required=True)
    parser.add_argument("--group-size", type=int, required=True)
    parser.add_argument("--max-new-tokens", type=int, required=True)
    parser.add_argument("--max-model-len", type=int, required=True)
    parser.add_argument("--temperature", type=float, required=True)
    parser.add_argument("--prompt-style", choices=("compact", "documented"), required=True)
    parser.add_argument("--precision", choices=("bf16", "fp32"), required=True)
    parser.add_argument("--memory", type=float, required=True)
    parser.add_argument("--eager", action="store_true")
    args = parser.parse_args()

    turns = Turns()
    warnings.filterwarnings("ignore")
    questions = list(load_splits("atlas-mini").train)
    facts: dict[str, Any] = {}
    run = (ours if args.side == "rpl" else generate)(args, facts)
    turns.ready(**facts)
    for number in range(args.turns):
        turns.wait()
        requests = make_requests(questions, number, args.questions, args.group_size)
        start = time.perf_counter()
        completions = run(requests)
        seconds = time.perf_counter() - start
        turns.done(seconds, tokens=sum(map(len, completions)), digests=[digest(repr(ids)) for ids in completions])
    turns.finish()


if __name__ == "__main__":
    main()
