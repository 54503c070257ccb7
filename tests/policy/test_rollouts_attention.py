import copy
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from rpl.core.errors import ConfigError
from rpl.modules.batches.shared_attention import can_share
from rpl.policy.attention import attention_kinds, gqa_attention
from rpl.policy.loading import load_policy
from rpl.sampling.hf.sampler import HFSampler

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


SMALL = {
    "vocab_size": 20,
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
WINDOW = {"sliding_window": 4}
CONFIGS = {
    "no window": ("mistral", {"sliding_window": None}, {"full_attention"}),
    "a bare window": ("mistral", WINDOW, {"sliding_attention"}),
    "a bare window beside a list that is not read": (
        "mistral",
        WINDOW | {"layer_types": ["full_attention"]},
        {"full_attention", "sliding_attention"},
    ),
    "a bare window, another class": ("phi3", WINDOW, {"sliding_attention"}),
    "a window that is not used": ("qwen2", WINDOW, {"full_attention"}),
    "a window for later layers than there are": (
        "qwen2",
        WINDOW | {"use_sliding_window": True, "max_window_layers": 1},
        {"full_attention"},
    ),
    "a window in the list": (
        "qwen2",
        WINDOW | {"use_sliding_window": True, "max_window_layers": 0},
        {"sliding_attention"},
    ),
}


@pytest.mark.parametrize(("kind", "options", "kinds"), CONFIGS.values(), ids=CONFIGS)
def test_the_kinds_of_attention_are_those_of_the_model(kind, options, kinds, tokenizer):
    """What the configuration says is what the model does: with a window, the last token does not see the first."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **SMALL, **options)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    assert attention_kinds(config) == kinds
    ids = torch.arange(3, 13)[None]
    other = ids.clone()
    other[0, 0] = 19
    with torch.no_grad():
        seen = not torch.equal(model(input_ids=ids).logits[0, -1], model(input_ids=other).logits[0, -1])
    assert seen == (kinds == {"full_attention"})
    assert can_share(model) == seen
    if seen:
        HFSampler().connect(model, tokenizer)
    else:
        with pytest.raises(ConfigError, match="sliding_attention"):
            HFSampler().connect(model, tokenizer)


def test_kinds_without_a_list():
    assert attention_kinds(SimpleNamespace(sliding_window=8)) == {"sliding_attention"}
    assert attention_kinds(SimpleNamespace(sliding_window=8, use_sliding_window=False)) == {"full_attention"}
    assert attention_kinds(SimpleNamespace(attention_chunk_size=8)) == {"chunked_attention"}
    assert attention_kinds(SimpleNamespace(attention_chunk_size=None)) == {"full_attention"}
