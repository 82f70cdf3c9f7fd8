"""Methods: a tracker times an estimator, with its lag. A named method is a recipe of a few lines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, final

from fcco._support import checks
from fcco.methods import estimators, trackers
from fcco.methods._output_memory import OutputMemory
from fcco.methods.estimators import Estimator
from fcco.methods.schedules import Schedule
from fcco.methods.trackers import Tracker


@final
@dataclass(frozen=True)
class Method:
    """A method: how u follows g, how z follows grad F, and which u weights the gradients.

    Args:
        name: the name in :data:`METHODS`.
        tracker: how u follows g.
        estimator: how z follows grad F.
        lag: 1: G uses u_{t-1} and G- uses u_{t-2}; 0: G uses u_t and G- uses u_{t-1}.
        finite_sum: whether it keeps a reference w_tau, which passes over all data renew.
        period: steps between two renewals of the reference; None: once per epoch, that is, after as many steps
            as draw the number of samples that a full pass takes (by the batch at which it was renewed).
        memory: settings of the output memory, which then takes the place of the tracker; else None.
    """

    name: str
    tracker: Tracker
    estimator: Estimator
    lag: int
    finite_sum: bool = False
    period: int | None = None
    memory: OutputMemory | None = None

    def __post_init__(self) -> None:
        # True == 1 would pass for a lag.
        if isinstance(self.lag, bool) or not isinstance(self.lag, int) or self.lag not in (0, 1):
            raise ValueError(f"lag must be 0 or 1, got {self.lag!r}")
        if self.period is not None:
            checks.positive_int("period", self.period)
        if self.finite_sum and self.lag == 0:
            raise ValueError(f"lag must be 1 for {self.name}: its reference stores u_(tau-1); got lag 0")

    @property
    def probes_previous(self) -> bool:
        """Whether any step needs w_{t-1}."""
        return self.tracker.probes_previous or self.estimator.probes_previous

    def with_rates(self, *, alpha: Schedule | None = None, beta: Schedule | None = None) -> Method:
        """The same method with other rates; parts that have no such rate are left alone.

        Args:
            alpha: the estimator's new rate; None: as it is.
            beta: the tracker's new rate; None: as it is.
        """
        tracker = _with_rate(self.tracker, "beta", beta)
        estimator = _with_rate(self.estimator, "alpha", alpha)
        return replace(self, tracker=tracker, estimator=estimator)


def _with_rate(part: Any, name: str, value: Schedule | None) -> Any:
    # BSGD has no beta, SOAP no alpha: a stage sets what there is.
    if value is None or name not in {field.name for field in fields(part)}:
        return part
    return replace(part, **{name: value})


def sox(*, alpha: Schedule = 0.1, beta: Schedule = 0.1, lag: int = 0, nesterov: bool = False) -> Method:
    """SOX: moving average x momentum (Wang & Yang, ICML 2022).

    Args:
        alpha: rate of the gradient estimate z, in (0, 1], or a function of t; 1 forgets all earlier gradients.
        beta: rate of the tracker u, in (0, 1], or a function of t; 1 forgets all earlier probes.
        lag: 0 weights the gradient with the fresh u; 1 with the u from before the step, as the paper's methods do.
        nesterov: pass Nesterov's mixture of z and the fresh gradient to the optimizer.
    """
    return Method("sox", trackers.MovingAverage(beta), estimators.Momentum(alpha, nesterov), lag)


def soap(*, beta: Schedule = 0.1, lag: int = 0) -> Method:
    """SOAP: moving average x plain gradient (Qi et al., NeurIPS 2021).

    Args:
        beta: rate of the tracker u, in (0, 1], or a function of t; 1 forgets all earlier probes.
        lag: 0 weights the gradient with the fresh u; 1 with the u from before the step, as the paper's methods do.
    """
    return Method("soap", trackers.MovingAverage(beta), estimators.Plain(), lag)


def bsgd(*, lag: int = 0) -> Method:
    """BSGD: the mini-batch's own g x plain gradient; biased for small B2 (Hu et al., NeurIPS 2020).

    Args:
        lag: has no effect, since the batch's own g weights the gradient either way; all recipes take it.
    """
    return Method("bsgd", trackers.NoTracker(), estimators.Plain(), lag)


def bspiderboost(*, period: int = 20, lag: int = 0) -> Method:
    """BSpiderBoost: the mini-batch's own g x SARAH. It needs larger batches at t = 1, 1 + period, ...

    Args:
        period: steps between two large batches.
        lag: has no effect, since the batch's own g weights the gradient either way; all recipes take it.
    """
    return Method("bspiderboost", trackers.NoTracker(), estimators.Sarah(period), lag)


def storm_v1(*, alpha: Schedule = 0.1, beta: Schedule = 0.1, lag: int = 1, nesterov: bool = False) -> Method:
    """Naive STORM x momentum: an ablation of MSVR-v1.

    Args:
        alpha: rate of the gradient estimate z, in (0, 1], or a function of t; 1 forgets all earlier gradients.
        beta: rate of the tracker u, in (0, 1], or a function of t; 1 forgets all earlier probes.
        lag: 1 weights the gradient with the u from before the step, as the paper does; 0 with the fresh u.
        nesterov: pass Nesterov's mixture of z and the fresh gradient to the optimizer.
    """
    return Method("storm-v1", trackers.Storm(beta), estimators.Momentum(alpha, nesterov), lag)


def storm_v2(*, alpha: Schedule = 0.1, beta: Schedule = 0.1, lag: int = 1, zeta: Schedule = 1.0) -> Method:
    """Naive STORM x STORM: an ablation of MSVR-v2.

    Args:
        alpha: rate of the gradient estimate z, in (0, 1], or a function of t; 1 forgets all earlier gradients.
        beta: rate of the tracker u, in (0, 1], or a function of t; 1 forgets all earlier probes.
        lag: 1 weights the gradient with the u from before the step, as the paper does; 0 with the fresh u.
        zeta: factor in [0, 1] of STORM's correction of z; 1 is the paper's rule, 0 is momentum.
    """
    return Method("storm-v2", trackers.Storm(beta), estimators.Storm(alpha, zeta=zeta), lag)


def msvr_v1(
    *, alpha: Schedule = 0.1, beta: Schedule = 0.1, gamma: Schedule | None = None, lag: int = 1, nesterov: bool = False
) -> Method:
    """MSVR-v1: MSVR x momentum (equation 7). Two forward passes and one backward pass per step.

    Args:
        alpha: rate of the gradient estimate z, in (0, 1], or a function of t; 1 forgets all earlier gradients.
        beta: rate of the tracker u, in (0, 1], or a function of t; 1 forgets all earlier probes.
        gamma: weight of the correction g - g-. None: the paper's formula, :func:`fcco.trackers.msvr_gamma`. 0: none.
        lag: 1 weights the gradient with the u from before the step, as the paper does; 0 with the fresh u.
        nesterov: pass Nesterov's mixture of z and the fresh gradient to the optimizer.
    """
    return Method("msvr-v1", trackers.MSVR(beta, gamma), estimators.Momentum(alpha, nesterov), lag)


def msvr_v2(
    *,
    alpha: Schedule = 0.1,
    beta: Schedule = 0.1,
    gamma: Schedule | None = None,
    lag: int = 1,
    zeta: Schedule = 1.0,
) -> Method:
    """MSVR-v2: MSVR x STORM (equation 8). Two forward and two backward passes per step.

    ``zeta`` in [0, 1] scales STORM's correction; see :class:`fcco.estimators.Storm`.

    Args:
        alpha: rate of the gradient estimate z, in (0, 1], or a function of t; 1 forgets all earlier gradients.
        beta: rate of the tracker u, in (0, 1], or a function of t; 1 forgets all earlier probes.
        gamma: weight of the correction g - g-. None: the paper's formula, :func:`fcco.trackers.msvr_gamma`. 0: none.
        lag: 1 weights the gradient with the u from before the step, as the paper does; 0 with the fresh u.
        zeta: factor in [0, 1] of STORM's correction of z; 1 is the paper's rule, 0 is momentum.
    """
    return Method("msvr-v2", trackers.MSVR(beta, gamma), estimators.Storm(alpha, zeta=zeta), lag)


def msvr_v3(
    *,
    alpha: Schedule = 0.1,
    beta: Schedule = 0.1,
    period: int | None = None,
    gamma: Schedule | None = None,
    lag: int = 1,
) -> Method:
    """MSVR-v3: finite-sum MSVR x STORM with reference (equation 10); takes full passes every ``period`` steps.

    Args:
        alpha: rate of the gradient estimate z, in (0, 1], or a function of t; 1 forgets all earlier gradients.
        beta: rate of the tracker u, in (0, 1], or a function of t; 1 forgets all earlier probes.
        period: steps between two full passes over the data; None: one epoch.
        gamma: weight of the correction g - g-. None: the paper's formula, :func:`fcco.trackers.msvr_gamma`. 0: none.
        lag: must be 1, since the reference's gradient is weighted with the u from before the step.
    """
    tracker = trackers.MSVR(beta, gamma, finite_sum=True)
    return Method("msvr-v3", tracker, estimators.Storm(alpha, finite_sum=True), lag, True, period)


def msvr_v1_sp(
    *, alpha: Schedule = 0.1, beta: Schedule = 0.1, gamma: Schedule | None = None, lag: int = 1, nesterov: bool = False
) -> Method:
    """MSVR-v1, single point: one forward pass with a Jacobian-vector product, one backward pass.

    Args:
        alpha: rate of the gradient estimate z, in (0, 1], or a function of t; 1 forgets all earlier gradients.
        beta: rate of the tracker u, in (0, 1], or a function of t; 1 forgets all earlier probes.
        gamma: weight of the correction g - g-. None: the paper's formula, :func:`fcco.trackers.msvr_gamma`. 0: none.
        lag: 1 weights the gradient with the u from before the step, as the paper does; 0 with the fresh u.
        nesterov: pass Nesterov's mixture of z and the fresh gradient to the optimizer.
    """
    tracker = trackers.MSVR(beta, gamma, single_point=True)
    return Method("msvr-v1-sp", tracker, estimators.Momentum(alpha, nesterov), lag)


def msvr_v2_sp(
    *,
    alpha: Schedule = 0.1,
    beta: Schedule = 0.1,
    gamma: Schedule | None = None,
    lag: int = 1,
    zeta: Schedule = 1.0,
) -> Method:
    """MSVR-v2, single point in u; the gradient at w_{t-1} is still needed.

    Args:
        alpha: rate of the gradient estimate z, in (0, 1], or a function of t; 1 forgets all earlier gradients.
        beta: rate of the tracker u, in (0, 1], or a function of t; 1 forgets all earlier probes.
        gamma: weight of the correction g - g-. None: the paper's formula, :func:`fcco.trackers.msvr_gamma`. 0: none.
        lag: 1 weights the gradient with the u from before the step, as the paper does; 0 with the fresh u.
        zeta: factor in [0, 1] of STORM's correction of z; 1 is the paper's rule, 0 is momentum.
    """
    tracker = trackers.MSVR(beta, gamma, single_point=True)
    return Method("msvr-v2-sp", tracker, estimators.Storm(alpha, zeta=zeta), lag)


def variant_v1(*, alpha: Schedule = 0.1, beta: Schedule = 0.1, lag: int = 1, nesterov: bool = False) -> Method:
    """The paper's ablation of MSVR-v1 (equation 18): undrawn blocks decay.

    Args:
        alpha: rate of the gradient estimate z, in (0, 1], or a function of t; 1 forgets all earlier gradients.
        beta: rate of the tracker u, in (0, 1], or a function of t; 1 forgets all earlier probes.
        lag: 1 weights the gradient with the u from before the step, as the paper does; 0 with the fresh u.
        nesterov: pass Nesterov's mixture of z and the fresh gradient to the optimizer.
    """
    return Method("variant-v1", trackers.Variant(beta), estimators.Momentum(alpha, nesterov), lag)


def variant_v2(*, alpha: Schedule = 0.1, beta: Schedule = 0.1, lag: int = 1) -> Method:
    """The paper's ablation of MSVR-v2 (equation 18): undrawn blocks decay.

    Args:
        alpha: rate of the gradient estimate z, in (0, 1], or a function of t; 1 forgets all earlier gradients.
        beta: rate of the tracker u, in (0, 1], or a function of t; 1 forgets all earlier probes.
        lag: 1 weights the gradient with the u from before the step, as the paper does; 0 with the fresh u.
    """
    return Method("variant-v2", trackers.Variant(beta), estimators.Storm(alpha), lag)


def variant_v3(*, alpha: Schedule = 0.1, beta: Schedule = 0.1, period: int | None = None, lag: int = 1) -> Method:
    """The paper's ablation of MSVR-v3 (equation 19): undrawn blocks decay.

    Args:
        alpha: rate of the gradient estimate z, in (0, 1], or a function of t; 1 forgets all earlier gradients.
        beta: rate of the tracker u, in (0, 1], or a function of t; 1 forgets all earlier probes.
        period: steps between two full passes over the data; None: one epoch.
        lag: 1 weights the gradient with the u from before the step, as the paper does; 0 with the fresh u.
    """
    tracker = trackers.Variant(beta, finite_sum=True)
    return Method("variant-v3", tracker, estimators.Storm(alpha, finite_sum=True), lag, True, period)


def alexr(*, beta: Schedule = 0.1, theta: Schedule = 0.1, lag: int = 0) -> Method:
    """ALEXR, its first form: extrapolated moving average x plain gradient (Wang & Yang, ICML 2025).

    Args:
        beta: rate of the tracker u, in (0, 1], or a function of t; 1 forgets all earlier probes.
        theta: weight of the extrapolation, in [0, 1]; 0: a moving average.
        lag: 0 weights the gradient with the fresh u; 1 with the u from before the step, as the paper's methods do.
    """
    return Method("alexr", trackers.Extrapolation(beta, theta), estimators.Plain(), lag)


def sonx(*, beta: Schedule = 0.1, gamma: Schedule | None = None, lag: int = 0) -> Method:
    """SONX for non-smooth f and g: MSVR (gamma = 0: moving average) x plain (Hu et al., NeurIPS 2023).

    Args:
        beta: rate of the tracker u, in (0, 1], or a function of t; 1 forgets all earlier probes.
        gamma: weight of the correction g - g-. None: the paper's formula, :func:`fcco.trackers.msvr_gamma`. 0: none.
        lag: 0 weights the gradient with the fresh u; 1 with the u from before the step, as the paper's methods do.
    """
    return Method("sonx", trackers.MSVR(beta, gamma), estimators.Plain(), lag)


def sonex(
    *, alpha: Schedule = 0.1, beta: Schedule = 0.1, gamma: Schedule | None = None, lag: int = 0, nesterov: bool = False
) -> Method:
    """SONEX: MSVR (gamma = 0: moving average) x momentum, for a smoothed outer function (NeurIPS 2025).

    Args:
        alpha: rate of the gradient estimate z, in (0, 1], or a function of t; 1 forgets all earlier gradients.
        beta: rate of the tracker u, in (0, 1], or a function of t; 1 forgets all earlier probes.
        gamma: weight of the correction g - g-. None: the paper's formula, :func:`fcco.trackers.msvr_gamma`. 0: none.
        lag: 0 weights the gradient with the fresh u; 1 with the u from before the step, as the paper's methods do.
        nesterov: pass Nesterov's mixture of z and the fresh gradient to the optimizer.
    """
    return Method("sonex", trackers.MSVR(beta, gamma), estimators.Momentum(alpha, nesterov), lag)


def scent(*, step: Schedule = 0.1, alpha: Schedule | None = None, lag: int = 0, nesterov: bool = False) -> Method:
    """SCENT: each row's own rate x plain (or momentum where alpha is given); log-domain objectives only.

    Args:
        step: step size of each row's own rate, step u/(1 + step u).
        alpha: rate of the momentum z; None: no momentum.
        lag: 0 weights the gradient with the fresh u; 1 with the u from before the step, as the paper's methods do.
        nesterov: pass Nesterov's mixture of z and the fresh gradient to the optimizer.
    """
    return Method("scent", trackers.OwnRate(step), _plain_or_momentum(alpha, nesterov), lag)


def output_memory(
    *,
    importance: float = 0.5,
    cap: float | None = 3.0,
    balance: bool = True,
    refresh: int | None = None,
    renewal: float = 0.2,
    alpha: Schedule | None = None,
    nesterov: bool = False,
) -> Method:
    r"""The output memory: exact weights from a table of every example's last output, and draws by importance.

    ::

        draw examples k by q_k = (1 - p)/N + p |c_k| / sum |c|, a fixed number B of each class
        s_k = outputs of the drawn examples at w_t, written into the table
        c_k = dPhi/ds_k at the table, where F(w) = Phi(s_1(w), ..., s_n(w))
        v_k = c_k / (q_k B), capped, rescaled so that they add up to zero
        step along sum_k v_k grad s_k(w_t)

    For objectives that depend on the weights through one output per example
    (:class:`fcco.objectives.OutputObjective`).

    Args:
        importance: p in [0, 1], the share of the draws that are made by importance.
        cap: no draw has an output gradient of more than this many times the mean of its class; None: no cap.
        balance: rescale the output gradients so that they add up to zero wherever F is invariant to a common shift.
        refresh: steps between two evaluations of the whole table; None: chosen so that they stay cheap.
        renewal: in (0, 1], the share of the draws' probabilities that each such evaluation renews.
        alpha: momentum, z = (1 - alpha) z + alpha G; None: the plain gradient (Adam has momentum of its own).
        nesterov: use Nesterov's form of that momentum.

    Example:
        >>> output_memory(cap=6.0).memory
        OutputMemory(importance=0.5, cap=6.0, balance=True, refresh=None, renewal=0.2)
    """
    memory = OutputMemory(importance, cap, balance, refresh, renewal)
    return Method("output-memory", trackers.NoTracker(), _plain_or_momentum(alpha, nesterov), lag=0, memory=memory)


def _plain_or_momentum(alpha: Schedule | None, nesterov: bool) -> Estimator:
    if alpha is not None:
        return estimators.Momentum(alpha, nesterov)
    if nesterov:
        raise ValueError("nesterov=True needs momentum: pass alpha too")
    return estimators.Plain()


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
    "output-memory": output_memory,
}
