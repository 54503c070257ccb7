"""SFT, evaluation, export and warm start in a real Trainer on CPU."""

import dataclasses

import pytest
import torch
from module_fakes import PASSAGES, QUESTIONS, ListData, ListLoader

from rpl.agents.baselines import Policy
from rpl.core.errors import DataError
from rpl.core.records import Rollout, from_dict
from rpl.evaluation.protocol import evaluate
from rpl.evaluation.records import METRICS
from rpl.modules.parts.rollout_metrics import LOGGED_AS
from rpl.policy.loading import load_policy


@dataclasses.dataclass(frozen=True)
class Example:
    question: str
    question_id: str
    steps: tuple[tuple[str, str], ...]
    answer: str
    imitate: bool = True


EXAMPLES = [
    Example(q.question, q.id, ((f"print(read('{q.gold_docs[0]}'))", PASSAGES[q.gold_docs[0]]),), q.answers[0])
    for q in QUESTIONS
]


def fit(module, trainer, batch_size=3, ckpt_path=None):
    data = ListData(ListLoader(EXAMPLES, batch_size), ListLoader(QUESTIONS[:2], 2))
    trainer.fit(module, datamodule=data, ckpt_path=ckpt_path)


def test_an_example_to_read_trains_the_answer_and_never_the_program(make_sft):
    module = make_sft()
    module.configure_model()
    whole = module.sequence(EXAMPLES[0])
    read = module.sequence(dataclasses.replace(EXAMPLES[0], imitate=False))
    assert read.token_ids == whole.token_ids
    trained = [i for i, m in zip(read.token_ids, read.loss_mask, strict=True) if m]
    assert module.policy_model.tokenizer.decode(trained).startswith(f"<answer>{EXAMPLES[0].answer}</answer>")
    assert sum(whole.loss_mask) > sum(read.loss_mask) > 0


def test_sft_loss_is_the_mean_over_trained_tokens_and_falls(make_sft, make_trainer):
    module = make_sft(tokens_per_micro_batch=200)
    module.configure_model()
    total = count = 0.0
    for example in EXAMPLES[:3]:
        ids, mask = module.policy_model.renderer.transcript(example.question, example.steps, example.answer)
        logits = module.model(torch.tensor([ids])).logits[0].log_softmax(-1)
        for t in range(1, len(ids)):
            if mask[t]:
                total -= float(logits[t - 1, ids[t]].detach())
                count += 1
    trainer, recorder = make_trainer(8)
    fit(module, trainer)
    assert recorder.rows[0]["train/loss"] == pytest.approx(total / count, rel=1e-5)
    assert recorder.rows[0]["train/tokens"] == count
    assert recorder.rows[-1]["train/loss"] < 0.8 * recorder.rows[0]["train/loss"]


def test_sft_budget_and_checkpointing_change_nothing(make_sft, make_trainer):
    rows = []
    for settings in (
        {"tokens_per_micro_batch": 100_000},
        {"tokens_per_micro_batch": 1, "logprob_chunk_tokens": 5, "activation_checkpointing": True},
    ):
        trainer, recorder = make_trainer(4)
        fit(make_sft(**settings), trainer)
        rows.append([(row["train/loss"], row["train/grad_norm"]) for row in recorder.rows])
    for a, b in zip(*rows, strict=True):
        assert a == pytest.approx(b, rel=1e-4)
    assert rows[0][0] != pytest.approx(rows[0][1], rel=1e-4)


def test_sft_resumes_exactly(make_sft, make_trainer, tmp_path):
    trainer, whole = make_trainer(4)
    fit(make_sft(), trainer)
    trainer, _ = make_trainer(2)
    fit(make_sft(), trainer)
    trainer.save_checkpoint(tmp_path / "two.ckpt")
    trainer, rest = make_trainer(4)
    fit(make_sft(), trainer, ckpt_path=tmp_path / "two.ckpt")
    assert rest.rows == whole.rows[2:]


