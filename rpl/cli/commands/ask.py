"""`rpl ask`: one question in; program, evidence with ids and answer out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from rpl.cli.commands.parsing import call
from rpl.cli.commands.showing import write_record
from rpl.core.errors import ConfigError, RetrieverError
from rpl.core.progress import say
from rpl.core.records import Question, Rollout
from rpl.core.tags import defuse
from rpl.environment.environment import Environment, EnvironmentConfig
from rpl.executors.base import ExecutionLimits
from rpl.policy.bundle import Contract, check_primitives
from rpl.rollouts.requests import RolloutConfig
from rpl.sampling.opening import OpeningConfig


def ask(
    question: str,
    checkpoint: str,
    corpus: str | None = None,
    environment: EnvironmentConfig = EnvironmentConfig(),
    rollout: RolloutConfig = RolloutConfig(temperature=0.0),
    prompt_style: Literal["compact", "documented"] | None = None,
    thinking: bool | None = None,
    opening: OpeningConfig = OpeningConfig(),
    json: bool = False,
) -> Rollout:
    """Answers one question and shows how: the programs, what they printed, the answer.

    Args:
        question: The question.
        checkpoint: Model folder of a policy (what a run folder calls `model`), or the name of a model.
        corpus: Short for `--environment.library.corpus`.
        environment: Corpus, indexes and limits.
        rollout: Turns, length and temperature; greedy, and within the limits of the policy's `rpl.json`, by default.
        prompt_style: The prompt that the policy was trained with; by default what its `rpl.json` says, or `compact`.
        thinking: Whether the policy may write plain text before a tag; by default what its `rpl.json` says, or true.
        opening: Device, precision and sampler.
        json: Print the whole rollout as JSON.

    Raises:
        ConfigError: The question holds nothing to read, or is not valid Unicode text.
    """
    if not any(char.isprintable() and not char.isspace() for char in question):
        raise ConfigError(f"question {question!r} is empty: give one in words")
    if not question.isascii() and any("\ud800" <= char <= "\udfff" for char in question):
        raise ConfigError(f"question {question!r} is not valid Unicode text; give it in UTF-8")
    from rpl.rollouts.loop import run_rollouts
    from rpl.rollouts.requests import RolloutRequest
    from rpl.sampling.opening import open_policy

    environment = environment.with_corpus(corpus)
    policy = open_policy(checkpoint, prompt_style, thinking, opening)
    rollout, environment = within_limits(policy.contract, rollout, environment)
    request = RolloutRequest(Question("ask", question, answers=()), group_id="ask", sample_index=0, seed=0)
    with Environment(environment) as env:
        env.connect(policy.renderer.count_tokens)
        check_primitives(policy.contract, env.library.primitives, checkpoint)
        result = run_rollouts(
            [request], renderer=policy.renderer, sampler=policy.sampler, executor=env.executor, config=rollout
        )[0]
    if result.infra_error is not None:
        raise RetrieverError(result.infra_error)
    write_record(result, describe, json)
    return result


def within_limits(
    contract: Contract | None, rollout: RolloutConfig, environment: EnvironmentConfig
) -> tuple[RolloutConfig, EnvironmentConfig]:
    """Takes the limits that a policy was trained with for those that were left at their defaults.

    A limit that was given and is another one than that of training is used, and one line says so.
    """
    if contract is None:
        return rollout, environment
    changed: dict[type, dict[str, int]] = {RolloutConfig: {}, ExecutionLimits: {}}
    for kind, given in ((RolloutConfig, rollout), (ExecutionLimits, environment.limits)):
        default = kind()
        for name, trained in contract.limits.items():
            if not hasattr(given, name) or getattr(given, name) == trained:
                continue
            if getattr(given, name) == getattr(default, name):
                changed[kind][name] = trained
            else:
                say(f"{name} is {getattr(given, name)}; the policy was trained with {trained}")
    limits = replace(environment.limits, **changed[ExecutionLimits])
    return replace(rollout, **changed[RolloutConfig]), replace(environment, limits=limits)


def describe(rollout: Rollout) -> str:
    """Returns a rollout as text: what the policy wrote, and the evidence as it read it."""
    blocks = []
    for number, turn in enumerate(rollout.turns, start=1):
        if turn.trace is not None:
            evidence = ", ".join(turn.trace.printed_ids) or "none"
            blocks.append(f"program {number}:\n{_indent(turn.program or '')}")
            blocks.append(f"evidence ({evidence}):\n{_indent(defuse(turn.trace.observation))}")
    if rollout.answer is not None:
        blocks.append(f"answer: {_indent(rollout.answer).strip()}")
    else:
        blocks.append(f"no answer ({rollout.invalid}); the policy's last words:\n{_indent(rollout.turns[-1].text)}")
    return "\n".join(blocks) + "\n"


def _indent(text: str) -> str:
    return "\n".join("  " + line for line in text.strip().split("\n"))


def run(args: Sequence[str]) -> Any:
    """Parses and executes `rpl ask`."""
    return call("ask", ask, args, positional=["question"])
