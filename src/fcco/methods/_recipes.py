"""Methods: a tracker times an estimator, with its lag. A named method is a recipe of a few lines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, final

from fcco._support import checks
from fcco.methods import estimators, trackers
from fcco.methods.estimators import Estimator
from fcco.methods.schedules import Schedule
from fcco.methods.trackers import Tracker

if TYPE_CHECKING:
    from fcco.memory._settings import OutputMemory


@final
@dataclass(frozen=True)
class Method:
    """A method: how u follows g, how z follows grad F, and which u weights the gradients.

    Args:
        name: the name in :data:`METHODS`.
        tracker: how u follows g.
        estimator: how z follows grad F.
        lag: 1: G uses u_{t-1} and G- uses u_{t-2}; 0: G uses u_t and G- uses u_{t-1}.
        period: every how many steps the anchor w_tau is renewed (finite-sum forms), else None.
        memory: settings of the output memory, which then takes the steps; else None.
    """

    name: str
    tracker: Tracker
    estimator: Estimator
    lag: int
    period: int | None = None
    memory: OutputMemory | None = None

    def __post_init__(self) -> None:
        if isinstance(self.lag, bool) or not isinstance(self.lag, int) or self.lag not in (0, 1):
            raise ValueError(f"lag must be 0 or 1, got {self.lag!r}")
        if self.period is not None:
            checks.positive_int("period", self.period)
            if self.lag == 0:
                raise ValueError(f"lag must be 1 for {self.name}: its anchor stores u_(tau-1); got lag 0")

    def with_rates(self, *, alpha: Schedule | None = None, beta: Schedule | None = None) -> Method:
        """The same method with other rates; parts that have no such rate are left alone."""
        return replace(self, tracker=_with(self.tracker, "beta", beta), estimator=_with(self.estimator, "alpha", alpha))


def _with(part: Any, name: str, value: Schedule | None) -> Any:
    known = value is not None and name in {field.name for field in fields(part)}
    return replace(part, **{name: value}) if known else part


def sox(*, alpha: Schedule, beta: Schedule, lag: int = 0) -> Method:
    """SOX: moving average x momentum (Wang & Yang, ICML 2022)."""
    return Method("sox", trackers.MovingAverage(beta), estimators.Momentum(alpha), lag)


def soap(*, beta: Schedule, lag: int = 0) -> Method:
    """SOAP: moving average x plain gradient (Qi et al., NeurIPS 2021)."""
    return Method("soap", trackers.MovingAverage(beta), estimators.Plain(), lag)


def bsgd(*, lag: int = 0) -> Method:
    """BSGD: the mini-batch's own g x plain gradient; biased for small B2 (Hu et al., NeurIPS 2020)."""
    return Method("bsgd", trackers.NoTracker(), estimators.Plain(), lag)


def bspiderboost(*, period: int, lag: int = 0) -> Method:
    """BSpiderBoost: the mini-batch's own g x SARAH; hand it larger batches at t = 1, 1 + period, ..."""
    return Method("bspiderboost", trackers.NoTracker(), estimators.Sarah(period), lag)


def storm_v1(*, alpha: Schedule, beta: Schedule, lag: int = 1) -> Method:
    """Naive STORM x momentum: an ablation of MSVR-v1."""
    return Method("storm-v1", trackers.Storm(beta), estimators.Momentum(alpha), lag)


def storm_v2(*, alpha: Schedule, beta: Schedule, lag: int = 1) -> Method:
    """Naive STORM x STORM: an ablation of MSVR-v2."""
    return Method("storm-v2", trackers.Storm(beta), estimators.Storm(alpha), lag)


def msvr_v1(*, alpha: Schedule, beta: Schedule, gamma: Schedule | None = None, lag: int = 1) -> Method:
    """MSVR-v1: MSVR x momentum (L265). Two forward passes and one backward pass a step."""
    return Method("msvr-v1", trackers.MSVR(beta, gamma), estimators.Momentum(alpha), lag)


def msvr_v2(*, alpha: Schedule, beta: Schedule, gamma: Schedule | None = None, lag: int = 1) -> Method:
    """MSVR-v2: MSVR x STORM (L278). Two forward and two backward passes a step."""
    return Method("msvr-v2", trackers.MSVR(beta, gamma), estimators.Storm(alpha), lag)


