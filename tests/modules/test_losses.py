import math

import pytest
import torch

from rpl.core.errors import ConfigError
from rpl.modules.batches.logprobs import gather_trained, token_logprobs
from rpl.modules.losses import (
    cross_entropy_loss,
    kl_penalty,
    normaliser,
    surrogate_loss,
    token_weights,
)

torch.manual_seed(0)


def rand(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


# -- log-probabilities -----------------------------------------------------------------------------------------------


def loop_logprobs(hidden, weight, targets, temperature):
    values, entropies = [], []
    for h, t in zip(hidden, targets, strict=True):
        logits = [float(h @ w) / temperature for w in weight]
        total = math.log(sum(math.exp(x) for x in logits))
        values.append(logits[t] - total)
        entropies.append(-sum(math.exp(x - total) * (x - total) for x in logits))
    return torch.tensor(values), torch.tensor(entropies)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_log_probabilities_equal_the_loop(temperature, chunk):
    hidden, weight, targets = rand(7, 4).float(), rand(9, 4).float(), torch.tensor([0, 8, 3, 3, 1, 5, 2])
    got, spread = token_logprobs(
        hidden, weight, targets, temperature=temperature, chunk_tokens=chunk, entropy="detached"
    )
    want, want_spread = loop_logprobs(hidden, weight, targets, temperature)
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(spread, want_spread, atol=1e-5, rtol=1e-5)
    with pytest.raises(AssertionError):
        torch.testing.assert_close(got, loop_logprobs(hidden, weight, targets, 1.1)[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("entropy", ["none", "detached", "grad"])
def test_chunks_change_no_gradient(entropy):
    results = []
    for chunk in (2, 50):
        hidden, weight = rand(7, 4).float().requires_grad_(), rand(9, 4).float().requires_grad_()
        logprobs, spread = token_logprobs(
            hidden, weight, torch.arange(7), temperature=0.5, chunk_tokens=chunk, entropy=entropy
        )
        assert spread.requires_grad == (entropy == "grad") or chunk == 2
        (logprobs * torch.arange(7) + spread).sum().backward()
        results.append((hidden.grad, weight.grad))
    torch.testing.assert_close(results[0], results[1])


def test_entropy_has_a_gradient_only_when_asked():
    gradients = {}
    for entropy in ("detached", "grad"):
        hidden = rand(3, 4).float().requires_grad_()
        logprobs, spread = token_logprobs(hidden, rand(9, 4).float(), torch.arange(3), entropy=entropy)
        (logprobs.sum() * 0 + spread.sum()).backward()
        gradients[entropy] = hidden.grad.abs().sum()
    assert gradients["detached"] == 0
    assert gradients["grad"] > 0


def test_never_more_logits_than_a_chunk(monkeypatch):
    sizes = []
    original = torch.nn.functional.linear
    spy = lambda h, *a: sizes.append(h.shape[0]) or original(h, *a)  # noqa: E731
    monkeypatch.setattr("rpl.modules.batches.logprobs.F.linear", spy)
    hidden = rand(10, 4).float().requires_grad_()
    token_logprobs(hidden, rand(9, 4).float(), torch.zeros(10, dtype=torch.long), chunk_tokens=4)[0].sum().backward()
    assert max(sizes) == 4
    assert sizes == [4, 4, 2, 2, 4, 4]  # once forward, once again in the backward pass


def test_softcap_bias_and_temperature_zero():
    hidden, weight, bias = rand(3, 4).float(), rand(9, 4).float(), rand(9).float()
    logits = 2.0 * torch.tanh((hidden @ weight.T + bias) / 2.0)
    got, _ = token_logprobs(hidden, weight, torch.arange(3), bias=bias, softcap=2.0)
    torch.testing.assert_close(got, logits.log_softmax(-1)[torch.arange(3), torch.arange(3)])
    with pytest.raises(ConfigError, match="positive temperature"):
        token_logprobs(hidden, weight, torch.arange(3), temperature=0.0)


def test_gather_takes_the_state_before_each_trained_token():
    hidden = torch.arange(12.0).reshape(2, 3, 2)
    mask = torch.tensor([[False, True, True], [False, False, True]])
    assert gather_trained(hidden, mask).tolist() == [[0, 1], [2, 3], [8, 9]]


# -- the surrogate ---------------------------------------------------------------------------------------------------


def loop_surrogate(new, old, advantages, rows, aggregation, z, low, high, beta=0.0, ref=None):
    total = 0.0
    for i, (n, o, a) in enumerate(zip(new, old, advantages, strict=True)):
        ratio = math.exp(n - o)
        term = min(ratio * a, min(max(ratio, 1 - low), 1 + high) * a)
        if beta:
            d = n - ref[i]
            term -= beta * ratio * (math.exp(-d) - 1 + d)
        total += term / (rows.count(rows[i]) if aggregation == "sequence" else 1)
    return -total / z


@pytest.mark.parametrize("aggregation", ["token", "sequence", "constant"])
@pytest.mark.parametrize("beta", [0.0, 0.3])
def test_surrogate_equals_the_loop(aggregation, beta):
    mask = torch.tensor([[False, True, True, True], [False, False, True, False], [False, False, False, False]])
    rows = [0, 0, 0, 1]
    new, old, ref = [-1.0, -0.2, -3.0, -0.7], [-0.5, -1.5, -3.0, -0.6], [-0.9, -0.3, -2.0, -0.7]
    advantages = [1.0, 1.0, -0.5, -2.0]
    z = normaliser(aggregation, tokens=4, sequences=2, constant_length=5)
    got = surrogate_loss(
        torch.tensor(new),
        torch.tensor(advantages),
        token_weights(mask, aggregation),
        z,
        old_logprobs=torch.tensor(old),
        clip_low=0.2,
        clip_high=0.3,
        ref_logprobs=torch.tensor(ref),
        beta=beta,
    )
    want = loop_surrogate(new, old, advantages, rows, aggregation, z, 0.2, 0.3, beta, ref)
    assert float(got.loss) == pytest.approx(want, rel=1e-5)
    assert float(got.loss) != pytest.approx(
        loop_surrogate(new, old, advantages, rows, aggregation, z, 0.2, 0.2, beta, ref), rel=1e-5
    )
    assert float(got.sums["clipped"]) == 1  # ratio e^1.3 with a positive advantage; the others go the allowed way


def test_on_policy_is_the_policy_gradient():
    logprobs = torch.tensor([-1.0, -2.0], requires_grad=True)
    out = surrogate_loss(logprobs, torch.tensor([1.5, -0.5]), torch.ones(2), 2)
    out.loss.backward()
    assert logprobs.grad.tolist() == [-0.75, 0.25]
    assert out.sums["ratio"].item() == 2.0
    assert out.sums["approx_kl"].item() == 0.0


def test_clipped_tokens_have_no_gradient():
    logprobs = torch.tensor([0.0, 0.0, 0.0], requires_grad=True)
    old = torch.tensor([-1.0, -1.0, 1.0])  # ratios e, e, 1/e
    surrogate_loss(logprobs, torch.tensor([1.0, -1.0, -1.0]), torch.ones(3), 1, old_logprobs=old).loss.backward()
    assert logprobs.grad[0] == 0
    assert logprobs.grad[1] > 0
    assert logprobs.grad[2] == 0


def test_an_extreme_ratio_stays_finite():
    logprobs = torch.tensor([0.0], requires_grad=True)
    out = surrogate_loss(
        logprobs,
        torch.tensor([-1.0]),
        torch.ones(1),
        1,
        old_logprobs=torch.tensor([-500.0]),
        ref_logprobs=torch.tensor([500.0]),
        beta=0.1,
    )
    out.loss.backward()
    assert torch.isfinite(out.loss)
    assert torch.isfinite(logprobs.grad).all()


def test_nothing_to_train_is_a_zero_with_a_graph():
    hidden, weight = rand(2, 3, 4).float().requires_grad_(), rand(9, 4).float().requires_grad_()
    mask = torch.zeros(2, 3, dtype=torch.bool)
    logprobs, spread = token_logprobs(gather_trained(hidden, mask), weight, torch.zeros(0, dtype=torch.long))
    z = normaliser("token", 0, 0, 10)
    for out in (
        surrogate_loss(logprobs, torch.zeros(0), token_weights(mask, "sequence"), z, entropies=spread),
        cross_entropy_loss(logprobs, z),
    ):
        assert out.loss.item() == 0.0
        out.loss.backward(retain_graph=True)
        assert hidden.grad.abs().sum() == 0
        assert weight.grad.abs().sum() == 0


def test_entropy_bonus_and_missing_reference():
    args = (torch.tensor([-1.0]), torch.tensor([0.0]), torch.ones(1), 1)
    bonus = surrogate_loss(*args, entropies=torch.tensor([2.0]), entropy_coef=0.1)
    assert float(bonus.loss) == pytest.approx(-0.2)
    with pytest.raises(ValueError, match="reference"):
        surrogate_loss(*args, beta=0.1)


# -- KL: values and gradients on a policy that can be enumerated -------------------------------------------------------


def expected_kl_gradient(theta, ref, estimator, gradient, old=None):
    """Expectation over actions of the gradient of the KL term, by enumeration."""
    theta = theta.clone().requires_grad_()
    logp = theta.log_softmax(0)
    old = logp.detach() if old is None else old
    penalty = kl_penalty(logp - ref, estimator)
    if gradient == "ratio":
        penalty = (logp - old).exp() * penalty
    (old.exp() * penalty).sum().backward()
    return theta.grad


def true_kl_gradient(theta, ref):
    theta = theta.clone().requires_grad_()
    logp = theta.log_softmax(0)
    (logp.exp() * (logp - ref)).sum().backward()
    return theta.grad


THETA = torch.tensor([0.3, -0.5, 1.0, 0.0], dtype=torch.float64)
REF = torch.tensor([0.0, 0.4, -0.2, 0.1], dtype=torch.float64).log_softmax(0)
OLD = torch.tensor([0.5, -0.2, 0.6, 0.3], dtype=torch.float64).log_softmax(0)


@pytest.mark.parametrize(("estimator", "gradient"), [("k2", "plain"), ("k1", "ratio"), ("k3", "ratio")])
def test_kl_gradients_that_are_right(estimator, gradient):
    got = expected_kl_gradient(THETA, REF, estimator, gradient)
    torch.testing.assert_close(got, true_kl_gradient(THETA, REF))


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_with_the_ratio_they_are_right_off_policy_too(estimator):
    torch.testing.assert_close(expected_kl_gradient(THETA, REF, estimator, "ratio", OLD), true_kl_gradient(THETA, REF))


def test_kl_gradients_that_are_wrong():
    truth = true_kl_gradient(THETA, REF)
    assert expected_kl_gradient(THETA, REF, "k1", "plain").abs().max() < 1e-12
    plain = expected_kl_gradient(THETA, REF, "k3", "plain")
    with pytest.raises(AssertionError):
        torch.testing.assert_close(plain, truth)
    torch.testing.assert_close(plain, THETA.softmax(0) - REF.exp())  # that of KL(ref || pi)


def test_kl_values():
    d = torch.tensor([0.5, -1.0])
    assert kl_penalty(d, "k1").tolist() == [0.5, -1.0]
    assert kl_penalty(d, "k2").tolist() == [0.125, 0.5]
    assert kl_penalty(d, "k3").tolist() == pytest.approx([math.exp(-0.5) - 0.5, math.e - 2])