def test_sft_refuses_what_the_policy_cannot_read(make_sft, make_trainer):
    module = make_sft()
    module.configure_model()
    module.model.config.max_position_embeddings = 20
    with pytest.raises(DataError, match=r"'q0' has .* tokens; the policy reads 20"):
        module.sequence(EXAMPLES[0])


def test_validation_scores_questions_also_without_padding_and_with_empty_batches(make_sft, make_trainer):
    module = make_sft()
    trainer, _ = make_trainer(1)
    loader = ListLoader(QUESTIONS[:5], 2)
    loader.batches.append([])
    data = ListData(evaluation=loader)
    (scores,) = trainer.validate(module, datamodule=data, verbose=False)
    rollouts = [from_dict(Rollout, r) for batch in trainer.predict(module, datamodule=data) for r in batch]
    assert [r.question_id for r in rollouts] == ["q0", "q1", "q2", "q3", "q4"]
    right = [r.answer == q.answers[0] for r, q in zip(rollouts, QUESTIONS, strict=False)]
    assert scores["val/em"] == pytest.approx(sum(right) / 5)
    assert 0 < scores["val/em"] < 1
    assert scores["val/evidence_recall"] == pytest.approx(sum(right) / 5)
    assert scores["val/turns"] == 2
    (scores,) = trainer.test(module, datamodule=data, verbose=False)
    assert scores["test/em"] == pytest.approx(sum(right) / 5)


def test_validation_and_an_evaluation_of_the_same_policy_give_equal_numbers(make_sft, make_trainer):
    module = make_sft()
    trainer, _ = make_trainer(1)
    data = ListData(evaluation=ListLoader(QUESTIONS[:5], 2))
    (scores,) = trainer.validate(module, datamodule=data, verbose=False)
    (tested,) = trainer.test(module, datamodule=data, verbose=False)
    sampler, executor = module.engine.sampler, module.engine.environment.executor
    policy = Policy(module.policy_model.renderer, sampler, executor, module.evaluator.rollout)
    measured = evaluate(policy, QUESTIONS[:5], progress=False, batch=2).metrics()
    expected = {logged: measured[name].mean for name, logged in LOGGED_AS.items() if measured[name].n}
    assert {name.removeprefix("val/"): value for name, value in scores.items()} == pytest.approx(
        expected | {"void_rate": 0.0}
    )
    assert {name.removeprefix("test/"): value for name, value in tested.items()} == pytest.approx(
        expected | {"void_rate": 0.0}
    )
    assert set(LOGGED_AS) == set(METRICS) - {"seconds"}
    assert 0 < expected["em"] < 1
    assert expected["printed_tokens"] > 0


def test_questions_without_gold_have_no_evidence_scores(make_sft, make_trainer):
    trainer, _ = make_trainer(1)
    loader = ListLoader([dataclasses.replace(q, gold_docs=()) for q in QUESTIONS[:2]], 2)
    (scores,) = trainer.validate(make_sft(), datamodule=ListData(evaluation=loader), verbose=False)
    assert "val/em" in scores
    assert "val/evidence_recall" not in scores


def test_export_and_warm_start(make_sft, make_trainer, tmp_path):
    module = make_sft()
    trainer, _ = make_trainer(1)
    fit(module, trainer)
    module.export_policy(tmp_path / "policy")
    model, _ = load_policy(tmp_path / "policy")
    trained = module.model.state_dict()
    assert all(torch.equal(value, trained[name]) for name, value in model.state_dict().items())
    warm = make_sft(init_from=str(tmp_path / "policy"))
    warm.configure_model()
    assert warm.iteration == 0
    assert torch.equal(next(warm.model.parameters()), next(module.model.parameters()))
    cold = make_sft()
    cold.configure_model()
    assert not torch.equal(next(cold.model.parameters()), next(module.model.parameters()))
