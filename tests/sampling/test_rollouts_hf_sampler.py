import random

import pytest
import torch

from rpl.core.errors import ConfigError
from rpl.policy.loading import load_policy
from rpl.sampling.hf.sampler import HFSampler
from rpl.sampling.hf.session import HFSession, _batches
from rpl.sampling.sampler import SamplingParams
from rpl.sampling.single_turn import complete
from rpl.sampling.stopping import StopDetector

ENDLESS = SamplingParams(max_new_tokens=10, temperature=1.0, stop=())


def make(tiny, **kwargs):
    sampler = HFSampler(**kwargs)
    sampler.connect(*tiny)
    return sampler


def prompts(n, seed=0, low=3, high=30):
    rng = random.Random(seed)
    return [[rng.randrange(3, 250) for _ in range(rng.randrange(low, high))] for _ in range(n)]


def draw_all(sampler, starts, seeds, params):
    return complete(sampler, starts, seeds, params, batch_size=len(starts))


def spy_on_passes(monkeypatch):
    """Records the shape of the tokens of every forward pass."""
    forward, shapes = HFSession._forward, []

    def spy(self, tokens, columns, slots, width):
        shapes.append((len(tokens), len(tokens[0])))
        return forward(self, tokens, columns, slots, width)

    monkeypatch.setattr(HFSession, "_forward", spy)
    return shapes


