"""A policy in this process, ready to sample: what evaluation, harvest and `rpl ask` run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rpl.core.errors import CheckpointError
from rpl.policy.identity import renderer_identity, weights_identity
from rpl.policy.loading import load_policy, resolve_model
from rpl.policy.renderer import Renderer
from rpl.sampling.hf.sampler import HFSampler


@dataclass(frozen=True, slots=True)
class LocalPolicy:
    """A frozen model with its renderer and a sampler that is connected to it."""

    model: Any
    renderer: Renderer
    sampler: HFSampler
    identity: Mapping[str, Any]
    """Digests and values of all that decides what it writes: weights, tokenizer, template, layout, arithmetic."""


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

    Raises:
        CheckpointError: There is no such policy, or its files change while they are read.
    """
    folder = resolve_model(name)
    weights = weights_identity(folder)
    model, tokenizer = load_policy(folder)
    if weights_identity(folder) != weights:
        raise CheckpointError(f"{folder}: has changed while it was loaded; start again when it is whole")
    sampler = HFSampler(dtype=dtype)
    sampler.connect(model, tokenizer)
    renderer = Renderer(tokenizer, style=style)
    identity = {**weights, **renderer_identity(renderer), "sampling_dtype": dtype}
    return LocalPolicy(model, renderer, sampler, identity)
