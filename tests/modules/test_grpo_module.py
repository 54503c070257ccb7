"""GRPO in a real Trainer on CPU with scripted completions."""

import dataclasses

import pytest
import torch
from gpt2 import gpt2_folder
from module_fakes import PASSAGES, QUESTIONS, FakeExecutor, ListData, ListLoader

from rpl.core.errors import ConfigError, RetrieverError
from rpl.core.records import Trace, TraceError, to_dict
from rpl.environment.environment import Environment, EnvironmentConfig
from rpl.modules.batches.logprobs import score_tokens
from rpl.modules.batches.micro_batches import TrainingSequence, collate, from_rollout
from rpl.modules.batches.packing import pack_tokens
from rpl.modules.grpo import GRPOModule
from rpl.rollouts.requests import RolloutConfig


def fit(module, trainer, batch_size=2, ckpt_path=None):
    data = ListData(ListLoader(QUESTIONS, batch_size), ListLoader(QUESTIONS[:5], 2))
    trainer.fit(module, datamodule=data, ckpt_path=ckpt_path)


def weights(module):
    return torch.cat([p.detach().flatten() for p in module.model.parameters()])


def test_an_iteration_logs_and_records_what_happened(make_grpo, make_trainer):
    module = make_grpo(reward={"em": 1.0, "coverage": 0.5}, seed=1)
    trainer, recorder = make_trainer(3)
    fit(module, trainer)
    assert [row["iteration"] for row in recorder.rows] == [1, 2, 3]
    row = recorder.rows[-1]
    scored = recorder.credited
    assert len(scored) == 8
    assert row["train/reward"] == pytest.approx(sum(s.reward for s in scored) / 8)
    assert row["train/reward_em"] == row["train/em"] == pytest.approx(sum(s.em for s in scored) / 8)
    assert row["train/kept_rate"] == pytest.approx(sum(s.kept for s in scored) / 8)
    assert row["rollout/turns"] == 2
    assert row["train/ratio"] == pytest.approx(1.0)
    assert row["train/clip_fraction"] == 0
    assert row["train/entropy"] > 0
    assert row["train/sampler_gap"] > 1  # the scripted sampler's log-probabilities are made up
    assert {s.rollout.group_id for s in scored} == {"2/q4", "2/q5"}
    assert to_dict(scored[0])["rollout"]["question_id"] == "q4"
    times = {k: float(v) for k, v in trainer.callback_metrics.items() if k.startswith("time/")}
    seconds = {"time/generate_s", "time/execute_s", "time/wait_s", "time/sync_s", "time/update_s"}
    assert set(times) == seconds | {"time/generate_tokens_per_s", "time/update_tokens_per_s", "time/wait_share"}
    generated = sum(sum(s.rollout.completion_mask) for s in scored)
    assert times["time/generate_tokens_per_s"] * times["time/generate_s"] == pytest.approx(generated, rel=1e-3)
    assert 0 <= times["time/wait_share"] < 1


def test_rewards_pull_the_policy_towards_what_was_right(make_grpo, make_trainer):
    """After training, right transcripts are likelier than wrong ones; before, they were not."""
    module = make_grpo(seed=1, group_size=6, gradient_clip=0.0)
    module.configure_model()

    def preference():
        gap = 0.0
        for i, q in enumerate(QUESTIONS[:3]):
            for sign, number, answer in ((1, i + 1, q.answers[0]), (-1, (i + 1) % 3 + 1, "Peru")):
                steps = [(f"print(read('p{number}'))", f"[p{number}] {PASSAGES[f'p{number}']}")]
                ids, mask = module.policy_model.renderer.transcript(q.question, steps, answer, eos=False)
                batch = collate([TrainingSequence(tuple(ids), tuple(mask))], [0])
                gap += sign * score_tokens(module.model, batch)[0].sum().item()
        return gap

    before = preference()
    trainer, _ = make_trainer(6)
    fit(module, trainer, batch_size=3)
    assert preference() > before + 5


def test_all_groups_equal_changes_nothing_but_counts(make_grpo, make_trainer):
    module = make_grpo(right=1.0, optimizer=lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.5))
    module.configure_model()
    before = weights(module)
    trainer, recorder = make_trainer(4)
    fit(module, trainer)
    assert torch.equal(weights(module), before)
    assert [row["global_step"] for row in recorder.rows] == [1, 2, 3, 4]
    assert recorder.rows[-1]["train/groups_all_right"] == 1.0
    assert recorder.rows[-1]["train/tokens"] == 0
    assert not trainer.optimizers[0].state
    wrong, recorder = make_trainer(1)
    fit(make_grpo(right=0.0), wrong)
    assert recorder.rows[-1]["train/groups_all_wrong"] == 1.0