def reference_logprobs(model, ids, start, temperature):
    """Scores `ids[start:]` with one fresh forward pass over the whole transcript."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids])).logits[0].float() / temperature
    table = logits.log_softmax(-1)
    return [table[i - 1, ids[i]].item() for i in range(start, len(ids))]


def play(tiny, sampler, temperature=0.9, seed=0, in_flight=6, total=16):
    """Rollouts that come and go: ragged prompts and observations, early stops, pauses, repeats of what others wrote.

    Returns the gaps to a fresh pass over each transcript at every turn, and the lengths of completions.
    """
    model, _ = tiny
    rng = random.Random(seed)
    starts = prompts(5, seed)
    waiting = [(starts[i % 5], i) for i in range(total)]
    params = SamplingParams(max_new_tokens=12, temperature=temperature, stop=("a", "qb", ">"))
    observations = [*prompts(3, seed + 1, low=1, high=40), []]
    gaps, lengths, transcripts, turns, paused = [], [], {}, {}, []
    with sampler.open() as session:
        while waiting or transcripts:
            while waiting and len(transcripts) < in_flight:
                prompt, number = waiting.pop(0)
                row = session.add(prompt, number)
                transcripts[row], turns[row] = list(prompt), 0
                session.submit(row, params)
            for row in paused:
                session.submit(row, params)
            paused = []
            for row, done in session.advance():
                start = len(transcripts[row])
                transcripts[row] += done.token_ids
                turns[row] += 1
                lengths.append(len(done.token_ids))
                expected = reference_logprobs(model, transcripts[row], start, temperature)
                gaps += [abs(a - b) for a, b in zip(expected, done.logprobs, strict=True)]
                if turns[row] == 3 or rng.random() < 0.2:
                    session.drop(row)
                    del transcripts[row]
                    continue
                observation = rng.choice(observations)
                session.append(row, observation)
                transcripts[row] += observation
                if rng.random() < 0.5:
                    session.submit(row, params)
                else:
                    paused.append(row)  # its program runs while others are decoded
        assert session._cache.slots <= in_flight
    return gaps, lengths


@pytest.mark.parametrize("stride", [1, 3, 8])
@pytest.mark.parametrize("prefill_tokens", [None, 40, 1])
def test_logprobs_equal_a_fresh_pass_at_every_turn(tiny, prefill_tokens, stride):
    gaps, lengths = play(tiny, make(tiny, prefill_tokens=prefill_tokens, stride=stride))
    assert min(lengths) < 12 == max(lengths)  # some stopped early
    assert len(lengths) > 30
    assert max(gaps) < 2e-5


@pytest.mark.parametrize(
    "wrong",
    [
        lambda t, c, s, w: (t, c + (c > 20), s, w + 1),  # positions
        lambda t, c, s, w: (t, c, s, w - 1),  # the last column is not seen
        lambda t, c, s, w: (t, c, None if s is None else s.roll(1), w),  # keys of another row
    ],
)
def test_wrong_positions_masks_or_slots_would_show_in_that_comparison(tiny, monkeypatch, wrong):
    forward = HFSession._forward

    def broken(self, *args):
        self._cache.reserve(self._cache.slots, 200)
        return forward(self, *wrong(*args))

    monkeypatch.setattr(HFSession, "_forward", broken)
    assert max(play(tiny, make(tiny))[0]) > 1e-3


def test_a_wrong_copy_or_exchange_of_slots_would_show_in_that_comparison(tiny, monkeypatch):
    from rpl.sampling.hf.cache import SlotCache

    for name in ("copy", "swap"):
        with monkeypatch.context() as patch:
            patch.setattr(SlotCache, name, lambda self, *args: None)
            assert max(play(tiny, make(tiny))[0]) > 1e-3, name


def test_bfloat16_logprobs_stay_near_and_are_not_float32(tiny):
    gaps, _ = play(tiny, make(tiny, dtype="bfloat16"))
    assert 1e-4 < max(gaps) < 0.2


def test_bfloat16_weights_are_those_of_autocast(tiny):
    """One pass under autocast, with the same attention, gives the log-probabilities of the first turn to the digit."""
    model, _ = tiny
    prompt = prompts(1, low=20)[0]
    one = SamplingParams(max_new_tokens=1, temperature=1.0, stop=())
    (done,) = draw_all(make(tiny, dtype="bfloat16"), [prompt], [0], one)
    with torch.no_grad():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(input_ids=torch.tensor([prompt])).logits[0, -1]
        exact = model(input_ids=torch.tensor([prompt])).logits[0, -1]
    assert logits.dtype == torch.bfloat16
    same = logits.float().log_softmax(-1)[done.token_ids[0]].item()
    other = exact.log_softmax(-1)[done.token_ids[0]].item()
    assert done.logprobs[0] == pytest.approx(same, abs=1e-5)
    assert done.logprobs[0] != pytest.approx(other, abs=1e-5)


def test_greedy_equals_transformers_generate(tiny):
    model, tokenizer = tiny
    starts = prompts(5, seed=3)
    greedy = SamplingParams(max_new_tokens=20, temperature=0.0, stop=())
    for prompt, completion in zip(starts, draw_all(make(tiny), starts, range(5), greedy), strict=True):
        ids = torch.tensor([prompt])
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=20, do_sample=False,
            pad_token_id=tokenizer.pad_token_id,
        )  # fmt: skip
        assert list(completion.token_ids) == out[0, len(prompt) :].tolist()


def test_a_rows_draws_depend_on_its_own_seed_only(tiny):
    sampler = make(tiny)
    starts = prompts(7, seed=1)
    together = draw_all(sampler, starts, range(100, 107), ENDLESS)
    few = complete(sampler, starts, range(100, 107), ENDLESS, batch_size=2)
    assert [c.token_ids for c in few] == [c.token_ids for c in together]
    for row in (0, 3, 6):
        assert draw_all(sampler, [starts[row]], [100 + row], ENDLESS)[0].token_ids == together[row].token_ids
        assert draw_all(sampler, [starts[row]], [row], ENDLESS)[0].token_ids != together[row].token_ids


def test_rows_may_ask_with_different_parameters(tiny):
    start, settings = prompts(1)[0], [(1.0, 5), (0.0, 9), (1.0, 7), (0.5, 3)]
    params = [SamplingParams(max_new_tokens=n, temperature=t, stop=()) for t, n in settings]
    sampler = make(tiny)
    with sampler.open() as session:
        for seed, own in enumerate(params):
            session.submit(session.add(start, seed), own)
        done = dict(session.advance())
        while len(done) < 4:
            done |= session.advance()
    for row, own in enumerate(params):
        (alone,) = draw_all(sampler, [start], [row], own)
        assert done[row].token_ids == alone.token_ids
        assert done[row].logprobs == pytest.approx(alone.logprobs, abs=2e-5)


def test_equal_prompts_with_different_seeds_differ_and_share_one_prefill(tiny, monkeypatch):
    shapes = spy_on_passes(monkeypatch)
    prompt = prompts(1)[0]
    done = draw_all(make(tiny), [prompt] * 8, range(8), ENDLESS)
    assert shapes[0] == (1, len(prompt))
    assert shapes[1] == (8, 1)
    assert len({c.token_ids for c in done}) == 8


def test_late_members_of_a_group_find_its_prompt(tiny):
    """Two slots for eight rows of two groups: each prompt is run once, although its rows come one after the other."""
    a, b = prompts(2, seed=5, low=20)
    sampler = make(tiny)
    with sampler.open() as session:
        running = set()
        for seed, prompt in enumerate([a] * 4 + [b] * 4):
            while len(running) == 2:
                for row, _ in session.advance():
                    session.drop(row)
                    running.remove(row)
            row = session.add(prompt, seed)
            session.submit(row, SamplingParams(max_new_tokens=5 + seed, stop=()))
            running.add(row)
        while running:
            for row, _ in session.advance():
                session.drop(row)
                running.remove(row)
        assert session._cache.slots == 2
        assert session.prefilled_tokens == len(a) + len(b)


def test_equal_transcripts_of_a_later_turn_are_run_once(tiny):
    prompt, observation = prompts(2, seed=6, low=20)
    greedy = SamplingParams(max_new_tokens=6, temperature=0.0, stop=())
    with make(tiny).open() as session:
        for seed in range(4):
            session.submit(session.add(prompt, seed), greedy)
        for row, _ in session.advance():
            session.append(row, observation)
            session.submit(row, greedy)
        done = dict(session.advance())
        assert len({c.token_ids for c in done.values()}) == 1
        assert session.prefilled_tokens == len(prompt) + 1 + len(observation)  # the last drawn token is still to be run


def test_prompts_that_begin_alike_share_the_beginning(tiny):
    head, *tails = prompts(4, seed=7, low=100, high=110)
    starts = [head + tail[:5] for tail in tails]
    with make(tiny).open() as session:
        for seed, start in enumerate(starts):
            session.submit(session.add(start, seed), ENDLESS)
        done = dict(session.advance())
        while len(done) < 3:
            done |= session.advance()
        assert session.prefilled_tokens == len(head) + 3 * 5
    for row, start in enumerate(starts):
        expected = reference_logprobs(tiny[0], start + list(done[row].token_ids), len(start), 1.0)
        assert done[row].logprobs == pytest.approx(expected, abs=2e-5)


def test_slots_are_used_again_and_bound_the_cache(tiny):
    sampler, starts = make(tiny), prompts(30, seed=2)
    with sampler.open() as session:
        left, flight, sizes = list(enumerate(starts)), set(), set()
        while left or flight:
            while left and len(flight) < 4:
                seed, start = left.pop()
                row = session.add(start, seed)
                session.submit(row, SamplingParams(max_new_tokens=5 + seed % 7, stop=()))
                flight.add(row)
            for row, _ in session.advance():
                session.drop(row)
                flight.remove(row)
            sizes.add(session._cache.slots)
            assert all(layer.keys.shape[0] == 4 for layer in session._cache.parts)
        assert sizes == {4}
        assert len(session._rows) == 0
        assert len(session._table.slots) == 4


def test_buffers_are_not_replaced_while_rows_fit(tiny):
    with make(tiny).open() as session:
        places = set()
        for seed, start in enumerate(prompts(12, seed=4)):
            row = session.add(start, seed)
            session.submit(row, ENDLESS)
            while not session.advance():
                pass
            session.drop(row)
            places.add(session._cache.parts[0].keys.data_ptr())
        assert len(places) == 1


def test_finished_rows_leave_the_batch(tiny, monkeypatch):
    shapes = spy_on_passes(monkeypatch)
    draw_all(make(tiny), prompts(12), range(12), SamplingParams(max_new_tokens=40, stop=tuple("abcdefghijklm")))
    steps = [rows for rows, length in shapes if length == 1]
    assert steps == sorted(steps, reverse=True)
    assert steps[-1] < 6


def test_a_stride_decodes_a_fixed_number_of_steps(tiny, monkeypatch):
    shapes = spy_on_passes(monkeypatch)
    with make(tiny, stride=4).open() as session:
        assert session.advance() == []
        row = session.add([5], 0)
        assert session.advance() == []
        assert shapes == []
        session.submit(row, ENDLESS)
        assert session.advance() == []
        assert shapes == [(1, 1)] * 4
        late = session.add([6, 7, 8], 1)
        session.submit(late, ENDLESS)
        assert session.advance() == []
        assert [number for number, _ in session.advance()] == [row]
        assert [number for number, _ in session.advance()] == [late]


def test_a_dropped_completion_is_given_up_and_others_go_on(tiny):
    starts = prompts(3, seed=8)
    sampler = make(tiny, stride=4)
    expected = draw_all(sampler, starts, range(3), ENDLESS)
    with sampler.open() as session:
        for seed, start in enumerate(starts):
            session.submit(session.add(start, seed), ENDLESS)
        session.advance()
        session.drop(1)
        done = {}
        while len(done) < 2:
            done |= session.advance()
    assert {row: c.token_ids for row, c in done.items()} == {row: expected[row].token_ids for row in (0, 2)}


def test_batches_waste_little_and_keep_to_the_budget():
    def cost(cuts, lengths):
        return sum(64 + (bottom - top) * lengths[top] for top, bottom in cuts)

    rng = random.Random(0)
    for _ in range(50):
        lengths = sorted((rng.randrange(1, 300) for _ in range(rng.randrange(1, 9))), reverse=True)
        cuts = list(_batches(lengths, 400, 64))
        assert [n for top, bottom in cuts for n in range(top, bottom)] == list(range(len(lengths)))
        assert all(bottom - top == 1 or (bottom - top) * lengths[top] <= 400 for top, bottom in cuts)
        best = min(cost(c, lengths) for c in every_cut(lengths, 400))
        assert cost(cuts, lengths) == best
    assert list(_batches([300, 10, 10, 10], 2000, 64)) == [(0, 1), (1, 4)]


def every_cut(lengths, budget, start=0):
    """All ways to cut lengths into ranges that keep to the budget."""
    if start == len(lengths):
        yield []
    for end in range(start + 1, len(lengths) + 1):
        if end - start == 1 or (end - start) * lengths[start] <= budget:
            for rest in every_cut(lengths, budget, end):
                yield [(start, end), *rest]


def test_a_completion_ends_with_the_token_that_completes_a_stop(tiny):
    tokenizer = tiny[1]
    params = SamplingParams(max_new_tokens=60, stop=("z", "q", "</"))
    done = draw_all(make(tiny), prompts(20), range(20), params)
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
    done = draw_all(sampler, prompts(60), range(60), SamplingParams(max_new_tokens=100, stop=()))
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


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-5), ("bfloat16", 0.1)])
def test_new_weights_are_used_at_once(tiny, dtype, tolerance):
    model, tokenizer = load_policy("tiny")
    sampler = make((model, tokenizer), dtype=dtype)
    prompt = prompts(1)
    (before,) = draw_all(sampler, prompt, [0], ENDLESS)
    with torch.no_grad():
        model.model.layers[0].mlp.down_proj.weight.mul_(3.0)
    (after,) = draw_all(sampler, prompt, [0], ENDLESS)
    assert before.logprobs != after.logprobs
    ids = prompt[0] + list(after.token_ids)
    expected = reference_logprobs(model, ids, len(prompt[0]), 1.0)
    assert list(after.logprobs) == pytest.approx(expected, abs=tolerance)


@pytest.mark.parametrize("frozen", [False, True])
def test_the_model_is_left_as_it_was(frozen):
    model, tokenizer = load_policy("tiny")
    model.requires_grad_(not frozen).train()
    before = {name: (id(p), p.dtype) for name, p in model.named_parameters()}
    with make((model, tokenizer), dtype="bfloat16").open() as session:
        session.submit(session.add([5, 6], 0), ENDLESS)
        for _ in range(2):
            session.advance()
            assert {name: (id(p), p.dtype) for name, p in model.named_parameters()} == before
            assert model.training
            assert model.config._attn_implementation == "sdpa"
    assert not torch.is_autocast_enabled("cpu")
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_sampling_inside_a_trainers_autocast_does_not_cut_its_gradients():
    model, tokenizer = load_policy("tiny")
    sampler = make((model, tokenizer), dtype="bfloat16")
    model.train()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        draw_all(sampler, prompts(2), [0, 1], ENDLESS)
        assert model.training
        assert model.config._attn_implementation == "sdpa"
        model(input_ids=torch.arange(3, 20)[None]).logits.float().logsumexp(-1).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


def test_float32_stays_float32_inside_a_trainers_autocast(tiny):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        done = draw_all(make(tiny), prompts(3), range(3), ENDLESS)
    for prompt, c in zip(prompts(3), done, strict=True):
        expected = reference_logprobs(tiny[0], prompt + list(c.token_ids), len(prompt), 1.0)
        assert list(c.logprobs) == pytest.approx(expected, abs=2e-5)


def test_misuse_is_refused(tiny):
    with pytest.raises(ConfigError, match="connect"):
        HFSampler().open()
    with pytest.raises(ConfigError, match="'float32', 'bfloat16' and 'auto'"):
        HFSampler(dtype="int8")
    with pytest.raises(ConfigError, match="stride must be at least 1"):
        HFSampler(stride=0)
    with pytest.raises(ConfigError, match="prefill_tokens must be at least 1"):
        HFSampler(prefill_tokens=0)
    session = make(tiny).open()
    with pytest.raises(ConfigError, match="at least one token"):
        session.add([], 0)
    row = session.add([5], 0)
    session.submit(row, ENDLESS)
    for call in (lambda: session.submit(row, ENDLESS), lambda: session.append(row, [5])):
        with pytest.raises(ConfigError, match="not finished"):
            call()
    session.drop(row)
    for call in (lambda: session.drop(row), lambda: session.submit(7, ENDLESS)):
        with pytest.raises(ConfigError, match="unknown or was dropped"):
            call()
    session.close()
    session.close()
    for call in (lambda: session.add([5], 0), session.advance, lambda: session.drop(0)):
        with pytest.raises(ConfigError, match="closed"):
            call()
