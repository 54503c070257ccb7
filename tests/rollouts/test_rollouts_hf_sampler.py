import random

import pytest
import torch

from rpl.errors import ConfigError
from rpl.rollouts.hf_sampler import HFSampler
from rpl.rollouts.models import load_policy
from rpl.rollouts.sampler import SamplingParams
from rpl.rollouts.stopping import StopDetector

ENDLESS = SamplingParams(max_new_tokens=10, temperature=1.0, stop=())


def make(tiny, **kwargs):
    sampler = HFSampler(**kwargs)
    sampler.connect(*tiny)
    return sampler


def prompts(n, seed=0, low=3, high=30):
    rng = random.Random(seed)
    return [[rng.randrange(3, 250) for _ in range(rng.randrange(low, high))] for _ in range(n)]


def reference_logprobs(model, ids, start, temperature):
    """Scores `ids[start:]` with one fresh forward pass over the whole transcript."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids])).logits[0].float() / temperature
    table = logits.log_softmax(-1)
    return [table[i - 1, ids[i]].item() for i in range(start, len(ids))]


def play(tiny, sampler, temperature=0.9, seed=0, late=False):
    """Several turns with ragged observations, rows that stop early and rows that leave; yields gaps to a fresh pass."""
    model, _ = tiny
    rng = random.Random(seed)
    starts = prompts(6, seed)
    starts += starts[:3] + starts[:1]
    params = SamplingParams(max_new_tokens=12, temperature=temperature, stop=("a", "qb", ">"))
    transcripts = [list(prompt) for prompt in starts]
    gaps, lengths = [], []
    with sampler.open(starts, range(len(starts))) as session:
        rows = list(range(len(starts)))
        for turn in range(4):
            for row, done in zip(rows, session.sample(rows, params), strict=True):
                start = len(transcripts[row])
                transcripts[row] += done.token_ids
                lengths.append(len(done.token_ids))
                expected = reference_logprobs(model, transcripts[row], start, temperature)
                gaps += [abs(a - b) for a, b in zip(expected, done.logprobs, strict=True)]
            rows = [row for row in rows if rng.random() < 0.8]
            if late and turn == 1:
                rows = list(range(len(starts)))  # rows that had left come back
            rng.shuffle(rows)
            for row in rows:
                observation = [rng.randrange(3, 250) for _ in range(rng.randrange(0, 25))]
                session.append(row, observation)
                transcripts[row] += observation
    return gaps, lengths, transcripts


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("prefill_tokens", [None, 40, 1])
def test_logprobs_equal_a_fresh_pass_at_every_turn(tiny, prefill_tokens, late):
    gaps, lengths, _ = play(tiny, make(tiny, prefill_tokens=prefill_tokens), late=late)
    assert min(lengths) < 12 == max(lengths)  # some stopped early, so rows have holes
    assert max(gaps) < 2e-5


def test_wrong_positions_or_masks_would_show_in_that_comparison(tiny, monkeypatch):
    from rpl.rollouts.hf_sampler import HFSession

    forward = HFSession._forward
    monkeypatch.setattr(HFSession, "_forward", lambda self, t, p, m: forward(self, t, p + (p > 20), m))
    assert max(play(tiny, make(tiny))[0]) > 1e-3
    monkeypatch.setattr(HFSession, "_forward", lambda self, t, p, m: forward(self, t, p, m.clamp(min=-1.0)))
    assert max(play(tiny, make(tiny))[0]) > 1e-3


def test_bfloat16_logprobs_stay_near_and_are_not_float32(tiny):
    gaps, _, _ = play(tiny, make(tiny, dtype="bfloat16"))
    assert 1e-4 < max(gaps) < 0.2


def test_greedy_equals_transformers_generate(tiny):
    model, tokenizer = tiny
    starts = prompts(5, seed=3)
    with make(tiny).open(starts, range(5)) as session:
        done = session.sample(range(5), SamplingParams(max_new_tokens=20, temperature=0.0, stop=()))
    for prompt, completion in zip(starts, done, strict=True):
        ids = torch.tensor([prompt])
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=20, do_sample=False,
            pad_token_id=tokenizer.pad_token_id,
        )  # fmt: skip
        assert list(completion.token_ids) == out[0, len(prompt) :].tolist()


def test_a_rows_draws_depend_on_its_own_seed_only(tiny):
    sampler = make(tiny)
    starts = prompts(7, seed=1)
    with sampler.open(starts, range(100, 107)) as session:
        together = session.sample(range(7), ENDLESS)
    for row in (0, 3, 6):
        with sampler.open([starts[row]], [100 + row]) as session:
            assert session.sample([0], ENDLESS)[0].token_ids == together[row].token_ids
        with sampler.open([starts[row]], [row]) as session:
            assert session.sample([0], ENDLESS)[0].token_ids != together[row].token_ids


def test_equal_prompts_with_different_seeds_differ_and_share_one_prefill(tiny, monkeypatch):
    from rpl.rollouts.hf_sampler import HFSession

    forward, sizes = HFSession._forward, []

    def spy(self, tokens, positions, mask):
        sizes.append(tuple(tokens.shape))
        return forward(self, tokens, positions, mask)

    monkeypatch.setattr(HFSession, "_forward", spy)
    prompt = prompts(1)[0]
    with make(tiny).open([prompt] * 8, range(8)) as session:
        done = session.sample(range(8), ENDLESS)
    assert sizes[0] == (1, len(prompt))
    assert sizes[1] == (8, 1)
    assert len({c.token_ids for c in done}) == 8


def test_finished_rows_leave_the_batch(tiny, monkeypatch):
    from rpl.rollouts.hf_sampler import HFSession

    forward, sizes = HFSession._forward, []

    def spy(self, tokens, positions, mask):
        sizes.append(tokens.shape[0])
        return forward(self, tokens, positions, mask)

    monkeypatch.setattr(HFSession, "_forward", spy)
    with make(tiny).open(prompts(12), range(12)) as session:
        session.sample(range(12), SamplingParams(max_new_tokens=40, stop=tuple("abcdefghijklm")))
    steps = sizes[1:]
    assert steps == sorted(steps, reverse=True)
    assert steps[-1] < 6


def test_a_completion_ends_with_the_token_that_completes_a_stop(tiny):
    tokenizer = tiny[1]
    with make(tiny).open(prompts(20), range(20)) as session:
        done = session.sample(range(20), SamplingParams(max_new_tokens=60, stop=("z", "q", "</")))
    assert {c.finish_reason for c in done} >= {"stop", "length"}
    for c in done:
        if c.finish_reason == "stop":
            assert c.text.endswith(("z", "q", "</"))
            assert not any(s in tokenizer.decode(list(c.token_ids[:-1])) for s in ("z", "q", "</"))
        elif c.finish_reason == "length":
            assert len(c.token_ids) == 60
            assert not any(s in c.text for s in ("z", "q", "</"))


def test_the_end_token_ends_a_completion_and_stays_in_its_ids():
    model, tokenizer = load_policy("tiny")
    with torch.no_grad():
        model.model.norm.weight.zero_()  # all logits equal: every token is as likely as any
    sampler = make((model, tokenizer))
    with sampler.open(prompts(60), range(60)) as session:
        done = session.sample(range(60), SamplingParams(max_new_tokens=100, stop=()))
    ended = [c for c in done if c.finish_reason == "eos"]
    assert ended
    assert len(ended) < 60
    for c in ended:
        assert c.token_ids[-1] == tokenizer.eos_token_id
        assert tokenizer.eos_token_id not in c.token_ids[:-1]
        assert not c.text.endswith("<|im_end|>")
        assert len(c.logprobs) == len(c.token_ids)


@pytest.mark.parametrize("stop", ["</program>", "☕", "x"])
def test_stop_texts_are_seen_across_token_boundaries(tiny, stop):
    _, tokenizer = tiny
    detector = StopDetector(tokenizer, [stop, "never"])
    ids = tokenizer.encode("some text before > " * 3 + stop, add_special_tokens=False)
    seen = [detector.completed(ids[: n + 1]) for n in range(len(ids))]
    first = tokenizer.decode(ids).index(stop)
    assert seen.index(True) == len(tokenizer.decode(ids)[:first].encode()) + len(stop.encode()) - 1


def test_new_weights_are_used_at_once(tiny):
    model, tokenizer = load_policy("tiny")
    sampler = make((model, tokenizer))
    prompt = prompts(1)
    with sampler.open(prompt, [0]) as session:
        before = session.sample([0], ENDLESS)[0]
    with torch.no_grad():
        model.model.layers[0].mlp.down_proj.weight.mul_(3.0)
    with sampler.open(prompt, [0]) as session:
        after = session.sample([0], ENDLESS)[0]
    assert before.logprobs != after.logprobs
    ids = prompt[0] + list(after.token_ids)
    assert list(after.logprobs) == pytest.approx(reference_logprobs(model, ids, len(prompt[0]), 1.0), abs=2e-5)


def test_sampling_inside_a_trainers_autocast_does_not_cut_its_gradients():
    model, tokenizer = load_policy("tiny")
    sampler = make((model, tokenizer), dtype="bfloat16")
    model.train()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with sampler.open(prompts(2), [0, 1]) as session:
            session.sample([0, 1], ENDLESS)
        assert model.training
        assert model.config._attn_implementation == "sdpa"
        model(input_ids=torch.arange(3, 20)[None]).logits.float().logsumexp(-1).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


def test_float32_stays_float32_inside_a_trainers_autocast(tiny):
    with torch.autocast("cpu", dtype=torch.bfloat16), make(tiny).open(prompts(3), range(3)) as session:
        done = session.sample(range(3), ENDLESS)
    for prompt, c in zip(prompts(3), done, strict=True):
        expected = reference_logprobs(tiny[0], prompt + list(c.token_ids), len(prompt), 1.0)
        assert list(c.logprobs) == pytest.approx(expected, abs=2e-5)


def test_misuse_is_refused(tiny):
    with pytest.raises(ConfigError, match="connect"):
        HFSampler().open([[1]], [0])
    sampler = make(tiny)
    with pytest.raises(ConfigError, match="1 prompts but 2 seeds"):
        sampler.open([[1]], [0, 1])
    with pytest.raises(ConfigError, match="at least one token"):
        sampler.open([[]], [0])
    with pytest.raises(ConfigError, match="'float32' and 'bfloat16'"):
        HFSampler(dtype="int8")
    session = sampler.open([[5]], [0])
    with pytest.raises(ConfigError, match="twice"):
        session.sample([0, 0], ENDLESS)
    assert session.sample([], ENDLESS) == []
    session.close()
    with pytest.raises(ConfigError, match="closed"):
        session.sample([0], ENDLESS)


def test_a_model_with_sliding_windows_is_refused(tiny):
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=20, hidden_size=8, intermediate_size=8, num_hidden_layers=2, num_attention_heads=2,
        layer_types=["full_attention", "sliding_attention"], pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    with pytest.raises(ConfigError, match="sliding_attention"):
        HFSampler().connect(LlamaForCausalLM(config), tiny[1])
