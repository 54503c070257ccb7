"""Log-probabilities of a real model: against transformers, against padding and masks."""

import dataclasses
import random

import pytest
import torch

from rpl.core.errors import ConfigError
from rpl.modules.batches.logprobs import check_scorable, score_tokens
from rpl.modules.batches.micro_batches import TrainingSequence, collate, micro_batches
from rpl.modules.losses import surrogate_loss, token_weights
from rpl.policy.loading import load_policy


@pytest.fixture(scope="module")
def model():
    return load_policy("tiny", "float32")[0]


def sequences(count=7):
    rng = random.Random(3)
    items = []
    for _ in range(count):
        length = rng.randint(5, 30)
        mask = [False, *(rng.random() < 0.5 for _ in range(length - 1))]
        logprobs = tuple(-rng.random() for _ in range(length))
        items.append(
            TrainingSequence(tuple(rng.randrange(250) for _ in range(length)), tuple(mask), rng.gauss(0, 1), logprobs)
        )
    return items


def loss_and_gradients(model, items, budget, chunk=1024):
    model.zero_grad()
    total = sum(s.num_trained for s in items)
    value = 0.0
    for batch in micro_batches(items, budget):
        logprobs, _ = score_tokens(model, batch, temperature=0.8, chunk_tokens=chunk)
        m = batch.loss_mask
        old = batch.sampler_logprobs[m]
        out = surrogate_loss(logprobs, batch.advantages[m], token_weights(m, "sequence"), total, old_logprobs=old)
        out.loss.backward()
        value += out.loss.item()
    return value, [p.grad.clone() for p in model.parameters()]


def test_equals_the_loss_of_transformers(model):
    items = sequences()
    batch = collate(items, range(len(items)), pad_id=0)
    logprobs, _ = score_tokens(model, batch)
    labels = batch.input_ids.masked_fill(~batch.loss_mask, -100)
    reference = model(input_ids=batch.input_ids, attention_mask=batch.attention_mask.long(), labels=labels).loss
    torch.testing.assert_close(-logprobs.mean(), reference, atol=1e-5, rtol=1e-5)
    shifted = dataclasses.replace(batch, loss_mask=batch.loss_mask.roll(1, 1) & batch.attention_mask)
    with pytest.raises(AssertionError):
        torch.testing.assert_close(-score_tokens(model, shifted)[0].mean(), reference, atol=1e-5, rtol=1e-5)


def test_padding_changes_nothing(model):
    item = sequences(1)[0]
    long = TrainingSequence(tuple(range(60)), (False,) * 60)
    alone, _ = score_tokens(model, collate([item], [0]))
    padded, _ = score_tokens(model, collate([item, long], [0, 1], pad_id=5))
    torch.testing.assert_close(alone, padded, atol=1e-5, rtol=1e-5)


def test_no_mask_is_built(model, monkeypatch):
    masks = []
    original = torch.nn.functional.scaled_dot_product_attention

    def spy(*args, **kwargs):
        masks.append((kwargs.get("attn_mask"), kwargs.get("is_causal")))
        return original(*args, **kwargs)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", spy)
    score_tokens(model, collate(sequences(), range(7)))
    assert masks == [(None, True)] * 2


@pytest.mark.parametrize(("budget", "chunk"), [(1, 1024), (45, 3), (100, 1024)])
def test_micro_batches_change_neither_loss_nor_gradient(model, budget, chunk):
    items = sequences()
    whole, gradients = loss_and_gradients(model, items, 10_000)
    parts, part_gradients = loss_and_gradients(model, items, budget, chunk)
    assert parts == pytest.approx(whole, rel=1e-5)
    torch.testing.assert_close(part_gradients, gradients, atol=1e-6, rtol=1e-4)
    with pytest.raises(AssertionError):
        torch.testing.assert_close([g * 1.01 for g in part_gradients], gradients, atol=1e-6, rtol=1e-4)


def test_log_probabilities_of_observations_change_neither_loss_nor_gradient(model):
    items = sequences()

    def disturbed(where):
        return [
            dataclasses.replace(
                s,
                sampler_logprobs=tuple(
                    p - 5.0 if m == where else p for p, m in zip(s.sampler_logprobs, s.loss_mask, strict=True)
                ),
            )
            for s in items
        ]

    base = loss_and_gradients(model, items, 100)
    observations = loss_and_gradients(model, disturbed(False), 100)
    assert observations[0] == base[0]
    assert all(torch.equal(a, b) for a, b in zip(observations[1], base[1], strict=True))
    assert loss_and_gradients(model, disturbed(True), 100)[0] != base[0]


def test_scaled_logits_are_refused(model):
    model.config.logits_scaling = 8.0
    with pytest.raises(ConfigError, match="scales its logits"):
        check_scorable(model)
    del model.config.logits_scaling
    check_scorable(model)
