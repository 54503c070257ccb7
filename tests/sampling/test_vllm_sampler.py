"""The vLLM sampler against an engine in process and a server over HTTP, both around a small model that computes."""

import random
import sys
import time

import pytest
import torch
from patience import patience
from vllm_fakes import Faults, Server, install

from rpl.core.errors import ConfigError, MissingDependencyError, SamplerError
from rpl.policy.loading import load_policy
from rpl.sampling.hf.sampler import HFSampler
from rpl.sampling.sampler import SamplingParams
from rpl.sampling.vllm.sampler import VLLMSampler

STOPPING = SamplingParams(max_new_tokens=40, temperature=0.0, stop=("|A", ")", "Uy"))  # written by the tiny model
DRAWING = SamplingParams(max_new_tokens=12, temperature=0.8, stop=("a", "qb", ">"))
EXACT = {"dtype": "float32", "max_gap": 1e-4, "max_model_len": 1000}


@pytest.fixture
def policy():
    model, tokenizer = load_policy("tiny")
    return model.requires_grad_(False), tokenizer


@pytest.fixture
def faults():
    return Faults()


@pytest.fixture(params=["engine", "server"])
def make(request, policy, faults, monkeypatch):
    """Makes a sampler with the backend of this run of the test; `make.weights()` are those of the engine."""
    started = []
    if request.param == "engine":
        install(monkeypatch, policy[0], faults, started)
        made = []

        def make(**kwargs):
            made.append(VLLMSampler(**EXACT | kwargs))
            return made[-1]

        make.weights = lambda: started[-1].weights
        make.started, make.kind = started, "engine"
        yield make
    else:
        with Server(*policy, faults) as server:
            made = []

            def make(**kwargs):
                made.append(VLLMSampler(server_urls=[server.url], **EXACT | kwargs))
                return made[-1]

            make.weights = lambda: server.weights
            make.server, make.kind = server, "server"
            yield make
    for sampler in made:
        sampler.close()


def prompts(n, seed=0, low=3, high=30):
    rng = random.Random(seed)
    return [[rng.randrange(3, 250) for _ in range(rng.randrange(low, high))] for _ in range(n)]


def complete(sampler, starts, params, seeds=None):
    """One completion a prompt, in order."""
    done = {}
    with sampler.open() as session:
        for prompt, seed in zip(starts, seeds or range(len(starts)), strict=True):
            session.submit(session.add(prompt, seed), params)
        while len(done) < len(starts):
            done.update(session.advance())
        assert session.advance() == []
    return [done[row] for row in range(len(starts))]


def connected(make, policy, **kwargs):
    sampler = make(**kwargs)
    sampler.connect(*policy)
    return sampler


def shake(model, scale=0.3):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(5)) * scale)


def test_completions_equal_those_of_the_built_in_sampler(make, policy):
    builtin = HFSampler()
    builtin.connect(*policy)
    starts = prompts(12)
    expected, got = complete(builtin, starts, STOPPING), complete(connected(make, policy), starts, STOPPING)
    assert {c.finish_reason for c in expected} >= {"stop", "length"}
    for a, b in zip(expected, got, strict=True):
        assert (a.token_ids, a.text, a.finish_reason) == (b.token_ids, b.text, b.finish_reason)
        assert max(abs(x - y) for x, y in zip(a.logprobs, b.logprobs, strict=True)) < 1e-4


def test_an_end_token_ends_a_completion_and_is_not_in_its_text(make, policy):
    model, tokenizer = policy
    start = prompts(1)[0]
    free = complete(connected(make, policy), [start], SamplingParams(8, 0.0, ()))[0]
    end = free.token_ids[4]
    model.generation_config.eos_token_id = [end]
    done = complete(connected(make, policy), [start], SamplingParams(8, 0.0, ()))[0]
    first = free.token_ids.index(end)
    assert done.finish_reason == "eos"
    assert done.token_ids == free.token_ids[: first + 1]
    assert done.text == tokenizer.decode(free.token_ids[:first])


def play(sampler, policy, temperature_shown=0.8):
    """Several turns with observations between; returns the largest gap to a fresh pass over each transcript."""
    model, _ = policy
    rng = random.Random(1)
    starts = prompts(5, seed=2)
    transcripts = {row: list(prompt) for row, prompt in enumerate(starts)}
    gaps = []
    with sampler.open() as session:
        for row, prompt in enumerate(starts):
            assert session.add(prompt, row) == row
        for _ in range(3):
            for row in transcripts:
                session.submit(row, DRAWING)
            waiting = set(transcripts)
            while waiting:
                for row, done in session.advance():
                    ids = transcripts[row]
                    start = len(ids)
                    ids += done.token_ids
                    with torch.no_grad():
                        logits = model(input_ids=torch.tensor([ids])).logits[0] / temperature_shown
                    table = logits.log_softmax(-1)
                    fresh = [table[i - 1, ids[i]].item() for i in range(start, len(ids))]
                    gaps += [abs(a - b) for a, b in zip(fresh, done.logprobs, strict=True)]
                    observation = [rng.randrange(3, 250) for _ in range(rng.randrange(0, 20))]
                    session.append(row, observation)
                    ids += observation
                    waiting.remove(row)
            gone = rng.choice(sorted(transcripts))
            session.drop(gone)
            del transcripts[gone]
        assert session.prefilled_tokens > sum(map(len, starts))
    return max(gaps)


