"""Trainer takes the solver's own steps and resumes them bit for bit from its own checkpoints."""

import pytest
import torch
from torch.utils.data import TensorDataset
from transformers import TrainingArguments

import fcco
from fcco.integrations.transformers import SolverTrainer
from tests.helpers.same import assert_same
from tests.integrations.cases import (
    EPOCH,
    WRONG_LOADERS,
    Spoiled,
    data,
    make_objective,
    make_parts,
    outcome,
    plain_run,
)

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def _full_precision(monkeypatch):
    """Some versions tell every later Accelerator of the process, by the environment, what one of them was asked for."""
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")


def arguments(folder, **options):
    """max_grad_norm 0: z as the solver left it."""
    quiet = {"report_to": "none", "disable_tqdm": True, "use_cpu": True, "logging_steps": 1, "save_steps": 1}
    return TrainingArguments(str(folder), **quiet | {"num_train_epochs": 3, "max_grad_norm": 0.0} | options)


def make_trainer(name, folder, kind=SolverTrainer, wrap=lambda loader: loader, gamma=0.9, given=None, **options):
    args = arguments(folder, **options)
    solver, loader = make_parts(make_objective(), name)
    scheduler = None if gamma is None else torch.optim.lr_scheduler.ExponentialLR(solver.optimizer, gamma)
    trainer = kind(solver, wrap(loader), args, scheduler=scheduler, **given or {})
    torch.manual_seed(3)  # Trainer sets a seed when it is made
    return trainer


def train(name, folder, resume=None, **options):
    trainer = make_trainer(name, folder, **options)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


@pytest.mark.parametrize("name", ["msvr-v2", "msvr-v3", "soap", "memory"])
def test_the_steps_are_the_solvers_own(name, tmp_path):
    wanted = outcome(plain_run(name, gamma=0.9))
    assert_same(wanted, outcome(train(name, tmp_path, save_strategy="no").solver))


@pytest.mark.parametrize("name", ["msvr-v2", "msvr-v3", "soap", "memory"])
def test_resumed_equals_uninterrupted(name, tmp_path):
    """With Trainer's own schedule and clipping; what is logged is the same too."""
    settings = {"gamma": None, "max_grad_norm": 1.0, "warmup_steps": 3}
    whole = train(name, tmp_path / "whole", **settings)
    for step in (1, EPOCH, EPOCH + 2, 3 * EPOCH - 1):
        resume = tmp_path / "whole" / f"checkpoint-{step}"
        resumed = train(name, tmp_path / "resumed", resume, save_strategy="no", **settings)
        assert_same(outcome(whole.solver), outcome(resumed.solver))
        assert whole.state.log_history[:-1] == resumed.state.log_history[:-1]  # but for the time that it took


def test_the_last_checkpoint(tmp_path):
    half = train("msvr-v2", tmp_path, max_steps=7)
    resumed = train("msvr-v2", tmp_path, True)
    assert (half.state.global_step, resumed.state.global_step) == (7, 3 * EPOCH)
    assert_same(outcome(plain_run("msvr-v2", gamma=0.9)), outcome(resumed.solver))
    assert resumed.state.epoch == 3.0


def test_the_file_is_a_checkpoint_of_fcco(tmp_path):
    trainer = train("msvr-v2", tmp_path, max_steps=2)
    solver, loader = make_parts(make_objective(), "msvr-v2")
    fcco.load(tmp_path / "checkpoint-2" / "fcco.pt", solver=solver, loader=loader)
    assert_same(trainer.solver.state_dict(), solver.state_dict())


def test_figures(tmp_path):
    trainer = train("msvr-v2", tmp_path, save_strategy="no", max_grad_norm=1.0)
    wanted = {"loss", "grad_norm", "learning_rate", "samples", "tracking_error", "epoch"}
    assert wanted <= set(trainer.state.log_history[0])
    assert trainer.state.log_history[-2]["samples"] == trainer.solver.samples


def test_evaluation_of_pairs(tmp_path):
    def metrics(prediction):
        scores = torch.from_numpy(prediction.predictions)
        return {"scored": len(scores), "positives": int(prediction.label_ids.sum())}

    given = {"eval_dataset": TensorDataset(*data()), "compute_metrics": metrics}
    trainer = make_trainer("msvr-v2", tmp_path, given=given, eval_strategy="epoch", save_strategy="no")
    trainer.train()
    found = [row for row in trainer.state.log_history if "eval_scored" in row]
    assert [(row["eval_scored"], row["eval_positives"]) for row in found] == [(40, 10)] * 3
    assert_same(outcome(plain_run("msvr-v2", gamma=0.9)), outcome(trainer.solver))  # evaluating changes nothing


