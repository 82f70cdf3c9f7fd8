"""Every method, step by step, as plain loops over blocks: slow, literal and independent of the library.

Names: m blocks, B1 of them drawn at step t (counted from 1); w = w_t, w_prev = w_{t-1}; u = u_{t-1} and
u_prev = u_{t-2} are whole m x p tables, copied at every step, so that no bookkeeping can go wrong;
a, b, c = alpha_t, beta_t, gamma_t. A row that no step has touched yet is NaN: using one shows at once.
"""

from dataclasses import dataclass, field, replace

import numpy as np

# method: (tracker, estimator, published lag)
METHODS = {
    "sox": ("moving average", "momentum", 0),
    "soap": ("moving average", "plain", 0),
    "bsgd": ("none", "plain", 0),
    "bspiderboost": ("none", "sarah", 0),
    "storm-v1": ("storm", "momentum", 1),
    "storm-v2": ("storm", "storm", 1),
    "msvr-v1": ("msvr", "momentum", 1),
    "msvr-v2": ("msvr", "storm", 1),
    "msvr-v3": ("msvr finite sum", "anchored storm", 1),
    "msvr-v1-sp": ("msvr-sp", "momentum", 1),
    "msvr-v2-sp": ("msvr-sp", "storm", 1),
    "variant-v1": ("variant", "momentum", 1),
    "variant-v2": ("variant", "storm", 1),
    "variant-v3": ("variant finite sum", "anchored storm", 1),
    "alexr": ("alexr", "plain", 0),
    "sonx": ("msvr", "plain", 0),
    "sonex": ("msvr", "momentum", 0),
    "scent": ("scent", "plain", 0),  # momentum where an alpha is given
}
FINITE_SUM = ("msvr finite sum", "variant finite sum")
VARIANT = ("variant", "variant finite sum")
USES_G_PREV = ("sarah", "storm", "anchored storm")


@dataclass
class Anchor:
    """What a full pass at w_tau leaves behind."""

    w: np.ndarray  # w_tau
    values: np.ndarray  # g_i(w_tau), (m, p)
    weights: np.ndarray  # grad f_i(u_{tau-1}^i), (m, p)
    gradient: np.ndarray  # Gfull_tau, (d,)


@dataclass
class State:
    """Everything after step t: (w_{t+1}, w_t, u_t, u_{t-1}, z_t), the anchor, the counters."""

    t: int
    w: np.ndarray
    w_prev: np.ndarray
    u: np.ndarray
    u_prev: np.ndarray
    z: np.ndarray | None  # None: nothing given, the first step decides
    touched: np.ndarray  # (m,) bool: has the row a value?
    anchor: Anchor | None = None
    stage_start: int = 0  # steps taken before the present stage: full passes count from there
    h: np.ndarray | None = None
    h_prime: np.ndarray | None = None
    samples: int = 0
    g_calls: int = 0
    j_calls: int = 0
    jvp_calls: int = 0
    guarded: int = 0  # how often the log-domain safeguard changed a value
    history: list = field(default_factory=list)  # w_1, w_2, ...


@dataclass
class Probe:
    """What is evaluated for one drawn block at this step's samples xi."""

    g: np.ndarray  # g_i(w_t; xi), (p,)
    J: np.ndarray  # its Jacobian, (p, d)
    g_prev: np.ndarray  # g_i(w_{t-1}; xi)
    J_prev: np.ndarray | None  # None where the estimator has no G-
    g_anchor: np.ndarray | None  # g_i(w_tau; xi)
    J_anchor: np.ndarray | None
    g_full: np.ndarray | None  # g_i(w_tau)
    move: np.ndarray  # J (w_t - w_{t-1}), (p,)


@dataclass
class Adaptive:
    """h' = (1-b')h' + b' z^2;  h = h' or, AMSGrad style, max(h, h');  w -= lr z / (sqrt(h) + delta)."""

    beta: float  # or a function of the step
    delta: float
    amsgrad: bool = False


