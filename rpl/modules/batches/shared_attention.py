"""Attention over packed tokens: each segment sees what its sequences have before it, and itself.

Everything else in a decoder works on one token at a time, so packing concerns attention alone. Registered with
transformers as `rpl_shared`; without a layout it is transformers' own `sdpa`, causal because no mask is ever built for
it (micro-batches are padded on the right).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from rpl.modules.batches.packing import Bucket, Layout
from rpl.policy.attention import attention_kinds, grouped_attention

NAME = "rpl_shared"


def shared_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    rpl_layout: Layout | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Computes attention in the form that transformers' attention interface asks for.

    Args:
        module: The attention layer.
        query: `(1, heads, T, dim)`, packed tokens with rotary positions already in them.
        key: `(1, key_heads, T, dim)`; `heads` is a multiple of `key_heads`.
        value: Like `key`.
        attention_mask: Not used with a layout.
        dropout: Probability.
        scaling: Factor on the scores; `None` means `dim ** -0.5`.
        rpl_layout: Where the tokens are.
        **kwargs: Passed on where transformers' own function serves.

    Returns:
        The output `(1, T, heads, dim)`, and `None` in place of attention weights.
    """
    if rpl_layout is None:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))  # (T, heads, dim)
    parts = []
    for bucket in rpl_layout.buckets:
        if bucket.visible is None:
            out = _causal(_take(q, bucket.tokens), _take(k, bucket.tokens), _take(v, bucket.tokens), dropout, scaling)
        else:
            mask = _mask(bucket, q.shape[1] // k.shape[1], _attention_dtype(q))
            seen_keys, seen_values = _take(k, bucket.seen), _take(v, bucket.seen)
            out = grouped_attention(_take(q, bucket.tokens), seen_keys, seen_values, mask, dropout, scaling)
        parts.append(out.transpose(1, 2).flatten(0, 1))
    return torch.cat(parts).index_select(0, rpl_layout.order).unsqueeze(0), None


def _take(x: Tensor, indices: Tensor) -> Tensor:
    """`(T, heads, dim)` and `(rows, length)` to `(rows, heads, length, dim)`."""
    return x.index_select(0, indices.flatten()).unflatten(0, indices.shape).transpose(1, 2)


def _causal(query: Tensor, key: Tensor, value: Tensor, dropout: float, scaling: float | None) -> Tensor:
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    return F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, scale=scaling, is_causal=True)


def _attention_dtype(query: Tensor) -> torch.dtype:
    """The type that attention is computed in; autocast would cast a mask of another type again in every layer."""
    kind = query.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else query.dtype


def _mask(bucket: Bucket, groups: int, dtype: torch.dtype) -> Tensor:
    """Returns the additive mask of a bucket, `(R, 1, groups * S, C + S)`; the same tensor for every layer."""
    if (groups, dtype) not in bucket.masks:
        assert bucket.visible is not None
        visible = bucket.visible.repeat(1, 1, groups, 1)
        mask = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
        bucket.masks[groups, dtype] = mask.masked_fill_(~visible, float("-inf"))
    return bucket.masks[groups, dtype]


def can_share(model: Any) -> bool:
    """Whether a model can take packed tokens: all its layers attend to all earlier tokens, through the interface."""
    through_interface = bool(getattr(model, "_supports_attention_backend", False))
    return through_interface and attention_kinds(model.config) == {"full_attention"}


def use_shared_attention(model: Any) -> None:
    """Makes a model take packed tokens, given as `rpl_layout`; may be called any number of times.

    It stays so: with activation checkpointing, layers run again in the backward pass.
    """
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, shared_attention)
    model.config._attn_implementation = NAME
