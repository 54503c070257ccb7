"""The one way to open a policy for sampling: evaluation, harvest and `rpl ask` all come through here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rpl.core.errors import CheckpointError, ConfigError
from rpl.core.machine import fastest_precision
from rpl.policy.bundle import Contract, agreed_layout, check_template, say_without_contract
from rpl.policy.identity import renderer_identity, weights_identity
from rpl.policy.loading import load_policy, resolve_model
from rpl.policy.prompts import Style
from rpl.policy.renderer import Renderer
from rpl.sampling.hf.sampler import HFSampler
from rpl.sampling.sampler import Sampler


@dataclass(frozen=True)
class OpeningConfig:
    """Where and how a policy is sampled."""

    device: str = "auto"
    """`auto` (a GPU where there is one), `cpu`, `cuda` or `cuda:1`. A sampler with an engine of its own chooses."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Type of the built-in sampler's matrix products; `auto` is what the device computes fastest."""
    sampler: Sampler | None = None
    """What draws completions; `None` is the built-in sampler."""


@dataclass(frozen=True, slots=True)
class OpenedPolicy:
    """A frozen model with its renderer and a sampler that is connected to it."""

    name: str
    """What the user called it."""
    model: Any
    renderer: Renderer
    sampler: Sampler
    contract: Contract | None
    """What its folder says of how it was trained, if it says so."""
    identity: Mapping[str, Any]
    """Digests and values of all that decides what it writes: weights, tokenizer, template, layout, arithmetic."""


def open_policy(
    name: str,
    prompt_style: Style | None = None,
    thinking: bool | None = None,
    opening: OpeningConfig = OpeningConfig(),
) -> OpenedPolicy:
    """Loads a policy for sampling.

    Args:
        name: As for `load_policy`: a folder, a hub name, `smollm2-135m` or `tiny`.
        prompt_style: The prompt that the policy was trained with; `None` takes what its folder says.
        thinking: Whether the policy may write plain text before a tag; `None` takes what its folder says.
        opening: Device, precision and sampler.

    Raises:
        CheckpointError: There is no such policy, or its files change while they are read.
        ConfigError: The device is not there, or a setting contradicts what the folder says.
    """
    layout = agreed_layout(name, prompt_style, thinking)
    device = choose_device(opening.device)
    folder = resolve_model(name)
    weights = weights_identity(folder)
    model, tokenizer = load_policy(folder)
    if weights_identity(folder) != weights:
        raise CheckpointError(f"{folder}: has changed while it was loaded; start again when it is whole")
    renderer = Renderer(tokenizer, layout.prompt_style, layout.thinking)
    check_template(layout.contract, renderer, name)
    say_without_contract(name, layout)
    dtype = opening.dtype if opening.dtype != "auto" else fastest_precision(device.partition(":")[0]).dtype
    sampler = opening.sampler or HFSampler(dtype=dtype)
    sampler.connect(model.to(device), tokenizer)
    identity = {**weights, **renderer_identity(renderer), "sampling_dtype": getattr(sampler, "dtype", dtype)}
    if opening.sampler is not None:
        identity["sampler"] = type(sampler).__name__
    return OpenedPolicy(name, model, renderer, sampler, layout.contract, identity)


def choose_device(name: str) -> str:
    """Returns the torch device that a name stands for.

    Raises:
        ConfigError: There is no such device here.
    """
    import torch

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        return "cuda" if gpus else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"device {name!r}: allowed are auto, cpu, cuda and cuda:N") from None
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"device {name!r}: allowed are auto, cpu, cuda and cuda:N")
    if device.type == "cuda" and (device.index or 0) >= gpus:
        raise ConfigError(f"device {name!r}: this machine has {gpus} GPUs that torch can use")
    return str(device)
