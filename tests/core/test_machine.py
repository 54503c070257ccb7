"""Number format, rate and threads: the rules, and that what is measured is there."""

import os
import subprocess
import sys
import threading

import pytest
import torch

from rpl.core import machine
from rpl.core.errors import ConfigError
from rpl.core.machine import cpu_flags, fastest_precision, thread_count, without_bf16

GENOA = frozenset({"avx2", "avx512f", "avx512_bf16"})
HASWELL = frozenset({"avx", "avx2"})


@pytest.fixture
def threads(monkeypatch):
    """Nothing set from outside; torch's threads are put back."""
    before = torch.get_num_threads()
    for name in ("OMP_NUM_THREADS", machine.THREADS_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    yield monkeypatch
    torch.set_num_threads(before)


def test_flags_are_read_in_the_form_of_x86_and_of_arm():
    assert cpu_flags("processor\t: 0\nflags\t\t: fpu avx2 avx512_bf16\n") == {"fpu", "avx2", "avx512_bf16"}
    assert cpu_flags("Features\t: fp asimd bf16\n") == {"fp", "asimd", "bf16"}
    assert cpu_flags("nothing") == frozenset()


@pytest.mark.parametrize(
    ("flags", "capability", "isa", "reason"),
    [
        (GENOA, "", "", None),
        (frozenset({"asimd", "bf16"}), "", "", None),
        (HASWELL, "", "", "no bfloat16 instructions"),
        (GENOA, "avx2", "", "ATEN_CPU_CAPABILITY=avx2"),
        (GENOA, "default", "", "ATEN_CPU_CAPABILITY=default"),
        (GENOA, "avx512", "", None),
        (GENOA, "", "AVX2", "ONEDNN_MAX_CPU_ISA=AVX2"),
        (GENOA, "", "AVX512_CORE_VNNI", "ONEDNN_MAX_CPU_ISA=AVX512_CORE_VNNI"),
        (GENOA, "", "avx512_core_bf16", None),
        (GENOA, "", "AVX512_CORE_AMX", None),
        (frozenset(), "", "", None),  # unknown: measured
    ],
)
def test_emulated_bfloat16_is_known_by_instructions(flags, capability, isa, reason):
    found = without_bf16(flags, capability, isa)
    assert found is None if reason is None else reason in found


@pytest.mark.parametrize(("half", "dtype"), [(2.0, "bfloat16"), (1.1, "float32"), (0.05, "float32")])
def test_a_measurement_decides_where_there_are_instructions(half, dtype, monkeypatch):
    monkeypatch.setattr(machine, "without_bf16", lambda *_: None)
    monkeypatch.setattr(machine, "matmul_rate", lambda kind, **_: {"float32": 1e11, "bfloat16": half * 1e11}[kind])
    fastest_precision.cache_clear()
    chosen = fastest_precision("cpu")
    fastest_precision.cache_clear()
    assert chosen.dtype == dtype
    assert "float32 at 100" in chosen.reason
    assert chosen.trainer == {"bfloat16": "bf16-mixed", "float32": "32-true"}[dtype]


def test_no_measurement_where_bfloat16_is_emulated(monkeypatch):
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "avx2")
    monkeypatch.setattr(machine, "matmul_rate", lambda *_, **__: pytest.fail("an emulated product may take minutes"))
    fastest_precision.cache_clear()
    chosen = fastest_precision("cpu")
    fastest_precision.cache_clear()
    assert (chosen.dtype, chosen.reason) == ("float32", "ATEN_CPU_CAPABILITY=avx2")


def test_a_rate_is_measured():
    assert machine.matmul_rate("float32", 8, 16, 16, for_s=0.0) > 0


def test_threads_fit_model_and_machine():
    assert thread_count(30_000, 64) == 1
    assert thread_count(134_000_000, 2) == 2
    assert thread_count(134_000_000, 64) == 33
    assert thread_count(4_000_000_000, 64) == 64
    assert thread_count(4_000_000_000, 64, busy=3.4) == 61  # a few busy cores are left out
    assert thread_count(4_000_000_000, 64, busy=30) == 64  # with many, fewer threads get less
    assert thread_count(134_000_000, 2, busy=1.0) == 2
    assert thread_count(134_000_000, 1, busy=5.0) == 1


def test_variables_beat_the_choice(threads):
    assert machine.use_threads_for(30_000) == torch.get_num_threads() == 1
    threads.setenv(machine.THREADS_VARIABLE, "2")
    assert machine.use_threads_for(30_000) == torch.get_num_threads() == 2
    threads.delenv(machine.THREADS_VARIABLE)
    threads.setenv("OMP_NUM_THREADS", "7")
    assert machine.use_threads_for(30_000) == 2  # left as it is
    threads.setenv(machine.THREADS_VARIABLE, "none")
    with pytest.raises(ConfigError, match="RPL_THREADS='none': give a whole number"):
        machine.use_threads_for(30_000)


def test_one_thread_is_that_of_the_caller_alone(threads):
    torch.set_num_threads(2)
    inside, goes_on, seen = threading.Event(), threading.Event(), []

    def encode():
        with machine.one_thread():
            seen.append(torch.get_num_threads())
            inside.set()
            goes_on.wait()
        seen.append(torch.get_num_threads())

    other = threading.Thread(target=encode)
    other.start()
    inside.wait()
    meanwhile = torch.get_num_threads()
    goes_on.set()
    other.join()
    assert (meanwhile, seen) == (2, [1, 2])


def test_the_command_lets_threads_sleep_before_torch_is_there():
    script = (
        "import sys, os, rpl.cli.main as m\n"
        "m.importlib.import_module = lambda name: sys.exit('torch' in sys.modules or os.environ['OMP_WAIT_POLICY'])\n"
        "m.run(['doctor'])"
    )
    bare = {k: v for k, v in os.environ.items() if k != "OMP_WAIT_POLICY"}
    for environment, expected in ((bare, "PASSIVE"), ({**bare, "OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE")):
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment)
        assert done.stderr.strip() == expected
