"""vLLM as the sampler sees it, in process and as a server, around a small model that really computes."""

import contextlib
import copy
import json
import sys
import threading
import time
import types
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import torch
from safetensors.torch import load_file


@dataclass
class Faults:
    """What goes wrong."""

    forget: tuple = ()
    """Weights whose names hold one of these do not arrive."""
    reload: str | None = None
    """Loading raises this."""
    reload_s: float = 0.0
    """Loading takes so long after its first weight."""
    raw_logprobs: bool = False
    """Log-probabilities are given at temperature 1, whatever the sampling temperature is."""
    break_off: bool = False
    """Completions are ended after three tokens."""
    refuse_reset: int = 0
    """Times that the prefix cache is not emptied."""
    no_development: bool = False
    """The server was started without its development mode."""
    token_ids: bool = True
    """The server knows how to return token ids."""
    slow_completion_s: float = 0.0


@dataclass
class Part:
    token_ids: list
    logprobs: list
    finish_reason: str | None = None


@dataclass
class Logprob:
    logprob: float


@dataclass
class Output:
    request_id: str
    prompt_token_ids: list
    outputs: list
    finished: bool
    prompt_logprobs: list | None = None
    num_cached_tokens: int = 0


class Weights:
    """The engine's copy of the model; starts from noise, as vLLM does with `load_format: dummy`."""

    def __init__(self, model, faults):
        self.model = copy.deepcopy(model).eval()
        self.faults = faults
        self.loads = self.resets = 0
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.normal_(0, 0.02, generator=generator)

    def load(self, pairs):
        if self.faults.reload is not None:
            raise RuntimeError(self.faults.reload)
        own = dict(self.model.named_parameters(remove_duplicate=False))
        with torch.no_grad():
            for name, value in pairs:
                if not any(part in name for part in self.faults.forget):
                    own[name].copy_(value)
                time.sleep(self.faults.reload_s)
        self.loads += 1

    def reset(self):
        if self.faults.refuse_reset > 0:
            self.faults.refuse_reset -= 1
            return False
        self.resets += 1
        return True

    def logits(self, ids):
        with torch.no_grad():
            return self.model(input_ids=torch.tensor([ids])).logits[0]

    def prompt_logprobs(self, ids):
        table = self.logits(ids).log_softmax(-1)
        return [None, *({ids[i]: Logprob(table[i - 1, ids[i]].item())} for i in range(1, len(ids)))]

    def draw(self, ids, temperature, generator):
        logits = self.logits(ids)[-1]
        scaled = (logits / temperature if temperature else logits).log_softmax(-1)
        token = int(torch.multinomial(scaled.exp(), 1, generator=generator)) if temperature else int(scaled.argmax())
        shown = logits.log_softmax(-1) if self.faults.raw_logprobs else scaled
        return token, shown[token].item()


@dataclass
class Running:
    prompt: list
    params: types.SimpleNamespace
    generator: torch.Generator
    ids: list = field(default_factory=list)
    tables: list = field(default_factory=list)


class Engine:
    """`LLMEngine`: requests are added, and one step gives each of them a token."""

    def __init__(self, model, faults, args):
        self.weights, self.faults, self.args = Weights(model, faults), faults, args
        self.running, self.log, self.batches = {}, [], []
        self.engine_core = types.SimpleNamespace(shutdown=lambda: self.log.append("shutdown"))

    def add_request(self, name, prompt, params):
        assert name not in self.running
        generator = torch.Generator().manual_seed(params.seed)
        self.running[name] = Running(list(prompt["prompt_token_ids"]), params, generator)

    def abort_request(self, names):
        for name in names:
            del self.running[name]
        self.log.append(f"abort {len(names)}")

    def has_unfinished_requests(self):
        return bool(self.running)

    def step(self):
        self.batches.append(len(self.running))
        return [self._one(name, r) for name, r in list(self.running.items())]

    def _one(self, name, r):
        first = not r.ids
        token, value = self.weights.draw(r.prompt + r.ids, r.params.temperature, r.generator)
        r.ids.append(token)
        r.tables.append({token: Logprob(value)})
        reason = None
        if token in (r.params.stop_token_ids or ()):
            reason = "stop"
        elif len(r.ids) == r.params.max_tokens:
            reason = "length"
        elif self.faults.break_off and len(r.ids) == 3:
            reason = "abort"
        if reason:
            del self.running[name]
        part = Part([token], [r.tables[-1]], reason)
        if r.params.output_kind == "final":
            part = Part(r.ids, r.tables, reason)
        scored = self.weights.prompt_logprobs(r.prompt) if first or reason else None
        return Output(name, r.prompt, [part], reason is not None, scored if r.params.prompt_logprobs == 0 else None)

    def collective_rpc(self, method, kwargs):
        assert method == "reload_weights"
        self.weights.load(kwargs["weights_iterator"])

    def reset_prefix_cache(self):
        return self.weights.reset()

    def sleep(self, level):
        self.log.append(f"sleep {level}")

    def wake_up(self):
        self.log.append("wake up")


