"""Low-rank adapters (LoRA, arXiv:2106.09685) on a policy, through peft: put in, switched off, checked.

Adapters are injected into the transformers model, which keeps its class. So sampling, scoring and sharding see the
model that they know, and only the adapters have gradients, optimizer state and a place in checkpoints. Exports and
engines get the weights with adapters folded in: `rpl.policy.weights.merged.policy_weights`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from rpl.core.distribution import install_line
from rpl.core.errors import CheckpointError, ConfigError, MissingDependencyError

_ADAPTER = "default"


@dataclass(frozen=True)
class LoRAConfig:
    """Adapters that are trained in place of the weights."""

    rank: int = 16
    """Inner dimension of an adapter."""
    alpha: float = 32.0
    """An adapter's output is multiplied by alpha / rank."""
    dropout: float = 0.0
    """Share of an adapter's inputs that are dropped in SFT. RL takes only 0: log-probabilities would be noisy."""
    target_modules: Literal["all-linear"] | tuple[str, ...] = "all-linear"
    """Names of the linear layers that get an adapter, such as `[q_proj, v_proj]`; `all-linear`: all of the decoder."""
    base_dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of the frozen weights; `bfloat16` halves their memory. Adapters, their gradients and their optimizer state
    are float32 either way."""

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ConfigError(f"model.lora.rank must be at least 1, got {self.rank}")
        if not self.alpha > 0:
            raise ConfigError(f"model.lora.alpha must be positive, got {self.alpha}")
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"model.lora.dropout must be in [0, 1), got {self.dropout}")
        if not self.target_modules:
            raise ConfigError("model.lora.target_modules is empty; give names of linear layers, or all-linear")
        if self.base_dtype not in ("float32", "bfloat16"):
            raise ConfigError(f"model.lora.base_dtype must be float32 or bfloat16, got {self.base_dtype!r}")


def linear_names(model: Any) -> list[str]:
    """Returns the names of the decoder's linear layers without their place, such as `q_proj` and `down_proj`."""
    modules = model.get_decoder().named_modules()
    return sorted({name.rpartition(".")[2] for name, module in modules if isinstance(module, nn.Linear)})


def add_lora(model: Any, config: LoRAConfig, seed: int = 0) -> None:
    """Freezes a model and puts adapters into it, in place; its output stays what it was until they are trained.

    Args:
        model: A transformers causal language model, unsharded.
        config: Rank, scale and place of the adapters.
        seed: Names the random start of the adapters, so that all ranks begin with the same ones.

    Raises:
        ConfigError: A name in `target_modules` is not that of a linear layer of the decoder.
        MissingDependencyError: peft is not installed.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise MissingDependencyError(f"model.lora needs peft: {install_line('lora')}") from error

    names = linear_names(model)
    targets = names if config.target_modules == "all-linear" else list(config.target_modules)
    if unknown := sorted(set(targets) - set(names)):
        raise ConfigError(
            f"model.lora.target_modules: {type(model).__name__} has no linear layer {', '.join(unknown)} in its "
            f"decoder; it has {', '.join(names)}"
        )
    model.requires_grad_(False)
    settings = LoraConfig(
        r=config.rank,
        lora_alpha=cast("int", config.alpha),  # a plain factor: peft takes any number
        lora_dropout=config.dropout,
        target_modules=targets,
        bias="none",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        inject_adapter_in_model(settings, model, adapter_name=_ADAPTER)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()


def has_lora(model: nn.Module) -> bool:
    """Whether `add_lora` was applied."""
    return next(_adapted(model), None) is not None


@contextmanager
def adapters_off(model: nn.Module) -> Iterator[None]:
    """Lets a model compute what it did before its adapters were trained: the start model, without a copy of it."""
    layers = [layer for _, layer in _adapted(model)]
    try:
        for layer in layers:
            layer._disable_adapters = True  # peft's own method also says that adapters need no gradient, for good
        yield
    finally:
        for layer in layers:
            layer._disable_adapters = False


@torch.no_grad()
def frozen_sums(model: nn.Module) -> dict[str, float]:
    """Sums over this rank's part of the weights that are not trained, which tell one start model from another."""
    total = squares = 0.0
    for parameter in model.parameters():
        if not parameter.requires_grad:
            values = parameter.to_local() if isinstance(parameter, DTensor) else parameter
            total += float(values.abs().sum(dtype=torch.float64))
            squares += float(values.double().square().sum())
    return {"magnitudes": total, "squares": squares}


def check_frozen(now: dict[str, float], checkpoint: dict[str, Any], start_model: str) -> None:
    """Refuses adapters that were trained on other weights than those they are about to be put on.

    Args:
        now: `frozen_sums` of the model, over all ranks.
        checkpoint: RPL's entry of a checkpoint.
        start_model: Where the model was loaded from.

    Raises:
        CheckpointError: The sums differ by more than rounding in another order explains.
    """
    before = checkpoint["frozen"]
    if any(abs(now[name] - before[name]) > 1e-11 * abs(before[name]) for name in now):
        raise CheckpointError(
            f"the checkpoint's adapters were trained on {checkpoint['start_model']!r}, whose weights are not those of "
            f"{start_model!r}; adapters fit the model that they were trained on"
        )


def _adapted(model: nn.Module) -> Iterator[tuple[str, Any]]:
    for name, module in model.named_modules():
        if _ADAPTER in getattr(module, "lora_A", ()):
            yield name, module