def test_logprobs_equal_a_fresh_pass_at_the_sampling_temperature_in_every_turn(make, policy):
    assert play(connected(make, policy), policy) < 1e-4


def test_another_temperature_would_show_in_that_comparison(make, policy):
    assert play(connected(make, policy), policy, temperature_shown=1.0) > 0.01


def test_a_rows_draws_depend_on_its_own_seed_only(make, policy):
    sampler = connected(make, policy)
    starts = prompts(6, seed=3)
    together = complete(sampler, starts, DRAWING, range(100, 106))
    for row in (0, 4):
        assert complete(sampler, [starts[row]], DRAWING, [100 + row]) == [together[row]]
        assert complete(sampler, [starts[row]], DRAWING, [row]) != [together[row]]


def test_a_second_completion_does_not_repeat_the_draws_of_the_first(make, policy):
    with connected(make, policy).open() as session:
        row = session.add([65], 7)
        drawn = []
        for _ in range(2):
            session.submit(row, SamplingParams(1, 50.0, ()))  # nearly uniform: the token tells the draw
            done = []
            while not done:
                done = session.advance()
            drawn.append(done[0][1].token_ids)
    assert drawn[0] != drawn[1]


def test_weights_are_sent_when_they_changed_and_then_sampled_from(make, policy):
    model, _ = policy
    sampler = connected(make, policy)
    starts = prompts(4)
    before = complete(sampler, starts, STOPPING)
    sampler.connect(*policy)
    assert (sampler.syncs, sampler.last_sync_s, make.weights().resets) == (1, 0.0, 1)
    shake(model)
    gap = sampler.measure_gap(model)
    assert gap > 0.5
    sampler.connect(*policy)
    assert (sampler.syncs, make.weights().loads, make.weights().resets) == (2, 2, 2)
    assert sampler.last_sync_s > 0
    assert sampler.last_gap < 1e-4
    builtin = HFSampler()
    builtin.connect(*policy)
    after = complete(sampler, starts, STOPPING)
    assert [c.token_ids for c in after] != [c.token_ids for c in before]
    assert [c.token_ids for c in after] == [c.token_ids for c in complete(builtin, starts, STOPPING)]


def test_the_smallest_update_is_sent(make, policy):
    sampler = connected(make, policy)
    with torch.no_grad():
        weight = policy[0].model.layers[1].mlp.down_proj.weight
        weight[3, 5] = torch.nextafter(weight[3, 5], torch.tensor(9.0))
    sampler.connect(*policy)
    assert sampler.syncs == 2


def test_the_trained_model_is_left_as_it_was(make, policy):
    model, _ = policy
    model.train()
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    connected(make, policy)
    assert model.training
    assert torch.equal(torch.rand(2), expected)


# -- what goes wrong ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", ["layers.1.mlp.down_proj", "layers.0.input_layernorm", "embed_tokens"])
def test_a_weight_that_does_not_arrive_stops_the_run(make, policy, faults, lost):
    faults.forget = (lost, "lm_head") if lost == "embed_tokens" else (lost,)
    sampler = make()
    with pytest.raises(SamplerError, match=r"differ from the trainer's by [\d.]+ on average; allowed are 0.0001") as e:
        sampler.connect(*policy)
    assert f"{sampler.last_gap:.4g}" in str(e.value)
    assert "model.sampler.init_args.max_gap" in str(e.value)
    make(max_gap=100.0).connect(*policy)


def test_logprobs_at_another_temperature_stop_the_run(make, policy, faults):
    faults.raw_logprobs = True
    with pytest.raises(SamplerError, match="processed_logprobs"):
        make().connect(*policy)


def test_failing_to_load_is_told_in_one_line(make, policy, faults):
    faults.reload = "shape mismatch at lm_head\nTraceback of forty lines"
    with pytest.raises(SamplerError, match="shape mismatch at lm_head") as e:
        make().connect(*policy)
    assert "\n" not in str(e.value)
    assert "forty" not in str(e.value)