def at(value, t):
    """A number, or a function of the step."""
    return value(t) if callable(value) else value


# ---- trackers: how u follows g --------------------------------------------------------------------------


def msvr_gamma(b, m, B1):
    """(m - B1) / (B1 (1 - b)) + (1 - b); at b = 1 it is 0 by definition."""
    if b == 1.0:
        return 0.0
    return (m - B1) / (B1 * (1.0 - b)) + (1.0 - b)


def scent_rate(u, step):
    """b_i = step u_i / (1 + step u_i), from the row before its update."""
    return step * u / (1.0 + step * u)


def tracked(tracker, u, s, b, c, theta, ratio):
    """The new row of a drawn block: u is u_{t-1}^i, s its Probe, ratio = m / B1."""
    if tracker == "none":
        return s.g
    if tracker in ("moving average", "scent"):
        return (1 - b) * u + b * s.g
    if tracker == "storm":
        return (1 - b) * u + b * s.g + (1 - b) * (s.g - s.g_prev)
    if tracker == "msvr":
        return (1 - b) * u + b * s.g + c * (s.g - s.g_prev)
    if tracker == "msvr-sp":
        return (1 - b) * u + b * s.g + c * s.move
    if tracker == "msvr finite sum":
        return (1 - b) * u + b * (s.g - s.g_anchor + s.g_full) + c * (s.g - s.g_prev)
    if tracker == "variant":
        return (1 - b) * u + b * ratio * s.g + (1 - b) * ratio * (s.g - s.g_prev)
    if tracker == "variant finite sum":
        g_hat = s.g - s.g_anchor + s.g_full
        return (1 - b) * u + b * ratio * g_hat + (1 - b) * ratio * (s.g - s.g_prev)
    if tracker == "alexr":
        return (1 - b) * u + b * s.g + b * theta * (s.g - s.g_prev)
    raise ValueError(f"unknown tracker {tracker!r}")


# ---- estimators: how z follows grad F -------------------------------------------------------------------


def estimated(estimator, z, a, G, G_prev, G_anchor, G_full, restart, zeta=1.0):
    """z_t before the projection. z is z_{t-1}; None at the first step when nothing was given."""
    if estimator == "plain":
        return G
    if estimator == "sarah":
        return G if restart else z + G - G_prev
    if estimator == "momentum":
        return G if z is None else (1 - a) * z + a * G
    if estimator == "storm":
        return G if z is None else (1 - a) * z + a * G + zeta * (1 - a) * (G - G_prev)
    if estimator == "anchored storm":
        z = G_full if z is None else z
        return (1 - a) * z + a * (G - G_anchor + G_full) + (1 - a) * (G - G_prev)
    raise ValueError(f"unknown estimator {estimator!r}")


def clipped(z, radius):
    """The projection onto the ball of that radius."""
    norm = np.sqrt(np.sum(z * z))
    return z if radius is None or norm <= radius else z * (radius / norm)


# ---- the steps of the loop ------------------------------------------------------------------------------


def start(problem, w1, u0=None, z0=None):
    """w_0 = w_1; u_{-1} = u_0 where given, else no row has a value; z_0 where given."""
    w1 = np.array(w1, dtype=np.float64)
    u = np.full((problem.m, problem.p), np.nan)
    if u0 is not None:
        u = np.array(np.broadcast_to(u0, (problem.m, problem.p)), dtype=np.float64)
    z = None if z0 is None else np.array(np.broadcast_to(z0, w1.shape), dtype=np.float64)
    touched = np.full(problem.m, u0 is not None)
    return State(t=0, w=w1, w_prev=w1.copy(), u=u, u_prev=u.copy(), z=z, touched=touched, history=[w1.copy()])


def at_least(value, floor, state, log):
    """The log-domain safeguard: on logarithmic components the value is at least the floor."""
    if log is None:
        return value
    state.guarded += int(np.sum(log & (value < floor)))
    return np.where(log, np.maximum(value, floor), value)


