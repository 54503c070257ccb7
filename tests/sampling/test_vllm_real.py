"""The sampler with the real vLLM on a CPU; `make test-vllm` runs these in an environment of their own.

Slow by nature: each engine takes half a minute to start. What the tests measure is printed.
"""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
import torch

from rpl.core.progress import say
from rpl.policy.loading import load_policy, resolve_model
from rpl.sampling.hf.sampler import HFSampler
from rpl.sampling.sampler import SamplingParams
from rpl.sampling.single_turn import complete
from rpl.sampling.vllm.sampler import VLLMSampler

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(1200)]

POLICY = os.environ.get("RPL_VLLM_POLICY", "smollm2-135m")
CONFIGS = Path(__file__).parents[2] / "configs"
GREEDY = SamplingParams(16, 0.0, (".", "</answer>"))
DRAWN = SamplingParams(16, 0.7, (".", "</answer>"))
TEXTS = ("The capital of France is", "for p in bm25(question, k=", "One of the largest cities in Japan", "2 + 2 =")
CACHE_BYTES = 256 << 20
ENGINE = {"dtype": "float32", "max_model_len": 1024, "enforce_eager": True, "max_num_seqs": 16, "max_gap": 1e-3}
ENGINE |= {"engine": {"kv_cache_memory_bytes": CACHE_BYTES}}


@pytest.fixture(autouse=True, scope="module")
def _one_set_of_threads():
    patch = pytest.MonkeyPatch()
    if "VLLM_CPU_OMP_THREADS_BIND" not in os.environ:
        patch.setenv("VLLM_CPU_OMP_THREADS_BIND", "nobind")  # the trainer computes in the same threads
    yield
    patch.undo()


def greedy(sampler, tokenizer, params=GREEDY):
    prompts = [tokenizer.encode(text) for text in TEXTS]
    return complete(sampler, prompts, range(len(prompts)), params, batch_size=8)


def builtin(model, tokenizer):
    sampler = HFSampler()
    sampler.connect(model, tokenizer)
    return greedy(sampler, tokenizer)


def as_flag(value):
    return value if isinstance(value, str) else json.dumps(value)


def perturb(model):
    """Changes what the model says, without making it noise whose tokens are nearly tied."""
    with torch.no_grad():
        for layer in list(model.model.layers)[::3]:
            layer.mlp.down_proj.weight.mul_(1.3)


def fresh_logprobs(model, ids, start, temperature):
    with torch.no_grad():
        table = (model(input_ids=torch.tensor([ids])).logits[0] / temperature).log_softmax(-1)
    return [table[i - 1, ids[i]].item() for i in range(start, len(ids))]


def check_against_the_model(sampler, model, tokenizer):
    """Greedy completions equal the built-in sampler's; drawn ones bear the model's own log-probabilities."""
    expected, got = builtin(model, tokenizer), greedy(sampler, tokenizer)
    for a, b in zip(expected, got, strict=True):
        assert (a.token_ids, a.text, a.finish_reason) == (b.token_ids, b.text, b.finish_reason)
    assert "stop" in {c.finish_reason for c in got}
    gaps = []
    for text, c in zip(TEXTS, greedy(sampler, tokenizer, DRAWN), strict=True):
        ids = tokenizer.encode(text)
        fresh = fresh_logprobs(model, ids + list(c.token_ids), len(ids), DRAWN.temperature)
        gaps += [abs(x - y) for x, y in zip(fresh, c.logprobs, strict=True)]
    assert max(gaps) < 1e-3
    return got


def sync_and_check(sampler, model, tokenizer):
    """Weights arrive, change what is sampled, and are those of the trainer, before and after a change."""
    sampler.connect(model, tokenizer)
    say(f"first synchronisation: {sampler.last_sync_s:.2f} s, gap {sampler.last_gap:.2e}")
    first = check_against_the_model(sampler, model, tokenizer)
    perturb(model)
    before = sampler.measure_gap(model)
    sampler.connect(model, tokenizer)
    say(f"gap before a synchronisation {before:.4f}, after it {sampler.last_gap:.2e} ({sampler.last_sync_s:.2f} s)")
    assert before > 0.05
    assert sampler.last_gap < 1e-3
    second = check_against_the_model(sampler, model, tokenizer)
    assert [c.token_ids for c in first] != [c.token_ids for c in second]


