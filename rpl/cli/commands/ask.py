"""`rpl ask`: one question in; program, evidence with ids and answer out."""

from __future__ import annotations

import json as json_module
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from rpl.cli.commands.parsing import call
from rpl.core.errors import RetrieverError
from rpl.core.records import Question, Rollout, to_dict
from rpl.environment.environment import Environment, EnvironmentConfig
from rpl.rollouts.loop import RolloutConfig


def ask(
    question: str,
    checkpoint: str,
    corpus: str | None = None,
    environment: EnvironmentConfig = EnvironmentConfig(),
    rollout: RolloutConfig = RolloutConfig(temperature=0.0),
    prompt_style: Literal["compact", "documented"] = "compact",
    json: bool = False,
) -> Rollout:
    """Answers one question and shows how: the programs, what they printed, the answer.

    Args:
        question: The question.
        checkpoint: Model folder of a policy (what a run folder calls `model`), or the name of a model.
        corpus: Short for `--environment.library.corpus`.
        environment: Corpus, indexes and limits.
        rollout: Turns, length and temperature; greedy by default.
        prompt_style: The prompt that the policy was trained with.
        json: Print the whole rollout as JSON.
    """
    from rpl.rollouts.loop import RolloutRequest, run_rollouts
    from rpl.sampling.opening import load_local_policy

    if corpus is not None:
        environment = replace(environment, library=replace(environment.library, corpus=corpus))
    policy = load_local_policy(checkpoint, prompt_style)
    request = RolloutRequest(Question("ask", question, answers=()), group_id="ask", sample_index=0, seed=0)
    with Environment(environment) as env:
        env.connect(policy.renderer.count_tokens)
        result = run_rollouts(
            [request], renderer=policy.renderer, sampler=policy.sampler, executor=env.executor, config=rollout
        )[0]
    if result.infra_error is not None:
        raise RetrieverError(result.infra_error)
    if json:
        sys.stdout.write(json_module.dumps(to_dict(result), indent=2, ensure_ascii=False) + "\n")
    else:
        sys.stdout.write(describe(result))
    return result


def describe(rollout: Rollout) -> str:
    """Returns a rollout as text for a terminal."""
    blocks = []
    for number, turn in enumerate(rollout.turns, start=1):
        if turn.trace is not None:
            evidence = ", ".join(turn.trace.printed_ids) or "none"
            blocks.append(f"program {number}:\n{_indent(turn.program or '')}")
            blocks.append(f"evidence ({evidence}):\n{_indent(turn.trace.observation)}")
    if rollout.answer is not None:
        blocks.append(f"answer: {rollout.answer}")
    else:
        blocks.append(f"no answer ({rollout.invalid}); the policy's last words:\n{_indent(rollout.turns[-1].text)}")
    return "\n".join(blocks) + "\n"


def _indent(text: str) -> str:
    return "\n".join("  " + line for line in text.strip().splitlines())


def run(args: Sequence[str]) -> Any:
    """Parses and executes `rpl ask`."""
    return call("ask", ask, args, positional=["question"])
