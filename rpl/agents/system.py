"""The interface of everything that can be evaluated."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from rpl.core.class_paths import class_at
from rpl.core.records import Question, Rollout
from rpl.retrieval.library.counting import CallCounts


class System(ABC):
    """Something that answers questions."""

    name: str
    """How tables call it."""
    settings: Mapping[str, Any]
    """What must be equal for two evaluations of it to be comparable; JSON values."""

    identity: Mapping[str, Any] | None = None
    """Digests and values of all that decides its answers besides its settings (weights, tokenizer, corpus, limits);
    JSON values. Records of an evaluation are reused only by a system of equal identity; `None` means that nobody can
    tell, and nothing is reused."""

    @property
    def retrieval(self) -> CallCounts:
        """Calls of retrieval so far; zeros for a system without."""
        return CallCounts()

    @abstractmethod
    def answer(self, questions: Sequence[Question]) -> list[Rollout]:
        """Answers questions, greedily.

        Returns:
            One rollout a question, in order. Where retrieval failed, the rollout carries the infrastructure error.
        """


def agent_class(path: str) -> type[System]:
    """Returns the class of an agent that YAML names.

    Args:
        path: Its dotted class path, in this package or in any other that can be imported.

    Raises:
        ConfigError: There is no such class, or it is no agent.
    """
    expected = f"{System.__module__}.{System.__name__}"
    return class_at("eval.agents", path, System, expected)  # type: ignore[type-abstract]
