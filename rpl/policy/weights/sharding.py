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

from rpl.core.errors import CheckpointError, ConfigError
from rpl.policy.weights.lora import has_lora
from rpl.policy.weights.merged import policy_weights


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
    """Returns an ordinary model for export: unsharded, adapters folded in.

    Collective when the model is sharded.

    Args:
        model: The policy; it stays as it is.

    Returns:
        The model itself where it is ordinary; otherwise a copy in CPU memory on rank 0, and `None` on other ranks.
    """
    if not is_sharded(model) and not has_lora(model):
        return model
    writes = not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0
    once = {name.replace(".base_layer.", ".") for name, _ in model.named_parameters()}  # tied weights by one name
    weights: dict[str, Tensor] = {}
    for name, value in policy_weights(model):
        if writes and name in once:
            weights[name] = value.cpu()
    return plain_model(type(model), model, weights) if writes else None


def plain_model(kind: type, like: Any, weights: dict[str, Tensor]) -> Any:
    """Builds a transformers model from weights.

    Args:
        kind: Its class, or the one that FSDP2 made of it.
        like: A model with its config and generation config.
        weights: By name; tied weights once. All in one type on return: the widest of them.

    Raises:
        CheckpointError: A weight is missing, or is none of this model's.
    """
    plain: Any = next(base for base in kind.__mro__ if not issubclass(base, FSDPModule))
    with torch.device("meta"):  # no random numbers are drawn for weights that are about to be replaced
        copy = plain(like.config)
    tied = {name for name, _ in copy.named_parameters(remove_duplicate=False)} - {n for n, _ in copy.named_parameters()}
    dtype = max({value.dtype for value in weights.values() if value.is_floating_point()}, key=lambda t: t.itemsize)
    result = copy.load_state_dict({n: v.to(dtype) for n, v in weights.items()}, strict=False, assign=True)
    if wrong := sorted((set(result.missing_keys) - tied) | set(result.unexpected_keys)):
        raise CheckpointError(f"{len(wrong)} weights do not fit {plain.__name__}, such as {wrong[0]}")
    copy.tie_weights()
    for name, buffer in like.named_buffers():  # such as rotary frequencies, which are in no file
        owner, _, leaf = name.rpartition(".")
        if copy.get_submodule(owner).get_buffer(leaf).is_meta:
            copy.get_submodule(owner).register_buffer(leaf, buffer.detach().cpu(), persistent=False)
    copy.generation_config = like.generation_config
    return copy.eval()
