"""A vLLM server as an engine: token ids over HTTP, weights through a folder that both sides see.

Uses `/v1/completions`, and for the weights the endpoints `/collective_rpc` and `/reset_prefix_cache` that a vLLM server
offers in development mode.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import tempfile
import time
import urllib.error
import urllib.request
import weakref
from collections.abc import Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rpl.core.errors import ConfigError, SamplerError
from rpl.sampling.vllm.backend import KEY, Backend, Deadline, ProbeAnswer, Request
from rpl.sampling.vllm.collective import one_line

SERVE = "VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --logprobs-mode processed_logprobs"
"""How a server has to be started."""

_FILE_BYTES = 2 << 30
_RETRY_S = 0.2
_MOST_AT_ONCE = 1024
_OPEN = {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
_OPEN |= {"presence_penalty": 0.0, "frequency_penalty": 0.0}
"""The whole vocabulary, whatever the model's own generation settings say."""


class VLLMServer(Backend):
    """One server.

    Args:
        url: Such as `http://127.0.0.1:8000`. If the environment holds `VLLM_API_KEY`, it is sent along.
        dtype: Type that weights are written in.
        folder: Where weights are written, seen by trainer and server under the same name; `None` takes one in memory
            (`/dev/shm`) or among the temporary files, for a server on this machine.
        writes: Whether this process writes the weights (rank 0).
        leads: Whether this process tells the server to load them (one of those that use it).
        timeout_s: Longest wait for one completion.

    Raises:
        SamplerError: No vLLM server answers there.
    """

    def __init__(
        self, url: str, dtype: torch.dtype, folder: str | None, writes: bool, leads: bool, timeout_s: float
    ) -> None:
        self.url = url.rstrip("/")
        self._dtype, self._writes, self._leads, self._timeout_s = dtype, writes, leads, timeout_s
        if folder is None:
            folder = "/dev/shm" if os.access("/dev/shm", os.W_OK) else tempfile.gettempdir()
        self._parent = Path(folder)
        self._cleanup: weakref.finalize[Any, Any] | None = None
        self._pool = ThreadPoolExecutor(_MOST_AT_ONCE, thread_name_prefix="vllm")
        self._running: dict[Future[Any], Request] = {}
        models = self._call("GET", "/v1/models", timeout=min(timeout_s, 30.0)).get("data") or []
        if not models or models[0].get("max_model_len") is None:
            raise SamplerError(f"{self.url} does not answer as a vLLM server does (/v1/models)")
        self.name, self.max_model_len = models[0]["id"], int(models[0]["max_model_len"])

    def receive(self, weights: Iterable[tuple[str, Tensor]], deadline: Deadline) -> str:
        """Writes the weights as safetensors files of at most 2 GiB, on one rank."""
        if not self._writes:
            return ""
        self.settle()
        folder = Path(tempfile.mkdtemp(prefix="rpl-weights-", dir=self._parent))
        self._cleanup = weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        part: dict[str, Tensor] = {}
        size = files = 0
        for name, value in deadline.watch(weights):
            part[name] = value.to("cpu", self._dtype, copy=True).contiguous()  # tied weights share memory
            size += part[name].nbytes
            if size >= _FILE_BYTES:
                files, part, size = _write(folder, files, part), {}, 0
        if part:
            _write(folder, files, part)
        os.chmod(folder, 0o755)  # the server may run as someone else
        return str(folder)

    def activate(self, place: str, deadline: Deadline) -> None:
        """Has the server load the folder and empty its prefix cache."""
        if not self._leads:
            return
        body = {"method": "reload_weights", "kwargs": {"weights_path": place}}
        self._develop("/collective_rpc", body | {"timeout": deadline.remaining}, deadline)
        # Completions that were given up may still hold blocks of the cache for a moment.
        while not self._develop("/reset_prefix_cache", None, deadline).get("success", True):
            time.sleep(min(_RETRY_S, deadline.remaining))

    def probe(self, prompt: list[int], new_tokens: int, temperature: float, seed: int) -> ProbeAnswer:
        """See `Backend.probe`."""
        more = {"max_tokens": new_tokens, "temperature": temperature, "seed": seed}
        choice = self._complete(prompt, more | {"prompt_logprobs": 0, "ignore_eos": True})
        try:
            scored = zip(prompt[1:], choice["prompt_logprobs"][1:], strict=True)
            of_prompt = tuple(float(table[str(token)]["logprob"]) for token, table in scored)
        except (KeyError, TypeError, ValueError) as error:
            raise self._unexpected(error) from error
        return ProbeAnswer(of_prompt, tuple(choice["token_ids"]), tuple(choice["logprobs"]["token_logprobs"]))

    def submit(self, request: Request) -> None:
        """Sends a request from a thread of its own."""
        params = request.draft.params
        more: dict[str, Any] = {
            "max_tokens": params.max_new_tokens,
            "temperature": params.temperature,
            "seed": request.seed,
            "stop": list(params.stop),
            "include_stop_str_in_output": True,
            "skip_special_tokens": False,
            "stop_token_ids": request.end_tokens,
        }
        self._running[self._pool.submit(self._complete, request.prompt, more)] = request

    def advance(self) -> list[Request]:
        """Waits until at least one completion is there."""
        if not self._running:
            return []
        finished, _ = wait(self._running, return_when=FIRST_COMPLETED)
        done = []
        for future in [future for future in self._running if future in finished]:
            request = self._running.pop(future)
            choice = future.result()
            for token, logprob in zip(choice["token_ids"], choice["logprobs"]["token_logprobs"], strict=True):
                if request.draft.feed(int(token), float(logprob)):
                    break  # the server decodes step by step and may notice a stop text a token later
            if request.draft.reason is None:
                if choice["finish_reason"] != "stop":
                    raise SamplerError(f"{self.url} broke a completion off ({choice['finish_reason']})")
                request.draft.reason = "stop"
            request.cached = choice["cached_tokens"]
            done.append(request)
        return done

    def cancel(self, row: int) -> None:
        """Forgets a request; the server finishes it, and its reply is dropped."""
        for future in [future for future, request in self._running.items() if request.row == row]:
            del self._running[future]
            future.cancel()

    def settle(self) -> None:
        """Removes the weights' folder."""
        if self._cleanup is not None:
            self._cleanup()

    def close(self) -> None:
        """Removes the weights' folder and waits for no answer."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self.settle()

    # -- the wire ------------------------------------------------------------------------------------------------

    def _complete(self, prompt: list[int], more: dict[str, Any]) -> dict[str, Any]:
        body = {"model": self.name, "prompt": prompt, "logprobs": 0, "return_token_ids": True, **_OPEN, **more}
        answer = self._call("POST", "/v1/completions", body, self._timeout_s)
        try:
            choice: dict[str, Any] = answer["choices"][0]
            if len(choice["token_ids"]) != len(choice["logprobs"]["token_logprobs"]):
                raise ValueError("as many log-probabilities as tokens are needed")
            details = (answer.get("usage") or {}).get("prompt_tokens_details") or {}
            choice["cached_tokens"] = int(details.get("cached_tokens") or 0)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise self._unexpected(error) from error
        return choice

    def _develop(self, path: str, body: Any, deadline: Deadline) -> Any:
        try:
            return self._call("POST", path, body, deadline.remaining)
        except _NotFoundError as error:
            raise SamplerError(f"{self.url} takes no weights; start it with: {SERVE}") from error
        except _TimedOutError as error:
            raise deadline.error() from error

    def _call(self, method: str, path: str, body: Any = None, timeout: float | None = None) -> Any:
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get("VLLM_API_KEY"):
            headers["Authorization"] = f"Bearer {key}"
        data = None if body is None else json.dumps(body).encode()
        where = f"{self.url}{path}"
        try:
            request = urllib.request.Request(where, data, headers, method=method)
        except ValueError as error:
            raise ConfigError(f"{KEY}.server_urls: {self.url!r} is no address like http://127.0.0.1:8000") from error
        try:
            with urllib.request.urlopen(request, timeout=timeout) as response:
                text = response.read()
            return json.loads(text) if text else {}
        except urllib.error.HTTPError as error:
            kind = _NotFoundError if error.code == 404 else SamplerError
            raise kind(f"{where} answered {error.code}: {_detail(error)}") from error
        except (TimeoutError, urllib.error.URLError, http.client.HTTPException, OSError) as error:
            reason = getattr(error, "reason", error)
            if isinstance(reason, TimeoutError):
                raise _TimedOutError(f"{where} gave no answer within {timeout:g} s") from error
            raise SamplerError(f"{where} cannot be reached: {one_line(error)}; start it with: {SERVE}") from error
        except ValueError as error:
            raise SamplerError(f"{where} answered with something that is not JSON: {one_line(error)}") from error

    def _unexpected(self, error: Exception) -> SamplerError:
        return SamplerError(
            f"{self.url} answered without the token ids and log-probabilities that were asked for ({one_line(error)}); "
            "RPL needs a vLLM of 0.32 or newer"
        )


def _write(folder: Path, number: int, part: dict[str, Tensor]) -> int:
    from safetensors.torch import save_file

    save_file(part, folder / f"model-{number:05d}.safetensors", metadata={"format": "pt"})
    return number + 1


class _NotFoundError(SamplerError):
    """The server does not know the address."""


class _TimedOutError(SamplerError):
    """The server took too long."""


def _detail(error: urllib.error.HTTPError) -> str:
    """Takes the message out of vLLM's error body, or its first line."""
    text = error.read(20_000).decode("utf-8", "replace")
    try:
        body = json.loads(text)
        inner = body.get("error", body)
        text = str(inner.get("message", inner) if isinstance(inner, dict) else inner)
    except (ValueError, AttributeError):
        pass
    return next((line.strip() for line in text.splitlines() if line.strip()), "no message")[:300]