@pytest.mark.parametrize(("settings", "budget"), [({}, 150), ({"updates_per_iteration": 2, "beta": 0.1}, 300)])
def test_the_budget_of_micro_batches_changes_nothing(make_grpo, make_trainer, settings, budget):
    rows = []
    for tokens in (budget, 100_000):
        trainer, recorder = make_trainer(4)
        fit(make_grpo(tokens_per_micro_batch=tokens, logprob_chunk_tokens=tokens, **settings), trainer)
        rows.append([(row["train/loss"], row["train/grad_norm"]) for row in recorder.rows])
    for a, b in zip(*rows, strict=True):
        assert a == pytest.approx(b, rel=1e-3, abs=1e-6)
    assert rows[0][0] != pytest.approx(rows[0][1], rel=1e-3, abs=1e-6)


@pytest.mark.parametrize("settings", [{}, {"updates_per_iteration": 2, "epochs": 2, "beta": 0.1}])
def test_packing_changes_nothing(make_grpo, make_trainer, settings):
    rows = []
    for packing, temperature in (("shared", 1.0), ("plain", 1.0), ("plain", 1.01)):
        trainer, recorder = make_trainer(4)
        module = make_grpo(packing=packing, **settings)
        module.rollout = dataclasses.replace(module.rollout, temperature=temperature)
        fit(module, trainer)
        rows.append([(row["train/loss"], row["train/grad_norm"], row["train/entropy"]) for row in recorder.rows])
    for a, b in zip(rows[0], rows[1], strict=True):
        assert a == pytest.approx(b, rel=1e-3, abs=1e-6)
    assert rows[0][0] != pytest.approx(rows[2][0], rel=1e-3, abs=1e-6)


def test_a_wrong_packing_is_noticed_and_not_used(make_grpo, make_trainer, monkeypatch, capsys):
    def wrong(token_ids, loss_masks):
        packing = pack_tokens(token_ids, loss_masks)
        return dataclasses.replace(packing, position_ids=packing.position_ids * 2)

    def losses(packing):
        trainer, recorder = make_trainer(1)
        fit(make_grpo(packing=packing), trainer)
        return recorder.rows[0]["train/loss"], recorder.rows[0]["train/grad_norm"]

    plain = losses("plain")
    losses("shared")
    assert "packing" not in capsys.readouterr().err
    monkeypatch.setattr("rpl.modules.batches.micro_batches.pack_tokens", wrong)
    assert losses("shared") == plain
    assert "log-probabilities of packed and padded tokens differ" in capsys.readouterr().err


def test_sequences_without_gradient_are_not_computed(make_grpo, make_trainer, monkeypatch):
    """Those with an advantage of 0 stay in the normaliser."""
    seen = []
    original = GRPOModule.pack
    monkeypatch.setattr(
        GRPOModule, "pack", lambda self, sequences: seen.append(len(sequences)) or original(self, sequences)
    )
    module = make_grpo(advantage="dr_grpo", group_size=3)
    zeroed = iter([1.0, 0.0, -1.0] * 2)
    monkeypatch.setattr("rpl.modules.grpo.from_rollout", lambda rollout, advantage: from_rollout(rollout, next(zeroed)))
    monkeypatch.setattr(
        module, "credit", lambda *args: [dataclasses.replace(c, kept=True) for c in GRPOModule.credit(module, *args)]
    )
    normalisers = []
    monkeypatch.setattr("rpl.modules.grpo.loss_normaliser", lambda *args: normalisers.append(args) or 100.0)
    trainer, _ = make_trainer(1)
    fit(module, trainer)
    assert seen == [4]
    assert normalisers[0][2] == 6
    for kwargs in ({"beta": 0.1}, {"entropy_coef": 0.1}):
        assert make_grpo(**kwargs)._needed([TrainingSequence((1, 2), (False, True))])
    assert not make_grpo()._needed([TrainingSequence((1, 2), (False, True))])


