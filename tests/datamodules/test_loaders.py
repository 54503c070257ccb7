"""Loaders: order, shares, resume; with a real Trainer where Lightning's own bookkeeping matters."""

from collections import Counter
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from torch import nn

from rpl.core.errors import CheckpointError, ConfigError
from rpl.datamodules.loader import EvalLoader, TrainLoader, epoch_order


def flat(loader) -> list[int]:
    return [item for batch in loader for item in batch]


def test_order_depends_on_seed_and_epoch_alone() -> None:
    orders = {(s, e): tuple(epoch_order(20, s, e)) for s in (0, 1) for e in (0, 1)}
    assert all(sorted(order) == list(range(20)) for order in orders.values())
    assert len(set(orders.values())) == 4
    assert tuple(epoch_order(20, 1, 1)) == orders[1, 1]


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 40), batch=st.integers(1, 7), world=st.integers(1, 4))
def test_training_shares_are_equal_and_disjoint(n: int, batch: int, world: int) -> None:
    if n < world:
        with pytest.raises(ConfigError, match="shared out"):
            TrainLoader(range(n), batch, world_size=world)
        return
    shares = [list(TrainLoader(range(n), batch, rank=r, world_size=world)) for r in range(world)]
    sizes = {tuple(len(b) for b in share) for share in shares}
    assert len(sizes) == 1, "every process sees batches of the same sizes"
    assert {len(share) for share in shares} == {len(TrainLoader(range(n), batch, rank=0, world_size=world))}
    seen = Counter(item for share in shares for b in share for item in b)
    assert set(seen.values()) <= {1}
    assert len(seen) == n - n % world
    assert all(b for share in shares for b in share)


@settings(max_examples=60, deadline=None)
@given(n=st.integers(0, 40), batch=st.integers(1, 7), world=st.integers(1, 4))
def test_evaluation_covers_every_item_exactly_once(n: int, batch: int, world: int) -> None:
    loaders = [EvalLoader(range(n), batch, rank=r, world_size=world) for r in range(world)]
    shares = [list(loader) for loader in loaders]
    assert sorted(item for share in shares for b in share for item in b) == list(range(n))
    assert {len(share) for share in shares} == {len(loaders[0])}, "all meet in the same collectives"


def test_processes_split_one_global_order() -> None:
    alone = list(TrainLoader(range(12), 4, seed=3))
    pair = [list(TrainLoader(range(12), 2, seed=3, rank=r, world_size=2)) for r in range(2)]
    assert [sorted(a + b) for a, b in zip(*pair, strict=True)] == [sorted(batch) for batch in alone]


@pytest.mark.parametrize("stop", range(9))
def test_resume_hands_out_what_was_left(stop: int) -> None:
    whole = TrainLoader(range(11), 3, seed=5)
    expected = [batch for _ in range(2) for batch in whole]
    first = TrainLoader(range(11), 3, seed=5)
    taken: list[list[int]] = []
    while len(taken) < stop:
        for batch in first:
            taken.append(batch)
            if len(taken) == stop:
                break
    second = TrainLoader(range(11), 3, seed=5)
    second.load_state_dict(first.state_dict())
    while len(taken) < len(expected):
        taken += list(second)
    assert taken == expected


def test_an_epoch_that_was_cut_short_is_not_continued_by_the_next() -> None:
    loader = TrainLoader(range(8), 2)
    next(iter(loader))
    assert flat(loader) == epoch_order(8, 0, 1)


def test_making_an_iterator_takes_nothing() -> None:
    loader = TrainLoader(range(8), 2)
    early = iter(loader)
    iter(loader)
    assert loader.state_dict()["batches"] == 0
    assert [i for b in early for i in b] == epoch_order(8, 0, 0)
    assert loader.state_dict()["batches"] == 4


@pytest.mark.parametrize("state", [{}, {"batches": -1}, {"batches": "3"}])
def test_wrong_states_are_refused(state: dict) -> None:
    with pytest.raises(CheckpointError, match="batches"):
        TrainLoader(range(4), 2).load_state_dict(state)


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ConfigError, match="batch_size"):
        TrainLoader(range(4), 0)
    with pytest.raises(ConfigError, match="rank"):
        EvalLoader(range(4), 1, rank=2, world_size=2)


