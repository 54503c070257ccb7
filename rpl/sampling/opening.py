"""A policy in this process, ready to sample: what evaluation, harvest and `rpl ask` run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from rpl.policy.loading import load_policy
from rpl.policy.renderer import Renderer
from rpl.sampling.hf.sampler import HFSampler


@dataclass(frozen=True, slots=True)
class LocalPolicy:
    """A frozen model with its renderer and a sampler that is connected to it."""

    model: Any
    renderer: Renderer
    sampler: HFSampler


def load_local_policy(
    name: str,
    style: Literal["compact", "documented"] = "compact",
    dtype: Literal["float32", "bfloat16"] = "float32",
) -> LocalPolicy:
    """Loads a policy for sampling.

    Args:
        name: As for `load_policy`: a folder, a hub name, `smollm2-135m` or `tiny`.
        style: The prompt that the policy was trained with.
        dtype: Type of the sampler's matrix products.
    """
    model, tokenizer = load_policy(name)
    sampler = HFSampler(dtype=dtype)
    sampler.connect(model, tokenizer)
    return LocalPolicy(model, Renderer(tokenizer, style=style), sampler)
