"""The configuration of a schedule, as users write it in YAML."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rpl.agents.system import agent_class
from rpl.core.errors import ConfigError
from rpl.environment.environment import EnvironmentConfig
from rpl.policy.prompts import Style
from rpl.repair.harvest_config import HarvestConfig
from rpl.rollouts.requests import RolloutConfig
from rpl.sampling.opening import OpeningConfig
from rpl.schedule.folder import RunFolder

Fragment = dict  # not dict[str, Any]: a parser that looks into it takes `class_path` for a class and fills in defaults
"""A part of a LightningCLI configuration, passed on as it stands."""


@dataclass(frozen=True)
class EvalConfig:
    """What an `eval` phase measures."""

    split: Literal["val", "test"] = "test"
    """Which questions."""
    num_questions: int | None = None
    """How many (a prefix of the split); all by default."""
    fixed_k: tuple[int, ...] = (1, 3, 5)
    """Depths of the fixed BM25 program that the final weights read from; the best one is the baseline."""
    direct: bool = True
    """Whether the start model also answers without retrieval."""
    after: tuple[str, ...] | None = None
    """Names of the `rl` and `sft` phases whose policies are measured; all of them by default."""
    agents: tuple[str, ...] = ()
    """Class paths of further agents to measure with the last policy's weights. Each is made as `Policy` is: of
    renderer, sampler, executor, rollout settings, and `identity`."""
    batch_size: int = 64
    """Questions answered side by side."""
    allow_void: bool = False
    """Whether to score the other questions where infrastructure failed some for good; the row then says how many."""

    def __post_init__(self) -> None:
        if not self.fixed_k or min(self.fixed_k) < 1:
            raise ConfigError(f"phases.eval.fixed_k must name at least one depth, all at least 1, got {self.fixed_k}")
        for path in self.agents:
            agent_class(path)  # says now, and not after hours of training, that it does not exist


@dataclass(frozen=True)
class PhaseConfig:
    """One phase of the schedule."""

    kind: Literal["rl", "harvest", "sft", "eval"]
    """`rl` and `sft` train and pass on a policy, `harvest` passes on repairs, `eval` measures all policies so far."""
    name: str = ""
    """Unique; names the phase's folder. By default the kind, with a number when it occurs again."""
    num_questions: int | None = None
    """`harvest`: how many training questions; all by default."""
    trainer: Fragment = field(default_factory=dict)
    """`rl`, `sft`: Trainer arguments of this phase, such as `max_steps`."""
    model: Fragment = field(default_factory=dict)
    """`rl`, `sft`: arguments of the module, over those of the schedule."""
    data: Fragment = field(default_factory=dict)
    """`rl`, `sft`: arguments of the datamodule, over those of the schedule."""
    checkpoint_every: int = 5
    """`rl`, `sft`: optimizer steps between resumable checkpoints."""
    harvest: HarvestConfig = HarvestConfig()
    """`harvest`: search, control and benefit."""
    eval: EvalConfig = EvalConfig()
    """`eval`: split, baselines."""


@dataclass(frozen=True)
class Schedule:
    """Everything the phases share."""

    run: RunFolder
    policy: str
    environment: EnvironmentConfig
    rollout: RolloutConfig
    style: Style | None
    thinking: bool | None
    opening: OpeningConfig
    data: dict[str, Any]
    trainer: dict[str, Any]
    model: dict[str, Any]
    configs: dict[str, list[Path]]
    seed: int
    budget_minutes: float | None = None

    def settings(self, part: Literal["data", "trainer", "model"], phase: PhaseConfig) -> dict[str, Any]:
        """Returns a phase's settings over those of all phases."""
        return {**getattr(self, part), **getattr(phase, part)}

    @property
    def names(self) -> dict[str, Any]:
        """What the user called the parts of the run, for every results row beside the digests that identify them."""
        return {"policy": self.policy, "corpus": self.environment.library.corpus, "seed": self.seed}


def name_phases(phases: list[PhaseConfig]) -> list[str]:
    """Returns the unique name of each phase.

    Raises:
        ConfigError: No phase, or two phases with one name.
    """
    if not phases:
        raise ConfigError("phases must hold at least one phase of kind rl, harvest, sft or eval")
    names: list[str] = []
    for phase in phases:
        count = sum(p.kind == phase.kind for p in phases[: len(names)])
        names.append(phase.name or (phase.kind if count == 0 else f"{phase.kind}-{count + 1}"))
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"phases: the name {name!r} is used twice; names must be unique")
        if not name.replace("-", "").replace("_", "").isalnum():
            raise ConfigError(f"phases: the name {name!r} must consist of letters, digits, - and _")
    return names
