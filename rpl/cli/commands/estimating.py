"""`rpl doctor -c …`: what a run of `rpl fit` with these files and flags would cost, before anything is loaded."""

from __future__ import annotations

import argparse
import json as json_module
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rpl.core.errors import RPLError
from rpl.core.machine import fastest_precision, matmul_rate
from rpl.estimate.shapes import NoEstimateError, PolicySize, from_source, size_of
from rpl.estimate.training import GIB, ModelShape, Part, Settings, Workload, memory, peaks, seconds
from rpl.modules.batches.micro_batches import token_budget

OPTIMIZER_BYTES = {"Adam": 8, "AdamW": 8, "RMSprop": 4, "Adagrad": 4, "SGD": 0}
"""Bytes of state a trained parameter; other optimizers are taken for Adam."""
TYPICAL = 0.35
"""Share of their limits that completions and printed results typically take."""
PROMPT_TOKENS = {"compact": 45, "documented": 700}
"""Used where the policy's tokenizer is not on this machine."""


@dataclass(frozen=True)
class Estimate:
    """An estimate with all that it was made from."""

    policy: str
    size: PolicySize
    settings: Settings
    work: Workload
    memory: list[Part]
    """Empty where the architecture is not one that the estimate of memory describes."""
    time: list[Part]
    iterations: int | None
    """Of the whole run; `None` if it has no end."""
    available: float | None
    """Bytes of the device, where known."""

    @property
    def peak(self) -> float | None:
        """Bytes that a device must have; `None` where memory is not known."""
        return max(peaks(self.memory).values()) if self.memory else None

    @property
    def iteration_s(self) -> float | None:
        """Seconds of an iteration; `None` if the device's speed is not known."""
        return sum(part.amount for part in self.time) if self.time else None


def estimate(args: Sequence[str]) -> Estimate:
    """Reads the files and flags of `rpl fit`, and a few of its own, and estimates memory and time.

    Args:
        args: The command line after `rpl doctor`.

    Raises:
        ConfigError: A value is out of its range.
        CheckpointError: The policy's configuration cannot be found.
        NoEstimateError: Nothing can be said of the policy.
    """
    own = argparse.ArgumentParser(prog="rpl doctor", add_help=False, allow_abbrev=False)
    own.add_argument("--tflops", type=float)
    own.add_argument("--device_memory", type=float)
    own.add_argument("--prompt", type=int)
    own.add_argument("--written", type=int)
    own.add_argument("--shown", type=int)
    own.add_argument("--json", action="store_true")
    given, rest = own.parse_known_args(list(args))
    config = _fit_config(rest)
    model, data, trainer = config.model.init_args, config.data.init_args, config.trainer
    settings, available = _settings(config, given.device_memory)
    policy = str(model.get("init_from") or model.policy)
    size = size_of(policy, model.get("lora"))
    rollout, rl = model.rollout, "group_size" in model
    work = Workload(
        questions=data.batch_size,
        group_size=model.group_size if rl else 1,
        prompt=given.prompt or _prompt_tokens(policy, model),
        written=given.written or max(1, round(TYPICAL * rollout.max_turns * rollout.max_new_tokens)),
        shown=(
            given.shown
            if given.shown is not None
            else round(TYPICAL * (rollout.max_turns - 1) * model.environment.limits.printed_tokens)
        ),
        turns=rollout.max_turns,
        rows=rollout.batch_size,
        samples=rl,
        updates=model.get("updates_per_iteration", 1),
        epochs=model.get("epochs", 1),
    )
    settings = _with_engine(settings, size.shape, work, model.get("sampler"), available)
    updates = work.updates * work.epochs
    steps = trainer.max_steps
    flops = given.tflops * 1e12 if given.tflops else _peak_flops(settings)
    return Estimate(
        policy,
        size,
        settings,
        work,
        memory(size.shape, settings, work) if size.shape is not None else [],
        seconds(size.cost, settings, work, flops) if flops else [],
        steps // updates if steps and steps > 0 else None,
        available,
    )


