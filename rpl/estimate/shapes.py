"""The size and shape of a policy for estimates, read from its configuration without loading weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from rpl.core.errors import CheckpointError, RPLError
from rpl.core.hub import hub_reachable
from rpl.estimate.training import ModelShape, TokenCost
from rpl.policy.limits import check_causal
from rpl.policy.loading import resolve_model
from rpl.policy.weights.lora import LoRAConfig, add_lora

DESCRIBED_WITHIN = 0.02
"""Share of a model's parameters that may lie outside of what a `ModelShape` counts: norms, biases."""


class NoEstimateError(RPLError):
    """Nothing can be said of what a policy costs. It may train all the same, so callers say this and go on."""


@dataclass(frozen=True)
class PolicySize:
    """What a policy costs, as far as its architecture tells."""

    architecture: str
    """Class of the model."""
    parameters: int
    """All, tied weights once."""
    cost: TokenCost
    """What time is estimated from; known for every architecture."""
    shape: ModelShape | None
    """What memory is estimated from; `None` where the layers are not those that the estimate of memory describes."""

    @property
    def no_estimate(self) -> str:
        """Why there is no estimate of memory, in words."""
        return f"no estimate for this architecture ({self.architecture})"


def size_of(policy: str, lora: Any = None) -> PolicySize:
    """Reads a policy's configuration (never its weights) and counts its parameters.

    Args:
        policy: Whatever `load_policy` takes; of a hub model, only the configuration is fetched.
        lora: Settings of adapters, or `None`.

    Raises:
        CheckpointError: The configuration cannot be found, or is not of a causal language model.
        ConfigError: The adapters' settings are out of range, or do not fit the policy.
        NoEstimateError: transformers cannot build a causal language model from this configuration.
    """
    try:
        config = from_source(AutoConfig, policy)
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"policy {policy!r}: its config.json cannot be had: {str(error).splitlines()[0]}"
        ) from error
    check_causal(config, policy)
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
    except Exception as error:  # any architecture's own code runs here, and an estimate must not stop a run
        name = (getattr(config, "architectures", None) or [type(config).__name__])[0]
        raise NoEstimateError(
            f"no estimate for this architecture ({name}): {type(error).__name__}: {str(error).partition(chr(10))[0]}"
        ) from error
    parameters = sum(parameter.numel() for parameter in model.parameters())
    qk_norm = any("q_norm" in name for name, _ in model.named_parameters())
    embedding = getattr(model.get_input_embeddings(), "weight", torch.empty(0)).numel()
    tied = model.get_output_embeddings() is None or bool(getattr(config.get_text_config(), "tie_word_embeddings", True))
    body = parameters - embedding * (1 if tied else 2)
    adapters = 0
    if lora is not None:
        add_lora(model, LoRAConfig(**vars(lora)))
        adapters = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    shape = _shape(config.get_text_config(), parameters, qk_norm, adapters)
    cost = TokenCost(body, embedding, frozen=bool(adapters)) if shape is None else shape.token_cost
    return PolicySize(type(model).__name__, parameters, cost, shape)


def _shape(text: Any, parameters: int, qk_norm: bool, adapters: int) -> ModelShape | None:
    """Returns the shape of a decoder with gated MLPs, or `None` where a model's parameters do not add up to one."""
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    values: list[Any] = [getattr(text, name, None) for name in names]
    if not all(isinstance(value, int) and value > 0 for value in values):
        return None
    vocab, hidden, intermediate, layers, heads = values
    shape = ModelShape(
        parameters=parameters,
        vocab=vocab,
        hidden=hidden,
        intermediate=intermediate,
        layers=layers,
        heads=heads,
        kv_heads=getattr(text, "num_key_value_heads", None) or heads,
        head_dim=getattr(text, "head_dim", None) or hidden // heads,
        qk_norm=qk_norm,
        lora=adapters,
    )
    counted = shape.layers * shape.layer_parameters + shape.vocab * shape.hidden
    fits = any(abs(n - parameters) <= DESCRIBED_WITHIN * parameters for n in (counted, counted + vocab * hidden))
    return shape if fits else None


def from_source(kind: Any, policy: str) -> Any:
    """Loads a configuration or a tokenizer; of a model on the hub, that one file is fetched and no weights.

    Args:
        kind: `AutoConfig` or `AutoTokenizer`.
        policy: Whatever `load_policy` takes.
    """
    if Path(policy).expanduser().is_dir() or "/" not in policy:
        return kind.from_pretrained(resolve_model(policy))
    try:
        return kind.from_pretrained(policy, local_files_only=True)
    except OSError:
        if not hub_reachable():
            raise
    return kind.from_pretrained(policy)
