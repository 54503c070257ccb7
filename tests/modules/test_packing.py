"""Packed micro-batches: every sequence once, shared prompts once, and the numbers of padded rows for every option."""

from __future__ import annotations

import dataclasses
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rpl.core.errors import ConfigError
from rpl.modules.batches import prefix_tree
from rpl.modules.batches.logprobs import score_tokens
from rpl.modules.batches.micro_batches import TrainingSequence, collate, dummy_micro_batch, micro_batches
from rpl.modules.batches.packing import needed, pack_tokens, plan_packed
from rpl.modules.batches.prefix_tree import MIN_SHARED
from rpl.modules.batches.shared_attention import NAME, can_share
from rpl.modules.losses import surrogate_loss, token_weights
from rpl.policy.loading import export_policy, load_policy
from rpl.sampling.hf.slots import shared_length


def groups(seed=0, number=4, single=True):
    """Groups of rollouts with a prompt in common and some with their first turn, of mixed sizes, some of one member."""
    rng = random.Random(seed)
    items = []
    for group in range(number):
        prompt = [rng.randrange(250) for _ in range(rng.randint(1, 20))]
        turn = [rng.randrange(250) for _ in range(rng.randint(1, 20))]
        for _ in range(1 if single and group == 1 else rng.randint(2, 4)):
            length = rng.randint(1, 14)
            mask = [False] * len(prompt) + [True] + [rng.random() < 0.5 for _ in range(length - 1)]
            ids = prompt + [rng.randrange(250) for _ in range(length)]
            if rng.random() < 0.5:  # some have their first turn in common, too
                ids[len(prompt) : len(prompt)] = turn
                mask[len(prompt) : len(prompt)] = [True] * len(turn)
            logprobs = tuple(-rng.random() * 6 for _ in ids)
            items.append(TrainingSequence(tuple(ids), tuple(mask), rng.gauss(0, 1), logprobs))
    rng.shuffle(items)
    return items


@pytest.fixture(scope="module")
def model():
    return load_policy("tiny", "float32")[0]


OPTIONS = {
    "token": {},
    "sequence": {"aggregation": "sequence", "clip_low": 0.1, "clip_high": 0.3},
    "constant": {"aggregation": "constant"},
    "off-policy": {"off_policy": True},
    "kl-k1": {"beta": 0.1, "kl_estimator": "k1"},
    "kl-k2": {"beta": 0.1, "kl_estimator": "k2", "kl_gradient": "plain"},
    "kl-k3": {"beta": 0.1, "kl_estimator": "k3", "off_policy": True},
    "entropy": {"entropy_coef": 0.05},
}


def loss_and_gradients(model, items, packed, budget, *, temperature=0.8, chunk=1024, off_policy=False, **options):
    aggregation = options.pop("aggregation", "token")
    model.zero_grad()
    total = 0.0
    for batch in micro_batches(items, budget, 0, packed):
        entropy = "grad" if options.get("entropy_coef") else "none"
        logprobs, entropies = score_tokens(model, batch, temperature=temperature, chunk_tokens=chunk, entropy=entropy)
        mask = batch.loss_mask
        old = batch.sampler_logprobs[mask]
        out = surrogate_loss(
            logprobs,
            batch.advantages[mask],
            token_weights(mask, aggregation),
            50.0,
            old_logprobs=old if off_policy else None,
            ref_logprobs=old if options.get("beta") else None,
            entropies=entropies if entropy != "none" else None,
            **options,
        )
        out.loss.backward()
        total += out.loss.item()
    return total, [p.grad.clone() for p in model.parameters()]


def assert_equal(got, want, tolerance=1e-5):
    assert got[0] == pytest.approx(want[0], abs=tolerance)
    for a, b in zip(got[1], want[1], strict=True):
        torch.testing.assert_close(a, b, atol=tolerance, rtol=0)


@pytest.mark.parametrize("budget", [1, 12, 30, 10_000])
@pytest.mark.parametrize("name", OPTIONS)
def test_loss_and_every_gradient_equal_the_padded_path(model, name, budget):
    items = groups()
    want = loss_and_gradients(model, items, False, 10_000, **OPTIONS[name])
    assert_equal(loss_and_gradients(model, items, True, budget, chunk=7, **OPTIONS[name]), want)


