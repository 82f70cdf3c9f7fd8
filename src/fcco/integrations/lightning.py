"""Lightning: a LightningModule whose training step is a solver's step."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from torch.optim.lr_scheduler import ReduceLROnPlateau

from fcco.integrations._checks import as_arguments, at_next_epoch, check_loader, check_solver
from fcco.solver import Report, Solver

_major, _minor = pl.__version__.split(".")[:2]
if (int(_major), int(_minor)) < (2, 5):
    raise ImportError(f"lightning 2.5 or later is needed, got {pl.__version__}: earlier ones miscount a resumed epoch")
_KEY = "fcco"
_PRECISIONS = ("32-true", "bf16-mixed")
_TWICE = ("objective", "optimizer")  # of a solver's state: Lightning's own part of a checkpoint has them

__all__ = ["SolverModule"]


class SolverModule(pl.LightningModule):
    """A LightningModule that trains by a :class:`fcco.Solver`; write its ``configure_optimizers``.

    ``configure_optimizers`` sets ``self.solver`` and ``self.loader`` (a loader of fcco, or anything that has a length,
    yields batches or ``(index, *data)`` and can say in ``state_dict()["step"]`` how far in its epoch it is) and returns
    what Lightning wants: the solver's optimizer, alone or with learning-rate schedulers. Lightning calls it when ranks
    and devices are known, so make the loader there too. Schedulers are stepped here, by their interval and frequency.

    Lightning's checkpoints then hold everything: ``trainer.fit(module, ckpt_path=...)`` goes on bit for bit, in the
    middle of an epoch too. The random numbers inside steps are a stream of their own: a validation between two steps
    does not shift it.

    Example:
        >>> import torch, fcco
        >>> class Classifier(SolverModule):
        ...     def __init__(self, x, y):
        ...         super().__init__()
        ...         data = fcco.data.Tasks(x, y)
        ...         self.objective = fcco.objectives.MultiTaskAUC(torch.nn.Linear(20, 10), data)
        ...
        ...     def configure_optimizers(self):
        ...         optimizer = torch.optim.Adam(self.objective.parameters(), lr=1e-3)
        ...         self.solver = fcco.Solver(self.objective, optimizer, fcco.msvr_v2(alpha=0.1, beta=0.1))
        ...         self.loader = self.solver.loader(blocks=5, samples=32)
        ...         return optimizer
        >>> module = Classifier(torch.randn(1000, 20), torch.randint(10, (1000,)))
        >>> quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
        >>> trainer = pl.Trainer(max_steps=4, accelerator="cpu", enable_checkpointing=False, **quiet)
        >>> trainer.fit(module)
        >>> module.solver.t
        4
    """

    solver: Solver
    loader: Any

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self._resumes = False
        self._saved: dict[str, Any] | None = None  # of a checkpoint, until the solver is there
        self._random: dict[str, Any] | None = None  # where the last step left the generators
        self._ready = False

    def train_dataloader(self) -> Any:
        """Return the loader that ``configure_optimizers`` made."""
        self._need("loader")
        return self.loader

    def training_step(self, batch: Any, batch_idx: int) -> None:
        """Take a step of the solver, then of the schedulers."""
        if not self._ready:
            raise RuntimeError(f"{type(self).__name__}.on_train_start must call super().on_train_start()")
        arguments = as_arguments(batch)
        self._restore_random()
        try:
            with self.solver.gradient(*arguments) as pending:
                if not pending.skipped:
                    self.optimizers().step()  # Lightning counts the steps that it takes
        finally:
            self._random = self.solver.randomness.capture()
        self._schedule(pending.report)
        self.log_report(pending.report)

    def log_report(self, report: Report) -> None:
        """Log a step; override it to log something else.

        Args:
            report: of the step.
        """
        self.log_dict({"value": report.value, "samples": float(report.samples)})
        if report.u is not None:
            self.log("tracking_error", report.tracking_error)

    def _schedule(self, report: Report) -> None:
        """Step the schedulers that are due after this step."""
        # Epochs are counted here and not in their own hooks: a run resumed after an epoch's last step would miss them.
        for config in self.trainer.lr_scheduler_configs:
            if config.interval == "step":
                due = not report.skipped
                count = report.step
            else:
                due = self.trainer.is_last_batch
                count = self.trainer.current_epoch + 1
            if due and count % config.frequency == 0:
                config.scheduler.step()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add what Lightning does not save itself; called on every rank."""
        if not self._ready or "optimizer_states" not in checkpoint:  # before training, or the weights alone
            return
        self._restore_random()
        solver = self.solver.state_dict()
        for name in _TWICE:
            del solver[name]
        loader = self.loader.state_dict()
        if self.trainer.is_last_batch:
            loader = at_next_epoch(loader)
        checkpoint[_KEY] = {"solver": solver, "loader": loader}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep the state until the solver is there; where nothing is fitted, weights alone are loaded."""
        self._resumes = self._is_fitting()
        self._saved = checkpoint.get(_KEY)

    def _is_fitting(self) -> bool:
        try:
            return bool(self.trainer.state.fn == "fit")
        except RuntimeError:  # no trainer: load_from_checkpoint
            return False

    def on_train_start(self) -> None:
        """Check what ``configure_optimizers`` made, and go on from a checkpoint; Lightning has restored its part."""
        self._check()
        resumes = self._resumes
        saved = self._saved
        self._resumes = False
        self._saved = None
        self._random = None
        self._ready = True
        if resumes:
            self._resume(saved)

    def _resume(self, saved: dict[str, Any] | None) -> None:
        if saved is None:
            raise ValueError("the checkpoint has no solver state, so it cannot be resumed")
        solver = self.solver
        restored = {"objective": solver.objective.state_dict(), "optimizer": solver.optimizer.state_dict()}
        solver.load_state_dict(saved["solver"] | restored)
        self.loader.load_state_dict(saved["loader"])
        self._random = solver.randomness.capture()

    def _restore_random(self) -> None:
        """Put the generators back to where the last step left them."""
        if self._random is not None:
            self.solver.randomness.restore(self._random)

    def _need(self, part: str) -> None:
        if not hasattr(self, part):
            raise TypeError(f"{type(self).__name__}.configure_optimizers must set self.{part}")

    def _check(self) -> None:
        trainer = self.trainer
        if trainer.precision not in _PRECISIONS:
            raise ValueError(f"precision must be one of {', '.join(_PRECISIONS)}, got {trainer.precision}")
        if not isinstance(trainer.strategy, (SingleDeviceStrategy, DDPStrategy)):
            raise ValueError(f"strategy must be one device or DDP, got {type(trainer.strategy).__name__}")
        self._need("solver")
        self._need("loader")
        check_solver(self.solver, self)
        check_loader(self.loader)
        if trainer.optimizers != [self.solver.optimizer]:
            name = f"{type(self).__name__}.configure_optimizers"
            raise ValueError(f"{name} must return the solver's optimizer and no other")
        if any(isinstance(config.scheduler, ReduceLROnPlateau) for config in trainer.lr_scheduler_configs):
            raise ValueError("ReduceLROnPlateau is not supported: schedulers step after the solver, without a metric")
        if trainer.train_dataloader is not self.loader:
            raise ValueError("trainer.fit must not be given train_dataloaders: the module's own loader is used")
