"""What rollouts are asked for, within which budgets, and where their time went."""

from __future__ import annotations

from dataclasses import dataclass

from rpl.core.errors import ConfigError
from rpl.core.records import Question


@dataclass(frozen=True)
class RolloutConfig:
    """How rollouts are made."""

    max_turns: int = 3
    """Most completions in one rollout. The last one must be an answer."""
    max_new_tokens: int = 128
    """Most tokens in one completion."""
    temperature: float = 1.0
    """Softmax temperature; 0 means greedy. Training draws from the whole vocabulary."""
    batch_size: int = 64
    """Most rollouts in flight at a time; it bounds memory. One that is over gives its place to the next request."""
    max_context_tokens: int = 2048
    """Longest transcript, at most what the model reads; a rollout with no room for another completion of
    `max_new_tokens` ends as invalid (`context`), which counts as truncated."""
    max_equal_failures: int | None = None
    """A rollout ends as invalid (`repeated_failure`) when the same program has failed in the same way so many times;
    `None` lets it go on to its last turn."""

    def __post_init__(self) -> None:
        for name in ("max_turns", "max_new_tokens", "batch_size", "max_context_tokens"):
            if getattr(self, name) < 1:
                raise ConfigError(f"rollouts.{name} must be at least 1, got {getattr(self, name)!r}")
        if self.max_equal_failures is not None and self.max_equal_failures < 1:
            raise ConfigError(f"rollouts.max_equal_failures must be at least 1, got {self.max_equal_failures}")
        if not self.temperature >= 0:
            raise ConfigError(f"rollouts.temperature must be at least 0, got {self.temperature!r}")
        if self.max_context_tokens <= self.max_new_tokens:
            raise ConfigError(
                f"rollouts.max_context_tokens ({self.max_context_tokens}) must be larger than "
                f"rollouts.max_new_tokens ({self.max_new_tokens})"
            )


@dataclass(frozen=True, slots=True)
class RolloutRequest:
    """One rollout to be made."""

    question: Question
    group_id: str
    """Names the group whose rewards are compared; unique per question instance and iteration."""
    sample_index: int
    seed: int
    """The sampled tokens are a function of the weights, the prompt and this seed."""
    prompt_ids: tuple[int, ...] | None = None
    """The ids to start from (`Renderer.prefilled_ids`, for baselines); `None` means the question's prompt."""


@dataclass
class RolloutTiming:
    """Where the time of rollouts went, and for how many tokens. Numbers add up over calls that share a record.

    Programs run while others are decoded: `generate_s` and `execute_s` overlap, and their sum may exceed the wall time.
    """

    generate_s: float = 0.0
    """Seconds in the sampler, whatever else went on meanwhile."""
    execute_s: float = 0.0
    """Seconds in which programs ran, retrieval included."""
    wait_s: float = 0.0
    """Those seconds of `execute_s` in which nothing was decoded: the loop only waited for programs."""
    wall_s: float = 0.0
    """Seconds from the first request to the last rollout."""
    generated_tokens: int = 0
    """Sampled tokens."""
    prompt_tokens: int = 0
    """Tokens of prompts, each rollout's counted."""
    observation_tokens: int = 0
    """Tokens of observations, each rollout's counted."""
    prefilled_tokens: int = 0
    """Tokens that the sampler really ran for prompts and observations; see `SamplerSession.prefilled_tokens`."""
