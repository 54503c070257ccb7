"""What a schedule will cost, said before anything is loaded: minutes a phase, memory, disk.

The estimate counts tokens and divides by rates that follow from the model's size and a half-second measurement of this
machine's matrix products. The shares of that peak which training, prefill and decoding reach were measured once, with
SmolLM2-135M on two CPU cores; on other machines the estimate is good to a factor of two.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rpl.cycle.config import PhaseConfig
from rpl.estimate import DECODE_SHARE, PREFILL_SHARE, TRAIN_SHARE
from rpl.modules.batching import token_budget

if TYPE_CHECKING:
    from rpl.cycle.run import Schedule

SHARED = 0.45
"""Share of an RL iteration's tokens that are left to compute once what rollouts have in common is computed once."""
ALLOCATOR = 1.4
"""What a process holds for each byte of tensors, after phases with tensors of many sizes."""
SEARCH_S = 0.12
"""Seconds of verified search a failed question in a harvest."""
START_S = 12.0
"""Seconds to import, load and export around a phase."""
PROMPT, WRITTEN, SHOWN = 40, 50, 130
"""Tokens of a typical compact prompt, of what the policy writes for a question, of what programs show it."""


@dataclass(frozen=True)
class Rates:
    """Tokens a second on this machine for this model."""

    train: float
    prefill: float
    decode: float


def describe_plan(schedule: Schedule, phases: Sequence[PhaseConfig], names: Sequence[str]) -> str:
    """Returns the lines that open a run: minutes a phase, memory, disk."""
    parameters, hidden, layers = model_size(schedule.policy)
    bf16 = schedule.dtype == "bfloat16"
    rates = rates_for(parameters, peak_flops(bf16))
    minutes = [phase_seconds(schedule, phase, phases, rates) / 60 for phase in phases]
    steps = ", ".join(f"{name} {m:.0f}" for name, m in zip(names, minutes, strict=True))
    tokens = token_budget(schedule.model.get("tokens_per_micro_batch"), "cpu")
    memory = memory_gib(parameters, hidden, layers, tokens, bf16)
    disk = parameters * (4 * sum(p.kind in ("rl", "sft") for p in phases) + 24) / 2**30
    return (
        f"{len(phases)} phases in {schedule.run.path}; policy {schedule.policy}, {parameters / 1e6:.0f} M parameters\n"
        f"rpl: estimate: {sum(minutes):.0f} min ({steps}), {memory:.1f} GiB of memory, {disk:.1f} GiB of disk"
    )


def model_size(policy: str) -> tuple[int, int, int]:
    """Returns parameters, hidden size and layers of a model without loading its weights."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from rpl.rollouts.models import resolve_model

    config = AutoConfig.from_pretrained(resolve_model(policy))
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    return sum(p.numel() for p in model.parameters()), int(config.hidden_size), int(config.num_hidden_layers)


def peak_flops(bf16: bool) -> float:
    """Measures what large matrix products reach here, in FLOP/s."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    a = torch.randn(1024, 1024, device=device, dtype=torch.bfloat16 if bf16 else torch.float32)
    (a @ a).sum().item()
    began, done = time.perf_counter(), 0
    while time.perf_counter() - began < 0.5:
        (a @ a).sum().item()
        done += 1
    return done * 2 * 1024**3 / (time.perf_counter() - began)


def rates_for(parameters: int, peak: float) -> Rates:
    """Turns a peak into tokens a second: 6 FLOP a parameter and token in training, 2 in a forward pass."""
    forward = peak / (2 * parameters)
    return Rates(TRAIN_SHARE * forward / 3, PREFILL_SHARE * forward, DECODE_SHARE * forward)


def phase_seconds(schedule: Schedule, phase: PhaseConfig, phases: Sequence[PhaseConfig], rates: Rates) -> float:
    """Estimates one phase."""
    context = PROMPT + WRITTEN + SHOWN
    data, model, trainer = (
        {**getattr(schedule, part), **getattr(phase, part)} for part in ("data", "model", "trainer")
    )
    if phase.kind == "rl":
        rollouts = _steps(trainer, 100) * int(data.get("batch_size", 8)) * int(model.get("group_size", 8))
        each = WRITTEN / rates.decode + SHARED * (SHOWN / rates.prefill + context / rates.train)
        return START_S + rollouts * each
    if phase.kind == "sft":
        return START_S + _steps(trainer, 75) * int(data.get("batch_size", 16)) * context / rates.train
    if phase.kind == "harvest":
        count = phase.num_questions or 1000
        drawn = count * phase.harvest.num_samples * WRITTEN / rates.decode
        controlled = min(phase.harvest.control_questions or 0, count)
        control = controlled * 20 * WRITTEN / rates.decode
        return START_S + drawn + control + count * SEARCH_S
    trained = sum(p.kind in ("rl", "sft") for p in phases)
    count = phase.eval.num_questions or 300
    policy = count * (WRITTEN / rates.decode + (PROMPT + SHOWN) / rates.prefill)
    fixed = sum(count * (10 / rates.decode + (PROMPT + WRITTEN + 55 * k) / rates.prefill) for k in phase.eval.fixed_k)
    return START_S + (trained if phase.eval.after is None else len(phase.eval.after)) * policy + fixed


def memory_gib(parameters: int, hidden: int, layers: int, tokens: int, bf16: bool) -> float:
    """Estimates the peak of a training phase: weights, gradients, Adam's two moments, the bf16 copy, activations."""
    states = parameters * (16 + (4 if bf16 else 0))
    activations = tokens * layers * hidden * 34 * (2 if bf16 else 4)
    return ALLOCATOR * (states + activations) / 2**30 + 1.0  # the interpreter, the library and the index


def _steps(trainer: dict[str, Any], default: int) -> int:
    return int(trainer.get("max_steps", default))
