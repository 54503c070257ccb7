"""The names that a run logs, and what each means: the table of the documentation.

Rates and scores are in [0, 1], times in seconds, lengths in tokens.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

LOGGED: Mapping[str, str] = MappingProxyType(
    {
        "train/reward": "Mean reward of the iteration's rollouts.",
        "train/reward_std": "Standard deviation of the rewards.",
        "train/reward_TERM": "Mean of one reward term, before its weight.",
        "train/em": "Exact match of the iteration's rollouts, drawn at the training temperature.",
        "train/kept_rate": "Share of rollouts that entered the loss: those of groups whose rewards differ.",
        "train/groups_all_right": "Share of groups in which every answer was right.",
        "train/groups_all_wrong": "Share of groups in which no answer was right.",
        "train/idle_iterations": "Iterations in a row, up to this one, in which nothing could be learnt.",
        "train/loss": "The loss, normalised over all processes.",
        "train/grad_norm": "Norm of the gradient before clipping.",
        "train/clip_fraction": "Share of tokens whose ratio was clipped.",
        "train/ratio": "Mean ratio of new to old probability.",
        "train/entropy": "Mean entropy of the policy at its trained tokens, in nats.",
        "train/kl": "KL divergence from the start model, in nats a token.",
        "train/approx_kl": "KL divergence between the policy before and after its updates, in nats a token.",
        "train/sampler_gap": "Mean difference of the log-probabilities of sampler and trainer, same weights, in nats.",
        "train/importance": "Mean importance weight.",
        "train/importance_capped": "Share of importance weights at `importance_cap`.",
        "train/tokens": "Trained tokens of the update.",
        "train/lr": "Learning rate.",
        "train/restores": "Times that `CollapseGuard` went back.",
        "rollout/completion_tokens": "Sampled tokens a rollout.",
        "rollout/printed_tokens": "Tokens of results in the context of a rollout.",
        "rollout/turns": "Programs a rollout.",
        "rollout/primitive_calls": "Search calls a rollout.",
        "rollout/program_error_rate": "Share of programs that ended with an error.",
        "rollout/repeated_error_rate": "Share of programs that failed just as an earlier one of the rollout.",
        "rollout/timeout_rate": "Share of programs that ran out of time.",
        "rollout/invalid_rate": "Share of rollouts without an answer.",
        "rollout/truncated_rate": "Share of rollouts that were cut off, or had no room for another completion.",
        "rollout/forged_rate": "Share of rollouts in which the policy wrote a result or a turn of its own.",
        "rollout/retrieval_calls": "Calls of retrieval in the iteration.",
        "rollout/retrieval_empty_rate": "Share of calls that found nothing.",
        "rollout/retrieval_failed_rate": "Share of calls that failed; retries count.",
        "rollout/void_rate": "Share of rollouts lost to infrastructure; past `max_void_rate` the run stops.",
        "time/generate_s": "Time in which rollouts were decoded; overlaps with `time/execute_s`.",
        "time/execute_s": "Time in which programs ran.",
        "time/update_s": "Time of the update.",
        "time/wait_s": "Time in which nothing was decoded because programs were waited for.",
        "time/wait_share": "`time/wait_s` as a share of the iteration.",
        "time/sync_s": "Time in which the weights were brought to vLLM.",
        "time/generate_tokens_per_s": "Sampled tokens a second.",
        "time/update_tokens_per_s": "Tokens of trained transcripts a second.",
        "time/tokens_per_s": "Tokens a second in supervised fine-tuning.",
        "val/SCORE": "Greedy evaluation on validation questions: `em`, `f1`, `all_gold`, `evidence_precision`, "
        "`evidence_recall`, `evidence_f1`, `printed_tokens` and more, as `rpl cycle` has them; `test/SCORE` alike.",
    }
)
"""Name -> meaning. A part in capitals stands for one of several names."""

_PATTERNS = tuple(re.compile(re.sub(r"[A-Z]+", r"\\w+", name)) for name in LOGGED)


def is_documented(name: str) -> bool:
    """Tells whether a logged name is in `LOGGED`; `test/…` counts as `val/…`.

    >>> is_documented("train/reward_em"), is_documented("test/f1"), is_documented("train/whim")
    (True, True, False)
    """
    name = re.sub("^test/", "val/", name)
    return any(pattern.fullmatch(name) for pattern in _PATTERNS)
