import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn

from rpl.core.errors import ConfigError, DataError
from rpl.core.files import write_jsonl
from rpl.core.records import Question, Reading, Repair, Trace, TraceError, to_dict
from rpl.datamodules.base import RPLDataModule
from rpl.datamodules.examples import SFTExample
from rpl.datamodules.qa import QADataModule
from rpl.datamodules.repaired import RepairedDataModule


@pytest.fixture(scope="module")
def questions() -> dict[str, list[Question]]:
    data = QADataModule("atlas-mini")
    return {"train": list(data.splits.train), "val": list(data.splits.val), "test": list(data.splits.test)}


def repair(question: Question, child: str | None = "print(1)", distance: int = 1, **fields: Any) -> Repair:
    base: dict[str, Any] = {
        "question_id": question.id,
        "parent": "print(0)",
        "child": child,
        "edit_distance": distance,
        "verdict": "repaired",
        "trace": Trace(child or "", f"seen by {child}", printed_ids=question.gold_docs),
    }
    return Repair(**(base | fields))


def save(path: Path, repairs: list[Repair]) -> str:
    write_jsonl(path, [to_dict(r) for r in repairs])
    return str(path)


def items(loader: Any) -> list[Any]:
    return [item for batch in loader for item in batch]


def test_base_is_abstract() -> None:
    with pytest.raises(TypeError, match="abstract"):
        RPLDataModule()  # type: ignore[abstract]


def test_training_and_evaluation_draw_on_their_own_questions(questions: dict[str, list[Question]]) -> None:
    data = QADataModule("atlas-mini", batch_size=7, eval_batch_size=6, seed=4)
    data.prepare_data()
    data.setup("fit")
    assert sorted(q.id for q in items(data.train_dataloader())) == sorted(q.id for q in questions["train"])
    assert items(data.val_dataloader()) == questions["val"]
    assert items(data.test_dataloader()) == items(data.predict_dataloader()) == questions["test"]
    assert [len(batch) for batch in data.train_dataloader()] == [7] * 8 + [4]
    other = QADataModule("atlas-mini", batch_size=7, seed=5)
    assert items(other.train_dataloader()) != items(data.train_dataloader())


def test_limits_take_prefixes(questions: dict[str, list[Question]]) -> None:
    data = QADataModule("atlas-mini", num_train=10, num_val=5, num_test=500)
    assert sorted(q.id for q in items(data.train_dataloader())) == sorted(q.id for q in questions["train"][:10])
    assert items(data.val_dataloader()) == questions["val"][:5]
    assert items(data.test_dataloader()) == questions["test"]


@pytest.mark.parametrize("key", ["batch_size", "eval_batch_size", "num_train", "num_val", "num_test"])
def test_sizes_are_checked(key: str) -> None:
    with pytest.raises(ConfigError, match=rf"data\.{key} must be at least 1, got 0"):
        QADataModule("atlas-mini", **{key: 0})


