"""Lightning takes the solver's own steps, reads nothing ahead, and resumes bit for bit from its own checkpoints."""

import logging

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import FSDPStrategy
from torch.utils.data import DataLoader

from fcco.integrations.lightning import SolverModule
from tests.helpers.same import assert_same
from tests.integrations.cases import (
    EPOCH,
    WRONG_LOADERS,
    data,
    make_objective,
    make_parts,
    outcome,
    plain_run,
)

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory"),
    pytest.mark.filterwarnings(
        "ignore:Using ModelCheckpoint with manual optimization"
    ),  # after the step, as we want it
    pytest.mark.filterwarnings("ignore:The dirpath has changed"),
]
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Ranker(SolverModule):
    """The small problem; a validation between steps draws from torch's generator."""

    def __init__(self, name="msvr-v2", gamma=1.0, interval="step", frequency=1):
        super().__init__()
        self.name, self.objective = name, make_objective()
        self.schedule = gamma, {"interval": interval, "frequency": frequency}

    def configure_optimizers(self):
        self.solver, self.loader = make_parts(self.objective, self.name)
        gamma, when = self.schedule
        scheduler = torch.optim.lr_scheduler.ExponentialLR(self.solver.optimizer, gamma)
        return {"optimizer": self.solver.optimizer, "lr_scheduler": {"scheduler": scheduler, **when}}

    def validation_step(self, batch, batch_idx):
        self.log("score", self.objective.model(batch).mean() + torch.rand(()))

    def val_dataloader(self):
        return DataLoader(data()[0], batch_size=20)


def make_trainer(folder=None, max_epochs=3, every=None, **options):
    saves = ModelCheckpoint(folder, filename="{step}", save_top_k=-1, every_n_train_steps=every)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    if folder is None:
        options["enable_checkpointing"] = False
    return pl.Trainer(max_epochs=max_epochs, callbacks=[] if folder is None else [saves], **quiet | options)


def fit(module, folder=None, ckpt_path=None, **options):
    """In the checkpoint's own folder where there is one: Lightning wants the callbacks that wrote it."""
    trainer = make_trainer(folder if ckpt_path is None else ckpt_path.parent / "resumed", **options)
    trainer.fit(module, ckpt_path=ckpt_path)
    return outcome(module.solver)


@pytest.mark.parametrize("name", ["msvr-v2", "msvr-v3", "soap", "memory"])
def test_the_steps_are_the_solvers_own(name):
    """With the memory this also says that nothing is drawn ahead: its draws depend on the steps before."""
    assert_same(outcome(plain_run(name, gamma=0.9)), fit(Ranker(name, gamma=0.9), limit_val_batches=0))


@pytest.mark.parametrize("name", ["msvr-v2", "msvr-v3", "soap", "memory"])
def test_resumed_equals_uninterrupted(name, tmp_path):
    whole = fit(Ranker(name, gamma=0.9), tmp_path, every=1)
    for step in (1, EPOCH - 1, EPOCH, EPOCH + 2, 3 * EPOCH - 1):
        assert_same(whole, fit(Ranker(name, gamma=0.9), ckpt_path=tmp_path / f"step={step}.ckpt", every=1))


@pytest.mark.parametrize(
    "options", [{"limit_train_batches": 3}, {"val_check_interval": 2}, {"limit_val_batches": 0}], ids=str
)
def test_resumed_equals_uninterrupted_under_other_settings(options, tmp_path):
    """Epochs cut short, validation within them, none at all; the learning rate changes with the epoch."""
    whole = fit(Ranker(gamma=0.9, interval="epoch"), tmp_path, every=1, **options)
    for step in (2, 3, 5, 6):
        module = Ranker(gamma=0.9, interval="epoch")
        assert_same(whole, fit(module, ckpt_path=tmp_path / f"step={step}.ckpt", every=1, **options))


def test_checkpoints_of_whole_epochs(tmp_path):
    """ModelCheckpoint's own choice: after the validation of each epoch."""
    whole = fit(Ranker(gamma=0.9, interval="epoch"), tmp_path)
    module = Ranker(gamma=0.9, interval="epoch")
    assert_same(whole, fit(module, ckpt_path=tmp_path / f"step={EPOCH}.ckpt"))


def test_a_finished_run_is_made_longer(tmp_path):
    module, trainer = Ranker(), make_trainer(max_epochs=2)
    trainer.fit(module)
    trainer.save_checkpoint(tmp_path / "two.ckpt")
    longer = Ranker()
    make_trainer(max_epochs=3).fit(longer, ckpt_path=tmp_path / "two.ckpt")
    assert_same(outcome(plain_run("msvr-v2")), outcome(longer.solver))


def test_nothing_is_in_a_checkpoint_twice(tmp_path):
    fit(Ranker(), tmp_path, max_epochs=1)
    state = torch.load(tmp_path / f"step={EPOCH}.ckpt", weights_only=True)["fcco"]["solver"]
    assert not {"objective", "optimizer"} & set(state)


@pytest.mark.parametrize(("interval", "frequency", "times"), [("step", 1, 15), ("step", 4, 3), ("epoch", 2, 1)])
def test_schedules(interval, frequency, times):
    module = Ranker(gamma=0.5, interval=interval, frequency=frequency)
    assert fit(module, limit_val_batches=0)["lr"] == [0.01 * 0.5**times]


