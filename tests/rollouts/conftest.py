import pytest


@pytest.fixture(scope="session")
def tiny():
    """Model and tokenizer of the tiny policy; tests that change weights load their own."""
    import torch

    from rpl.rollouts.models import load_policy

    torch.set_num_threads(1)
    return load_policy("tiny")


@pytest.fixture(scope="session")
def tokenizer(tiny):
    return tiny[1]
