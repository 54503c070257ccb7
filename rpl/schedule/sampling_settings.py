"""Device, precision and sampler of a schedule's harvest and evaluation, taken from its training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import ArgumentParser

from rpl.core.errors import ConfigError
from rpl.sampling.opening import OpeningConfig
from rpl.sampling.sampler import Sampler


def configured_opening(trainer: Mapping[str, Any], model: Mapping[str, Any], files: Sequence[Path]) -> OpeningConfig:
    """Returns device, precision and sampler of training.

    Args:
        trainer: Trainer arguments of the schedule, which win over those of the files.
        model: Module arguments of the schedule, likewise.
        files: LightningCLI files, in order; later ones win.

    Raises:
        ConfigError: `model.sampler` does not name a sampler.
    """
    parts: dict[str, dict[str, Any]] = {"trainer": {}, "model": {}}
    for path in files:
        read = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
        for name, merged in parts.items():
            found = read.get(name) or {}
            merged |= {**found, **(found.get("init_args") or {})}
    trainer, model = {**parts["trainer"], **trainer}, {**parts["model"], **model}
    accelerator = str(trainer.get("accelerator", "auto"))
    device = {"gpu": "cuda", "cuda": "cuda", "cpu": "cpu"}.get(accelerator, "auto")
    dtype: Any = {"bf16-mixed": "bfloat16", "32-true": "float32"}.get(str(trainer.get("precision")), "auto")
    return OpeningConfig(device, dtype, _sampler(model.get("sampler")))


def _sampler(setting: Any) -> Sampler | None:
    if setting is None:
        return None
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--sampler", type=Sampler)
    try:
        found: Sampler = parser.instantiate_classes(parser.parse_object({"sampler": setting})).sampler
    except Exception as error:  # jsonargparse and the sampler's own settings each raise what they like
        raise ConfigError(f"model.sampler: {' '.join(str(error).split())}") from error
    return found
