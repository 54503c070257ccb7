"""Runs a model that is also trained for sampling: without gradients, in another precision, and restores it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from rpl.policy.attention import NAME, register
from rpl.policy.modes import evaluating


class SamplingMode:
    """Puts a model into the state that it is sampled in, as often as wanted, for one version of its weights.

    In bfloat16 the matrix products are those of autocast, but the weights of linear layers are cast once and kept,
    trained or frozen; autocast itself would cast frozen weights in every pass, and the others each time it is entered.
    On a CPU they are kept in the order in which its kernels read them, which gives the same numbers and makes a
    decoding step of few rows up to twice as fast.

    Args:
        model: A transformers causal language model.
        dtype: `bfloat16` for autocast, `None` to compute in the type of the weights.
    """

    def __init__(self, model: Any, dtype: torch.dtype | None) -> None:
        self._model, self._dtype = model, dtype
        self._device_type = next(model.parameters()).device.type
        self._linears: list[tuple[nn.Module, Callable[[Tensor], Tensor]]] | None = None
        register()

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Enters evaluation mode without gradients; everything is as before afterwards."""
        model = self._model
        attention = model.config._attn_implementation
        # Under an outer autocast (a trainer's), casts of weights made here would be kept: without gradient, and of
        # weights that are about to change.
        torch.clear_autocast_cache()
        try:
            model.config._attn_implementation = NAME
            with (
                evaluating(model),
                torch.no_grad(),
                torch.autocast(self._device_type, dtype=torch.bfloat16, enabled=self._dtype is not None),
                self._cast_linears(),
            ):
                yield
        finally:
            torch.clear_autocast_cache()
            model.config._attn_implementation = attention

    @contextmanager
    def _cast_linears(self) -> Iterator[None]:
        if self._linears is None:
            self._linears = [] if self._dtype is None else list(_cast_linears(self._model, self._dtype))
        try:
            for module, forward in self._linears:
                module.__dict__["forward"] = forward  # hides the method of the class; parameters are not touched
            yield
        finally:
            for module, _ in self._linears:
                module.__dict__.pop("forward", None)

    def close(self) -> None:
        """Forgets the cast weights."""
        self._linears = []


def _cast_linears(model: nn.Module, dtype: torch.dtype) -> Iterator[tuple[nn.Module, Callable[[Tensor], Tensor]]]:
    for module in model.modules():
        # A subclass may compute something else, a wrapped method has been given another meaning, and a sharded weight
        # belongs to its sharding, which has a precision policy of its own.
        if type(module) is not nn.Linear or "forward" in module.__dict__:
            continue
        weight = module.weight
        if isinstance(weight, DTensor) or weight.dtype != torch.float32:
            continue
        bias = None if module.bias is None else module.bias.detach().to(dtype)
        yield module, _linear(weight.detach().to(dtype), bias)


def _linear(weight: Tensor, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
    """Returns the product with a weight `(out, in)`, in the type of the weight."""
    if not can_pack(weight):
        return lambda x: nn.functional.linear(x.to(weight.dtype), weight, bias)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight)
    return lambda x: torch.ops.mkldnn._linear_pointwise(x.to(weight.dtype), packed, bias, "none", [], "")


def can_pack(weight: Tensor) -> bool:
    """Whether torch has oneDNN's packed bfloat16 weights for this CPU: what its own compiler uses for inference."""
    if weight.device.type != "cpu" or weight.dtype != torch.bfloat16 or not torch.backends.mkldnn.is_available():
        return False
    operators = ("_reorder_linear_weight", "_linear_pointwise", "_is_mkldnn_bf16_supported")
    return all(hasattr(torch.ops.mkldnn, name) for name in operators) and bool(
        torch.ops.mkldnn._is_mkldnn_bf16_supported()
    )
