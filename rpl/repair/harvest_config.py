"""The settings of a harvest, as they stand in YAML."""

from __future__ import annotations

from dataclasses import dataclass, field

from rpl.core.errors import ConfigError, ProgramError
from rpl.core.tags import writable
from rpl.mutation.search import RepairConfig
from rpl.programs.grammar import parse
from rpl.repair.control import ControlConfig

SEED_PROGRAM = "for p in bm25(question, k=1):\n    print(p)"
"""Where repair starts if the policy wrote nothing that parses."""


@dataclass(frozen=True)
class HarvestConfig:
    """What is drawn, searched and measured."""

    num_samples: int = 2
    """Programs that the policy writes for each question, those of recorded rollouts included; more find more failures,
    and more successes."""
    temperature: float = 1.0
    """Softmax temperature of these samples."""
    max_new_tokens: int = 96
    """Most tokens of one sample."""
    batch_size: int = 32
    """Samples that are drawn together."""
    seed_program: str = SEED_PROGRAM
    """Program that repair starts from where no sample parses."""
    repair: RepairConfig = field(default_factory=RepairConfig)
    """The search."""
    keep_successes: bool = True
    """Whether verified programs of the policy itself become training data as well."""
    reading_program: str | None = None
    """A wider program, such as BM25's first four passages. Where it prints all gold, its result is kept beside the
    repair as something to read: SFT then trains the answer on it, never the program. It teaches the policy to read past
    passages that do not matter, and keeps a fixed program that the same weights read from being an easy baseline."""
    control: ControlConfig = field(default_factory=ControlConfig)
    """The resample control."""
    control_questions: int | None = 100
    """How many failed questions, the first ones, the control runs on; `None` means all, 0 none."""
    benefit: bool = True
    """Whether a fixed answerer reads the evidence of both arms, on the questions of the control."""
    answer_tokens: int = 32
    """Most tokens of its answers."""
    chunk_size: int = 16
    """Questions between two writes to the file."""
    seed: int = 0
    """Seed of all draws."""

    def __post_init__(self) -> None:
        for name in ("num_samples", "max_new_tokens", "batch_size", "answer_tokens", "chunk_size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"harvest.{name} must be at least 1, got {getattr(self, name)}")
        if self.temperature < 0:
            raise ConfigError(f"harvest.temperature must be at least 0, got {self.temperature}")
        if self.control_questions is not None and self.control_questions < 0:
            raise ConfigError(f"harvest.control_questions must be at least 0, got {self.control_questions}")
        for name in ("seed_program", "reading_program"):
            try:
                source = parse(getattr(self, name) or "pass").source
            except ProgramError as error:
                raise ConfigError(f"harvest.{name} is not a program: {error.message}") from error
            if not writable(source):
                raise ConfigError(f"harvest.{name} holds a tag of the transcript, so that no policy could write it")
