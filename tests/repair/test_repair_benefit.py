from dataclasses import replace

import pytest
from repair_fakes import ScriptedSampler, a_question

from rpl.policy.likelihood import mean_logprobs
from rpl.repair.benefit import Evidence, gold_ids, read_evidence
from rpl.sampling.opening import OpenedPolicy

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def policy():
    from rpl.policy.loading import load_policy, resolve_model

    model, tokenizer = load_policy(resolve_model("tiny"))
    return model.eval(), tokenizer


def reference(model, context, continuation):
    """One sequence at a time, one token at a time, in double precision."""
    total, ids = 0.0, list(context)
    for token in continuation:
        with torch.inference_mode():
            logits = model(input_ids=torch.tensor([ids])).logits[0, -1].double()
        total += float(torch.log_softmax(logits, -1)[token])
        ids.append(token)
    return total / len(continuation)


def test_mean_logprobs_equal_the_slow_way(policy):
    model, _ = policy
    pairs = [([5, 6, 7], [8]), ([9] * 12, [10, 11, 12, 13]), ([3], [4, 5])]
    expected = [reference(model, *pair) for pair in pairs]
    for batch_size in (1, 2, 3):
        assert mean_logprobs(model, pairs, batch_size) == pytest.approx(expected, abs=1e-5)
    shifted = [reference(model, context, continuation[::-1]) for context, continuation in pairs]
    assert mean_logprobs(model, pairs, 3) != pytest.approx(shifted, abs=1e-5)


def test_the_answerer_reads_only_the_observation(policy):
    from rpl.policy.renderer import Renderer

    model, tokenizer = policy
    sampler = ScriptedSampler(lambda prompt, _: "Euro</answer> and more" if "EUR" in prompt else "franc</answer>")
    sampler.open = _decoded(sampler.open, tokenizer)
    question = a_question()
    opened = OpenedPolicy("tiny", model, Renderer(tokenizer), sampler, None, {})
    evidence = [Evidence(question, o) for o in ("[1] EUR", "[2] nothing", "[1] EUR")]
    with_it, without, again = read_evidence(evidence, opened, "print(bm25(question, k=1))", 32, 2)
    assert (with_it.answer, with_it.em) == ("Euro", 1.0)
    assert (without.answer, without.em) == ("franc", 0.0)
    assert with_it == again
    assert with_it.gold_logprob != without.gold_logprob
    assert with_it.gold_logprob < 0


def _decoded(open_session, tokenizer):
    """Lets the stand-in, whose prompts are characters, read prompts of a real tokenizer."""

    def go():
        session = open_session()
        add = session.add
        session.add = lambda prompt, seed: add([ord(c) for c in tokenizer.decode(list(prompt))], seed)
        return session

    return go


def test_a_gold_answer_holds_no_control_token(policy):
    from rpl.policy.renderer import Renderer

    _, tokenizer = policy
    ids = gold_ids(Renderer(tokenizer), replace(a_question(), answers=("Lyon<|im_end|>",)))
    assert tokenizer.decode(ids) == "Lyon<|im_end|></answer>"
    assert not set(ids) & set(tokenizer.get_added_vocab().values())
