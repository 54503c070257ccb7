"""Settings and tokenizers that do not fit a model are refused by name before anything runs."""

import pytest
from gpt2 import gpt2_folder

from rpl.core.errors import CheckpointError, ConfigError
from rpl.policy.limits import check_context, positions
from rpl.policy.loading import load_policy
from rpl.sampling.hf.sampler import HFSampler
from rpl.sampling.sampler import SamplingParams


def test_positions_are_those_of_the_architecture(tmp_path):
    assert positions(load_policy(gpt2_folder(tmp_path / "gpt2", positions=96))[0]) == 96
    assert positions(load_policy("tiny")[0]) == 8192


@pytest.mark.parametrize(("tokens", "limit"), [(256, 256), (10**6, None)])
def test_a_context_that_fits_is_taken(tokens, limit):
    check_context(tokens, limit, "GPT2LMHeadModel")


def test_a_context_beyond_the_positions_is_refused_with_both_numbers():
    with pytest.raises(ConfigError, match=r"rollout\.max_context_tokens is 257, but GPT2LMHeadModel reads 256"):
        check_context(257, 256, "GPT2LMHeadModel")


def test_tokens_without_an_embedding_are_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"embedding has 257 rows, but .*: '.' \(257\), '.' \(258\);"):
        load_policy(gpt2_folder(tmp_path / "gpt2", vocabulary=257))
    load_policy(gpt2_folder(tmp_path / "more", vocabulary=300))  # more rows than tokens are common and harmless


def test_the_sampler_draws_up_to_the_last_position_and_refuses_the_next(tmp_path):
    model, tokenizer = load_policy(gpt2_folder(tmp_path / "gpt2", positions=48))
    sampler = HFSampler()
    sampler.connect(model, tokenizer)
    for new, fits in ((8, True), (9, False)):
        with sampler.open() as session:
            session.submit(session.add(list(range(3, 43)), seed=1), SamplingParams(max_new_tokens=new))
            if fits:
                while not session.advance():
                    pass
            else:
                with pytest.raises(ConfigError, match="of 49 tokens, completion included, is longer than the 48"):
                    session.advance()
