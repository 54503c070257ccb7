"""Sampling with vLLM: an engine in the training process, or servers; the policy's weights are brought to it.

Each `connect` compares the policy's weights with those that were sent last, sends them if they differ, has the prefix
cache emptied, and then asks engine and trainer for the log-probabilities of the same text. A run whose engine computes
something else than its trainer stops there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from rpl.core.errors import ConfigError, RPLError, SamplerError
from rpl.core.seeds import derive_seed
from rpl.policy.weights.merged import fingerprint, policy_weights
from rpl.sampling.sampler import Completion, Sampler, SamplingParams
from rpl.sampling.stopping import StopDetector, end_tokens
from rpl.sampling.transcripts import Draft, Transcript, TranscriptSession
from rpl.sampling.vllm.backend import KEY, Backend, Deadline, ProbeAnswer, Request
from rpl.sampling.vllm.collective import on_all_ranks, one_line, rank_and_world
from rpl.sampling.vllm.probe import NEW_TOKENS, SEED, TEMPERATURE, mean_gap, model_logprobs, probe_ids

T = TypeVar("T")


class VLLMSampler(Sampler):
    """Draws from a copy of the policy inside vLLM.

    Without `server_urls` the engine is in the training process: each rank has one of its own, whole, on its own
    device. It takes `gpu_memory_utilization` of the device's memory for good, or until the end of the session with
    `sleep`. With `server_urls` rank r uses server r mod n; the servers and the trainer share `sync_dir`. A server is
    started with `VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --logprobs-mode processed_logprobs`; development mode lets
    everyone who reaches it change its weights, so it belongs on a private network.

    A rollout's draws are a function of weights, prompt and seed up to rounding, which depends on what is decoded
    together. In the engine that is the same in every run; on servers it depends on the clock.

    Args:
        server_urls: Addresses such as `[http://127.0.0.1:8000]`; `None` runs the engine in this process.
        dtype: Type of the engine's weights, and of those sent to servers. The nearer to what the trainer computes in,
            the smaller the gap: `bfloat16` for `bf16-mixed`, `float32` for `32-true`.
        max_model_len: Longest transcript in the engine, completion included; at least `rollout.max_context_tokens`.
            (A server has its own.)
        gpu_memory_utilization: Share of the device's memory for the engine's weights and cache, in (0, 1]. The
            trainer needs the rest.
        max_num_seqs: Most completions that are decoded together.
        enforce_eager: No CUDA graphs and no compilation: starts sooner, decodes slower.
        sleep: Move the engine's weights to the host's memory and drop its cache while the trainer updates (GPU).
        stride: Decoding steps in one `advance` of the engine; a program that was finished in it runs during the next.
        max_gap: Largest tolerated mean absolute difference of log-probabilities between engine and trainer, in nats.
        sync_timeout_s: Longest time for bringing the weights over. In the engine it is looked at between weights.
        request_timeout_s: Longest wait for one completion of a server.
        sync_dir: Folder that trainer and servers see under the same name; `None` takes one on this machine.
        engine: Further arguments of vLLM's `EngineArgs`, such as `{kv_cache_dtype: fp8}`.

    Raises:
        ConfigError: A setting is out of its range.
    """

    runs_model = False

    def __init__(
        self,
        server_urls: list[str] | None = None,
        dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16",
        max_model_len: int = 4096,
        gpu_memory_utilization: float = 0.4,
        max_num_seqs: int = 256,
        enforce_eager: bool = False,
        sleep: bool = False,
        stride: int = 8,
        max_gap: float = 0.1,
        sync_timeout_s: float = 300.0,
        request_timeout_s: float = 600.0,
        sync_dir: str | None = None,
        engine: dict[str, Any] | None = None,
    ) -> None:
        if dtype not in ("bfloat16", "float16", "float32"):
            raise ConfigError(f"{KEY}.dtype {dtype!r}: allowed are bfloat16, float16 and float32")
        for name, value in (("max_model_len", max_model_len), ("max_num_seqs", max_num_seqs), ("stride", stride)):
            if value < 1:
                raise ConfigError(f"{KEY}.{name} must be at least 1, got {value}")
        if not 0 < gpu_memory_utilization <= 1:
            raise ConfigError(f"{KEY}.gpu_memory_utilization must be in (0, 1], got {gpu_memory_utilization}")
        for name, limit in (
            ("max_gap", max_gap),
            ("sync_timeout_s", sync_timeout_s),
            ("request_timeout_s", request_timeout_s),
        ):
            if not limit > 0:
                raise ConfigError(f"{KEY}.{name} must be positive, got {limit}")
        if server_urls is not None and not server_urls:
            raise ConfigError(f"{KEY}.server_urls is empty; leave it out to run the engine in this process")
        self.server_urls = server_urls
        self.dtype, self.max_gap, self.stride, self.sleep = dtype, max_gap, stride, sleep
        self.sync_timeout_s, self.request_timeout_s, self.sync_dir = sync_timeout_s, request_timeout_s, sync_dir
        self.engine_settings = {
            "dtype": dtype,
            "max_model_len": max_model_len,
            "gpu_memory_utilization": gpu_memory_utilization,
            "max_num_seqs": max_num_seqs,
            "enforce_eager": enforce_eager,
            **(engine or {}),
        }
        self.last_gap = 0.0
        """Gap of the latest `connect`, in nats: the larger of prompt and sampled tokens."""
        self.last_sync_s = 0.0
        """Seconds that the latest synchronisation took; 0 if the weights were the same."""
        self.syncs = 0
        """Synchronisations so far."""
        self.backend: Backend | None = None
        self.tokenizer: Any = None
        self.ends: frozenset[int] = frozenset()
        self.session: VLLMSession | None = None
        self._sent: Tensor | None = None
        self._detectors: dict[tuple[str, ...], StopDetector] = {}

    # -- weights -------------------------------------------------------------------------------------------------

    def connect(self, model: Any, tokenizer: Any) -> None:
        """Brings the engine's weights up to date and checks that it computes what the model computes. Collective.

        Args:
            model: A transformers causal language model, sharded or not, with LoRA adapters or without.
            tokenizer: Its tokenizer.

        Raises:
            MissingDependencyError: vLLM is not installed.
            ConfigError: vLLM refuses a setting.
            SamplerError: The engine fails, the time limit passes, or the gap is past `max_gap`; on all ranks.
        """
        if self.session is not None:
            raise ConfigError("a session is open: close it before the policy changes")
        if tokenizer is not self.tokenizer:
            self.tokenizer, self._detectors = tokenizer, {}
        self.ends = end_tokens(model, tokenizer)
        on_all_ranks(lambda: self._start(model))
        current = fingerprint(model)
        self.last_sync_s = 0.0
        if any(on_all_ranks(lambda: self._sent is None or not torch.equal(self._sent, current))):
            self._sync(model)
            self._sent = current
        self.last_gap = self.measure_gap(model)
        on_all_ranks(self._check_gap)

    def measure_gap(self, model: Any) -> float:
        """Compares the log-probabilities of engine and model on the probe, without sending any weights. Collective.

        Returns:
            The mean absolute difference in nats, of the prompt's tokens or of the sampled ones, whichever is larger.
        """
        prompt = probe_ids(self.tokenizer)
        answer: ProbeAnswer | None = None
        failure: RPLError | None = None
        try:
            answer = _guarded(lambda: self._engine.probe(prompt, NEW_TOKENS, TEMPERATURE, SEED), "the probe")
        except RPLError as error:
            failure = error
        # Every rank makes the same pass, also one whose engine failed: the pass may be collective.
        sampled = list(answer.ids) if answer is not None else [0] * NEW_TOKENS
        of_prompt, of_sampled = model_logprobs(model, prompt + sampled, len(prompt), TEMPERATURE)

        def compare() -> float:
            if answer is None:
                raise failure or SamplerError("vLLM gave no answer to the probe")
            return max(mean_gap(answer.prompt_logprobs, of_prompt), mean_gap(answer.logprobs, of_sampled))

        return max(on_all_ranks(compare))

    def _start(self, model: Any) -> None:
        if self.backend is not None:
            return
        if self.server_urls is None:
            from rpl.sampling.vllm.engine import ColocatedEngine

            self.backend = _guarded(
                lambda: ColocatedEngine(model, self.engine_settings, self.stride, self.sleep), "starting vLLM"
            )
            return
        from rpl.sampling.vllm.server import VLLMServer

        rank, world = rank_and_world()
        if len(self.server_urls) > world:
            raise ConfigError(
                f"{KEY}.server_urls names {len(self.server_urls)} servers for {world} process(es); each process uses "
                "one, so give at most as many"
            )
        url = self.server_urls[rank % len(self.server_urls)]
        leads = rank < len(self.server_urls)
        dtype = getattr(torch, self.dtype)
        self.backend = VLLMServer(url, dtype, self.sync_dir, rank == 0, leads, self.request_timeout_s)

    def _sync(self, model: Any) -> None:
        deadline = Deadline(self.sync_timeout_s, "bringing the weights to vLLM", "sync_timeout_s")
        weights = policy_weights(model)

        def receive() -> str:
            try:
                return _guarded(lambda: self._engine.receive(weights, deadline), "bringing the weights to vLLM")
            finally:
                for _ in weights:  # gathering may be collective: no rank may leave before the others
                    pass

        places = on_all_ranks(receive)
        on_all_ranks(
            lambda: _guarded(lambda: self._engine.activate(places[0], deadline), "changing the weights of vLLM")
        )
        self._engine.settle()
        self.last_sync_s = deadline.spent
        self.syncs += 1

    def _check_gap(self) -> None:
        if not self.last_gap <= self.max_gap:
            raise SamplerError(
                f"after the weights were brought to vLLM its log-probabilities differ from the trainer's by "
                f"{self.last_gap:.4g} on average; allowed are {self.max_gap:g} ({KEY}.max_gap). Either weights did not "
                f"arrive as they are, or the two compute in different types ({KEY}.dtype is {self.dtype}), or a server "
                "runs without --logprobs-mode processed_logprobs"
            )

    @property
    def _engine(self) -> Backend:
        if self.backend is None:
            raise ConfigError("the sampler has no model yet: call connect(model, tokenizer) first")
        return self.backend

    # -- sessions ------------------------------------------------------------------------------------------------

    def detector(self, stops: tuple[str, ...]) -> StopDetector:
        """Returns the stop detector of the connected tokenizer, which remembers what it learnt about tokens."""
        if stops not in self._detectors:
            self._detectors[stops] = StopDetector(self.tokenizer, stops)
        return self._detectors[stops]

    def open(self) -> VLLMSession:
        """Starts a session; one at a time.

        Raises:
            ConfigError: No policy is connected, or another session is open.
        """
        if self.session is not None:
            raise ConfigError("another session of this sampler is open")
        self.session = VLLMSession(self, self._engine)
        return self.session

    def close(self) -> None:
        """Shuts the engine down, or leaves the servers. Need not be called at the end of a process."""
        if self.backend is not None:
            self.backend.close()
        self.backend = self._sent = None


class VLLMSession(TranscriptSession[Transcript]):
    """Transcripts whose keys and values are in vLLM's prefix cache. Made by `VLLMSampler.open`."""

    def __init__(self, sampler: VLLMSampler, backend: Backend) -> None:
        super().__init__(Transcript)
        self._sampler, self._backend = sampler, backend
        self._ends = sorted(sampler.ends)

    def submit(self, row: int, params: SamplingParams) -> None:
        """Asks for one completion of a transcript.

        Its draws come from a seed made of the row's and of how many tokens were drawn before.

        Raises:
            ConfigError: As for `append`, or the completion does not fit into the engine.
        """
        asking = self._idle(row)
        length, most = len(asking.tokens) + params.max_new_tokens, self._backend.max_model_len
        if length > most:
            raise ConfigError(
                f"a transcript may grow to {length} tokens, but vLLM takes {most}; raise {KEY}.max_model_len (or the "
                "server's --max-model-len), or lower model.rollout.max_context_tokens"
            )
        draft = Draft(params, self._sampler.detector(params.stop), self._sampler.ends)
        seed = derive_seed(asking.seed, asking.drawn)
        request = Request(row, list(asking.tokens), seed, draft, self._ends)
        _guarded(lambda: self._backend.submit(request), "a request")
        asking.draft = draft

    def advance(self) -> list[tuple[int, Completion]]:
        """Decodes for a while; see `SamplerSession.advance`."""
        self._check_open()
        completions = []
        for request in _guarded(self._backend.advance, "decoding"):
            row, draft = self._rows[request.row], request.draft
            row.tokens += draft.ids
            row.drawn += len(draft.ids)
            row.draft = None
            self.prefilled_tokens += len(request.prompt) - request.cached
            completions.append((request.row, draft.completion(self._sampler.tokenizer)))
        return completions

    def drop(self, row: int) -> None:
        """Ends a transcript."""
        if self._known(row).draft is not None:
            _guarded(lambda: self._backend.cancel(row), "a request")
        del self._rows[row]

    def close(self) -> None:
        """Gives up what is being drawn."""
        if self._closed:
            return
        self._closed = True
        self._sampler.session = None
        for number, row in self._rows.items():
            if row.draft is not None:
                self._backend.cancel(number)
        self._rows.clear()
        _guarded(self._backend.rest, "going to sleep")


def _guarded(step: Callable[[], T], what: str) -> T:
    """Runs a step of the engine and names its cause in one line if it fails."""
    try:
        return step()
    except RPLError:
        raise
    except Exception as error:  # vLLM raises what it likes
        raise SamplerError(f"vLLM: {what} failed: {one_line(error)}") from error
