import pytest
import torch
from torch import nn

from rpl.policy.loading import load_policy
from rpl.sampling.hf import precision
from rpl.sampling.hf.precision import SamplingMode, _linear


@pytest.fixture(params=[True, False], ids=["packed", "plain"])
def packing(request, monkeypatch):
    if request.param and not precision.can_pack(torch.zeros(1, 1, dtype=torch.bfloat16)):
        pytest.skip("this CPU or torch has no packed bfloat16 weights")
    if not request.param:
        monkeypatch.setattr(precision, "can_pack", lambda weight: False)
    return request.param


@pytest.mark.parametrize("rows", [1, 7, 100])
@pytest.mark.parametrize("with_bias", [False, True])
def test_a_cast_linear_gives_what_autocast_gives(packing, rows, with_bias):
    torch.manual_seed(rows)
    layer = nn.Linear(48, 96, bias=with_bias)
    x = torch.randn(2, rows, 48)
    weight, bias = layer.weight.detach().bfloat16(), layer.bias.detach().bfloat16() if with_bias else None
    with torch.no_grad():
        out = _linear(weight, bias)(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            expected = layer(x)
        exact = layer(x)
    assert out.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(out, expected, rtol=2**-8, atol=1e-4)  # the last bit of bfloat16
    assert (out.float() - exact).abs().max() > 1e-4
    assert not torch.allclose(_linear(weight * 1.02, bias)(x), expected, rtol=2**-8, atol=1e-4)


@pytest.mark.parametrize("frozen", [False, True])
def test_a_model_gives_the_logits_of_autocast_and_is_left_as_it_was(packing, frozen):
    model, _ = load_policy("tiny", attention="rpl_gqa")
    model.requires_grad_(not frozen).train()
    ids = torch.arange(3, 43)[None]
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        expected = model(input_ids=ids).logits
    mode = SamplingMode(model, torch.bfloat16)
    before = {name: (id(p), p.dtype) for name, p in model.named_parameters()}
    for _ in range(2):
        with mode():
            assert not model.training
            logits = model(input_ids=ids).logits
        assert model.training
        assert {name: (id(p), p.dtype) for name, p in model.named_parameters()} == before
        assert not any("forward" in module.__dict__ for module in model.modules())
    torch.testing.assert_close(logits, expected, rtol=2e-2, atol=2e-2)
    with torch.no_grad():
        model.model.norm.weight.mul_(1.1)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            other = model(input_ids=ids).logits
    assert not torch.allclose(logits, other, rtol=2e-2, atol=2e-2)


def test_an_exception_puts_everything_back(packing):
    model, _ = load_policy("tiny")
    mode = SamplingMode(model.train(), torch.bfloat16)
    with pytest.raises(ValueError, match="stop"), mode():
        raise ValueError("stop")
    assert model.training
    assert model.config._attn_implementation == "sdpa"
    assert not any("forward" in module.__dict__ for module in model.modules())
    assert not torch.is_autocast_enabled("cpu")
    assert torch.is_grad_enabled()


def test_float32_touches_no_layer():
    model, _ = load_policy("tiny")
    ids = torch.arange(3, 43)[None]
    with SamplingMode(model, None)():
        assert not any("forward" in module.__dict__ for module in model.modules())
        assert model(input_ids=ids).logits.dtype == torch.float32