ENGINE_ARGS = {
    "model", "load_format", "skip_tokenizer_init", "generation_config", "logprobs_mode", "enable_sleep_mode",
    "disable_log_stats", "dtype", "max_model_len", "gpu_memory_utilization", "max_num_seqs", "enforce_eager",
    "distributed_executor_backend",
}  # fmt: skip


def install(monkeypatch, model, faults, started):
    """Puts a module `vllm` in place; the engines that are made go to the list `started`."""

    def engine_args(**kwargs):
        if unknown := set(kwargs) - ENGINE_ARGS:
            raise TypeError(f"EngineArgs.__init__() got an unexpected keyword argument {min(unknown)!r}")
        assert json.loads((Path(kwargs["model"]) / "config.json").read_text())["architectures"] == ["LlamaForCausalLM"]
        return types.SimpleNamespace(**kwargs)

    def from_engine_args(args):
        torch.manual_seed(0)  # as vLLM does
        started.append(Engine(model, faults, args))
        return started[-1]

    def params(stop_token_ids=None, prompt_logprobs=None, ignore_eos=False, **kwargs):
        return types.SimpleNamespace(stop_token_ids=stop_token_ids, prompt_logprobs=prompt_logprobs, **kwargs)

    module = types.ModuleType("vllm")
    module.EngineArgs, module.SamplingParams = engine_args, params
    module.LLMEngine = types.SimpleNamespace(from_engine_args=from_engine_args)
    module.sampling_params = types.ModuleType("vllm.sampling_params")
    module.sampling_params.RequestOutputKind = types.SimpleNamespace(DELTA="delta", FINAL_ONLY="final")
    monkeypatch.setitem(sys.modules, "vllm", module)
    monkeypatch.setitem(sys.modules, "vllm.sampling_params", module.sampling_params)


class Server:
    """A vLLM server on a free port, with what RPL uses of it. A context manager; `url` is its address."""

    def __init__(self, model, tokenizer, faults):
        self.weights, self.tokenizer, self.faults = Weights(model, faults), tokenizer, faults
        self.requests = []
        self.headers = []
        self.lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                self.answer(200, {"data": [{"id": "policy", "max_model_len": 1000}]})

            def do_POST(self):
                text = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                outer.headers.append(dict(self.headers))
                try:
                    self.answer(*outer.handle(self.path, json.loads(text) if text else {}))
                except Exception as error:
                    self.answer(500, {"error": {"message": f"EngineCore failed: {error}\nand a traceback"}})

            def answer(self, code, body):
                data = json.dumps(body).encode()
                self.send_response(code)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                with contextlib.suppress(OSError):  # the client no longer waits
                    self.wfile.write(data)

            def log_message(self, *args):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"

    def __enter__(self):
        self.thread = threading.Thread(target=self.http.serve_forever, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *exc):
        self.http.shutdown()
        self.http.server_close()
        self.thread.join()

    def handle(self, path, body):
        if path == "/v1/completions":
            return self.complete(body)
        if self.faults.no_development:
            return 404, {"detail": "Not Found"}
        with self.lock:
            if path == "/collective_rpc":
                assert body["method"] == "reload_weights"
                self.folder = Path(body["kwargs"]["weights_path"])
                self.files = sorted(path.name for path in self.folder.glob("*.safetensors"))
                for name in self.files:
                    self.weights.load(load_file(self.folder / name).items())
                return 200, {"results": [None]}
            assert path == "/reset_prefix_cache"
            return 200, {"success": self.weights.reset()}

    def complete(self, body):
        self.requests.append(body)
        time.sleep(self.faults.slow_completion_s)
        prompt, ids, values, reason = body["prompt"], [], [], "length"
        generator = torch.Generator().manual_seed(body["seed"])
        with self.lock:
            while len(ids) < body["max_tokens"]:
                token, value = self.weights.draw(prompt + ids, body["temperature"], generator)
                ids.append(token)
                values.append(value)
                text = self.tokenizer.decode(ids, skip_special_tokens=body.get("skip_special_tokens", True))
                if token in body.get("stop_token_ids", ()) or any(stop in text for stop in body.get("stop", ())):
                    reason = "stop"
                    break
                if self.faults.break_off and len(ids) == 3:
                    reason = "abort"
                    break
            choice = {"token_ids": ids, "logprobs": {"token_logprobs": values}, "finish_reason": reason}
            if body.get("prompt_logprobs") == 0:
                scored = self.weights.prompt_logprobs(prompt)
                choice["prompt_logprobs"] = [
                    table and {str(t): {"logprob": v.logprob} for t, v in table.items()} for table in scored
                ]
        if not self.faults.token_ids:
            choice["token_ids"] = None
        return 200, {"choices": [choice], "usage": {"prompt_tokens": len(prompt)}}
