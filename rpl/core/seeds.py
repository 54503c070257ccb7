"""Derives seeds from what they are used for, so that a resumed run draws the same numbers as an uninterrupted one."""

from __future__ import annotations

import hashlib

_MASK = (1 << 64) - 1


def derive_seed(*parts: int | str) -> int:
    """Hashes the parts (run seed, iteration, group, sample, …) to a seed in [0, 2**63).

    The same on every machine and in every process; order and types of the parts matter.

    >>> derive_seed(1, "q1", 0) == derive_seed(1, "q1", 0)
    True
    >>> derive_seed(1, "q1", 0) == derive_seed(1, "q1", 1)
    False
    """
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def uniform(seed: int, counter: int) -> float:
    """Returns the `counter`-th number of a seed's stream, uniform in [0, 1) with 53 bits.

    Counter-based: there is no state to keep, copy or restore. The mixing function is SplitMix64
    (Steele, Lea and Flood, 2014), applied to the seed and to the counter in turn.

    >>> 0.0 <= uniform(7, 0) < 1.0
    True
    """
    return (_mix(_mix(seed & _MASK) ^ counter) >> 11) * 2.0**-53


def _mix(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