def test_a_step_that_was_skipped_moves_no_schedule():
    class Spoiled(Ranker):
        def training_step(self, batch, batch_idx):
            self.solver.nonfinite = "skip"
            if self.current_epoch == 0 and batch_idx < 2:
                batch.x[:] = torch.nan
            super().training_step(batch, batch_idx)

    module = Spoiled("soap", gamma=0.5, frequency=4)
    lr = fit(module, max_epochs=2, limit_val_batches=0)["lr"]
    assert (module.solver.t, module.solver.skipped) == (8, 2)
    assert lr == [0.01 * 0.5**2]


def test_counts_and_figures():
    module, trainer = Ranker(), make_trainer(max_steps=7)
    trainer.fit(module)
    assert trainer.global_step == module.solver.t == 7
    assert trainer.callback_metrics["samples"] == module.solver.samples
    assert {"value", "tracking_error", "score"} <= set(trainer.callback_metrics)


def test_a_new_fit_begins_anew(tmp_path):
    """Weights loaded without ``ckpt_path`` are weights: u, z and the counters start."""
    fit(Ranker(), tmp_path, max_epochs=1)
    module = Ranker.load_from_checkpoint(tmp_path / f"step={EPOCH}.ckpt")
    assert fit(module, max_epochs=1)["counts"][0] == EPOCH


def test_bfloat16():
    """g - g- is right too: autocast's copies of w_t do not serve the probe at w_{t-1}."""
    found = fit(Ranker(), precision="bf16-mixed", limit_val_batches=0)
    assert_same(outcome(plain_run("msvr-v2", bfloat16=True)), found)
    assert not torch.equal(found["u"], plain_run("msvr-v2").u())


# ---------------------------------------------------------------------- what is refused


class Forgetful(Ranker):
    def on_train_start(self):
        pass


class Empty(Ranker):
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Bare(SolverModule):
    """Sets neither solver nor loader."""

    def configure_optimizers(self):
        return torch.optim.SGD([torch.nn.Parameter(torch.ones(1))])

    def train_dataloader(self):
        return [0]


class OtherOptimizer(Ranker):
    def configure_optimizers(self):
        super().configure_optimizers()
        return torch.optim.SGD(self.objective.parameters(), lr=0.1)


class Outside(Ranker):
    """The objective is no part of the module."""

    def configure_optimizers(self):
        self.solver, self.loader = make_parts(make_objective(), "msvr-v2")
        return self.solver.optimizer


class Plateau(Ranker):
    def configure_optimizers(self):
        super().configure_optimizers()
        optimizer = self.solver.optimizer
        return [optimizer], [torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)]


@pytest.mark.parametrize(
    ("module", "error", "says"),
    [
        (Forgetful, RuntimeError, r"super\(\).on_train_start"),
        (Bare, TypeError, "must set self.solver"),
        (Empty, TypeError, "must set self.loader"),
        (OtherOptimizer, ValueError, "solver's optimizer"),
        (Outside, ValueError, "an attribute of the model"),
        (Plateau, ValueError, "ReduceLROnPlateau"),
    ],
)
def test_wrong_modules(module, error, says):
    with pytest.raises(error, match=says):
        fit(module())


@pytest.mark.parametrize("case", WRONG_LOADERS)
def test_wrong_loaders(case):
    wrap, says = WRONG_LOADERS[case]

    class Wrapped(Ranker):
        def configure_optimizers(self):
            configured = super().configure_optimizers()
            self.loader = wrap(self.loader)
            return configured

    with pytest.raises(TypeError, match=says):
        fit(Wrapped(), limit_val_batches=0)


def test_another_loader_is_refused():
    module = Ranker()
    with pytest.raises(ValueError, match="must not be given train_dataloaders"):
        make_trainer(limit_val_batches=0).fit(module, train_dataloaders=DataLoader(data()[0]))


def test_precision_with_rounded_weights_is_refused():
    with pytest.raises(ValueError, match="precision must be one of 32-true, bf16-mixed, got 64-true"):
        fit(Ranker(), precision="64-true", limit_val_batches=0)


def test_parameters_in_pieces_are_refused():
    module, trainer = Ranker(), make_trainer()
    trainer.fit(module)
    trainer._accelerator_connector.strategy = FSDPStrategy()
    with pytest.raises(ValueError, match="one device or DDP, got FSDPStrategy"):
        module._check()


def test_a_checkpoint_without_the_solver_is_refused(tmp_path):
    module = Ranker()
    trainer = make_trainer(max_epochs=1)
    trainer.fit(module)
    trainer.save_checkpoint(tmp_path / "whole.ckpt")
    content = torch.load(tmp_path / "whole.ckpt", weights_only=True)
    del content["fcco"]
    torch.save(content, tmp_path / "foreign.ckpt")
    with pytest.raises(ValueError, match="the checkpoint has no solver state"):
        fit(Ranker(), ckpt_path=tmp_path / "foreign.ckpt")


def test_weights_alone_hold_no_solver(tmp_path):
    trainer = make_trainer(max_epochs=1)
    trainer.fit(Ranker())
    trainer.save_checkpoint(tmp_path / "weights.ckpt", weights_only=True)
    assert "fcco" not in torch.load(tmp_path / "weights.ckpt", weights_only=True)