def describe(result: Estimate) -> str:
    """Returns an estimate as lines of text."""
    size, settings, work = result.size, result.settings, result.work
    how = "sharded (FSDP2)" if settings.sharded and settings.devices > 1 else "each with the whole model"
    lines = [
        f"policy {result.policy}: {size.parameters / 1e6:,.0f} M parameters"
        + (f", {size.shape.layers} layers" if size.shape else "")
        + (f", adapters of {size.shape.lora / 1e6:,.1f} M" if size.shape and size.shape.lora else ""),
        f"{settings.devices} {settings.device.upper()} process{'es' if settings.devices > 1 else ''}"
        + (f", {how}" if settings.devices > 1 else "")
        + (", bf16-mixed" if settings.mixed else ", float32"),
        "memory of one process:" if result.memory else f"memory of one process: {size.no_estimate}",
    ]
    lines += [_line(part, f"{part.amount / GIB:8.2f} GiB", _phase(part)) for part in result.memory]
    if result.peak is not None:
        names = {"sample": "sampling", "update": "updating"}
        phases = (f"while {names[phase]} {amount / GIB:.1f} GiB" for phase, amount in peaks(result.memory).items())
        lines.append(f"  peak {', '.join(phases)}")
        if result.available is not None:
            fits = "fits" if result.peak <= result.available else "DOES NOT FIT"
            lines[-1] += f"; {result.available / GIB:.0f} GiB are there: {fits}"
    lines.append(f"time of one iteration ({work.questions} questions x {work.group_size} a process):")
    if result.iteration_s is None:
        lines.append("  not known: no such device here; give --tflops (what its large matrix products reach)")
    else:
        lines += [_line(part, f"{part.amount:8.1f} s  ", "") for part in result.time]
        total = f"  {result.iteration_s:.0f} s an iteration"
        if result.iterations:
            total += f"; {result.iterations} iterations: {result.iterations * result.iteration_s / 3600:.1f} h"
        lines.append(total)
    lines.append(
        f"assumed: {work.prompt} tokens a prompt, {work.written} written and {work.shown} shown a transcript "
        "(--prompt, --written, --shown); evaluation and retrieval come on top"
    )
    return "\n".join(lines) + "\n"


def run(args: Sequence[str]) -> Estimate | None:
    """Prints the estimate, as text or with `--json`; `None` where there is none for the policy's architecture."""
    try:
        result = estimate(args)
    except NoEstimateError as error:
        none = {"estimate": None, "reason": str(error)}
        sys.stdout.write(json_module.dumps(none, indent=2) + "\n" if "--json" in args else f"{error}\n")
        return None
    if "--json" in args:
        extra = {"peak_bytes": result.peak, "iteration_s": result.iteration_s}
        sys.stdout.write(json_module.dumps(asdict(result) | extra, indent=2) + "\n")
    else:
        sys.stdout.write(describe(result))
    return result


def _line(part: Part, amount: str, note: str) -> str:
    return f"  {part.name:<20}{amount}  {part.arithmetic}{note}"


def _phase(part: Part) -> str:
    return "" if len(part.phases) > 1 else {"sample": "  [sampling]", "update": "  [updating]"}[part.phases[0]]


def _fit_config(args: Sequence[str]) -> Any:
    from rpl.training.lightning_cli import RPLCLI

    class Reader(RPLCLI):
        def instantiate_classes(self) -> None:
            """Builds nothing: the machine that the files are for may be another one."""

        def _set_seed(self) -> None:
            """Nothing is random here."""

    return Reader(list(args), run=False).config


