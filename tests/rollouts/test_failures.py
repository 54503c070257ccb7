"""Programs that fail in the same way again: counted, and a reason to end a rollout where the user wants that."""

import pytest
from helpers_rollouts import ScriptedSampler, TableExecutor, question

from rpl.core.errors import ConfigError
from rpl.core.records import Trace, TraceError
from rpl.policy.renderer import Renderer
from rpl.rollouts.failures import repeated_failures
from rpl.rollouts.loop import run_rollouts
from rpl.rollouts.requests import RolloutConfig, RolloutRequest


class Failing(TableExecutor):
    """Fails every program but `print(1)`."""

    def __init__(self):
        super().__init__({"print(1)": "one"})

    def _one(self, source):
        if source.strip() == "print(1)":
            return super()._one(source)
        return Trace(source, "Error", error=TraceError("runtime", "no such name", 1))


def run(tokenizer, programs, **config):
    def script(seed, turn):
        return f"<program>\n{programs[turn]}\n</program>" if turn < len(programs) else "<answer>x</answer>"

    (rollout,) = run_rollouts(
        [RolloutRequest(question(), "g", 0, 1)],
        renderer=Renderer(tokenizer),
        sampler=ScriptedSampler(script, tokenizer),
        executor=Failing(),
        config=RolloutConfig(max_turns=8, max_context_tokens=8000, **config),
    )
    return rollout


def test_equal_failures_end_a_rollout_after_the_number_that_was_set(tokenizer):
    programs = ["a", "print(1)", "b", "a ", "a", "a"]
    rollout = run(tokenizer, programs, max_equal_failures=3)
    assert (rollout.invalid, len(rollout.turns), rollout.answer) == ("repeated_failure", 5, None)
    assert [turn.invalid for turn in rollout.turns] == [None] * 4 + ["repeated_failure"]
    assert repeated_failures(rollout.traces) == 2


@pytest.mark.parametrize(("programs", "most"), [(["a", "b", "c"], 2), (["print(1)"] * 3, 1), (["a"] * 3, None)])
def test_other_rollouts_go_on(tokenizer, programs, most):
    assert run(tokenizer, programs, max_equal_failures=most).answer == "x"


def test_the_number_must_be_positive():
    with pytest.raises(ConfigError, match="max_equal_failures"):
        RolloutConfig(max_equal_failures=0)


def test_a_context_beyond_what_the_policy_reads_is_refused_before_anything_is_drawn(tokenizer):
    sampler = ScriptedSampler(None, tokenizer)
    sampler.max_positions = 100
    with pytest.raises(ConfigError, match=r"max_context_tokens is 101, but the policy reads 100"):
        run_rollouts(
            [RolloutRequest(question(), "g", 0, 1)],
            renderer=Renderer(tokenizer),
            sampler=sampler,
            executor=Failing(),
            config=RolloutConfig(max_new_tokens=10, max_context_tokens=101),
        )
