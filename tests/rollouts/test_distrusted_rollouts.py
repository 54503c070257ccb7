"""What ran on retrieval that cannot be trusted is made once more, and is void if that does not help."""

from helpers_rollouts import ScriptedSampler, TableExecutor, question

from rpl.policy.renderer import Renderer
from rpl.rollouts.loop import run_rollouts
from rpl.rollouts.requests import RolloutConfig, RolloutRequest

TABLE = {"print(1)": "[p1] Lyon: Lyon is a city in France."}


class Moody(TableExecutor):
    """Says after each batch of rollouts what `causes` holds next."""

    def __init__(self, causes=(), infra=()):
        super().__init__(TABLE, infra)
        self.causes, self.verified = list(causes), 0

    def run_many(self, jobs):
        traces = super().run_many(jobs)
        self.infra = self.infra[1:]
        return traces

    def verify(self):
        self.verified += 1
        return self.causes.pop(0) if self.causes else None


def make(tokenizer, executor):
    """Three rollouts: two run a program and answer, the third answers at once."""

    def script(seed, turn):
        return "<program>\nprint(1)\n</program>" if turn == 0 and seed < 3 else f"<answer>{seed}</answer>"

    sampler = ScriptedSampler(script, tokenizer)
    requests = [RolloutRequest(question(f"Where is {seed}?"), "g", seed, seed) for seed in (1, 2, 3)]
    return run_rollouts(
        requests,
        renderer=Renderer(tokenizer),
        sampler=sampler,
        executor=executor,
        config=RolloutConfig(max_context_tokens=4000),
    )


def test_sound_rollouts_are_made_once(tokenizer):
    executor = Moody()
    rollouts = make(tokenizer, executor)
    assert [(r.answer, r.infra_error) for r in rollouts] == [("1", None), ("2", None), ("3", None)]
    assert (len(executor.jobs), executor.verified) == (2, 1)


def test_only_void_rollouts_are_made_again(tokenizer):
    wanted = make(tokenizer, Moody())
    executor = Moody(causes=["wrong passages"])
    assert make(tokenizer, executor) == wanted
    assert (len(executor.jobs), executor.verified) == (4, 2)  # the third asked nothing of retrieval


def test_rollouts_that_stay_void_say_why(tokenizer):
    rollouts = make(tokenizer, Moody(causes=["wrong passages", "still wrong"]))
    assert [r.infra_error for r in rollouts] == ["still wrong", "still wrong", None]
    assert [r.answer for r in rollouts] == ["1", "2", "3"]


def test_a_program_that_failed_for_good_is_not_run_again(tokenizer):
    """The executor has tried it as often as it may."""
    executor = Moody(infra=("print(1)",))
    assert [r.infra_error for r in make(tokenizer, executor)] == ["server down", "server down", None]
    assert len(executor.jobs) == 2
