"""Prepared rollouts for the update benchmark: the same token ids, masks and rewards for every side."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from itertools import chain, cycle
from pathlib import Path
from typing import Any

from rpl.atlas import build


@dataclass(frozen=True)
class Shape:
    """How large an iteration is. Lengths are in tokens."""

    questions: int = 8
    group_size: int = 8
    prompt: int = 350
    transcript: int = 250
    """Tokens after the prompt."""
    written: int = 100
    """Those of them that the policy wrote, and that are trained; the rest is one observation between two turns."""
    equal_groups: int = 0
    """Groups whose rollouts all have the same reward, so that there is nothing to learn from them."""
    spread: float = 0.0
    """Transcripts are longer or shorter by up to this share; 0 makes all rows equally long."""

    def __post_init__(self) -> None:
        if not 2 <= self.written < self.transcript:
            raise ValueError(f"of {self.transcript} transcript tokens between 2 and all but one must be the policy's")
        if self.group_size < 2:
            raise ValueError("a group of 1 has nothing to compare")
        if not 0 <= self.equal_groups <= self.questions:
            raise ValueError(f"{self.equal_groups} of {self.questions} groups cannot be equal")
        if not 0 <= self.spread < 1:
            raise ValueError(f"the spread must be in [0, 1), got {self.spread}")

    @property
    def rollouts(self) -> int:
        """Trajectories in an iteration."""
        return self.questions * self.group_size


def make(shape: Shape, tokenizer: Any, seed: int = 0) -> dict[str, Any]:
    """Cuts prompts and transcripts of the wanted lengths out of the Atlas passages.

    Returns:
        `{"groups": [{"prompt": ids, "rollouts": [{"program": ids, "observation": ids, "answer": ids, "reward": r}]}]}`
    """
    passages = [f"{p.title}: {p.text}\n" for p in build(mini=True).passages]
    random.Random(seed).shuffle(passages)
    stream = cycle(chain.from_iterable(tokenizer.encode(text, add_special_tokens=False) for text in passages))
    draws = random.Random(seed + 1)

    def take(count: int) -> list[int]:
        return [next(stream) for _ in range(count)]

    groups = []
    for number in range(shape.questions):
        right = 0 if number < shape.equal_groups else 1 + number % (shape.group_size - 1)
        rollouts = []
        for i in range(shape.group_size):
            factor = 1 + draws.uniform(-shape.spread, shape.spread)
            written = max(2, round(shape.written * factor))
            program = max(1, round(0.6 * written))
            rollouts.append(
                {
                    "program": take(program),
                    "observation": take(max(1, round((shape.transcript - shape.written) * factor))),
                    "answer": take(written - program),
                    "reward": float(i < right),
                }
            )
        groups.append({"prompt": take(shape.prompt), "rollouts": rollouts})
    return {"groups": groups}


def write(path: Path, workload: dict[str, Any]) -> None:
    """Writes a workload where both sides can read it."""
    path.write_text(json.dumps(workload))