def test_loading_has_a_time_limit(make, policy, faults):
    faults.reload_s = 0.3
    start = time.monotonic()
    with pytest.raises(SamplerError, match=r"longer than 0.4 s \(model.sampler.init_args.sync_timeout_s\)"):
        make(sync_timeout_s=0.4).connect(*policy)
    assert time.monotonic() - start < patience(5)
    faults.reload_s = 0.0
    make(sync_timeout_s=60).connect(*policy)


def test_a_completion_that_the_engine_breaks_off_is_an_error(make, policy, faults):
    sampler = connected(make, policy)
    faults.break_off = True
    with pytest.raises(SamplerError, match=r"broke a completion off \(abort\)"):
        complete(sampler, prompts(1), SamplingParams(10, 1.0, ()))


def test_a_transcript_that_does_not_fit_is_refused(make, policy):
    with connected(make, policy).open() as session:
        row = session.add([5] * 995, 0)
        session.submit(row, SamplingParams(5))
        row = session.add([5] * 995, 0)
        with pytest.raises(ConfigError, match=r"1001 tokens, but vLLM takes 1000; raise .*max_model_len"):
            session.submit(row, SamplingParams(6))


def test_sessions_refuse_misuse_and_leave_nothing_running(make, policy):
    sampler = make()
    with pytest.raises(ConfigError, match="no model yet"):
        sampler.open()
    sampler.connect(*policy)
    session = sampler.open()
    with pytest.raises(ConfigError, match="another session"):
        sampler.open()
    with pytest.raises(ConfigError, match="close it before the policy changes"):
        sampler.connect(*policy)
    with pytest.raises(ConfigError, match="at least one token"):
        session.add([], 0)
    row, other = session.add([5, 6], 0), session.add([5, 7], 1)
    session.submit(row, DRAWING)
    session.submit(other, DRAWING)
    with pytest.raises(ConfigError, match="not finished"):
        session.append(row, [1])
    session.drop(row)
    with pytest.raises(ConfigError, match="unknown or was dropped"):
        session.append(row, [1])
    session.close()
    session.close()
    with pytest.raises(ConfigError, match="closed"):
        session.advance()
    if make.kind == "engine":
        assert make.started[0].running == {}
    complete(sampler, prompts(2), DRAWING)


# -- the engine alone ----------------------------------------------------------------------------------------------


@pytest.fixture
def engine(policy, faults, monkeypatch):
    started = []
    install(monkeypatch, policy[0], faults, started)
    return started