def refresh(problem, state, b, log):
    """A full pass at w_tau = w_t: the anchor, and u_0 = g(w_1) the first time unless rows were given."""
    m = problem.m
    values = np.array([problem.inner(i, state.w, problem.all_rows) for i in range(m)])
    if not state.touched.all():  # only before the first step: from then on every row has a value
        state.u, state.u_prev = values.copy(), values.copy()
        state.touched = np.full(m, True)
    weights = np.zeros((m, problem.p))
    gradient = np.zeros(problem.d)
    for i in range(m):
        weights[i] = problem.outer_grad(i, at_least(state.u[i], b * values[i], state, log))
        gradient = gradient + weights[i] @ problem.jacobian(i, state.w, problem.all_rows) / m
    state.anchor = Anchor(state.w.copy(), values, weights, gradient)
    for name in ("samples", "g_calls", "j_calls"):
        setattr(state, name, getattr(state, name) + m * problem.n)


def probed(problem, state, i, rows, estimator):
    """Evaluate block i at w_t, w_{t-1} and, where there is one, w_tau: the same samples each time."""
    J = problem.jacobian(i, state.w, rows)
    anchor = state.anchor
    return Probe(
        g=problem.inner(i, state.w, rows),
        J=J,
        g_prev=problem.inner(i, state.w_prev, rows),
        J_prev=problem.jacobian(i, state.w_prev, rows) if estimator in USES_G_PREV else None,
        g_anchor=None if anchor is None else problem.inner(i, anchor.w, rows),
        J_anchor=None if anchor is None else problem.jacobian(i, anchor.w, rows),
        g_full=None if anchor is None else anchor.values[i],
        move=J @ (state.w - state.w_prev),
    )


def weight_points(tracker, lag, fresh, u_new, u, u_prev, s):
    """At which u are grad f_i in G and in G- taken?"""
    if fresh:
        return (s.g, s.g) if lag == 1 else (s.g, s.g_prev)
    if lag == 1:
        return u, u_prev
    if tracker == "none":
        return s.g, s.g_prev
    return u_new, u


def count(state, tracker, estimator, gamma, theta, zeta, restart, drawn):
    """Samples and oracle calls of one step. A call is counted for every sample and every point probed.

    A method probes what its rule names, step by step, even where a coefficient happens to be 0 (beta = 1);
    gamma = 0 and theta = 0 as constants name the moving average, zeta = 0 momentum, which have one point.
    """
    back = estimator in USES_G_PREV and not (estimator == "sarah" and restart) and zeta != 0.0
    corrected = {"storm": True, "msvr": gamma != 0.0, "msvr finite sum": True, "alexr": theta != 0.0}
    forward = back or tracker in VARIANT or corrected.get(tracker, False)
    anchored = tracker in FINITE_SUM
    state.samples += drawn
    state.g_calls += drawn * (1 + forward + anchored)
    state.j_calls += drawn * (1 + back + anchored)
    state.jvp_calls += drawn * (tracker == "msvr-sp" and gamma != 0.0)


def moved(state, direction, eta, adaptive, mu):
    """w_{t+1}. The term mu w is that of F + (mu/2) ||w||^2, added exactly and outside the projection."""
    direction = direction + mu * state.w
    if adaptive is None:
        return state.w - eta * direction
    if state.h is None:
        state.h, state.h_prime = np.zeros_like(direction), np.zeros_like(direction)
    beta = at(adaptive.beta, state.t + 1)
    state.h_prime = (1 - beta) * state.h_prime + beta * direction**2
    state.h = np.maximum(state.h, state.h_prime) if adaptive.amsgrad else state.h_prime
    return state.w - eta * direction / (np.sqrt(state.h) + adaptive.delta)


