"""The model that is trained: loaded, adapted, sharded, compared with checkpoints, exported."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.utilities.rank_zero import rank_zero_only
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from rpl.core.seeds import derive_seed
from rpl.modules.batches.logprobs import check_scorable
from rpl.modules.parts.collectives import Ranks
from rpl.policy.bundle import Contract, agreed_layout, check_template, contract_file, say_without_contract
from rpl.policy.loading import export_policy, load_policy
from rpl.policy.prompts import Style
from rpl.policy.renderer import Renderer
from rpl.policy.weights.lora import LoRAConfig, add_lora, check_frozen, frozen_sums
from rpl.policy.weights.sharding import full_model, is_sharded, shard


class PolicyModel:
    """A policy from its name to its export.

    Args:
        start: Where the weights come from that training starts with; see `load_policy`.
        lora: Adapters to train in place of the weights, or `None`.
        prompt_style: The prompt that the renderer writes; `None` takes what the start's folder says, or `compact`.
        thinking: Whether the policy may write plain text before a program or an answer; `None` likewise, or `True`.
        activation_checkpointing: Whether layers are computed again in the backward pass.
        seed: Names the random start of adapters.
    """

    def __init__(
        self,
        start: str,
        lora: LoRAConfig | None,
        prompt_style: Style | None,
        thinking: bool | None,
        activation_checkpointing: bool,
        seed: int,
    ) -> None:
        self.start, self.lora = start, lora
        self.layout = agreed_layout(start, prompt_style, thinking, "model.")
        self.activation_checkpointing, self.seed = activation_checkpointing, seed
        self.model: Any = None
        self.tokenizer: Any = None
        self.renderer: Renderer

    def build(self, mesh: DeviceMesh | None, compute_dtype: torch.dtype | None) -> None:
        """Loads the model, puts adapters in if asked to, and shards it where there is a device mesh.

        Args:
            mesh: The strategy's device mesh; `None` leaves the model whole.
            compute_dtype: Type of gathered parameters and activations of a sharded model.
        """
        self.model, self.tokenizer = self._load()
        if self.lora is None:
            self.model.requires_grad_(True)
        else:
            add_lora(self.model, self.lora, derive_seed(self.seed, "lora", 0))
        self.model.train()
        self.renderer = Renderer(self.tokenizer, self.layout.prompt_style, self.layout.thinking)
        check_template(self.layout.contract, self.renderer, self.start)
        rank_zero_only(say_without_contract)(self.start, self.layout)
        if self.activation_checkpointing:
            # transformers renamed the method in 5.2x; both recompute without re-entrant autograd.
            new = getattr(self.model, "activation_checkpointing_enable", None)
            (new or self.model.gradient_checkpointing_enable)()
        if mesh is not None:
            shard(self.model, mesh, compute_dtype)

    def frozen_start(self, mesh: DeviceMesh | None, compute_dtype: torch.dtype | None) -> Any:
        """Loads the start model once more, without gradients, sharded as `build` does."""
        model, _ = self._load()
        if mesh is not None:
            shard(model, mesh, compute_dtype)
        return model

    @property
    def trainable(self) -> list[nn.Parameter]:
        """The parameters that are trained."""
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    def checkpoint_entry(self, ranks: Ranks) -> dict[str, Any]:
        """Returns what a checkpoint says of the start model, as plain numbers and strings; collective."""
        entry: dict[str, Any] = {
            "start_model": self.start,
            "lora": None if self.lora is None else dataclasses.asdict(self.lora),
        }
        return entry if self.lora is None else entry | {"frozen": self._frozen_sums(ranks)}

    def check_checkpoint(self, entry: dict[str, Any], ranks: Ranks) -> None:
        """Compares a checkpoint's entry with this model; collective.

        Raises:
            CheckpointError: The checkpoint's adapters were trained on another start model than this one.
        """
        if self.lora is not None and "frozen" in entry:
            check_frozen(self._frozen_sums(ranks), entry, self.start)

    def export(self, path: Path, ranks: Ranks, contract: Contract | None = None) -> None:
        """Writes the policy as a Hugging Face folder with its contract; all ranks take part, rank 0 writes."""
        model = full_model(self.model)
        if model is not None and ranks.rank == 0:
            export_policy(model, self.tokenizer, path, contract_file(contract))
        ranks.barrier()

    def _load(self) -> tuple[Any, Any]:
        model, tokenizer = load_policy(self.start, "float32" if self.lora is None else self.lora.base_dtype)
        check_scorable(model)
        return model.requires_grad_(False), tokenizer

    def _frozen_sums(self, ranks: Ranks) -> dict[str, float]:
        sums = frozen_sums(self.model)
        return ranks.sums(sums) if is_sharded(self.model) else sums
