"""What the phases of a schedule cost in seconds, by counting tokens and dividing by what this machine computes.

How many tokens a question costs was counted once, with SmolLM2-135M on the Atlas data. The time is good to a factor of
two, so whoever promises an end watches the clock as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rpl.estimate.training import ModelShape, Settings, TokenCost, Workload, memory, peaks, seconds

SHARED = 0.5
"""Share of a group's transcripts that is left to compute once equal programs and equal results are computed once."""
FRAGMENTED = 1.5
"""What a process that goes through all phases holds for each byte that one phase alone would need."""
SEARCH_S = 0.12
"""Seconds of verified search a failed question in a harvest."""
START_S = 12.0
"""Seconds to import, load and export around a phase."""
CONTROL_DRAWS = 20
"""Programs that are drawn for a question of the control."""
PROMPT, WRITTEN, SHOWN = 40, 50, 130
"""Tokens of a typical compact prompt, of what the policy writes for a question, of what programs show it."""
PASSAGE = 55
"""Tokens of a typical passage."""
DIRECT = 10
"""Tokens of a typical answer."""
ENCODER_WEIGHTS = 11_000_000
"""Weights that a token meets in the default sentence encoder (all-MiniLM-L6-v2)."""
ENCODING_SHARE = 0.5
"""Share of the machine's rate that encoding passages reaches."""


@dataclass(frozen=True)
class Costs:
    """Estimates phases in seconds.

    Args:
        cost: What a token of the policy costs.
        settings: How it computes.
        flops: What matrix products reach on this machine, in FLOP/s.
        rows: Most transcripts in flight at a time.
    """

    cost: TokenCost
    settings: Settings
    flops: float
    rows: int = 64

    def training(self, work: Workload, steps: int) -> float:
        """Seconds of an RL or SFT phase; none for no step."""
        return START_S + steps * self._spent(work) if steps else 0.0

    def harvest(self, questions: int, samples: int, controlled: int) -> float:
        """Seconds of a harvest.

        Args:
            questions: How many are tried.
            samples: Programs drawn for each.
            controlled: Questions of the control, each of which draws `CONTROL_DRAWS` more.
        """
        drawn = questions * samples + min(controlled, questions) * CONTROL_DRAWS
        return START_S + self._sampled(drawn, WRITTEN, 0) + questions * SEARCH_S

    def evaluation(self, questions: int, policies: int, depths: Sequence[int], direct: bool) -> float:
        """Seconds of an evaluation.

        Args:
            questions: How many each system answers.
            policies: Policies that are measured.
            depths: Passages that the fixed program reads, one pass for each.
            direct: Whether the start model also answers without retrieval.
        """
        fixed = sum(self._sampled(questions, DIRECT, WRITTEN + PASSAGE * k) for k in depths)
        without = self._sampled(questions, DIRECT, 0) if direct else 0.0
        return START_S + policies * self._sampled(questions, WRITTEN, SHOWN) + fixed + without

    def index(self, passages: int) -> float:
        """Seconds to encode passages for dense search."""
        return passages * PASSAGE * 2 * ENCODER_WEIGHTS / (ENCODING_SHARE * self.flops)

    def work(self, rl: bool, questions: int, group_size: int = 1) -> Workload:
        """Returns what an iteration of a training phase does.

        Args:
            rl: Whether it makes rollouts.
            questions: In a batch.
            group_size: Rollouts a question.
        """
        return Workload(
            questions=questions,
            group_size=group_size,
            prompt=PROMPT,
            written=WRITTEN,
            shown=SHOWN,
            rows=self.rows,
            samples=rl,
            different=SHARED if rl and self.settings.packed else 1.0,
        )

    def _spent(self, work: Workload) -> float:
        return sum(part.amount for part in seconds(self.cost, self.settings, work, self.flops))

    def _sampled(self, questions: int, written: int, shown: int) -> float:
        if not questions:
            return 0.0
        return self._spent(
            Workload(questions=questions, prompt=PROMPT, written=written, shown=shown, rows=self.rows, kept=0.0)
        )


def peak_bytes(shape: ModelShape, settings: Settings, works: Sequence[Workload]) -> float:
    """Returns the bytes that a process holds at most over training phases that do this work."""
    needed = [max(peaks(memory(shape, settings, work)).values()) for work in works]
    return FRAGMENTED * max(needed, default=4.0 * shape.parameters)
