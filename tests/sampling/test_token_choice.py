import math

import pytest
import torch

from rpl.core.seeds import derive_seed, uniform
from rpl.sampling.token_choice import draw


def slow_draw(logits, temperature, u):
    """Inverts the cumulative distribution in plain Python."""
    weights = [math.exp(v / temperature) for v in logits]
    target, running = u * math.fsum(weights), 0.0
    for token, weight in enumerate(weights):
        running += weight
        if running > target:
            return token, math.log(weight / math.fsum(weights))
    raise AssertionError


@pytest.mark.parametrize("vocabulary", [2, 255, 256, 257, 1000])
def test_equals_the_slow_inverse(vocabulary):
    generator = torch.Generator().manual_seed(vocabulary)
    logits = torch.randn(12, vocabulary, generator=generator) * 2
    uniforms = [uniform(5, i) for i in range(12)]
    tokens, logprobs = draw(logits, 0.7, uniforms)
    for row in range(12):
        token, logprob = slow_draw(logits[row].tolist(), 0.7, uniforms[row])
        assert tokens[row].item() == token
        assert logprobs[row].item() == pytest.approx(logprob, abs=1e-5)


def test_the_temperature_matters_to_that_comparison():
    logits = torch.randn(12, 100, generator=torch.Generator().manual_seed(0)) * 2
    _, logprobs = draw(logits, 0.7, [0.5] * 12)
    wrong = [slow_draw(row.tolist(), 1.0, 0.5)[1] for row in logits]
    assert (logprobs - torch.tensor(wrong)).abs().max() > 1e-2


def test_frequencies_follow_the_distribution():
    probabilities = torch.tensor([0.5, 0.3, 0.15, 0.05])
    n = 4000
    tokens, _ = draw(probabilities.log().expand(n, 4), 1.0, [uniform(1, i) for i in range(n)])
    counts = torch.bincount(tokens, minlength=4) / n
    assert (counts - probabilities).abs().max() < 0.03  # about four standard deviations
    shifted, _ = draw(probabilities.log().expand(n, 4), 3.0, [uniform(1, i) for i in range(n)])
    assert (torch.bincount(shifted, minlength=4) / n - probabilities).abs().max() > 0.03


def test_the_ends_of_the_unit_interval_give_tokens_that_have_mass():
    logits = torch.full((1, 700), -math.inf)
    logits[0, 300:310] = 0.0
    assert draw(logits, 1.0, [0.0])[0].item() == 300
    assert draw(logits, 1.0, [1.0 - 2**-53])[0].item() == 309


def test_greedy_takes_the_best_and_reports_temperature_one():
    logits = torch.tensor([[0.0, 2.0, 1.0]])
    token, logprob = draw(logits, 0.0, [0.99])
    assert token.item() == 1
    assert logprob.item() == pytest.approx(torch.log_softmax(logits, -1)[0, 1].item(), abs=1e-6)


def test_uniforms_are_a_function_of_seed_and_counter():
    values = [uniform(seed, i) for seed in range(30) for i in range(30)]
    assert len(set(values)) == 900
    assert all(0 <= v < 1 for v in values)
    assert abs(sum(values) / 900 - 0.5) < 0.04
    assert uniform(3, 4) == values[3 * 30 + 4]
    assert uniform(derive_seed("a"), 0) != uniform(derive_seed("b"), 0)


def test_derived_seeds_are_stable_and_know_types_and_boundaries():
    assert derive_seed(1, "q", 2) == 1027091945370720119
    assert len({derive_seed(1, 23), derive_seed(12, 3), derive_seed("1", 23), derive_seed(23, 1)}) == 4
    assert 0 <= derive_seed("x") < 2**63