def test_an_rl_run_samples_its_second_iteration_from_the_new_weights(tmp_path, capsys):
    from rpl.training.lightning_cli import RPLCLI

    files = [CONFIGS / name for name in ("base.yaml", "rl.yaml", "tiny.yaml", "vllm.yaml")]
    arguments = [word for file in files for word in ("-c", str(file))]
    flags = {
        "trainer.precision": "32-true",
        "trainer.logger.save_dir": tmp_path,
        "trainer.default_root_dir": tmp_path,
        "model.policy": POLICY,
        "model.group_size": 2,
        "model.rollout.max_new_tokens": 16,
        "data.batch_size": 2,
        **{f"model.sampler.init_args.{name}": as_flag(value) for name, value in ENGINE.items()},
    }
    arguments += [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    cli = RPLCLI(arguments, run=False)
    module, sampler = cli.model, cli.model.engine.sampler
    gaps, texts = [], []
    connect = sampler.connect

    def watched(model, tokenizer):
        before = sampler.measure_gap(model) if sampler.syncs else float("nan")
        connect(model, tokenizer)
        gaps.append((before, sampler.last_gap))
        texts.append([c.token_ids for c in check_against_the_model(sampler, model, tokenizer)])

    sampler.connect = watched
    step = module.training_step

    def perturbed(batch, batch_idx):
        turns = [turn for credited in step(batch, batch_idx)["rollouts"] for turn in credited.rollout.turns]
        assert {len(t.logprobs) == len(t.completion_ids) > 0 for t in turns} == {True}
        perturb(module.model)  # one update at this learning rate changes too little to be seen in greedy tokens

    module.training_step = perturbed
    cli.trainer.fit(module, cli.datamodule)
    sampler.close()
    with capsys.disabled():
        for number, (before, after) in enumerate(gaps):
            earlier = f"gap before the synchronisation {before:.4f}, " if number else ""
            say(f"iteration {number}: {earlier}gap after it {after:.2e}")
    assert cli.trainer.global_step == 2
    assert len(gaps) == 2
    assert gaps[1][0] > 0.05
    assert max(after for _, after in gaps) < 1e-3
    assert texts[0] != texts[1]


@pytest.fixture
def server(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = tmp_path / "server.log"
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(resolve_model(POLICY))]
    command += ["--host", "127.0.0.1", "--port", str(port), "--logprobs-mode", "processed_logprobs"]
    command += ["--dtype", "float32", "--max-model-len", "1024", "--max-num-seqs", "16", "--enforce-eager"]
    command += ["--kv-cache-memory-bytes", str(CACHE_BYTES)]
    # vLLM on a CPU keeps a packed copy of the output layer, which reloading tied embeddings leaves as it was.
    command += ["--hf-overrides", '{"tie_word_embeddings": false}']
    environment = os.environ | {"VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1"}
    with log.open("w") as out:
        process = subprocess.Popen(command, env=environment, stdout=out, stderr=out, start_new_session=True)
    url = f"http://127.0.0.1:{port}"
    try:
        wait_for(f"{url}/health", process, log)
        yield url
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_for(url, process, log, seconds=600):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert process.poll() is None, log.read_text()[-3000:]
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            time.sleep(1)
    raise AssertionError(f"no answer within {seconds} s: {log.read_text()[-3000:]}")


def test_a_server_takes_the_weights_and_samples_like_the_model(server, capsys):
    model, tokenizer = load_policy(POLICY)
    sampler = VLLMSampler(server_urls=[server], dtype="float32", max_gap=1e-3)
    perturb(model)  # not what the server loaded itself
    with capsys.disabled():
        sync_and_check(sampler, model, tokenizer)
    sampler.close()


def test_each_rank_of_a_sharded_run_has_an_engine(tmp_path, capsys):
    """Two processes with the policy sharded over them (FSDP2), one engine each; both sample like the whole model."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    script = Path(__file__).parent / "vllm_sharded.py"
    processes = []
    for rank in range(2):
        ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        environment = os.environ | {name: str(value) for name, value in ranks.items()}
        command = [sys.executable, str(script), POLICY]
        processes.append(
            subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        )
    try:
        outputs = [process.communicate(timeout=900)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, output in zip(processes, outputs, strict=True):
        assert process.returncode == 0, output[-3000:]
        assert "both ranks agree" in output
    with capsys.disabled():
        for line in sorted(line for output in outputs for line in output.splitlines() if line.startswith("rank")):
            say(line)