def test_missing_splits_are_named(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text(json.dumps({"id": "a", "question": "Who?", "answers": ["x"], "split": "test"}) + "\n")
    data = QADataModule(str(path))
    with pytest.raises(DataError, match="nothing to train on"):
        data.train_dataloader()
    with pytest.raises(DataError, match=r"no validation questions; set data\.val_questions or data\.val_fraction"):
        data.val_dataloader()
    assert len(items(data.test_dataloader())) == 1


def test_repairs_become_examples(tmp_path: Path, questions: dict[str, list[Question]]) -> None:
    a, b, c = questions["train"][:3]
    file = save(
        tmp_path / "repairs.jsonl",
        [
            repair(b, "print(3)", distance=3),
            repair(b, "print(2)", distance=2),
            repair(b, "print(2)", distance=2, seed=1),
            repair(a, "print(9)", verdict="already_verified", distance=0),
            repair(c, None, verdict="budget", trace=None),
        ],
    )
    data = RepairedDataModule(file, "atlas-mini")
    data.setup("fit")
    expected_b = SFTExample(b.question, b.id, (("print(2)", "seen by print(2)"),), b.answers[0])
    assert data.train_items() == [
        SFTExample(a.question, a.id, (("print(9)", "seen by print(9)"),), a.answers[0]),
        expected_b,
    ]
    more = RepairedDataModule(file, "atlas-mini", max_per_question=None)
    assert [e.steps[0][0] for e in more.train_items()] == ["print(9)", "print(2)", "print(3)"]
    fewer = RepairedDataModule(file, "atlas-mini", num_train=1)
    assert [e.question_id for e in fewer.train_items()] == [a.id]
    assert items(data.val_dataloader()) == questions["val"]
    twice = RepairedDataModule([file, file], "atlas-mini", max_per_question=None)
    assert twice.train_items() == more.train_items()


def test_evidence_to_read_is_an_example_of_its_own(tmp_path: Path, questions: dict[str, list[Question]]) -> None:
    a, b = questions["train"][:2]
    reading = Reading("print(4)", "wide")
    file = save(tmp_path / "repairs.jsonl", [repair(a, reading=reading), repair(b)])
    examples = RepairedDataModule(file, "atlas-mini").train_items()
    assert [(e.question_id, e.imitate) for e in examples] == [(a.id, True), (a.id, False), (b.id, True)]
    assert examples[1].steps == (("print(4)", "wide"),)
    without = RepairedDataModule(file, "atlas-mini", readings=False).train_items()
    assert [e.imitate for e in without] == [True, True]


def test_what_a_transcript_cannot_hold_is_dropped_and_counted(
    tmp_path: Path, questions: dict[str, list[Question]], capsys: pytest.CaptureFixture[str]
) -> None:
    a, b, c = questions["train"][:3]
    reading = {"program": "bm25('</answer>')", "observation": "x"}
    records = [
        repair(a, "bm25('in </program> Guide')"),
        repair(b, reading=Reading(**reading)),
        repair(c, "bm25('<|im_end|>')"),
    ]
    data = RepairedDataModule(save(tmp_path / "r.jsonl", records), "atlas-mini")
    assert [(e.question_id, e.imitate) for e in data.train_items()] == [(b.id, True), (c.id, True)]
    assert "data.repairs: 2 verified programs are left out" in capsys.readouterr().err
    data.keep(lambda example: "<|im_end|>" not in example.steps[0][0])
    assert [e.question_id for e in items(data.train_dataloader())] == [b.id]
    assert "data.repairs: 1 verified programs are left out" in capsys.readouterr().err


def test_the_first_accepted_answer_that_a_turn_can_hold_is_learnt(tmp_path: Path) -> None:
    rows = [
        {"id": "a", "question": "Who?", "answers": ["<result>", "x </answer>", "Lyon"], "split": "train"},
        {"id": "b", "question": "Who?", "answers": ["</answer>"], "split": "train"},
    ]
    path = tmp_path / "q.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    made = [repair(Question(row["id"], "Who?", tuple(row["answers"]))) for row in rows]
    data = RepairedDataModule(save(tmp_path / "r.jsonl", made), str(path))
    assert [(e.question_id, e.answer) for e in data.train_items()] == [("a", "Lyon")]


@pytest.mark.parametrize("split", ["val", "test"])
@pytest.mark.parametrize("verdict", ["repaired", "budget"])
def test_repairs_of_held_out_questions_are_refused(
    tmp_path: Path, questions: dict[str, list[Question]], split: str, verdict: str
) -> None:
    q = questions[split][0]
    file = save(tmp_path / "r.jsonl", [repair(questions["train"][0]), repair(q, verdict=verdict)])
    with pytest.raises(DataError, match=rf"r\.jsonl:2: question '{q.id}' is in split {split}"):
        RepairedDataModule(file, "atlas-mini").setup("fit")


def test_wrong_repairs_are_refused_with_their_line(tmp_path: Path, questions: dict[str, list[Question]]) -> None:
    q = questions["train"][0]
    failed = Trace("x", "", error=TraceError("runtime", "boom"))
    wrong = {
        "not in data.questions": repair(Question("nobody", "?", ("x",))),
        "'child' is null": repair(q, None),
        "'trace' is null": repair(q, trace=None),
        "trace has an error": repair(q, trace=failed),
    }
    for message, record in wrong.items():
        file = save(tmp_path / "r.jsonl", [record])
        with pytest.raises(DataError, match=rf"r\.jsonl:1: .*{message}"):
            RepairedDataModule(file, "atlas-mini").setup("fit")


@pytest.mark.parametrize(
    ("line", "message"),
    [('{"parent": "x"}', "field 'question_id' is missing"), ('{"question_id": "a", "kid": 1}', "no field 'kid'")],
)
def test_lines_that_are_no_repairs_are_refused(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(DataError, match=rf"r\.jsonl:1: not a repair: .*{message}"):
        RepairedDataModule(str(path), "atlas-mini").train_items()


def test_no_verified_repair_is_an_error_only_for_training(tmp_path: Path, questions: dict[str, list[Question]]) -> None:
    file = save(tmp_path / "r.jsonl", [repair(questions["train"][0], None, verdict="budget", trace=None)])
    data = RepairedDataModule(file, "atlas-mini")
    data.setup("validate")
    assert len(items(data.val_dataloader())) == 20
    with pytest.raises(DataError, match="no verified repair"):
        data.setup("fit")


@pytest.mark.parametrize(
    ("strategy", "share"),
    [
        (SimpleNamespace(distributed_sampler_kwargs={"num_replicas": 2, "rank": 1}), (1, 2)),
        (SimpleNamespace(), (3, 4)),
    ],
    ids=["data-parallel processes", "all processes"],
)
def test_processes_get_different_questions(
    strategy: SimpleNamespace, share: tuple[int, int], questions: dict[str, list[Question]]
) -> None:
    rank, size = share
    data = QADataModule("atlas-mini", batch_size=2)
    data.trainer = SimpleNamespace(world_size=4, global_rank=3, strategy=strategy)  # type: ignore[assignment]
    assert items(data.val_dataloader()) == questions["val"][rank::size]
    assert len(items(data.train_dataloader())) == 60 // size


class Collector(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)
        self.seen: list[str] = []
        self.validated: list[str] = []

    def training_step(self, batch: list[Question], batch_idx: int) -> torch.Tensor:
        self.seen += [q.id for q in batch]
        return self.layer(torch.ones(1, 1)).mean()

    def validation_step(self, batch: list[Question], batch_idx: int) -> None:
        self.validated += [q.id for q in batch]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_a_trainer_takes_batches_of_records(tmp_path: Path, questions: dict[str, list[Question]]) -> None:
    module = Collector()
    trainer = Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        default_root_dir=tmp_path,
    )
    trainer.fit(module, datamodule=QADataModule("atlas-mini", batch_size=8))
    train = [q.id for q in questions["train"]]
    assert sorted(module.seen) == sorted(train * 2)
    assert module.seen[:60] != module.seen[60:], "each epoch has its own order"
    assert module.validated == [q.id for q in questions["val"]] * 2
