"""What is sent to an engine: whole weights under ordinary names, noticed when they change, agreed on by all ranks."""

import copy
import socket

import pytest
import torch
from sync_sharded import sync
from vllm_fakes import Faults, Server

from rpl.core.errors import SamplerError
from rpl.policy.loading import load_policy
from rpl.policy.weights.lora import LoRAConfig, add_lora
from rpl.policy.weights.merged import fingerprint, policy_weights
from rpl.sampling.vllm.collective import on_all_ranks, one_line

IDS = torch.tensor([[5, 9, 40, 77, 3, 100]])


def adapted():
    model, _ = load_policy("tiny")
    add_lora(model, LoRAConfig(rank=4), seed=1)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, 0.1, generator=generator)
    return model


def test_a_plain_model_yields_its_weights_tied_ones_under_every_name():
    model, _ = load_policy("tiny")
    weights = dict(policy_weights(model))
    assert set(weights) == set(model.state_dict()) | {"lm_head.weight"}
    assert weights["lm_head.weight"] is not None
    assert torch.equal(weights["lm_head.weight"], weights["model.embed_tokens.weight"])
    assert not any(value.requires_grad for value in weights.values())


def test_adapters_are_folded_in():
    model = adapted()
    plain, _ = load_policy("tiny")
    with torch.no_grad():
        before = plain(IDS).logits.clone()
        plain.load_state_dict(dict(policy_weights(model)))
        after, expected = plain(IDS).logits, model(IDS).logits
    assert (after - expected).abs().max() < 1e-5
    assert (before - expected).abs().max() > 0.1


def test_adapters_that_were_merged_already_are_not_added_twice():
    model = adapted()
    expected = dict(policy_weights(model))
    for layer in model.modules():
        if hasattr(layer, "base_layer"):
            layer.merge()
    for name, value in policy_weights(model):
        assert (value - expected[name]).abs().max() < 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_fingerprint_tells_weights_apart(dtype):
    model = load_policy("tiny")[0].to(dtype)
    first = fingerprint(model)
    assert torch.equal(fingerprint(copy.deepcopy(model)), first)
    with torch.no_grad():
        weight = model.model.layers[0].self_attn.q_proj.weight
        weight[2, 3] = torch.nextafter(weight[2, 3], torch.tensor(9.0, dtype=dtype))
    assert (fingerprint(model) != first).sum() == 1


def test_a_step_that_fails_raises_its_own_error():
    assert on_all_ranks(lambda: 3) == [3]
    with pytest.raises(ZeroDivisionError):
        on_all_ranks(lambda: 1 // 0)


def test_errors_become_one_line():
    assert one_line(ValueError("shape\nand a traceback")) == "ValueError: shape"
    assert one_line(SamplerError("two\nlines")) == "two lines"
    assert one_line(ValueError()) == "ValueError: no message"


@pytest.mark.dist
def test_ranks_of_a_sharded_run_share_a_server_and_fail_together(forks):
    model, tokenizer = load_policy("tiny")
    faults = Faults()
    with Server(model, tokenizer, faults) as server:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        ends, processes = [], []
        for rank in range(2):
            here, there = forks.Pipe()
            processes.append(forks.Process(target=sync, args=(rank, port, server.url, there)))
            processes[-1].start()
            there.close()  # so that the end of the process ends the pipe
            ends.append(here)
        try:
            for end in ends:
                assert end.recv() == "synced 1, gap small"
            assert server.weights.loads == server.weights.resets == 1
            faults.reload = "no memory left"
            for end in ends:
                end.send("go on")
            said = [end.recv() for end in ends]
        finally:
            for process in processes:
                process.kill()
                process.join()
    assert "no memory left" in said[0]
    assert "rank 0 failed, so rank 1 stops, too" in said[1]
    assert "no memory left" in said[1]
