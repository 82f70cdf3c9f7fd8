"""Two small problems F(w) = (1/m) sum_i f_i(g_i(w)) in float64 with Jacobians worked out by hand.

Both are curved on purpose: a linear g makes MSVR-SP equal MSVR, a linear grad f hides which u a weight was
taken at, so a wrong rule could pass on them. Blocks, samples and components are numbered from 0; `rows` is a
list of sample numbers, and a value at `rows` is the mean over them.
"""

import numpy as np


class _FiniteSum:
    """What both problems share: the sums over blocks."""

    def __init__(self, m, n, d, p):
        self.m, self.n, self.d, self.p = m, n, d, p
        self.all_rows = list(range(n))

    def F(self, w):
        values = [self.outer(i, self.inner(i, w, self.all_rows)) for i in range(self.m)]
        return sum(values) / self.m

    def gradF(self, w):
        total = np.zeros(self.d)
        for i in range(self.m):
            u = self.inner(i, w, self.all_rows)
            total = total + self.outer_grad(i, u) @ self.jacobian(i, w, self.all_rows)
        return total / self.m


class CurvedProblem(_FiniteSum):
    """g_ik(w; j) = tanh(a.w) + 0.4 sin(b.w) + 0.3 (c.w)^2 + e,  a, b, c, e drawn for each (i, j, k);

    f_i(u) = sum_k h_ik sqrt(1 + u_k^2) + 0.3 sin(q_i . u): the sine couples the components.
    """

    def __init__(self, seed, m=8, n=6, d=5, p=1):
        super().__init__(m, n, d, p)
        draw = np.random.default_rng(seed)
        # A common part for all samples keeps the noise below the signal; the rest differs by sample.
        common = draw.normal(size=(m, 1, 3, p, d))
        self.abc = 0.5 * common + 0.25 * draw.normal(size=(m, n, 3, p, d))
        self.e = 0.3 * draw.normal(size=(m, n, p))
        self.h = draw.uniform(0.5, 1.5, size=(m, p))
        self.q = draw.normal(size=(m, p))

    def inner(self, i, w, rows):
        """g_i(w; rows), shape (p,)."""
        x = self.abc[i, rows] @ w  # (len(rows), 3, p)
        a, b, c = x[:, 0], x[:, 1], x[:, 2]
        return (np.tanh(a) + 0.4 * np.sin(b) + 0.3 * c * c + self.e[i, rows]).sum(0) / len(rows)

    def jacobian(self, i, w, rows):
        """The Jacobian of g_i(.; rows) at w, shape (p, d)."""
        abc = self.abc[i, rows]  # (len(rows), 3, p, d)
        slope = abc @ w
        slope[:, 0] = 1.0 - np.tanh(slope[:, 0]) ** 2
        slope[:, 1] = 0.4 * np.cos(slope[:, 1])
        slope[:, 2] = 0.6 * slope[:, 2]
        return (slope[..., None] * abc).sum((0, 1)) / len(rows)

    def outer(self, i, u):
        """f_i(u), a number."""
        return float(self.h[i] @ np.sqrt(1.0 + u * u) + 0.3 * np.sin(self.q[i] @ u))

    def outer_grad(self, i, u):
        """grad f_i(u), shape (p,)."""
        return self.h[i] * u / np.sqrt(1.0 + u * u) + 0.3 * np.cos(self.q[i] @ u) * self.q[i]


class LogProblem(_FiniteSum):
    """With x = a.w + 0.3 sin(b.w) + e,  g_ik(w; j) = exp(x) where `log[k]`, over several orders of magnitude,

    else sin(x), which takes both signs; f_i(u) = sum_k h_ik s_k + 0.3 sin(q_i . s),  s_k = log u_k where
    `log[k]`, else sqrt(1 + u_k^2). Everything here is in plain form: u, not log u.
    """

    def __init__(self, seed, m=8, n=6, d=5, p=1, log=True):
        super().__init__(m, n, d, p)
        self.log = np.broadcast_to(np.asarray(log), (p,)).copy()
        draw = np.random.default_rng(seed)
        self.a = 0.6 * draw.normal(size=(m, 1, p, d)) + 0.3 * draw.normal(size=(m, n, p, d))
        self.b = draw.normal(size=(m, n, p, d))
        self.e = 2.0 * draw.normal(size=(m, 1, p)) + 0.5 * draw.normal(size=(m, n, p))
        self.h = draw.uniform(0.5, 1.5, size=(m, p))
        self.q = draw.normal(size=(m, p))

    def _x(self, i, w, rows):
        return self.a[i, rows] @ w + 0.3 * np.sin(self.b[i, rows] @ w) + self.e[i, rows]  # (len(rows), p)

    def inner(self, i, w, rows):
        """g_i(w; rows), shape (p,)."""
        x = self._x(i, w, rows)
        return np.where(self.log, np.exp(x), np.sin(x)).sum(0) / len(rows)

    def jacobian(self, i, w, rows):
        """The Jacobian of g_i(.; rows) at w, shape (p, d)."""
        x, b = self._x(i, w, rows), self.b[i, rows]
        slope = self.a[i, rows] + 0.3 * np.cos(b @ w)[..., None] * b  # dx/dw, (len(rows), p, d)
        return (np.where(self.log, np.exp(x), np.cos(x))[..., None] * slope).sum(0) / len(rows)

    def _squashed(self, u):
        return np.where(self.log, np.log(np.where(self.log, u, 1.0)), np.sqrt(1.0 + u * u))

    def outer(self, i, u):
        """f_i(u), a number."""
        s = self._squashed(u)
        return float(self.h[i] @ s + 0.3 * np.sin(self.q[i] @ s))

    def outer_grad(self, i, u):
        """grad f_i(u), shape (p,)."""
        slope = np.where(self.log, 1.0 / np.where(self.log, u, 1.0), u / np.sqrt(1.0 + u * u))  # ds/du
        return (self.h[i] + 0.3 * np.cos(self.q[i] @ self._squashed(u)) * self.q[i]) * slope
