"""What this machine computes fastest: instructions, rate of matrix products, number format, cores and threads.

Nothing here knows of models or settings of RPL. Everything that measures takes well under a second.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from rpl.core.errors import ConfigError

DType = Literal["float32", "bfloat16"]

BF16_FLAGS = ("avx512_bf16", "amx_bf16", "bf16", "svebf16")
"""Flags of /proc/cpuinfo that stand for products of bfloat16 matrices, on x86 and ARM."""
ISA_WITH_BF16 = ("AVX512_CORE_BF16", "AVX512_CORE_FP16", "AVX512_CORE_AMX", "AVX10", "DEFAULT", "ALL")
"""Values of ONEDNN_MAX_CPU_ISA (or what they begin with) under which oneDNN still uses such instructions."""
WORTHWHILE = 1.3
"""How many times as fast as float32 products those in bfloat16 must be; the casts around them cost the rest."""
THREADS_VARIABLE = "RPL_THREADS"
PARAMETERS_PER_THREAD = 4_000_000
"""Parameters that make a thread worth waking: below twice as many, one thread is over before a second has begun."""


# -- number format -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Precision:
    """The number format that a device multiplies matrices in fastest, and why."""

    dtype: DType
    reason: str

    @property
    def trainer(self) -> Literal["32-true", "bf16-mixed"]:
        """What Lightning calls it."""
        return "bf16-mixed" if self.dtype == "bfloat16" else "32-true"


def cpu_flags(cpuinfo: str | None = None) -> frozenset[str]:
    """Returns what the processor says it can do; empty where there is no /proc/cpuinfo.

    Args:
        cpuinfo: Text in the form of /proc/cpuinfo; by default that of this machine.
    """
    if cpuinfo is None:
        try:
            cpuinfo = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return frozenset()
    for line in cpuinfo.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()


def without_bf16(flags: frozenset[str], capability: str, isa: str) -> str | None:
    """Returns why bfloat16 products are emulated on a CPU, or `None` where there are instructions for them.

    Args:
        flags: As from `cpu_flags`; where it is empty, nothing is known and a measurement must decide.
        capability: The variable ATEN_CPU_CAPABILITY, or an empty text.
        isa: The variable ONEDNN_MAX_CPU_ISA, or an empty text.
    """
    if capability.lower() in ("default", "avx2"):
        return f"ATEN_CPU_CAPABILITY={capability}"
    if isa and not isa.upper().startswith(ISA_WITH_BF16):
        return f"ONEDNN_MAX_CPU_ISA={isa}"
    if flags and not flags & {*BF16_FLAGS}:
        return "this CPU has no bfloat16 instructions"
    return None


@cache
def fastest_precision(device: str = "cpu") -> Precision:
    """Chooses between float32 and bfloat16 by instructions, and on a CPU that has them by a measurement of both.

    Args:
        device: Where matrices are multiplied: a type of torch device; others than `cpu` and `cuda` compute float32.
    """
    import torch

    if device not in ("cpu", "cuda"):
        return Precision("float32", f"only CPU and CUDA are measured, not {device}")
    if device == "cuda":
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return Precision("bfloat16", f"{torch.cuda.get_device_name()} multiplies bfloat16")
        return Precision("float32", f"{torch.cuda.get_device_name()} does not multiply bfloat16")
    environment = os.environ.get
    reason = without_bf16(cpu_flags(), environment("ATEN_CPU_CAPABILITY", ""), environment("ONEDNN_MAX_CPU_ISA", ""))
    if reason is not None:
        return Precision("float32", reason)
    # The two are measured in turns and the best of each counts, so that other work on the machine does not decide.
    rounds = [[matmul_rate(dtype, for_s=0.05) for dtype in ("float32", "bfloat16")] for _ in range(3)]
    single, half = map(max, zip(*rounds, strict=True))
    said = f"bfloat16 products ran at {half / 1e9:.0f} GFLOP/s, float32 at {single / 1e9:.0f}"
    return Precision("bfloat16" if half >= WORTHWHILE * single else "float32", said)


def matmul_rate(
    dtype: str,
    rows: int = 256,
    inner: int = 576,
    columns: int = 1536,
    device: str = "cpu",
    for_s: float = 0.3,
) -> float:
    """Measures what products of `(rows, inner)` and `(inner, columns)` matrices reach here, in FLOP/s.

    Args:
        dtype: `float32` or `bfloat16`.
        rows: Tokens that are multiplied at once.
        inner: Width of a token.
        columns: Width of the product.
        device: Where.
        for_s: Seconds to measure for, after one product that does not count.
    """
    import torch

    kind = getattr(torch, dtype)
    with torch.no_grad():
        a, b = (torch.randn(*size, device=device).to(kind) for size in ((rows, inner), (columns, inner)))
        torch.nn.functional.linear(a, b)[0, 0].item()
        began, done = time.perf_counter(), 0
        while (took := time.perf_counter() - began) < for_s or not done:
            torch.nn.functional.linear(a, b)[0, 0].item()
            done += 1
    return done * 2 * rows * inner * columns / took


# -- threads -----------------------------------------------------------------------------------------------------------


def available_cores() -> int:
    """Returns the cores that this process may use: its affinity, and the quota of its control group."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        cores = os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        return cores if quota == "max" else max(1, min(cores, round(int(quota) / int(period))))
    except (OSError, ValueError):
        return cores


