"""The clipped surrogate, KL estimators and cross-entropy. Pure functions on flat tokens.

Everything is a *sum over trained tokens*, so that micro-batches add up to the same number however they are cut; the
normaliser (tokens or sequences of the whole optimizer batch, over all ranks) comes from outside. An empty batch gives
a zero that still has a graph, so that every rank can enter the same collectives.

Shapes: N is the number of trained tokens of a micro-batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Aggregation = Literal["token", "sequence", "constant"]
KLEstimator = Literal["k1", "k2", "k3"]
KLGradient = Literal["plain", "ratio"]

MAX_LOG_RATIO = 20.0
"""Log-ratios are clamped to this magnitude before `exp`, so that one token cannot overflow."""


def token_weights(loss_mask: Tensor, aggregation: Aggregation) -> Tensor:
    """Weights of the trained tokens, before division by the normaliser of `normaliser`.

    - `token`: 1; every token of the optimizer batch counts the same (DAPO, eq. 8 of arXiv:2503.14476).
    - `sequence`: 1 / length of the token's row, so that every sequence counts the same (GRPO, eq. 3 of
      arXiv:2402.03300).
    - `constant`: 1, to be divided by sequences times a constant length (Dr. GRPO, arXiv:2503.20783).

    Args:
        loss_mask: `(B, T)` bool.
        aggregation: The kind.

    Returns:
        `(N,)` float32, in row-major order of `loss_mask`.
    """
    if aggregation == "sequence":
        lengths = loss_mask.sum(-1, keepdim=True).clamp(min=1)
        return (1.0 / lengths).expand(loss_mask.shape)[loss_mask]
    return torch.ones(int(loss_mask.sum()), device=loss_mask.device)


def normaliser(aggregation: Aggregation, tokens: float, sequences: float, constant_length: int) -> float:
    """The number by which the weighted sum over the whole optimizer batch is divided.

    Args:
        aggregation: As for `token_weights`.
        tokens: Trained tokens of the optimizer batch, over all ranks.
        sequences: Sequences with at least one trained token, over all ranks.
        constant_length: The length that stands for every sequence under `constant`.

    Returns:
        At least 1, so that an empty batch divides zero by something.

    >>> normaliser("token", 120, 4, 64), normaliser("sequence", 120, 4, 64), normaliser("constant", 120, 4, 64)
    (120, 4, 256)
    """
    return max(1, {"token": tokens, "sequence": sequences, "constant": sequences * constant_length}[aggregation])


@dataclass(frozen=True, slots=True)
class LossOutput:
    """A loss to call `backward` on, and detached sums over tokens for the log."""

    loss: Tensor
    """Scalar; a sum, divided by the normaliser."""
    sums: dict[str, Tensor]
    """Detached scalar sums over trained tokens; divide by `tokens` for means."""
    logprobs: Tensor
    """`(N,)` log-probabilities that the loss was computed from, detached."""


def log_ratio(logprobs: Tensor, old_logprobs: Tensor | None) -> Tensor:
    """`log(pi / pi_old)`, clamped; without `old_logprobs` it is 0 with the gradient of `logprobs` (exactly on-policy).

    Args:
        logprobs: `(N,)` under the current weights.
        old_logprobs: `(N,)` under the weights that sampled, or `None` when these are the current ones.
    """
    old = logprobs.detach() if old_logprobs is None else old_logprobs
    return (logprobs - old).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def truncated_importance(trainer_logprobs: Tensor, sampler_logprobs: Tensor, cap: float) -> Tensor:
    """`min(pi_trainer / pi_sampler, cap)`, a weight a token for samples that another engine drew.

    Both are of the weights that sampled; they differ because engines round differently. Truncated importance sampling,
    Yao et al. 2025, "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training".

    Args:
        trainer_logprobs: `(N,)` as the trainer computes them; no gradient flows through the weight.
        sampler_logprobs: `(N,)` as the sampler reported them.
        cap: Largest weight, positive.

    >>> truncated_importance(torch.zeros(2), torch.tensor([0.0, -9.0]), 2.0).tolist()
    [1.0, 2.0]
    """
    return log_ratio(trainer_logprobs.detach(), sampler_logprobs).exp().clamp(max=cap)


def kl_penalty(log_pi_over_ref: Tensor, estimator: KLEstimator) -> Tensor:
    """Estimates KL(pi || ref) from samples of pi, a value a token (Schulman, "Approximating KL divergence").

    With `d = log pi - log ref`: `k1 = d` (unbiased, can be negative), `k2 = d^2 / 2` (biased, non-negative),
    `k3 = exp(-d) - 1 + d` (unbiased, non-negative).

    The *gradient* is another matter, because the samples depend on pi too. Differentiated as they stand, `k1` has
    expectation zero, `k2` gives the gradient of KL(pi || ref) exactly when on-policy, and `k3` gives that of the
    opposite divergence. Multiplied by the (differentiated) importance ratio first, `k1` and `k3` are both unbiased for
    KL(pi || ref), off-policy too; `k1` times ratio is what "KL in the reward" amounts to. See `surrogate_loss`.

    Args:
        log_pi_over_ref: `(N,)`.
        estimator: Which one.
    """
    d = log_pi_over_ref.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    if estimator == "k1":
        return d
    if estimator == "k2":
        return d**2 / 2
    return torch.expm1(-d) + d


def surrogate_loss(
    logprobs: Tensor,
    advantages: Tensor,
    weights: Tensor,
    normaliser: float,
    *,
    old_logprobs: Tensor | None = None,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    ref_logprobs: Tensor | None = None,
    beta: float = 0.0,
    kl_estimator: KLEstimator = "k3",
    kl_gradient: KLGradient = "ratio",
    entropies: Tensor | None = None,
    entropy_coef: float = 0.0,
) -> LossOutput:
    """The clipped policy-gradient loss: `-sum_n w_n [min(rho A, clip(rho, 1 - low, 1 + high) A) - beta KL + c S] / Z`.

    `rho = pi / pi_old`: eq. 7 of arXiv:1707.06347 with the group advantages of arXiv:2402.03300 and the two-sided clip
    of arXiv:2503.14476.

    Args:
        logprobs: `(N,)` log-probabilities of the trained tokens, with gradient.
        advantages: `(N,)` advantages, one a token.
        weights: `(N,)` from `token_weights`.
        normaliser: Z, the same on all ranks.
        old_logprobs: `(N,)` denominators of the ratio; `None` when exactly on-policy (ratio 1).
        clip_low: Lower clip width.
        clip_high: Upper clip width.
        ref_logprobs: `(N,)` under the frozen reference; needed when `beta` is not 0.
        beta: Weight of the KL term.
        kl_estimator: See `kl_penalty`.
        kl_gradient: `ratio` multiplies the estimator by `rho` before differentiation, which makes its gradient
            unbiased; `plain` differentiates the estimator as it stands.
        entropies: `(N,)` entropies, for the log and the bonus.
        entropy_coef: c, weight of the entropy bonus.

    Returns:
        The loss, and sums over tokens: `tokens`, `ratio`, `clipped`, `approx_kl` (k3 of old against new), `kl`
        (against the reference) and `entropy` where known.
    """
    shift = log_ratio(logprobs, old_logprobs)
    ratio = shift.exp()
    unclipped = ratio * advantages
    clipped = ratio.clamp(1.0 - clip_low, 1.0 + clip_high) * advantages
    objective = torch.minimum(unclipped, clipped)
    with torch.no_grad():
        sums = {
            "tokens": torch.tensor(float(logprobs.numel()), device=logprobs.device),
            "ratio": ratio.sum(),
            "clipped": (clipped < unclipped).sum().float(),
            "approx_kl": kl_penalty(-shift, "k3").sum(),
        }
    if beta != 0.0:
        if ref_logprobs is None:
            raise ValueError("beta is not 0 but there are no reference log-probabilities")
        penalty = kl_penalty(logprobs - ref_logprobs, kl_estimator)
        sums["kl"] = penalty.detach().sum()
        objective = objective - beta * (ratio * penalty if kl_gradient == "ratio" else penalty)
    if entropies is not None:
        sums["entropy"] = entropies.detach().sum()
        if entropy_coef != 0.0:
            objective = objective + entropy_coef * entropies
    return LossOutput(-(weights * objective).sum() / normaliser, sums, logprobs.detach())


def cross_entropy_loss(logprobs: Tensor, normaliser: float) -> LossOutput:
    """Negative log-likelihood of the trained tokens, summed and divided by `normaliser` (the batch's token count).

    Args:
        logprobs: `(N,)` at temperature 1, with gradient.
        normaliser: Trained tokens of the optimizer batch, over all ranks.

    >>> cross_entropy_loss(torch.tensor([-1.0, -3.0]), normaliser=2).loss.item()
    2.0
    """
    total = -logprobs.sum()
    count = torch.tensor(float(logprobs.numel()), device=logprobs.device)
    return LossOutput(total / normaliser, {"tokens": count, "nll": total.detach()}, logprobs.detach())