@pytest.mark.parametrize("settings", [{}, {"updates_per_iteration": 2, "epochs": 2}])
def test_no_pass_is_made_twice(make_grpo, make_trainer, monkeypatch, settings):
    """Old log-probabilities of the first part are those that its own update computes."""
    passes = []
    original = GRPOModule.token_logprobs

    def spy(self, batch, *args, **kwargs):
        passes.append((batch.indices, torch.is_grad_enabled()))
        return original(self, batch, *args, **kwargs)

    module = make_grpo(packing="plain", seed=3, **settings)
    monkeypatch.setattr(GRPOModule, "token_logprobs", spy)
    trainer, _ = make_trainer(module.updates_per_step)
    fit(module, trainer)
    without = [indices for indices, grad in passes if not grad]
    assert len(without) == (1 if settings else 0)  # those of the second part
    assert len(passes) == (1 + 4 if settings else 1)


def test_importance_weights_correct_the_sampler(make_grpo, make_trainer):
    trainer, recorder = make_trainer(1)
    fit(make_grpo(importance_cap=2.0), trainer)
    row = recorder.rows[0]
    assert 0 < row["train/importance"] < 0.5  # the made-up log-probability is -1, the model's about -5.7
    assert row["train/importance_capped"] == 0
    plain, without = make_trainer(1)
    fit(make_grpo(), plain)
    assert "train/importance" not in without.rows[0]
    assert row["train/grad_norm"] < without.rows[0]["train/grad_norm"] / 2
    capped, recorder = make_trainer(1)
    fit(make_grpo(importance_cap=1e-9), capped)
    assert recorder.rows[0]["train/importance_capped"] == 1


def test_several_updates_an_iteration(make_grpo, make_trainer):
    module = make_grpo(updates_per_iteration=2, epochs=2, beta=0.05, seed=3)
    trainer, recorder = make_trainer(8)
    fit(module, trainer)
    assert [row["global_step"] for row in recorder.rows] == [4, 8]
    assert recorder.rows[0]["train/ratio"] != pytest.approx(1.0, abs=1e-4)  # later updates are off-policy
    assert recorder.rows[1]["train/kl"] > 0
    assert not any("reference" in key for key in module.state_dict())


def test_ratio_against_the_sampler(make_grpo, make_trainer):
    trainer, recorder = make_trainer(1)
    fit(make_grpo(ratio="sampler"), trainer)
    assert recorder.rows[0]["train/ratio"] < 0.1  # made-up log-probabilities of -1 against about -5.7


@pytest.mark.parametrize("settings", [{}, {"updates_per_iteration": 2, "beta": 0.1, "lr_schedule": "linear"}])
def test_resume_goes_on_exactly(make_grpo, make_trainer, tmp_path, settings):
    updates = settings.get("updates_per_iteration", 1)
    settings = settings | {"warmup_steps": 2}
    trainer, whole = make_trainer(5 * updates)
    straight = make_grpo(**settings)
    fit(straight, trainer)

    class StopAtTwo(type(whole)):
        def on_train_batch_end(self, trainer, pl_module, *args):
            super().on_train_batch_end(trainer, pl_module, *args)
            if pl_module.iteration == 2:
                trainer.save_checkpoint(tmp_path / "two.ckpt")
                trainer.should_stop = True

    first, _ = make_trainer(5 * updates)
    first.callbacks = [StopAtTwo()]
    fit(make_grpo(**settings), first)
    second, rest = make_trainer(5 * updates)
    resumed = make_grpo(**settings)
    fit(resumed, second, ckpt_path=tmp_path / "two.ckpt")
    assert [row["iteration"] for row in rest.rows] == [3, 4, 5]
    assert rest.rows == whole.rows[2:]
    assert torch.equal(weights(resumed), weights(straight))
    stored = torch.load(tmp_path / "two.ckpt", weights_only=True)
    assert stored["rpl"]["iteration"] == 2
    assert "hyper_parameters" not in stored


def test_bf16_mixed_keeps_float32_weights_and_agrees_with_float32(make_grpo, make_trainer):
    rows = {}
    for precision in ("32-true", "bf16-mixed"):
        trainer, recorder = make_trainer(4, precision=precision)
        module = make_grpo()
        fit(module, trainer)
        assert all(p.dtype == torch.float32 for p in module.model.parameters())
        rows[precision] = [row["train/grad_norm"] for row in recorder.rows]
    assert rows["bf16-mixed"] != rows["32-true"]
    assert rows["bf16-mixed"] == pytest.approx(rows["32-true"], rel=0.03)
    assert rows["bf16-mixed"] != pytest.approx(rows["32-true"][1:] + rows["32-true"][:1], rel=0.03)


