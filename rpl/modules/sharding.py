"""FSDP2 around a policy: shard it, gather it for sampling, hold back gradient communication, export it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from rpl.errors import ConfigError


def shard(model: Any, mesh: DeviceMesh, compute_dtype: torch.dtype | None = None) -> None:
    """Shards each decoder layer, then the root, over the data-parallel dimension of the mesh, in place.

    Embedding, last norm and output layer stay together in the root's group, so tied embeddings stay tied.

    Args:
        model: A transformers causal language model with unsharded parameters.
        mesh: Lightning's mesh, with the dimensions `data_parallel` and `tensor_parallel`.
        compute_dtype: Type of gathered parameters and activations; shards, gradients and optimizer stay as they are.

    Raises:
        ConfigError: The mesh asks for tensor parallelism, or the model has no list of decoder layers.
    """
    if mesh["tensor_parallel"].size() != 1:
        raise ConfigError("strategy: tensor_parallel_size must be 1; policies are sharded over data_parallel_size")
    layers = getattr(model.get_decoder(), "layers", None)
    if not isinstance(layers, nn.ModuleList):
        raise ConfigError(f"policy: {type(model).__name__} has no decoder layers to shard")
    policy = MixedPrecisionPolicy(param_dtype=compute_dtype, reduce_dtype=torch.float32 if compute_dtype else None)
    for layer in layers:
        fully_shard(layer, mesh=mesh["data_parallel"], mp_policy=policy)
    fully_shard(model, mesh=mesh["data_parallel"], mp_policy=policy)


def is_sharded(model: nn.Module) -> bool:
    """Whether `shard` was applied."""
    return isinstance(model, FSDPModule)


@contextmanager
def gathered(model: nn.Module) -> Iterator[None]:
    """Holds all parameters of a sharded model gathered, so that ranks may run it as often as each of them likes.

    Sampling takes a different number of forward passes on every rank; with sharded parameters each pass would be a
    collective and the ranks would wait for one another forever. Entering is collective; leaving is not. Does
    nothing to a model that is not sharded.
    """
    if not isinstance(model, FSDPModule):
        yield
        return
    parts = [module for module in model.modules() if isinstance(module, FSDPModule)]
    model.set_reshard_after_forward(False)
    try:
        for part in parts:
            part.unshard()
        yield
    finally:
        model.set_reshard_after_forward(True)
        for part in parts:
            part.reshard()


@contextmanager
def gradient_sync(model: nn.Module, strategy: Any, enabled: bool) -> Iterator[None]:
    """Lets ranks exchange gradients in the backward pass inside, or holds it back while gradients accumulate.

    Args:
        model: The policy, sharded or not.
        strategy: Lightning's strategy, asked where the model is not sharded.
        enabled: True for the last micro-batch of an update.
    """
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(enabled)
        yield
    elif enabled or not hasattr(strategy, "block_backward_sync"):
        yield
    else:
        with strategy.block_backward_sync():
            yield


def clip_gradients(parameters: list[nn.Parameter], max_norm: float | None) -> float:
    """Scales gradients down to a global norm, sharded or not, and returns the norm before.

    Args:
        parameters: Those with and without gradients.
        max_norm: Largest norm; `None` only measures.
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    norm: Tensor = torch.nn.utils.get_total_norm(gradients)
    if isinstance(norm, DTensor):
        norm = norm.full_tensor()
    if max_norm is not None and bool(torch.isfinite(norm)):
        torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)
    return float(norm)


def full_model(model: Any) -> Any | None:
    """Returns an unsharded model for export: the model itself, or a copy in CPU memory on rank 0 and `None` elsewhere.

    Collective when the model is sharded.
    """
    if not is_sharded(model):
        return model
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    weights = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if torch.distributed.get_rank() != 0:
        return None
    plain: Any = next(base for base in type(model).__mro__ if not issubclass(base, FSDPModule))
    copy = plain(model.config)
    copy.load_state_dict(weights)
    copy.generation_config = model.generation_config
    return copy.eval()