def test_the_comparison_can_fail(model):
    items = groups()
    want = loss_and_gradients(model, items, False, 10_000)
    with pytest.raises(AssertionError):
        assert_equal(loss_and_gradients(model, items, True, 10_000, temperature=0.81), want)
    other = [dataclasses.replace(items[0], token_ids=(9, *items[0].token_ids[1:])), *items[1:]]
    assert other != items
    with pytest.raises(AssertionError):
        assert_equal(loss_and_gradients(model, other, True, 10_000), want)


@pytest.mark.parametrize("policy", ["groups", "no groups"])
def test_activation_checkpointing_packs_too(policy):
    model = load_policy("tiny", "float32")[0].train()
    items = groups(5) if policy == "groups" else groups(5)[:1]
    want = loss_and_gradients(model, items, False, 10_000)
    new = getattr(model, "activation_checkpointing_enable", None)
    (new or model.gradient_checkpointing_enable)()
    assert_equal(loss_and_gradients(model, items, True, 40), want)


def test_a_leak_between_continuations_would_show(model):
    """One member's tokens change nothing for the others of its group, or for those that share with nobody."""
    items = sorted(groups(7), key=lambda s: -s.num_trained)
    batch = collate(items, range(len(items)), packed=True)
    start = items[0].loss_mask.index(True)
    ids = items[0].token_ids
    changed = [dataclasses.replace(items[0], token_ids=(*ids[:start], (ids[start] + 1) % 250, *ids[start + 1 :]))]
    other = collate(changed + items[1:], range(len(items)), packed=True)
    own = items[0].num_trained
    before, _ = score_tokens(model, batch)
    after, _ = score_tokens(model, other)
    torch.testing.assert_close(before[own:], after[own:], atol=1e-5, rtol=0)
    assert not torch.allclose(before[:own], after[:own], atol=1e-5)


ROWS = st.lists(
    st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=1).map(lambda x: x * MIN_SHARED), max_size=4).map(
        lambda parts: tuple(token for part in parts for token in part)
    ),
    max_size=9,
)
"""Sequences of runs of equal tokens: many of them begin alike."""


def computed(rows) -> int:
    """Tokens of the packing of rows that are trained at their ends only."""
    return pack_tokens([(*row, 9) for row in rows], [(*[False] * len(row), True) for row in rows]).num_tokens


@given(ROWS, st.integers(1, 60))
def test_every_sequence_is_in_one_micro_batch_within_the_budget(rows, budget):
    plan = plan_packed(rows, budget)
    assert sorted(i for part in plan for i in part) == list(range(len(rows)))
    for part in plan:
        assert len(part) == 1 or computed([rows[i] for i in part if rows[i]] or [(1,)]) <= budget


BRANCHES = st.lists(
    st.lists(st.tuples(st.integers(0, 1), st.sampled_from([1, 3, 7, 8, 9])), max_size=6).map(
        lambda runs: tuple(token for token, length in runs for _ in range(length))
    ),
    max_size=9,
)
"""The same with edges that are too short for a segment, at which the tree is not a trie."""


def plan_one_by_one(rows, budget):
    """The plan by definition: each sequence joins the latest part if the packing of both is small enough."""
    parts = []
    for index in sorted(range(len(rows)), key=lambda i: rows[i]):
        if parts and packed_size(rows, [*parts[-1], index]) <= budget:
            parts[-1].append(index)
        else:
            parts.append([index])
    return [sorted(part) for part in sorted(parts, key=lambda part: -packed_size(rows, part))]


def packed_size(rows, part):
    some = [rows[i] for i in part if rows[i]]
    return computed(some) if some else 0


@given(BRANCHES, st.integers(1, 80))
def test_the_plan_is_that_of_counting_each_packing(rows, budget):
    assert plan_packed(rows, budget) == plan_one_by_one(rows, budget)


def test_short_edges_matter_to_that_comparison(monkeypatch):
    """A plan that took every edge for a segment would put more into a part than fits."""
    rows = [(1,) * 7 + (2,), (1,) * 7 + (3,)]
    assert plan_packed(rows, 15) == plan_one_by_one(rows, 15) == [[0], [1]]
    monkeypatch.setattr(prefix_tree, "MIN_SHARED", 7)
    assert plan_packed(rows, 15) == [[0, 1]]


def test_planning_looks_at_each_sequence_once(monkeypatch):
    """Each is compared with the one before it, and again if that begins a new part: no part is counted anew."""
    calls = []
    count = lambda *args: calls.append(args) or shared_length(*args)  # noqa: E731
    monkeypatch.setattr(prefix_tree, "shared_length", count)
    rows = [(*[1] * 20, i, j) for i in range(20) for j in range(20)]
    assert len(plan_packed(rows, 10_000)) == 1
    assert len(calls) == len(rows) - 1