def run(
    method,
    problem,
    w1,
    batches,
    *,
    lr,
    alpha=None,
    beta=None,
    gamma=None,
    theta=None,
    step=None,
    zeta=1.0,
    period=None,
    lag=None,
    u0=None,
    z0=None,
    radius=None,
    nesterov=False,
    normalize=False,
    project=None,
    safeguard=False,
    adaptive=None,
    mu=0.0,
    state=None,
    new_stage=False,
):
    """Run one step a batch; a batch is (blocks, rows of each block). Returns the State after the last.

    lr, alpha, beta, gamma, step are numbers or functions of t. `nesterov` steps along a G + (1-a) z in place of z.
    `state` goes on from an earlier return (w1, u0 and z0 are not looked at then); `new_stage` makes v3's full passes
    count from there.
    """
    tracker, estimator, published_lag = METHODS[method]
    lag = published_lag if lag is None else lag
    if method == "scent" and alpha is not None:
        estimator = "momentum"
    if tracker in FINITE_SUM and lag != 1:
        raise ValueError("the finite-sum methods have lag 1 only")
    log = problem.log if safeguard else None

    if state is None:
        state = start(problem, w1, u0, z0)
    else:
        state = replace(state, history=list(state.history))
        if new_stage:
            state.stage_start = state.t

    for blocks, rows_of in batches:
        t = state.t + 1
        B1, m = len(blocks), problem.m
        since = state.stage_start if tracker in FINITE_SUM else 0
        due = period is not None and (t - 1 - since) % period == 0
        a = at(alpha, t)
        b = 1.0 if tracker == "none" else at(beta, t)
        c = 0.0
        if tracker in ("msvr", "msvr-sp", "msvr finite sum"):
            c = msvr_gamma(b, m, B1) if gamma is None else at(gamma, t)

        if tracker in FINITE_SUM and due:
            refresh(problem, state, b, log)

        # Blocks not drawn keep their rows, but for the Variant, which shrinks every one of them.
        u_new = state.u.copy()
        if tracker in VARIANT:
            for i in range(m):
                if i not in blocks:
                    u_new[i] = (1 - b) * state.u[i]
        u_known = state.u.copy()

        G, G_prev, G_anchor = np.zeros(problem.d), np.zeros(problem.d), np.zeros(problem.d)
        for i, rows in zip(blocks, rows_of, strict=True):
            s = probed(problem, state, i, rows, estimator)
            fresh = not state.touched[i]
            if tracker == "scent":
                b = np.ones(problem.p) if fresh else scent_rate(state.u[i], at(step, t))
            if fresh:
                u_new[i] = s.g
                u_known[i] = s.g  # u_{t-1} := g, so that the next step finds it as its u_{t-2}
            else:
                u_new[i] = tracked(tracker, state.u[i], s, b, c, theta, m / B1)
                u_new[i] = at_least(u_new[i], b * s.g, state, log)
            if project is not None:
                u_new[i] = project(u_new[i])

            here, there = weight_points(tracker, lag, fresh, u_new[i], state.u[i], state.u_prev[i], s)
            here = at_least(here, b * s.g, state, log)
            G = G + problem.outer_grad(i, here) @ s.J / B1
            if estimator in USES_G_PREV:
                there = at_least(there, b * s.g_prev, state, log)
                G_prev = G_prev + problem.outer_grad(i, there) @ s.J_prev / B1
            if state.anchor is not None:
                G_anchor = G_anchor + state.anchor.weights[i] @ s.J_anchor / B1
            state.touched = state.touched | (np.arange(m) == i)

        G_full = None if state.anchor is None else state.anchor.gradient
        z = clipped(estimated(estimator, state.z, a, G, G_prev, G_anchor, G_full, due, at(zeta, t)), radius)
        direction = clipped(a * G + (1 - a) * z, radius) if nesterov else z
        direction = direction / np.sqrt(np.sum(direction * direction)) if normalize else direction
        w_new = moved(state, direction, at(lr, t), adaptive, mu)

        count(state, tracker, estimator, gamma, theta, zeta, due, sum(len(rows) for rows in rows_of))
        state.t = t
        state.w, state.w_prev = w_new, state.w
        state.u, state.u_prev = u_new, u_known
        state.z = z
        state.history.append(w_new.copy())
    return state
