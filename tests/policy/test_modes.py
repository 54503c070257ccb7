"""Modes of a model's parts: put back one by one, and without anything random for reinforcement learning."""

import pytest
import torch
from gpt2 import gpt2_folder

from rpl.policy.loading import load_policy
from rpl.policy.modes import evaluating, without_dropout


def test_each_part_gets_its_mode_back():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Sequential(torch.nn.Dropout(), torch.nn.Linear(2, 2)))
    model[1][0].eval()
    before = [module.training for module in model.modules()]
    with evaluating(model):
        assert not any(module.training for module in model.modules())
    assert [module.training for module in model.modules()] == before
    assert len(set(before)) == 2


@pytest.mark.parametrize("checkpointing", [False, True])
def test_without_dropout_a_model_computes_the_same_in_every_pass_and_has_gradients(tmp_path, checkpointing):
    model, _ = load_policy(gpt2_folder(tmp_path / "gpt2"))
    ids = torch.arange(3, 43).unsqueeze(0)
    wanted = model(ids, use_cache=False).logits
    model.train()
    if checkpointing:
        model.activation_checkpointing_enable()
    assert not torch.equal(model(ids, use_cache=False).logits, wanted)  # the twin: its configuration asks for dropout
    without_dropout(model, checkpointing)
    calls = []
    model.transformer.h[0].mlp.register_forward_pre_hook(lambda *_: calls.append(1))
    logits = model(ids, use_cache=False).logits
    assert torch.equal(logits, wanted)
    logits.sum().backward()
    assert model.transformer.wte.weight.grad is not None
    assert len(calls) == (2 if checkpointing else 1)  # computed again in the backward pass
    assert model.config.resid_pdrop == 0.1  # what is exported stays as it was