@given(ROWS.map(lambda rows: [row for row in rows if row]).filter(any))
def test_every_beginning_is_computed_once(rows):
    """Against the set of all different beginnings, which are as many as there are nodes in a trie."""
    trie = {row[: i + 1] for row in rows for i in range(len(row))}
    assert computed(rows) == len(trie)


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=30), min_size=1, max_size=6))
def test_each_token_sees_its_own_sequence_and_nothing_else(rows):
    """Follows the layout's masks by hand: what a token sees spells the beginning of its sequence."""
    packing = pack_tokens([(*row, 7) for row in rows], [(False, *[True] * len(row)) for row in rows])
    ids, spelled, place = packing.token_ids, {}, -1
    real = set(packing.layout.order.tolist())
    for bucket in packing.layout.buckets:
        for r in range(bucket.tokens.shape[0]):
            for c in range(bucket.tokens.shape[1]):
                place += 1
                if place not in real:
                    continue
                seen = bucket.seen[r][: c + 1] if bucket.visible is None else bucket.seen[r][bucket.visible[r, 0, c]]
                spelled[int(bucket.tokens[r, c])] = tuple(ids[seen].tolist())
    padded = torch.cat([bucket.tokens.flatten() for bucket in packing.layout.buckets])
    assert padded[packing.layout.order].tolist() == list(range(len(ids)))
    trained = iter(packing.expand.tolist())
    for row in rows:
        for place in range(1, len(row) + 1):
            unique = next(trained)
            assert spelled[int(packing.predictors[unique])] == tuple(row[:place])
            assert int(packing.targets[unique]) == (*row, 7)[place]
            assert int(packing.position_ids[packing.predictors[unique]]) == place - 1


def test_what_is_packed():
    shared = tuple(range(10, 20))
    ids = [(*shared, 1, 2, 3), (*shared, 4, 5, 6), (9, 1, 1)]
    masks = [(False,) * 10 + (True, True, False), (False,) * 10 + (True, False, True), (False, True, True)]
    packing = pack_tokens(ids, masks)
    # What is common once; then what comes before each last trained token.
    assert sorted(packing.token_ids.tolist()) == sorted([*shared, 1, 4, 5, 9, 1])
    assert packing.position_ids.max() == 11
    assert len(packing.targets) == 6
    assert collate([TrainingSequence(ids[2], masks[2])], [0], packed=True).num_tokens == 2
    twins = pack_tokens([ids[0], ids[0]], [masks[0], masks[0]])
    assert (len(twins.targets), twins.expand.tolist()) == (2, [0, 1, 0, 1])


def test_the_plan_keeps_together_what_begins_alike():
    a, b = (1,) * 20, (2,) * 20
    rows = [(*a, 3, 4), (*b, 3, 4), (*a, 5, 6), (*b, 5, 6)]
    assert plan_packed(rows, 48) == [[0, 1, 2, 3]]
    assert sorted(plan_packed(rows, 47)) == [[0, 1, 2], [3]]
    assert sorted(plan_packed(rows, 24)) == [[0, 2], [1, 3]]
    with pytest.raises(ConfigError, match="tokens_per_micro_batch"):
        plan_packed(rows, 0)


def test_a_dummy_goes_forward_and_backward(model):
    batch = dummy_micro_batch(3, packed=True)
    model.zero_grad()
    logprobs, _ = score_tokens(model, batch)
    assert logprobs.shape == (0,)
    logprobs.sum().backward()
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters())


def test_what_is_needed():
    assert needed((False, True, False, True, False, False)) == 3
    assert needed((False, True)) == 1


def test_a_model_that_does_not_go_through_the_interface_cannot_share(model, monkeypatch):
    assert can_share(model)
    monkeypatch.setattr(type(model), "_supports_attention_backend", False)
    assert not can_share(model)


def test_an_exported_policy_does_not_ask_for_our_attention(tmp_path):
    model, tokenizer = load_policy("tiny", "float32")
    score_tokens(model, collate(groups(), range(3), packed=True))
    assert model.config._attn_implementation == NAME
    export_policy(model, tokenizer, tmp_path / "policy")
    assert "rpl_" not in (tmp_path / "policy" / "config.json").read_text()
    assert load_policy(str(tmp_path / "policy"), "float32")[0].config._attn_implementation != NAME