class Recorder(LightningModule):
    def __init__(self, loader: TrainLoader) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)
        self.loader = loader
        self.seen: list[list[int]] = []
        self.losses: list[float] = []

    def training_step(self, batch: list[int], batch_idx: int) -> torch.Tensor:
        self.seen.append(list(batch))
        loss = self.layer(torch.tensor([[float(sum(batch))]])).square().mean() * 1e-4
        self.losses.append(loss.item())
        return loss

    def validation_step(self, batch: list[int], batch_idx: int) -> None:
        pass

    def train_dataloader(self) -> TrainLoader:
        return self.loader

    def val_dataloader(self) -> EvalLoader:
        return EvalLoader(range(2), 1)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=0.01)


class SaveEveryStep(Callback):
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_train_batch_end(self, trainer: Trainer, *args: object) -> None:
        trainer.save_checkpoint(self.folder / f"step={trainer.global_step}.ckpt")

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        trainer.save_checkpoint(self.folder / f"validated={trainer.global_step}.ckpt")

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        trainer.save_checkpoint(self.folder / f"epoch={trainer.global_step}.ckpt")


def fit(folder: Path, max_steps: int, checkpoint: Path | None = None) -> Recorder:
    seed_everything(1, verbose=False)
    module = Recorder(TrainLoader(range(11), 3, seed=2))
    trainer = Trainer(
        max_steps=max_steps,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        num_sanity_val_steps=0,
        callbacks=[SaveEveryStep(folder)],
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    trainer.fit(module, ckpt_path=None if checkpoint is None else str(checkpoint))
    return module


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Recorder]:
    folder = tmp_path_factory.mktemp("whole")
    return folder, fit(folder, max_steps=10)


# Four batches an epoch: within the first two epochs, before and at their ends, and in the hooks there.
@pytest.mark.parametrize(
    "saved", ["step=2", "step=3", "step=4", "step=6", "step=8", "validated=4", "epoch=4", "epoch=8"]
)
def test_trainer_stopped_at_k_resumes_with_the_same_batches_and_losses(
    saved: str, whole: tuple[Path, Recorder], tmp_path: Path
) -> None:
    folder, uninterrupted = whole
    assert uninterrupted.seen == iterate_epochs(3)[:10]
    stop = int(saved.split("=")[1])
    resumed = fit(tmp_path, max_steps=10, checkpoint=folder / f"{saved}.ckpt")
    assert resumed.seen == uninterrupted.seen[stop:]
    assert resumed.losses == uninterrupted.losses[stop:]
    assert resumed.losses[0] != uninterrupted.losses[0]
    again = fit(tmp_path / "again", max_steps=10, checkpoint=tmp_path / "step=9.ckpt")
    assert again.seen == uninterrupted.seen[9:], "a resumed run can be resumed"


def iterate_epochs(epochs: int) -> list[list[int]]:
    loader = TrainLoader(range(11), 3, seed=2)
    return [batch for _ in range(epochs) for batch in loader]


@pytest.mark.parametrize(("items", "world"), [(7, 2), (8, 3), (5, 4), (6, 3)])
def test_what_cannot_be_shared_out_is_another_item_each_time(items, world):
    """Over as many epochs as there are items, each of them comes equally often, also after a resume."""
    loaders = [TrainLoader(range(items), 2, seed=5, rank=rank, world_size=world) for rank in range(world)]
    counts = Counter(item for _ in range(items) for loader in loaders for batch in loader for item in batch)
    assert set(counts.values()) == {items - items % world}
    resumed = TrainLoader(range(items), 2, seed=5, rank=0, world_size=world)
    resumed.load_state_dict({"batches": 3 * len(resumed)})
    whole = TrainLoader(range(items), 2, seed=5, rank=0, world_size=world)
    assert list(resumed) == [list(whole) for _ in range(4)][3]