@pytest.mark.parametrize(("precision", "low", "high"), [("32-true", 0.0, 1e-4), ("bf16-mixed", 1e-4, 0.1)])
def test_the_sampler_gap_of_the_real_sampler_is_rounding(make_trainer, precision, low, high):
    module = RandomCredit(
        policy="tiny",
        group_size=2,
        rollout=RolloutConfig(max_turns=2, max_new_tokens=12, temperature=0.7),
        optimizer=lambda p: torch.optim.SGD(p, lr=1e-3),
    )
    module.engine.environment = Environment(EnvironmentConfig(), executor=FakeExecutor())
    trainer, recorder = make_trainer(1, precision=precision)
    fit(module, trainer)
    assert recorder.rows[0]["train/tokens"] > 0
    assert low <= recorder.rows[0]["train/sampler_gap"] < high


class RandomCredit(GRPOModule):
    """A random model is always wrong; here its rollouts enter the loss all the same."""

    def credit(self, *args):
        credited = super().credit(*args)
        return [dataclasses.replace(c, advantage=1.0 - 2.0 * (i % 2), kept=True) for i, c in enumerate(credited)]


def gpt2(tmp_path, **settings):
    module = RandomCredit(
        policy=str(gpt2_folder(tmp_path / "gpt2", positions=512)),
        group_size=2,
        rollout=RolloutConfig(max_turns=2, max_new_tokens=12, max_context_tokens=settings.pop("context", 512)),
        optimizer=lambda p: torch.optim.SGD(p, lr=1e-3),
        **settings,
    )
    module.engine.environment = Environment(EnvironmentConfig(), executor=FakeExecutor())
    return module


@pytest.mark.parametrize("checkpointing", [False, True])
def test_dropout_of_the_models_own_configuration_is_off_in_rl(make_trainer, tmp_path, checkpointing):
    module = gpt2(tmp_path, beta=0.1, activation_checkpointing=checkpointing)
    trainer, recorder = make_trainer(1)
    fit(module, trainer)
    assert recorder.rows[0]["train/tokens"] > 0
    assert recorder.rows[0]["train/sampler_gap"] < 1e-5  # rounding; 0.03 with dropout
    assert recorder.rows[0]["train/kl"] == 0.0
    assert module.model.training  # as it was, for whoever trains it further


def test_dropout_that_stays_on_would_show(make_trainer, tmp_path, monkeypatch):
    monkeypatch.setattr("rpl.modules.grpo.without_dropout", lambda *args: None)
    trainer, recorder = make_trainer(1)
    fit(gpt2(tmp_path, beta=0.1), trainer)
    assert recorder.rows[0]["train/sampler_gap"] > 1e-3
    assert recorder.rows[0]["train/kl"] > 0.0


def test_a_context_that_the_model_cannot_read_is_refused_before_the_run(make_sft, make_trainer, tmp_path):
    trainer, recorder = make_trainer(1)
    with pytest.raises(ConfigError, match="max_context_tokens is 513, but GPT2LMHeadModel reads 512 positions"):
        fit(gpt2(tmp_path, context=513), trainer)
    with pytest.raises(ConfigError, match="max_context_tokens is 2048, but GPT2LMHeadModel reads 512 positions"):
        make_sft(init_from=str(tmp_path / "gpt2")).configure_model()
    assert not recorder.rows


def test_a_rollout_without_room_counts_as_truncated(make_grpo, make_trainer):
    module = make_grpo()
    module.rollout = dataclasses.replace(module.rollout, max_context_tokens=200)
    trainer, recorder = make_trainer(1)
    fit(module, trainer)
    assert {c.rollout.invalid for c in recorder.credited} == {"context"}
    assert recorder.rows[0]["rollout/truncated_rate"] == 1.0