def msvr_v3(*, alpha: Schedule, beta: Schedule, period: int, gamma: Schedule | None = None, lag: int = 1) -> Method:
    """MSVR-v3: finite-sum MSVR x STORM with anchor (L356-363); needs a full pass every ``period`` steps."""
    tracker = trackers.MSVR(beta, gamma, anchored=True)
    return Method("msvr-v3", tracker, estimators.Storm(alpha, anchored=True), lag, _period(period))


def msvr_v1_sp(*, alpha: Schedule, beta: Schedule, gamma: Schedule | None = None, lag: int = 1) -> Method:
    """MSVR-v1, single point: one forward pass with a Jacobian-vector product, one backward pass."""
    tracker = trackers.MSVR(beta, gamma, single_point=True)
    return Method("msvr-v1-sp", tracker, estimators.Momentum(alpha), lag)


def msvr_v2_sp(*, alpha: Schedule, beta: Schedule, gamma: Schedule | None = None, lag: int = 1) -> Method:
    """MSVR-v2, single point in u; the gradient at w_{t-1} is still needed."""
    tracker = trackers.MSVR(beta, gamma, single_point=True)
    return Method("msvr-v2-sp", tracker, estimators.Storm(alpha), lag)


def variant_v1(*, alpha: Schedule, beta: Schedule, lag: int = 1) -> Method:
    """The paper's ablation of MSVR-v1 (L1223): undrawn blocks decay."""
    return Method("variant-v1", trackers.Variant(beta), estimators.Momentum(alpha), lag)


def variant_v2(*, alpha: Schedule, beta: Schedule, lag: int = 1) -> Method:
    """The paper's ablation of MSVR-v2 (L1223): undrawn blocks decay."""
    return Method("variant-v2", trackers.Variant(beta), estimators.Storm(alpha), lag)


def variant_v3(*, alpha: Schedule, beta: Schedule, period: int, lag: int = 1) -> Method:
    """The paper's ablation of MSVR-v3 (L1229): undrawn blocks decay."""
    tracker = trackers.Variant(beta, anchored=True)
    return Method("variant-v3", tracker, estimators.Storm(alpha, anchored=True), lag, _period(period))


def alexr(*, beta: Schedule, theta: Schedule, lag: int = 0) -> Method:
    """ALEXR, its first form: extrapolated moving average x plain gradient (Wang & Yang, ICML 2025)."""
    return Method("alexr", trackers.Extrapolation(beta, theta), estimators.Plain(), lag)


def sonx(*, beta: Schedule, gamma: Schedule | None = None, lag: int = 0) -> Method:
    """SONX for non-smooth f and g: MSVR (gamma = 0: moving average) x plain (Hu et al., NeurIPS 2023)."""
    return Method("sonx", trackers.MSVR(beta, gamma), estimators.Plain(), lag)


def sonex(*, alpha: Schedule, beta: Schedule, gamma: Schedule | None = None, lag: int = 0) -> Method:
    """SONEX: MSVR (gamma = 0: moving average) x momentum, for a smoothed outer function (NeurIPS 2025)."""
    return Method("sonex", trackers.MSVR(beta, gamma), estimators.Momentum(alpha), lag)


def scent(*, step: Schedule, alpha: Schedule | None = None, lag: int = 0) -> Method:
    """SCENT: each row's own rate x plain (or momentum where alpha is given); log-domain objectives only."""
    estimator = estimators.Plain() if alpha is None else estimators.Momentum(alpha)
    return Method("scent", trackers.OwnRate(step), estimator, lag)


def _period(period: int) -> int:
    return checks.positive_int("period", period)


METHODS: dict[str, Callable[..., Method]] = {
    "sox": sox,
    "soap": soap,
    "bsgd": bsgd,
    "bspiderboost": bspiderboost,
    "storm-v1": storm_v1,
    "storm-v2": storm_v2,
    "msvr-v1": msvr_v1,
    "msvr-v2": msvr_v2,
    "msvr-v3": msvr_v3,
    "msvr-v1-sp": msvr_v1_sp,
    "msvr-v2-sp": msvr_v2_sp,
    "variant-v1": variant_v1,
    "variant-v2": variant_v2,
    "variant-v3": variant_v3,
    "alexr": alexr,
    "sonx": sonx,
    "sonex": sonex,
    "scent": scent,
}