def own_solver():
    w = torch.nn.Parameter(torch.ones(1))
    objective = fcco.objective(
        lambda i: w.expand(len(i), 1), lambda i, u: u.square().squeeze(1), num_blocks=2, parameters=[w]
    )
    return fcco.Solver(objective, torch.optim.SGD([w], lr=0.1), fcco.sox())


def test_an_objective_of_ones_own_has_no_network_to_evaluate(tmp_path):
    with pytest.raises(TypeError, match="prediction_step of your own: FunctionalObjective has no network to call"):
        SolverTrainer(own_solver(), [], arguments(tmp_path), eval_dataset=TensorDataset(*data()))


def test_a_skipped_step_changes_nothing(tmp_path):
    args = arguments(tmp_path, save_strategy="no", max_steps=2)
    solver, loader = make_parts(make_objective(), "msvr-v2", nonfinite="skip")
    before = [p.detach().clone() for p in solver.parameters]
    SolverTrainer(solver, Spoiled(loader), args).train()
    assert_same(before, [p.detach() for p in solver.parameters])
    assert (solver.t, solver.skipped) == (0, 2)


def test_bfloat16(tmp_path):
    """g - g- is right too: autocast's copies of w_t do not serve the probe at w_{t-1}."""
    found = outcome(train("msvr-v2", tmp_path, bf16=True, save_strategy="no").solver)
    assert_same(outcome(plain_run("msvr-v2", gamma=0.9, bfloat16=True)), found)
    assert not torch.equal(found["u"], plain_run("msvr-v2", gamma=0.9).u())


# ---------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ({"gradient_accumulation_steps": 2}, "gradient_accumulation_steps must be 1, got 2"),
        ({"fp16": True}, "fp16 is not supported"),
        ({"deepspeed": "zero.json"}, "deepspeed is not supported: the solver needs whole"),
        ({"fsdp": True}, "fsdp is not supported"),
        ({"auto_find_batch_size": True}, "auto_find_batch_size is not supported"),
        ({"torch_compile": True}, "torch_compile is not supported"),
        ({"_n_gpu": 2}, "2 devices in one process"),
    ],
    ids=str,
)
def test_wrong_settings(setting, says, tmp_path):
    """Set afterwards: some of these TrainingArguments refuses itself, where there is no device for them."""
    solver, loader = make_parts(make_objective(), "msvr-v2")
    args = arguments(tmp_path)
    for name, value in setting.items():
        setattr(args, name, value)
    with pytest.raises(ValueError, match=says):
        SolverTrainer(solver, loader, args)


@pytest.mark.parametrize("case", WRONG_LOADERS)
def test_wrong_loaders(case, tmp_path):
    wrap, says = WRONG_LOADERS[case]
    with pytest.raises(TypeError, match=says):
        make_trainer("msvr-v2", tmp_path, wrap=wrap)


def test_plateau_is_refused(tmp_path):
    solver, loader = make_parts(make_objective(), "msvr-v2")
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(solver.optimizer)
    with pytest.raises(ValueError, match="ReduceLROnPlateau"):
        SolverTrainer(solver, loader, arguments(tmp_path), scheduler=scheduler)


def test_what_is_no_solver(tmp_path):
    with pytest.raises(TypeError, match=r"solver must be a fcco.Solver, got Linear"):
        SolverTrainer(torch.nn.Linear(2, 1), [], arguments(tmp_path))


def test_a_solver_made_elsewhere(tmp_path, monkeypatch):
    args = arguments(tmp_path)
    solver, loader = make_parts(make_objective(), "msvr-v2")
    monkeypatch.setattr(solver, "device", torch.device("meta"))
    with pytest.raises(ValueError, match="created on meta, but the objective is on cpu"):
        SolverTrainer(solver, loader, args)


def test_a_checkpoint_without_the_solver_is_refused(tmp_path):
    train("msvr-v2", tmp_path, max_steps=2)
    (tmp_path / "checkpoint-2" / "fcco.pt").unlink()
    with pytest.raises(FileNotFoundError, match="no solver state"):
        train("msvr-v2", tmp_path, True)
    with pytest.raises(ValueError, match="No valid checkpoint"):
        train("msvr-v2", tmp_path / "nowhere", True)
