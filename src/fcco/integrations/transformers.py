"""Transformers: a Trainer whose training step is a solver's step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.utils.data import default_collate
from transformers import (
    EvalPrediction,
    Trainer,
    TrainerCallback,
    TrainerState,
    TrainingArguments,
    default_data_collator,
)
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, get_last_checkpoint

from fcco import checkpoint
from fcco.integrations._checks import as_arguments, at_next_epoch, check_loader, check_solver
from fcco.objectives import OutputObjective
from fcco.solver import Report, Solver

__all__ = ["SolverTrainer"]

FILE = "fcco.pt"  # beside Trainer's own files in a checkpoint's folder
_REFUSED = {
    "fp16": "a gradient scaler has no place for z; take bf16",
    "fsdp": "the solver needs whole parameters on every rank",
    "deepspeed": "the solver needs whole parameters on every rank",
    "auto_find_batch_size": "the loader sets the batches",
    "torch_compile": "compile the network, then make the objective around it",
}


class SolverTrainer(Trainer):
    """A Trainer that trains by a :class:`fcco.Solver`: its model is the network inside the solver's objective (the
    objective itself, where that is your own), its loss F's estimate.

    The solver leaves z in ``p.grad``; clipping (``max_grad_norm``, 1.0 unless you say otherwise, 0 for none), the
    optimizer's step, the schedule, logging, evaluation and checkpoints are Trainer's own: early stopping and
    ``load_best_model_at_end`` work as ever, and a checkpoint's folder loads with ``from_pretrained``. It also holds
    ``fcco.pt``, with which ``train(resume_from_checkpoint=...)`` goes on bit for bit, in the middle of an epoch too.

    Args:
        solver: made when ``args`` was (which joins the ranks), with the objective on ``args.device``.
        loader: a loader of fcco, or anything that has a length, yields batches or ``(index, *data)`` and can say in
            ``state_dict()["step"]`` how far in its epoch it is; its length is an epoch's.
        args: Trainer's; what it says of the optimizer (``learning_rate``, ``weight_decay``, ``optim``) and of batches
            means nothing here: the solver and the loader have their own.
        scheduler: None: the one that ``args`` names.
        eval_dataset: Trainer's: rows are dicts whose ``labels`` (or what ``args.label_names`` says) are told apart and
            whose rest is handed to the network by keyword, or pairs (x, y). For an objective of your own override
            ``prediction_step`` or ``evaluate``: there is no network to call.
        compute_metrics, data_collator, callbacks: Trainer's. There is no ``eval_loss``, since F is a sum over blocks
            of the training data: name your metric in ``args.metric_for_best_model``.

    Example:
        >>> import tempfile, torch, fcco
        >>> x, y = torch.randn(1000, 20), torch.randint(10, (1000,))
        >>> objective = fcco.objectives.MultiTaskAUC(torch.nn.Linear(20, 10), fcco.data.Tasks(x, y))
        >>> optimizer = torch.optim.AdamW(objective.parameters(), lr=1e-3)
        >>> solver = fcco.Solver(objective, optimizer, fcco.msvr_v2(alpha=0.1, beta=0.1))
        >>> loader = solver.loader(blocks=5, samples=32)
        >>> quiet = {"report_to": "none", "disable_tqdm": True, "use_cpu": True}
        >>> args = TrainingArguments(tempfile.mkdtemp(), max_steps=4, save_strategy="no", **quiet)
        >>> SolverTrainer(solver, loader, args).train().global_step
        {'train_runtime': ...}
        4
    """

    def __init__(
        self,
        solver: Solver,
        loader: Any,
        args: TrainingArguments,
        *,
        scheduler: LRScheduler | None = None,
        eval_dataset: Any = None,
        compute_metrics: Callable[[EvalPrediction], dict[str, Any]] | None = None,
        data_collator: Callable[[list[Any]], Any] | None = None,
        callbacks: list[TrainerCallback] | None = None,
    ) -> None:
        if not isinstance(solver, Solver):
            raise TypeError(f"solver must be a fcco.Solver, got {type(solver).__name__}")
        _refuse(args, scheduler)
        network = _network_of(solver)
        if eval_dataset is not None and network is solver.objective and not self._evaluates():
            raise TypeError(
                f"eval_dataset needs a prediction_step of your own: {type(network).__name__} has no network to call"
            )
        self.solver = solver
        self.loader = loader
        self.report: Report | None = None  # of the last step
        args.ignore_data_skip = True  # a loader goes on by itself where its state says
        super().__init__(
            model=network,
            args=args,
            data_collator=data_collator or _collate,
            eval_dataset=eval_dataset,
            compute_metrics=compute_metrics,
            callbacks=callbacks,
            optimizers=(solver.optimizer, scheduler),
        )
        check_solver(solver, solver.objective)
        check_loader(loader)
        self._resume = _Resume(solver, loader)
        self.add_callback(self._resume)

    @classmethod
    def _evaluates(cls) -> bool:
        return cls.prediction_step is not SolverTrainer.prediction_step or cls.evaluate is not SolverTrainer.evaluate

    def get_train_dataloader(self) -> Any:
        """Return the loader as it is: its draws are each rank's own already."""
        return _AsTuples(self.loader)

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """Take a step of the solver up to z in ``p.grad``; Trainer's loop takes the optimizer's step right after."""
        arguments = []
        for part in inputs:
            if hasattr(part, "to"):
                part = part.to(self.args.device)
            arguments.append(part)
        self.solver.objective.train()
        with self.accelerator.autocast(), self.solver.gradient(*arguments) as pending:
            pass  # z stays in p.grad, for Trainer to clip
        self.report = pending.report
        if pending.report.f is None:
            self.solver.optimizer.zero_grad()  # a skipped step: nothing for Trainer's optimizer to do
            return torch.tensor(torch.nan, device=self.args.device)
        return pending.report.f.mean()

    def evaluate(self, *args: Any, **options: Any) -> dict[str, float]:
        """Evaluate as Trainer does, and put the random state back: its DataLoader draws from the steps' generators."""
        before = self.solver.randomness.capture()
        try:
            metrics: dict[str, float] = super().evaluate(*args, **options)
            return metrics
        finally:
            self.solver.randomness.restore(before)

    def prediction_step(
        self, model: nn.Module, inputs: Any, prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> tuple[None, Tensor | None, Any]:
        """Return the network's outputs for a batch of ``eval_dataset``, and its labels; there is no loss."""
        x, y = self._x_and_labels(inputs)
        x = self._prepare_input(x)
        objective = self.solver.objective
        assert isinstance(objective, OutputObjective)  # for others eval_dataset was refused
        with torch.no_grad(), self.compute_loss_context_manager():
            outputs = objective.outputs(x)
        if prediction_loss_only:
            return None, None, None
        return None, outputs.detach().float(), y

    def _x_and_labels(self, inputs: Any) -> tuple[Any, Any]:
        """Return what the network is given, and the labels: None, one tensor, or a tuple of several."""
        if isinstance(inputs, Mapping):
            names = self.label_names or ["labels"]
            x: Any = {name: value for name, value in inputs.items() if name not in names}
            labels = [inputs[name] for name in names if name in inputs]
        else:
            x, *labels = inputs
        if not labels:
            return x, None
        if len(labels) == 1:
            return x, labels[0]
        return x, tuple(labels)

    def _clip_grad_norm(self, model: nn.Module) -> Any:
        """Clip all of z: an objective may have parameters of its own besides the network's."""
        return self.accelerator.clip_grad_norm_(self.solver.parameters, self.args.max_grad_norm)

    def _load_best_model(self) -> None:
        """Load the best checkpoint's weights, those of the objective's own parameters too."""
        super()._load_best_model()
        folder = self.state.best_model_checkpoint
        if folder is not None:
            content = checkpoint.read(Path(folder) / FILE)
            self.solver.objective.load_state_dict(content["states"]["solver"]["objective"])

    def log(self, logs: dict[str, float], *args: Any) -> None:
        """Log Trainer's figures of a step together with the solver's."""
        if "loss" in logs and self.report is not None:
            logs["samples"] = self.report.samples
            if self.report.u is not None:
                logs["tracking_error"] = self.report.tracking_error
        super().log(logs, *args)

    def train(self, resume_from_checkpoint: str | Path | bool | None = None, *args: Any, **options: Any) -> Any:
        """Train, or go on from a checkpoint's folder (True: the last one in ``args.output_dir``)."""
        folder = resume_from_checkpoint
        if folder is True:
            folder = get_last_checkpoint(self.args.output_dir) or True  # Trainer says that there is none
        elif isinstance(folder, Path):
            folder = str(folder)
        self._resume.read(folder)
        return super().train(folder, *args, **options)


def _network_of(solver: Solver) -> nn.Module:
    """Return the network that Trainer evaluates and saves; an objective of the user's own stands for itself."""
    objective = solver.objective
    if isinstance(objective, OutputObjective) and isinstance(objective.model, nn.Module):
        return objective.model
    return objective


def _collate(rows: list[Any]) -> Any:
    """Return rows of an evaluation set as a batch: dicts as Trainer does it, pairs (x, y) as a DataLoader does."""
    if isinstance(rows[0], (tuple, list)):
        return default_collate(rows)
    return default_data_collator(rows)


@final
class _AsTuples:
    """A loader's batches as the arguments of ``solver.step``: Trainer looks for labels *in* what it is handed."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return map(as_arguments, self._loader)


@final
class _Resume(TrainerCallback):
    """Writes and reads ``fcco.pt``."""

    def __init__(self, solver: Solver, loader: Any) -> None:
        self._solver = solver
        self._loader = loader
        self._path: Path | None = None

    def read(self, folder: str | bool | None) -> None:
        """Say where training is to go on from, once Trainer has restored its part."""
        self._path = None
        if isinstance(folder, str):
            self._path = Path(folder) / FILE
            if not self._path.exists():
                raise FileNotFoundError(
                    f"there is no solver state at {self._path}, so this checkpoint cannot be resumed"
                )

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, *_: Any, **__: Any) -> None:
        if self._path is None:
            return
        checkpoint.load(self._path, solver=self._solver, loader=self._loader)
        if state.global_step % len(self._loader) == 0:
            self._loader.load_state_dict(at_next_epoch(self._loader.state_dict()))

    def on_step_end(self, args: TrainingArguments, state: TrainerState, *_: Any, **__: Any) -> None:
        """Say where in the epoch we are: Trainer counts the batches of a resumed one from 0."""
        whole, rest = divmod(state.global_step, len(self._loader))
        state.epoch = whole + rest / len(self._loader)

    def on_save(self, args: TrainingArguments, state: TrainerState, *_: Any, **__: Any) -> None:
        folder = Path(args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
        checkpoint.save(folder / FILE, solver=self._solver, loader=self._loader)


def _refuse(args: TrainingArguments, scheduler: Any) -> None:
    for name, why in _REFUSED.items():
        if getattr(args, name, False):
            raise ValueError(f"{name} is not supported: {why}")
    if args.gradient_accumulation_steps != 1:
        given = args.gradient_accumulation_steps
        raise ValueError(
            f"gradient_accumulation_steps must be 1, got {given}: a step is one draw of blocks, so draw more "
            "blocks instead"
        )
    if args.n_gpu > 1:
        raise ValueError(
            f"{args.n_gpu} devices in one process are not supported: start one process per device (torchrun)"
        )
    if isinstance(scheduler, ReduceLROnPlateau):
        raise ValueError("ReduceLROnPlateau is not supported: schedulers step after the solver, without a metric")
