"""What a fit tells on its way, and who may listen: a progress bar, TensorBoard, MLflow, Weights & Biases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final


@final
@dataclass(frozen=True)
class Progress:
    """The progress of a fit, after an evaluation on the validation data.

    Args:
        trial: the trial that was evaluated.
        setting: its setting, on one line.
        examples: the number that went through the network so far, over all trials.
        total: the largest number that there will be.
        value: the metric of this trial now.
        best: the best value so far, of any trial.
        loss: the mean estimate of the trial's objective since its last check.
        seconds: since the fit began.
    """

    trial: str
    setting: str
    examples: int
    total: int
    value: float
    best: float
    loss: float
    seconds: float

    @property
    def remaining(self) -> float:
        """Seconds that are left, if no trial stops early."""
        if self.examples == 0:
            return float("inf")
        return self.seconds * max(0, self.total - self.examples) / self.examples


#: Anything that takes a Progress; where it returns True the fit ends with the best model so far.
Callback = Callable[[Progress], Any]


@final
class ProgressBar:
    """A bar in the terminal or the notebook, by tqdm."""

    def __init__(self, metric: str) -> None:
        from tqdm.auto import tqdm

        self._metric = metric
        self._bar: Any = tqdm(total=None, unit=" examples", unit_scale=True, desc="fcco.fit", leave=True)

    def __call__(self, progress: Progress) -> None:
        self._bar.total = progress.total
        self._bar.n = progress.examples
        self._bar.set_postfix_str(f"{progress.trial}: {progress.value:.4f}, best {self._metric} {progress.best:.4f}")

    def close(self) -> None:
        """Leave the bar as it is: trials that stopped early make it end before its end."""
        self._bar.total = self._bar.n
        self._bar.close()


@final
class TensorBoard:
    """Writes every check as TensorBoard events.

    Args:
        folder: where to write, with one sub-folder per trial.

    Example:
        >>> fcco.fit(model, (x, y), callbacks=[fcco.fitting.TensorBoard("runs")])  # doctest: +SKIP
    """

    def __init__(self, folder: str) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ImportError("fcco.fitting.TensorBoard needs tensorboard: pip install tensorboard") from error
        self._make: Any = SummaryWriter
        self._folder = folder
        self._writers: dict[str, Any] = {}

    def __call__(self, progress: Progress) -> None:
        writer = self._writers.get(progress.trial)
        if writer is None:
            writer = self._make(f"{self._folder}/{progress.trial}")
            writer.add_text("setting", progress.setting)
            self._writers[progress.trial] = writer
        for name in ("value", "best", "loss"):
            writer.add_scalar(name, getattr(progress, name), progress.examples)
        writer.flush()


@final
class MLflow:
    """Logs every check into the active MLflow run."""

    def __init__(self) -> None:
        try:
            import mlflow
        except ImportError as error:
            raise ImportError("fcco.fitting.MLflow needs mlflow: pip install 'fcco[mlflow]'") from error
        self._mlflow: Any = mlflow

    def __call__(self, progress: Progress) -> None:
        values = {f"{progress.trial}/value": progress.value, "best": progress.best, "loss": progress.loss}
        self._mlflow.log_metrics(values, step=progress.examples)


@final
class WandB:
    """Logs every check into the active Weights & Biases run."""

    def __init__(self) -> None:
        try:
            import wandb
        except ImportError as error:
            raise ImportError("fcco.fitting.WandB needs wandb: pip install 'fcco[wandb]'") from error
        self._wandb: Any = wandb

    def __call__(self, progress: Progress) -> None:
        values = {f"{progress.trial}/value": progress.value, "best": progress.best, "loss": progress.loss}
        self._wandb.log(values, step=progress.examples)