def test_programs_that_fail_again_are_counted(make_grpo, make_trainer):
    class Failing(FakeExecutor):
        def run_many(self, jobs):
            return [Trace(source, "", error=TraceError("runtime", "boom")) for source, _ in jobs]

    module = make_grpo()
    module.rollout = dataclasses.replace(module.rollout, max_turns=4, max_context_tokens=4000)
    module.engine.environment = Environment(EnvironmentConfig(), executor=Failing())
    module.engine.sampler.stubborn = True
    trainer, recorder = make_trainer(1)
    fit(module, trainer)
    turns = {len(c.rollout.turns) for c in recorder.credited}
    assert recorder.rows[0]["rollout/program_error_rate"] == 1.0
    assert (turns, recorder.rows[0]["rollout/repeated_error_rate"]) == ({4}, pytest.approx(2 / 3))


def test_iterations_without_anything_to_learn_are_said_and_counted(make_grpo, make_trainer, capsys):
    trainer, recorder = make_trainer(11)
    fit(make_grpo(right=1.0), trainer)
    assert [row["train/idle_iterations"] for row in recorder.rows] == list(range(1, 12))
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("rpl: ")]
    assert [line.split(":")[1].strip() for line in lines[:2]] == ["iteration 5", "iteration 10"]
    assert "nothing to learn in 5 iterations in a row" in lines[0]
    assert lines[2:] == ["rpl: nothing could be learnt in 11 of 11 iterations"]
    trainer, recorder = make_trainer(4)
    fit(make_grpo(seed=1), trainer)
    assert recorder.rows[-1]["train/idle_iterations"] == 0
    assert "nothing to learn" not in capsys.readouterr().err


def test_a_run_with_nothing_to_learn_can_be_stopped_also_after_a_resume(make_grpo, make_trainer, tmp_path, capsys):
    trainer, recorder = make_trainer(20)
    fit(make_grpo(right=1.0, stop_after_idle=3), trainer)
    assert [row["global_step"] for row in recorder.rows] == [1, 2, 3]
    assert "the run stops here, as model.stop_after_idle says" in capsys.readouterr().err
    trainer, _ = make_trainer(2)
    fit(make_grpo(right=1.0), trainer)
    trainer.save_checkpoint(tmp_path / "two.ckpt")
    trainer, recorder = make_trainer(20)
    fit(make_grpo(right=1.0, stop_after_idle=3), trainer, ckpt_path=tmp_path / "two.ckpt")
    assert [row["global_step"] for row in recorder.rows] == [3]


def test_a_broken_retriever_stops_the_run(make_grpo, make_trainer):
    trainer, _ = make_trainer(1)
    with pytest.raises(RetrieverError, match="no index"):
        fit(make_grpo(broken=True), trainer)


def test_void_rollouts_are_left_out(make_grpo, make_trainer):
    class HalfBroken(FakeExecutor):
        def run_many(self, jobs):
            broken = FakeExecutor(broken=True)
            return [(broken if "p3" in s else super(HalfBroken, self)).run_many([(s, q)])[0] for s, q in jobs]

    module = make_grpo(max_void_rate=0.5)
    module.engine.environment = Environment(EnvironmentConfig(), executor=HalfBroken())
    trainer, recorder = make_trainer(1)
    fit(module, trainer)
    void = [s for s in recorder.credited if s.reward is None]
    assert void
    assert all(not s.kept and s.advantage == 0 for s in void)
    assert recorder.rows[0]["rollout/void_rate"] == pytest.approx(len(void) / 8)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"group_size": 1}, "group_size 1"),
        ({"reward": {"exact": 1.0}}, "reward.exact"),
        ({"beta": 0.1, "kl_estimator": "k1", "kl_gradient": "plain"}, "k1"),
        ({"epochs": 0}, "epochs"),
        ({"stop_after_idle": 0}, "stop_after_idle"),
        ({"gradient_clip": -1.0}, "gradient_clip"),
    ],
)
def test_bad_settings(make_grpo, settings, message):
    with pytest.raises(ConfigError, match=message):
        make_grpo(**settings)


def test_settings_that_only_the_trainer_can_judge(make_grpo, make_trainer):
    trainer, _ = make_trainer(3)
    with pytest.raises(ConfigError, match=r"multiple of updates_per_iteration \* epochs \(2\)"):
        fit(make_grpo(epochs=2), trainer)
    trainer, _ = make_trainer(-1, max_epochs=1)
    with pytest.raises(ConfigError, match=r"trainer\.max_steps"):
        fit(make_grpo(lr_schedule="cosine"), trainer)
    trainer, _ = make_trainer(1, precision="bf16-true")
    with pytest.raises(ConfigError, match="32-true, bf16-mixed"):
        fit(make_grpo(), trainer)
