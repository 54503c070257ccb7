"""What estimates need to know of a policy and of this machine, without loading weights."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from rpl.core.errors import CheckpointError
from rpl.core.hub import hub_reachable
from rpl.estimate.training import ModelShape
from rpl.policy.loading import resolve_model
from rpl.policy.lora import LoRAConfig, add_lora


def shape_of(policy: str, lora: Any = None) -> ModelShape:
    """Reads a policy's configuration (never its weights) and counts its parameters.

    Args:
        policy: Whatever `load_policy` takes; of a hub model, only the configuration is fetched.
        lora: Settings of adapters, or `None`.

    Raises:
        CheckpointError: The configuration cannot be found.
        ConfigError: The adapters' settings are out of range, or do not fit the policy.
    """
    try:
        config = from_source(AutoConfig, policy)
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"policy {policy!r}: its config.json cannot be had: {str(error).splitlines()[0]}"
        ) from error
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    text = config.get_text_config()
    heads = text.num_attention_heads
    parameters, adapters = sum(parameter.numel() for parameter in model.parameters()), 0
    if lora is not None:
        add_lora(model, LoRAConfig(**vars(lora)))
        adapters = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    return ModelShape(
        parameters=parameters,
        vocab=text.vocab_size,
        hidden=text.hidden_size,
        intermediate=text.intermediate_size,
        layers=text.num_hidden_layers,
        heads=heads,
        kv_heads=getattr(text, "num_key_value_heads", None) or heads,
        head_dim=getattr(text, "head_dim", None) or text.hidden_size // heads,
        qk_norm=any("q_norm" in name for name, _ in model.named_parameters()),
        lora=adapters,
    )


def peak_flops(bf16: bool) -> float:
    """Measures what large matrix products reach here, in FLOP/s; takes half a second."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    a = torch.randn(1024, 1024, device=device, dtype=torch.bfloat16 if bf16 else torch.float32)
    (a @ a).sum().item()
    began, done = time.perf_counter(), 0
    while time.perf_counter() - began < 0.5:
        (a @ a).sum().item()
        done += 1
    return done * 2 * 1024**3 / (time.perf_counter() - began)


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
