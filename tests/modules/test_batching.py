import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rpl.core.errors import ConfigError
from rpl.core.records import Rollout, Turn
from rpl.modules.batches.micro_batches import (
    TrainingSequence,
    collate,
    dummy_micro_batch,
    from_rollout,
    micro_batches,
    plan_micro_batches,
    split_evenly,
)


def sequence(length, seed=0):
    generator = torch.Generator().manual_seed(seed * 1000 + length)
    ids = torch.randint(0, 50, (length,), generator=generator).tolist()
    mask = (torch.rand(length, generator=generator) < 0.5).tolist()
    mask[0] = False
    return TrainingSequence(tuple(ids), tuple(mask), float(seed), tuple(-0.01 * i - 0.1 for i in range(length)))


@given(lengths=st.lists(st.integers(1, 40), max_size=30), budget=st.integers(1, 120))
def test_every_token_is_in_exactly_one_place(lengths, budget):
    sequences = [sequence(length, seed) for seed, length in enumerate(lengths)]
    seen = []
    for batch in micro_batches(sequences, budget, pad_id=7):
        assert len(batch.indices) == 1 or batch.num_tokens <= budget
        for row, index in enumerate(batch.indices):
            seen.append(index)
            item, real = sequences[index], batch.attention_mask[row]
            assert batch.input_ids[row][real].tolist() == list(item.token_ids)
            assert batch.loss_mask[row][real].tolist() == list(item.loss_mask)
            assert not batch.loss_mask[row][~real].any()
            assert (batch.input_ids[row][~real] == 7).all()
            trained = batch.loss_mask[row]
            assert (batch.advantages[row] == torch.where(trained, item.advantage, 0.0)).all()
            want = [p for p, m in zip(item.sampler_logprobs, item.loss_mask, strict=True) if m]
            torch.testing.assert_close(batch.sampler_logprobs[row][trained], torch.tensor(want, dtype=torch.float32))
            assert (batch.sampler_logprobs[row][~trained] == 0).all()
            assert batch.position_ids[row].tolist() == list(range(batch.input_ids.shape[1]))
    assert sorted(seen) == list(range(len(sequences)))


def test_longest_first_and_little_padding():
    plan = plan_micro_batches([5, 100, 6, 99], 200)
    assert plan == [[1, 3], [2, 0]]
    with pytest.raises(ConfigError, match="tokens_per_micro_batch"):
        plan_micro_batches([1], 0)


def test_a_rollout_trains_completions_only():
    turns = (
        Turn((5, 6), (-0.5, -0.6), "ab", "stop", observation_ids=(7, 8)),
        Turn((9,), (-0.9,), "c", "stop", answer="c"),
    )
    rollout = Rollout("q", "g", 0, 1, prompt_ids=(1, 2), turns=turns, answer="c")
    item = from_rollout(rollout, 2.0)
    assert item.token_ids == (1, 2, 5, 6, 7, 8, 9)
    assert item.loss_mask == (False, False, True, True, False, False, True)
    batch = collate([item], [0])
    assert batch.targets.tolist() == [5, 6, 9]
    assert batch.num_trained == 3
    torch.testing.assert_close(batch.sampler_logprobs[batch.loss_mask], torch.tensor([-0.5, -0.6, -0.9]))


def test_dummy_trains_nothing():
    dummy = dummy_micro_batch(3)
    assert (dummy.num_trained, dummy.num_tokens, dummy.indices) == (0, 2, ())


def test_split_evenly():
    assert split_evenly(5, 3) == [[0, 3], [1, 4], [2]]
    assert split_evenly(1, 3) == [[0], [], []]


def test_bad_sequences():
    with pytest.raises(ValueError, match="loss mask of 1"):
        TrainingSequence((1, 2), (True,))
    with pytest.raises(ValueError, match="first token"):
        TrainingSequence((1, 2), (True, True))
    with pytest.raises(ValueError, match="1 log-probabilities"):
        TrainingSequence((1, 2), (False, True), 0.0, (0.0,))
