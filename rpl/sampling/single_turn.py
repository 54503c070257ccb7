"""Draws one completion for each prompt, where no programs run in between."""

from __future__ import annotations

from collections.abc import Sequence

from rpl.sampling.sampler import Completion, Sampler, SamplingParams


def complete(
    sampler: Sampler,
    prompts: Sequence[Sequence[int]],
    seeds: Sequence[int],
    params: SamplingParams,
    batch_size: int,
) -> list[Completion]:
    """Continues each prompt by one completion.

    Args:
        sampler: Connected to the policy.
        prompts: Token ids.
        seeds: One a prompt; a completion depends on its prompt, its seed and nothing else.
        params: Length and temperature.
        batch_size: Most prompts in flight; a finished one gives its place to the next.

    Returns:
        One completion a prompt, in order.
    """
    waiting = iter(zip(prompts, seeds, strict=True))
    done: dict[int, Completion] = {}
    with sampler.open() as session:
        started = 0
        while len(done) < len(prompts):
            while started < len(prompts) and started - len(done) < batch_size:
                session.submit(session.add(*next(waiting)), params)  # rows are numbered from 0, like the prompts
                started += 1
            for row, completion in session.advance():
                done[row] = completion
                session.drop(row)
    return [done[row] for row in range(len(prompts))]
