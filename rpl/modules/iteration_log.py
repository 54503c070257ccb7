"""The values that an iteration of GRPO logs: sums that add up over ranks, then the means and rates made of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rpl.credit.assignment import CreditedRollout
from rpl.modules.parts.rollout_engine import Rollouts
from rpl.rollouts.failures import repeated_failures

CUT_OFF = ("truncated", "context")
"""Why a rollout counts as truncated: a completion was cut at its last token, or there was no room for another one."""


def rollout_sums(credited: Sequence[CreditedRollout], made: Rollouts, terms: Iterable[str]) -> dict[str, float]:
    """Returns one rank's sums over its rollouts, under the same names on every rank.

    Args:
        credited: What became of the rollouts.
        made: What the engine made, void rollouts included.
        terms: Names of the reward terms.
    """
    scored = [c for c in credited if c.reward is not None]
    totals = [c.reward for c in scored if c.reward is not None]
    rollouts = [c.rollout for c in scored]
    traces = [trace for r in rollouts for trace in r.traces]
    sums = {
        "valid": len(scored),
        "reward": sum(totals),
        "reward_squares": sum(total * total for total in totals),
        "em": sum(c.em for c in scored),
        "kept": sum(c.kept for c in scored),
        "rollouts": len(made.rollouts),
        "completion_tokens": sum(sum(r.completion_mask) for r in rollouts),
        "printed_tokens": sum(r.printed_tokens for r in rollouts),
        "primitive_calls": sum(r.num_calls for r in rollouts),
        "turns": sum(len(r.turns) for r in rollouts),
        "invalid": sum(r.invalid is not None for r in rollouts),
        "truncated": sum(r.invalid in CUT_OFF for r in rollouts),
        "forged": sum(r.invalid == "forgery" for r in rollouts),
        "programs": len(traces),
        "errors": sum(t.error is not None for t in traces),
        "repeated_errors": sum(repeated_failures(r.traces) for r in rollouts),
        "timeouts": sum(t.error is not None and t.error.kind == "timeout" for t in traces),
        "calls": made.calls.attempted,
        "calls_empty": made.calls.empty,
        "calls_failed": made.calls.failed,
    }
    sums |= {f"reward_{name}": sum(c.terms[name] for c in scored) for name in terms} | _group_sums(scored)
    return {name: float(value) for name, value in sums.items()}


def _group_sums(scored: Sequence[CreditedRollout]) -> dict[str, int]:
    """Counts groups, and those whose rewards are all equal: all right, or all wrong."""
    members: dict[str, list[CreditedRollout]] = {}
    for credited in scored:
        members.setdefault(credited.rollout.group_id, []).append(credited)
    equal = [group for group in members.values() if len({c.reward for c in group}) == 1]
    right = sum(all(c.em == 1.0 for c in group) for group in equal)
    return {"groups": len(members), "all_right": right, "all_wrong": len(equal) - right}


def rollout_log(sums: dict[str, float], terms: Iterable[str]) -> dict[str, float]:
    """Returns the logged means and rates of `rollout_sums` over all ranks."""
    valid, programs, groups = max(1.0, sums["valid"]), max(1.0, sums["programs"]), max(1.0, sums["groups"])
    mean = sums["reward"] / valid
    log = {
        "train/reward": mean,
        "train/reward_std": max(0.0, sums["reward_squares"] / valid - mean**2) ** 0.5,
        "train/em": sums["em"] / valid,
        "train/kept_rate": sums["kept"] / valid,
        "train/groups_all_right": sums["all_right"] / groups,
        "train/groups_all_wrong": sums["all_wrong"] / groups,
        "rollout/void_rate": 1.0 - sums["valid"] / max(1.0, sums["rollouts"]),
        "rollout/retrieval_calls": sums["calls"],
        "rollout/retrieval_empty_rate": sums["calls_empty"] / max(1.0, sums["calls"]),
        "rollout/retrieval_failed_rate": sums["calls_failed"] / max(1.0, sums["calls"]),
        "rollout/program_error_rate": sums["errors"] / programs,
        "rollout/repeated_error_rate": sums["repeated_errors"] / programs,
        "rollout/timeout_rate": sums["timeouts"] / programs,
        "rollout/invalid_rate": sums["invalid"] / valid,
        "rollout/truncated_rate": sums["truncated"] / valid,
        "rollout/forged_rate": sums["forged"] / valid,
    }
    log |= {f"train/reward_{name}": sums[f"reward_{name}"] / valid for name in terms}
    for name in ("completion_tokens", "printed_tokens", "primitive_calls", "turns"):
        log[f"rollout/{name}"] = sums[name] / valid
    return log


def update_log(totals: dict[str, float], updates: int) -> dict[str, float]:
    """Means over the trained tokens of all updates. An iteration without work logs a loss of 0 and nothing else.

    Args:
        totals: Sums over the iteration's updates.
        updates: Their number.
    """
    tokens = max(1.0, totals.get("tokens", 0.0))
    log = {
        "train/loss": totals.get("loss", 0.0) / updates,
        "train/tokens": totals.get("tokens", 0.0),
        "train/grad_norm": totals.get("grad_norm", 0.0) / updates,
    }
    names = {"ratio": "ratio", "clipped": "clip_fraction", "approx_kl": "approx_kl", "kl": "kl", "entropy": "entropy"}
    names |= {"importance": "importance", "importance_capped": "importance_capped"}
    log |= {f"train/{name}": totals[key] / tokens for key, name in names.items() if key in totals}
    if totals.get("gap_tokens"):
        log["train/sampler_gap"] = totals["gap"] / totals["gap_tokens"]
    return log


def time_log(seconds: dict[str, float], wall_s: float, generated: float, updated: float) -> dict[str, float]:
    """Seconds of the slowest rank, tokens a second over all ranks, and the share of time that programs held up.

    Args:
        seconds: `generate_s`, `execute_s`, `wait_s`, `sync_s` and `update_s`, each of the slowest rank.
        wall_s: Seconds of the rollouts on the slowest rank.
        generated: Sampled tokens of all ranks.
        updated: Tokens of the trained transcripts of all ranks.
    """
    return {f"time/{name}": value for name, value in seconds.items()} | {
        "time/generate_tokens_per_s": generated / max(seconds["generate_s"], 1e-9),
        "time/update_tokens_per_s": updated / max(seconds["update_s"], 1e-9),
        "time/wait_share": seconds["wait_s"] / max(wall_s + seconds["update_s"], 1e-9),
    }