def test_without_vllm_the_error_says_what_to_install(policy, monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(MissingDependencyError, match="pip install vllm"):
        VLLMSampler().connect(*policy)


def test_settings_that_vllm_refuses_are_named(engine, policy):
    with pytest.raises(ConfigError, match=r"model.sampler.init_args.*unexpected keyword argument 'kv_cash'"):
        VLLMSampler(**EXACT, engine={"kv_cash": 1}).connect(*policy)


def test_the_engine_is_asked_for_what_training_needs(engine, policy):
    VLLMSampler(**EXACT, gpu_memory_utilization=0.25, engine={"max_num_seqs": 7}).connect(*policy)
    args = vars(engine[0].args)
    assert args.items() >= {
        "logprobs_mode": "processed_logprobs", "generation_config": "vllm", "load_format": "dummy",
        "dtype": "float32", "gpu_memory_utilization": 0.25, "max_num_seqs": 7,
    }.items()  # fmt: skip
    assert "enable_sleep_mode" not in args


def test_the_engine_decodes_a_fixed_number_of_steps(engine, policy):
    sampler = VLLMSampler(**EXACT, stride=3)
    sampler.connect(*policy)
    with sampler.open() as session:
        row = session.add([70], 0)
        session.submit(row, SamplingParams(7, 1.0, ()))
        before = len(engine[0].batches)
        assert session.advance() == []
        assert len(engine[0].batches) - before == 3
        assert session.advance() == []
        assert [r for r, _ in session.advance()] == [row]
        assert len(engine[0].batches) - before == 7


def test_the_engine_sleeps_between_sessions_if_asked_to(engine, policy):
    sampler = VLLMSampler(**EXACT, sleep=True)
    sampler.connect(*policy)
    assert vars(engine[0].args)["enable_sleep_mode"]
    with sampler.open():
        pass
    assert engine[0].log == ["sleep 1"]
    complete(sampler, prompts(1), DRAWING)
    assert engine[0].log[1:2] == ["wake up"]
    assert engine[0].log[-1] == "sleep 1"
    shake(policy[0])
    sampler.connect(*policy)
    assert engine[0].log[-1] == "wake up"


def test_an_engine_that_keeps_its_cache_is_an_error(engine, policy, faults):
    faults.refuse_reset = 1
    with pytest.raises(SamplerError, match="prefix cache"):
        VLLMSampler(**EXACT).connect(*policy)


# -- servers alone -------------------------------------------------------------------------------------------------


@pytest.fixture
def server(policy, faults):
    with Server(*policy, faults) as server:
        yield server


def remote(server, **kwargs):
    return VLLMSampler(server_urls=[server.url], **EXACT | kwargs)


def test_requests_open_the_whole_vocabulary_and_carry_the_key(server, policy, monkeypatch):
    monkeypatch.setenv("VLLM_API_KEY", "sesame")
    sampler = remote(server)
    sampler.connect(*policy)
    complete(sampler, prompts(1), DRAWING)
    body = server.requests[-1]
    wanted = {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "include_stop_str_in_output": True}
    assert body.items() >= wanted.items()
    assert body["temperature"] == DRAWING.temperature
    assert server.headers[-1]["Authorization"] == "Bearer sesame"


def test_tokens_past_a_stop_are_cut_off(server, policy):
    """A server may notice a stop text late; what it drew after it is no part of the completion."""
    sampler = remote(server)
    sampler.connect(*policy)
    builtin = HFSampler()
    builtin.connect(*policy)
    expected = complete(builtin, prompts(6), STOPPING)
    handle = server.handle
    server.handle = lambda path, body: handle(path, body | {"stop": []})
    assert [c.token_ids for c in complete(sampler, prompts(6), STOPPING)] == [c.token_ids for c in expected]
    assert "stop" in {c.finish_reason for c in expected}


def test_weights_are_written_where_the_server_finds_them_and_removed(server, policy, tmp_path):
    sampler = remote(server, sync_dir=str(tmp_path), dtype="bfloat16", max_gap=0.5)
    sampler.connect(*policy)
    assert server.folder.parent == tmp_path
    assert server.files == ["model-00000.safetensors"]
    assert list(tmp_path.iterdir()) == []
    server.faults.reload = "no memory"
    shake(policy[0])
    with pytest.raises(SamplerError, match="no memory"):
        sampler.connect(*policy)
    sampler.close()
    assert list(tmp_path.iterdir()) == []


def test_large_models_are_written_in_several_files(server, policy, monkeypatch, tmp_path):
    monkeypatch.setattr("rpl.sampling.vllm.server._FILE_BYTES", 20_000)
    sampler = remote(server, sync_dir=str(tmp_path))
    sampler.connect(*policy)
    assert len(server.files) > 2


def test_a_reset_that_is_refused_is_asked_for_again(server, policy, faults):
    faults.refuse_reset = 2
    remote(server).connect(*policy)
    assert server.weights.resets == 1
    faults.refuse_reset = 1000
    with pytest.raises(SamplerError, match="sync_timeout_s"):
        remote(server, sync_timeout_s=0.5).connect(*policy)


def test_a_server_that_is_not_there_is_named(policy):
    with pytest.raises(SamplerError, match=r"http://127.0.0.1:9/v1/models cannot be reached: .*vllm serve"):
        VLLMSampler(server_urls=["http://127.0.0.1:9"]).connect(*policy)
    with pytest.raises(ConfigError, match="no address like"):
        VLLMSampler(server_urls=["localhost"]).connect(*policy)


def test_a_server_without_development_mode_is_told_how_to_start(server, policy, faults):
    faults.no_development = True
    with pytest.raises(SamplerError, match="VLLM_SERVER_DEV_MODE=1 vllm serve"):
        remote(server).connect(*policy)


def test_a_server_that_returns_no_token_ids_is_refused(server, policy, faults):
    faults.token_ids = False
    with pytest.raises(SamplerError, match=r"0\.32 or newer"):
        remote(server).connect(*policy)


def test_waiting_for_a_completion_has_a_time_limit(server, policy, faults):
    sampler = remote(server, request_timeout_s=0.5)
    sampler.connect(*policy)
    faults.slow_completion_s = 3.0
    with pytest.raises(SamplerError, match=r"gave no answer within 0.5 s"):
        complete(sampler, prompts(1), DRAWING)


def test_one_process_uses_one_server(server, policy):
    with pytest.raises(ConfigError, match="names 2 servers for 1 process"):
        VLLMSampler(server_urls=[server.url, server.url]).connect(*policy)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"dtype": "fp8"}, "dtype 'fp8': allowed are"),
        ({"max_model_len": 0}, "max_model_len must be at least 1"),
        ({"stride": 0}, "stride must be at least 1"),
        ({"gpu_memory_utilization": 1.2}, r"must be in \(0, 1\]"),
        ({"max_gap": 0.0}, "max_gap must be positive"),
        ({"sync_timeout_s": float("nan")}, "sync_timeout_s must be positive"),
        ({"server_urls": []}, "server_urls is empty"),
    ],
)
def test_settings_out_of_range_are_named(kwargs, message):
    with pytest.raises(ConfigError, match=f"model.sampler.init_args.{message}|{message}"):
        VLLMSampler(**kwargs)