def _settings(config: Any, device_memory: float | None) -> tuple[Settings, float | None]:
    import torch

    trainer, model = config.trainer, config.model.init_args
    cuda = torch.cuda.is_available()
    accelerator = str(trainer.accelerator)
    device = "gpu" if accelerator in ("gpu", "cuda") or (accelerator == "auto" and cuda) else "cpu"
    strategy = str(getattr(trainer.strategy, "class_path", trainer.strategy))
    optimizer = str(model.optimizer.class_path).rpartition(".")[2] if model.get("optimizer") is not None else "AdamW"
    lora = model.get("lora")
    available: float | None = device_memory * GIB if device_memory else None
    if available is None and device == "gpu" and cuda:
        available = float(torch.cuda.get_device_properties(0).total_memory)
    if available is None and device == "cpu":
        available = _memory_here()
    return (
        Settings(
            devices=_devices(trainer.devices, device) * int(trainer.num_nodes or 1),
            sharded=strategy.endswith(("FSDP2Strategy", "ModelParallelStrategy")),
            device=device,
            mixed=_mixed(trainer.precision, device),
            frozen_bytes=2 if lora is not None and lora.base_dtype == "bfloat16" else 4,
            optimizer_bytes=OPTIMIZER_BYTES.get(optimizer, 8),
            reference=bool(model.get("beta", 0)),
            checkpointing=model.activation_checkpointing,
            packed=model.get("packing", "shared") == "shared",
            tokens_per_micro_batch=token_budget(model.tokens_per_micro_batch, device),
            logprob_chunk_tokens=model.logprob_chunk_tokens,
        ),
        available,
    )


def _mixed(precision: Any, device: str) -> bool:
    """Whether matrix products are in bfloat16; for a GPU that is not on this machine, `auto` is taken for that."""
    import torch

    if precision != "auto":
        return bool(precision == "bf16-mixed")
    if device == "gpu":
        return not torch.cuda.is_available() or fastest_precision("cuda").dtype == "bfloat16"
    return fastest_precision().dtype == "bfloat16"


def _devices(value: Any, device: str) -> int:
    import torch

    if isinstance(value, (list, tuple)):
        return len(value)
    if str(value) in ("auto", "-1"):
        return max(1, torch.cuda.device_count()) if device == "gpu" else 1
    return int(value)


def _with_engine(
    settings: Settings, shape: ModelShape | None, work: Workload, sampler: Any, available: float | None
) -> Settings:
    if sampler is None or not str(sampler.class_path).endswith("VLLMSampler"):
        return settings
    from dataclasses import replace

    options = sampler.init_args
    if options.get("server_urls"):
        return replace(settings, engine_bytes=0)
    if available is not None and settings.device == "gpu":
        return replace(settings, engine_bytes=int(options.gpu_memory_utilization * available))
    if shape is None:
        return settings
    cache = min(work.rows, work.rollouts) * work.context * shape.layers * 2 * shape.keys * 2
    return replace(settings, engine_bytes=2 * shape.parameters + cache)


def _peak_flops(settings: Settings) -> float | None:
    import torch

    if settings.device == "gpu" and not torch.cuda.is_available():
        return None
    dtype = "bfloat16" if settings.mixed else "float32"
    return matmul_rate(dtype, 1024, 1024, 1024, "cuda" if settings.device == "gpu" else "cpu", for_s=0.5)


def _memory_here() -> float | None:
    import os

    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (ValueError, OSError, AttributeError):
        return None


def _prompt_tokens(policy: str, model: Any) -> int:
    from transformers import AutoTokenizer

    from rpl.policy.bundle import agreed_layout
    from rpl.policy.renderer import Renderer

    layout = agreed_layout(policy, model.prompt_style, model.thinking, "model.")
    folder = Path(policy).expanduser()
    if folder.is_dir() and not any(folder.glob("*token*")):  # transformers would make one up from the configuration
        return PROMPT_TOKENS[layout.prompt_style]
    try:
        tokenizer = from_source(AutoTokenizer, policy)
    except (OSError, ValueError, RPLError):
        return PROMPT_TOKENS[layout.prompt_style]
    renderer = Renderer(tokenizer, layout.prompt_style, layout.thinking)  # refuses a chat template that cannot be used
    return len(
        renderer.prompt_ids("Which of the two films was directed by someone who was born in the capital of Chad?")
    )
