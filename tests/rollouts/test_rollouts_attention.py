import copy

import pytest
import torch
from torch import nn

from rpl.rollouts.attention import gqa_attention
from rpl.rollouts.models import load_policy

B, HEADS, KEY_HEADS, DIM = 3, 6, 2, 8


def plain(query, key, value, mask, scaling):
    """Attention spelled out, keys repeated for every query head."""
    key, value = (t.repeat_interleave(HEADS // KEY_HEADS, 1) for t in (key, value))
    scores = query @ key.transpose(2, 3) * scaling + mask
    return (scores.softmax(-1) @ value).transpose(1, 2)


def inputs(length, positions, dtype=torch.float64):
    generator = torch.Generator().manual_seed(length)
    query = torch.randn(B, HEADS, length, DIM, generator=generator, dtype=dtype)
    key, value = (torch.randn(B, KEY_HEADS, positions, DIM, generator=generator, dtype=dtype) for _ in range(2))
    mask = torch.zeros(B, 1, length, positions, dtype=dtype)
    mask[1, :, :, :2] = -torch.inf
    mask[2, :, 0, 4:] = -torch.inf
    return query, key, value, mask


@pytest.mark.parametrize("length", [1, 5])
def test_equals_attention_with_repeated_keys(length):
    query, key, value, mask = inputs(length, 7)
    out, weights = gqa_attention(nn.Module(), query, key, value, mask, scaling=0.3)
    assert weights is None
    torch.testing.assert_close(out, plain(query, key, value, mask, 0.3), rtol=1e-9, atol=1e-9)


def test_the_order_of_heads_matters_to_that_comparison():
    query, key, value, mask = inputs(5, 7)
    out, _ = gqa_attention(nn.Module(), query[:, [1, 0, 3, 2, 5, 4]], key, value, mask, scaling=0.3)
    assert (out - plain(query, key, value, mask, 0.3)).abs().max() > 1e-2
    swapped, _ = gqa_attention(nn.Module(), query, key[:, [1, 0]], value, mask, scaling=0.3)
    assert (swapped - plain(query, key, value, mask, 0.3)).abs().max() > 1e-2


def test_a_mask_shared_by_all_queries_is_allowed():
    query, key, value, mask = inputs(5, 7)
    shared = mask[:, :, :1]
    out, _ = gqa_attention(nn.Module(), query, key, value, shared, scaling=0.3)
    torch.testing.assert_close(out, plain(query, key, value, shared, 0.3), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("padded", [False, True])
def test_a_model_gives_the_logits_and_gradients_of_eager(padded):
    results = []
    for attention in ("rpl_gqa", "eager"):
        model, _ = load_policy("tiny", attention=attention)
        ids = torch.arange(3, 43).view(2, 20)
        mask = torch.ones_like(ids)
        if padded:
            mask[1, 13:] = 0
        logits = model(input_ids=ids, attention_mask=mask).logits
        (logits[0].logsumexp(-1).sum() + logits[1, :13].logsumexp(-1).sum()).backward()
        results.append((logits[:, :13].detach(), model.model.layers[0].self_attn.k_proj.weight.grad))
    torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-5)


def test_a_changed_key_projection_shows_in_those_logits():
    model, _ = load_policy("tiny", attention="rpl_gqa")
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.model.layers[0].self_attn.k_proj.weight.mul_(1.05)
        ids = torch.arange(3, 43)[None]
        assert (model(input_ids=ids).logits - other(input_ids=ids).logits).abs().max() > 1e-5