def busy_cores(for_s: float = 0.2) -> float:
    """Measures how many cores other processes keep busy; 0 where the system does not say.

    Args:
        for_s: Seconds to watch; this process sleeps meanwhile.
    """
    before = _ticks()
    time.sleep(for_s)
    after = _ticks()
    if before is None or after is None:
        return 0.0
    (busy0, all0), (busy1, all1) = before, after
    return (os.cpu_count() or 1) * (busy1 - busy0) / max(1, all1 - all0)


def _ticks() -> tuple[int, int] | None:
    """Returns busy and all ticks of all cores since the machine was started."""
    try:
        fields = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:9]
    except (OSError, ValueError):
        return None
    user, nice, system, idle, iowait, irq, softirq, steal = map(int, fields)
    busy = user + nice + system + irq + softirq + steal
    return busy, busy + idle + iowait


def thread_count(parameters: int, cores: int, busy: float = 0.0) -> int:
    """Chooses the threads of a matrix product.

    The products of a small model are not worth waking a second thread. A thread that shares its core with another
    process arrives late at the end of every product, and all others wait for it; so a few busy cores are left out.
    Where more than a quarter of the cores are busy, fewer threads would lose more (the system deals out time by thread)
    than waiting costs.

    Args:
        parameters: Of the model.
        cores: That this process may use.
        busy: Cores that other processes keep busy.
    """
    useful = min(cores, max(1, parameters // PARAMETERS_PER_THREAD))
    taken = round(busy)
    free = cores - taken if taken <= cores / 4 else cores
    return min(useful, free)


def wait_passively() -> None:
    """Lets threads sleep while they wait for each other; must be called before torch is imported.

    By default they spin. That is as fast where every thread has a core of its own, and many times slower as soon as
    anything else wants one: the spinning thread keeps its core from the one that everybody waits for.
    """
    for name, value in (("OMP_WAIT_POLICY", "PASSIVE"), ("KMP_BLOCKTIME", "0")):
        os.environ.setdefault(name, value)


def wanted_threads() -> int | None:
    """Returns what the variable RPL_THREADS says.

    Raises:
        ConfigError: It is not a number of at least 1.
    """
    text = os.environ.get(THREADS_VARIABLE)
    if not text:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"{THREADS_VARIABLE}={text!r}: give a whole number of at least 1")
    return int(text)


def use_threads_for(parameters: int) -> int:
    """Sets the threads of torch's products for a model, and returns how many.

    RPL_THREADS decides where it is set, then OMP_NUM_THREADS; otherwise see `thread_count`.

    Args:
        parameters: Of the model that is about to run.

    Raises:
        ConfigError: RPL_THREADS is not a number of at least 1.
    """
    import torch

    count = wanted_threads()
    if count is None:
        if os.environ.get("OMP_NUM_THREADS"):
            return torch.get_num_threads()
        cores = available_cores()
        busy = busy_cores() if parameters >= 2 * PARAMETERS_PER_THREAD and cores > 1 else 0.0
        count = thread_count(parameters, cores, busy)
    torch.set_num_threads(count)
    return count


@contextmanager
def one_thread() -> Iterator[None]:
    """Runs the products of the calling thread alone in it; other threads of the process keep theirs.

    A few queries for the encoder are over before further threads have begun, and those would fight with decoding.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
