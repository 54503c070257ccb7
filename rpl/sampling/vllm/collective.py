"""Collective operations of the vLLM sampler in a distributed run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import torch.distributed as dist

from rpl.core.errors import RPLError, SamplerError

T = TypeVar("T")


def rank_and_world() -> tuple[int, int]:
    """Returns this process' number and the number of processes; (0, 1) where nothing is distributed."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def on_all_ranks(step: Callable[[], T]) -> list[T]:
    """Runs a step on every rank and hands each of them all results, so that they go on, or fail, together.

    Collective. The step itself must not end early on one rank in the middle of a collective of its own.

    Args:
        step: What to do; its result is sent to the other ranks and should be small.

    Returns:
        The results in the order of the ranks.

    Raises:
        RPLError: The step failed here (then its own error) or on another rank.
    """
    failure: Exception | None = None
    result: T | None = None
    try:
        result = step()
    except Exception as error:  # any failure must reach the other ranks, or they wait forever
        failure = error
    rank, world = rank_and_world()
    told: list[tuple[T | None, str | None]] = [(result, None if failure is None else one_line(failure))]
    if world > 1:
        told = [(None, None)] * world
        dist.all_gather_object(told, (result, None if failure is None else one_line(failure)))
    if failure is not None:
        raise failure
    for other, (_, message) in enumerate(told):
        if message is not None:
            raise SamplerError(f"rank {other} failed, so rank {rank} stops, too: {message}")
    return [cast(T, value) for value, _ in told]


def one_line(error: BaseException) -> str:
    """Returns an error as a single line: its own message if it is one of RPL's, else its type and first line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    first = lines[0] if lines else "no message"
    return " ".join(lines) if isinstance(error, RPLError) else f"{type(error).__name__}: {first}"
