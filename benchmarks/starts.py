"""Which start for z and for u? SOX, MSVR-v1 and MSVR-v2 written out, all runs side by side as one batch of tensors.

    python benchmarks/starts.py                        # all problems; five minutes on an H200
    python benchmarks/starts.py --smoke                # seconds on the CPU; the numbers mean nothing
    python benchmarks/starts.py --table results/starts/starts.jsonl.xz    # the tables again
    python benchmarks/starts.py --check                # against fcco's own Solver, in double precision

Data: digits comes with scikit-learn; cifar10.npz lies in the folder that FCCO_DATA names.

Every tensor has two leading dimensions, S seeds and V configurations. A seed fixes the start weights and every
batch, so all configurations of a seed see the same data (a paired comparison). Runs do not touch each other.

Starts of z:  first (z_1 = G_1), mean (alpha_t = max(alpha, 1/t): the plain mean of the first gradients), zero (z_0 = 0).
Starts of u:  first (u_i = g at the first visit), mean (beta_i = max(beta, 1/visits_i)).
Nesterov:     the optimizer is handed alpha_t G + (1 - alpha_t) z in the place of z.
"""

from __future__ import annotations

import argparse
import itertools
import json
import lzma
import math
import os
import sys
import time
import warnings
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits

import fcco

OUT = Path(__file__).parents[1] / "results" / "starts"
ALPHAS = (0.03, 0.1, 0.3)
BETAS = (0.03, 0.1, 0.3)
METHODS = {  # name: (structure, gamma), None: the paper's formula
    "sox": ("sox", 0.0),
    "v1-formula": ("v1", None),
    "v1-0.5": ("v1", 0.5),
    "v2-0.5": ("v2", 0.5),
}
VARIANTS = [  # z start, nesterov, u start
    (z, nesterov, u)
    for nesterov in (0, 1)
    for z, u in (("first", "first"), ("mean", "first"), ("zero", "first"), ("first", "mean"), ("mean", "mean"))
]
TUNE_SEED = 100
SEEDS = (1, 2, 3, 4, 5, 6)


# ---------------------------------------------------------------------- models
# parameters: a list of tensors (S, V, ...); x: (S, d, K) -> outputs (S, V, m, K)


def dense(w, b, x):
    """First layer: all configurations of a seed share x, so it is one matrix product per seed."""
    s, v, h, d = w.shape
    return (w.reshape(s, v * h, d) @ x).view(s, v, h, -1) + b


class Net:
    """Layers of sizes (d, h1, ..., m); (d, m) is linear."""

    def __init__(self, *sizes):
        self.sizes = sizes
        self.count = 2 * (len(sizes) - 1)

    def init(self, rng):
        out = []
        for n_in, n_out in itertools.pairwise(self.sizes):
            bound = 1 / math.sqrt(n_in)  # as torch.nn.Linear
            out += [rng.uniform(-bound, bound, (n_out, n_in)), rng.uniform(-bound, bound, (n_out, 1))]
        return out

    def __call__(self, p, x):
        x = dense(p[0], p[1], x)
        for k in range(2, self.count, 2):
            x = p[k] @ x.relu() + p[k + 1]
        return x


class Conv:
    """16x16x3: 4x4 convolution of stride 2 (8x8), then 2x2 of stride 2 twice (4x4, 2x2), then linear.

    Positions are ordered so that every later convolution is a reshape and a product.
    """

    widths = (16, 32, 32)

    def __init__(self, m):
        c1, c2, c3 = self.widths
        self.shapes = [(c1, 48), (c2, 4 * c1), (c3, 4 * c2), (m, 4 * c3)]
        self.count = 8

    def init(self, rng):
        out = []
        for shape in self.shapes:
            bound = 1 / math.sqrt(shape[1])
            out += [rng.uniform(-bound, bound, shape), rng.uniform(-bound, bound, (shape[0], 1))]
        return out

    @staticmethod
    def patches(x):
        """(N, 16, 16, 3) -> (N, 48, 64), positions ordered (place in 2x2, place in the next 2x2, rest)."""
        u = torch.nn.functional.unfold(x.permute(0, 3, 1, 2), 4, padding=1, stride=2)  # (N, 48, 64)
        r, c = np.divmod(np.arange(64), 8)
        key = ((r % 2) * 2 + c % 2) * 16 + ((r // 2 % 2) * 2 + c // 2 % 2) * 4 + (r // 4) * 2 + c // 4
        return u[:, :, torch.from_numpy(np.argsort(key)).to(u.device)].contiguous()

    def __call__(self, p, x):
        s, v, k = x.shape[0], p[0].shape[1], x.shape[-1] // 64
        x = dense(p[0], p[1], x).relu().reshape(s, v, -1, 16 * k)
        x = (p[2] @ x + p[3]).relu().reshape(s, v, -1, 4 * k)
        x = (p[4] @ x + p[5]).relu().reshape(s, v, -1, k)
        return p[6] @ x + p[7]


# ---------------------------------------------------------------------- problems


def blocks(rng, steps, m, size):
    return np.argsort(rng.random((steps, m)), 1)[:, :size]


class MultiTask:
    """MultiTaskAUC with trained centres: g = (E+(h-a)^2, E-(h-b)^2, E-h - E+h), f = u1 + u2 + max(1 + u3, 0)^2 / 2."""

    log, p, best = False, 3, 0.0  # best is taken off the value: the linear problem's F is a gap to its least value

    def __init__(self, net, x, y, b1, b2, device, dtype, chunk=2500):
        self.net, self.b1, self.b2, self.chunk = net, b1, b2, chunk
        self.m = y.shape[1]
        self.conv = isinstance(net, Conv)
        self.x = x.to(device, dtype)
        y = np.asarray(y, bool)
        self.lists = [(np.flatnonzero(y[:, i]), np.flatnonzero(~y[:, i])) for i in range(self.m)]
        positive = torch.from_numpy(y.T.copy()).to(device, dtype)
        self.share_pos = positive / positive.sum(1, keepdim=True)
        self.share_neg = (1 - positive) / (1 - positive).sum(1, keepdim=True)

    def init(self, rng):
        return [*self.net.init(rng), np.zeros((self.m, 1)), np.zeros((self.m, 1))]

    def draw(self, rng, steps):
        """index (T, B1) and examples (T, B1, B2), half of them positives of the block, with replacement."""
        index = blocks(rng, steps, self.m, self.b1)
        place = rng.random((steps, self.b1, self.b2))
        ids = np.empty((steps, self.b1, self.b2), np.int64)
        half = self.b2 // 2
        for i, (pos, neg) in enumerate(self.lists):
            at = index == i
            ids[..., :half][at] = pos[(place[..., :half][at] * len(pos)).astype(int)]
            ids[..., half:][at] = neg[(place[..., half:][at] * len(neg)).astype(int)]
        return index, ids.reshape(steps, -1)

    def features(self, ids):
        x = self.x[ids]  # (S, K, d) or (S, K, 48, 64)
        return x.permute(0, 2, 3, 1).reshape(x.shape[0], 48, -1) if self.conv else x.transpose(1, 2)

    def g(self, p, index, ids):
        half = self.b2 // 2
        h = self.net(p, self.features(ids))
        s, v = h.shape[:2]
        where = index.view(s, 1, 1, self.b1, 1).expand(s, v, 1, self.b1, self.b2)
        h = h.view(s, v, self.m, self.b1, self.b2).gather(2, where).squeeze(2)
        row = index.view(s, 1, self.b1, 1).expand(s, v, self.b1, 1)
        a, b = p[-2].gather(2, row), p[-1].gather(2, row)
        pos, neg = h[..., :half], h[..., half:]
        return torch.stack([(pos - a).square().mean(-1), (neg - b).square().mean(-1), neg.mean(-1) - pos.mean(-1)], -1)

    def slope(self, u):
        one = torch.ones_like(u[..., 0])
        return torch.stack([one, one, (1 + u[..., 2]).relu()], -1)

    def project(self, u):
        return u

    def value(self, p):
        total = 0
        for ids in torch.arange(self.x.shape[0], device=self.x.device).split(self.chunk):
            h = self.net(p, self.features(ids[None]).expand(p[0].shape[0], -1, -1))
            pos, neg = self.share_pos[:, ids], self.share_neg[:, ids]
            parts = [
                ((h - p[-2]).square() * pos).sum(-1),
                ((h - p[-1]).square() * neg).sum(-1),
                (h * (neg - pos)).sum(-1),
            ]
            total = total + torch.stack(parts, -1)
        return (total[..., 0] + total[..., 1] + 0.5 * (1 + total[..., 2]).relu().square()).mean(-1) - self.best


class Anchored:
    """Blocks are positives: B1 of them and B2 negatives, shared."""

    log = True

    def __init__(self, net, x, y, b1, b2, device, dtype):
        self.net, self.b1, self.b2 = net, b1, b2
        self.x = x.to(device, dtype)
        self.pos, self.neg = np.flatnonzero(y), np.flatnonzero(~y)
        self.m = len(self.pos)
        self.order = torch.from_numpy(np.concatenate([self.pos, self.neg])).to(device)

    def init(self, rng):
        return self.net.init(rng)

    def draw(self, rng, steps):
        index = blocks(rng, steps, self.m, self.b1)
        other = self.neg[blocks(rng, steps, len(self.neg), self.b2)]
        return index, np.concatenate([self.pos[index], other], 1)

    def scores(self, p, ids):
        return self.net(p, self.x[ids].transpose(1, 2)).squeeze(2)  # (S, V, K)

    def value(self, p):
        s, v = p[0].shape[:2]
        out, step = [], max(1, int(1.5e9 / (self.m * len(self.x) * s)))
        for lo in range(0, v, step):
            h = self.scores([q[:, lo : lo + step] for q in p], self.order[None].expand(s, -1))
            out.append(self.full(h))
        return torch.cat(out, 1)


class PartialAUC(Anchored):
    """g = E- exp(l(h_j - h_i)/T), l squared hinge, in the log domain; f = T log u."""

    p = 1

    def __init__(self, *args, temperature):
        super().__init__(*args)
        self.t = temperature

    def log_mean(self, h, b1):
        x = h[..., None, b1:] - h[..., :b1, None]
        return torch.logsumexp((1 + x).relu().square() / self.t, -1) - math.log(x.shape[-1])

    def g(self, p, index, ids):
        return self.log_mean(self.scores(p, ids), self.b1).unsqueeze(-1)

    def slope(self, u):
        return torch.full_like(u, self.t)

    def project(self, u):
        return u

    def full(self, h):
        return self.t * self.log_mean(h, self.m).mean(-1)


class AP(Anchored):
    """g = (E 1[y=1] l, E l) over all data, log domain; f = -u1/u2. The value given is 1 + F, a gap."""

    p = 2

    def weight(self):
        n, total = len(self.neg), len(self.x)
        w = torch.full((self.b1, self.b1 + self.b2), n / (total * self.b2), device=self.x.device, dtype=self.x.dtype)
        w[:, : self.b1] = (self.m - 1) / (total * (self.b1 - 1))
        w.fill_diagonal_(1 / total)
        return w

    def g(self, p, index, ids):
        h = self.scores(p, ids)
        l = (1 + h[..., None, :] - h[..., : self.b1, None]).relu().square() * self.weight()
        over = l[..., : self.b1].sum(-1)
        return torch.stack([over, over + l[..., self.b1 :].sum(-1)], -1).log()

    def slope(self, u):
        f = -(u[..., 0] - u[..., 1]).exp()
        f = f.masked_fill(u[..., 0] > u[..., 1], 0.0)
        return torch.stack([f, -f], -1)

    def project(self, u):
        return torch.minimum(u, u[..., 1:])

    def full(self, h):
        l = (1 + h[..., None, :] - h[..., : self.m, None]).relu().square()
        return 1 - (l[..., : self.m].sum(-1) / l.sum(-1)).mean(-1)


# ---------------------------------------------------------------------- the methods


def combine(u, g, g_prev, b, c, log):
    """(1-b) u + b g + c (g - g-); in the log domain as the library does it, never below b g."""
    if not log:
        new = u + b * (g - u)
        return new if g_prev is None else new + c * (g - g_prev)
    if g_prev is None:
        return torch.logaddexp(u + (1 - b).log(), g + b.log())
    top = torch.maximum(torch.maximum(u, g), g_prev)
    total = (1 - b) * (u - top).exp() + (b + c) * (g - top).exp() - c * (g_prev - top).exp()
    return torch.maximum(top + total.clamp(min=0).log(), g + b.log())


class Rows:
    """The rows of u that one step reads and writes, for the blocks drawn."""

    def __init__(self, problem, u, new, beta, gamma):
        self.problem, self.u, self.new, self.beta, self.gamma = problem, u, new, beta, gamma
        self.earlier = None  # u_{t-2}

    def updated(self, g, g_prev=None):
        """u_t."""
        tracked = combine(self.u, g, g_prev, self.beta, self.gamma, self.problem.log)
        return self.problem.project(torch.where(self.new, g, tracked))

    def before(self, g):
        """u_{t-1} as a weight may use it."""
        return self._floor(torch.where(self.new, g, self.u), g)

    def before_that(self, g):
        """u_{t-2} as a weight may use it."""
        return self._floor(self.earlier, g)

    def _floor(self, rows, g):
        return torch.maximum(rows, g + self.beta.log()) if self.problem.log else rows


def simulate(problem, structure, opt, conf, seeds, steps, device, dtype, marks, trace=None):
    """F at the marks, (S, V, len(marks)).

    conf: arrays (V,) alpha, beta, lr, cosine, zmean, zzero, nest, umean, gamma (nan: the formula).
    """
    s, v = len(seeds), len(conf["lr"])
    c = {k: torch.as_tensor(np.asarray(a, float), dtype=dtype, device=device) for k, a in conf.items()}
    starts = [problem.init(np.random.default_rng([seed, 1])) for seed in seeds]
    w = [torch.as_tensor(np.stack(part), dtype=dtype, device=device) for part in zip(*starts, strict=True)]
    w = [q[:, None].expand(s, v, *q.shape[1:]).contiguous() for q in w]
    draws = [problem.draw(np.random.default_rng([seed, 2]), steps) for seed in seeds]
    index_all = torch.from_numpy(np.stack([d[0] for d in draws], 1)).to(device)  # (T, S, B1)
    ids_all = torch.from_numpy(np.stack([d[1] for d in draws], 1)).to(device)  # (T, S, K)
    visits_all = np.empty((steps, s, problem.b1), np.int64)
    for k, (index, _) in enumerate(draws):
        seen = np.zeros(problem.m, np.int64)
        for t in range(steps):
            seen[index[t]] += 1
            visits_all[t, k] = seen[index[t]]
    visits_all = torch.from_numpy(visits_all).to(device)
    two, storm, lag = structure != "sox", structure == "v2", 0 if structure == "sox" else 1
    log, ratio = problem.log, problem.m / problem.b1
    table = torch.zeros(s, v, problem.m, problem.p, dtype=dtype, device=device)
    earlier = table.clone()  # u_{t-2}
    w_prev, z, second, out = w, [torch.zeros_like(q) for q in w], None, []

    def shaped(a, q):
        return a.view(1, v, *[1] * (q.dim() - 2))

    def gradient(weights, index, ids, u_of):
        leaf = [q.detach().requires_grad_() for q in weights]
        g = problem.g(leaf, index, ids)
        rows = g.detach()
        u = u_of(rows)
        slope = problem.slope(u)
        if log:
            slope = slope * (rows - u).exp()
        return rows, torch.autograd.grad(g, leaf, slope / problem.b1)

    for t in range(1, steps + 1):
        index, ids, visits = index_all[t - 1], ids_all[t - 1], visits_all[t - 1]
        new = (visits == 1)[:, None, :, None]
        where = index[:, None, :, None].expand(s, v, problem.b1, problem.p)
        u = table.gather(2, where)
        fresh = 1 / visits[:, None, :].to(dtype)
        beta = torch.where(
            c["umean"].view(1, v, 1) > 0, torch.maximum(c["beta"].view(1, v, 1), fresh), c["beta"].view(1, v, 1)
        )
        beta = beta.expand(s, v, problem.b1).unsqueeze(-1)
        gamma = c["gamma"].view(1, v, 1, 1)
        formula = torch.where(beta < 1, (ratio - 1) / (1 - beta) + (1 - beta), 0.0)
        gamma = torch.where(gamma.isnan(), formula, gamma)

        rows = Rows(problem, u, new, beta, gamma)
        if lag == 0:
            g, grads = gradient(w, index, ids, rows.updated)
            u_t = rows.updated(g)
        else:
            g, grads = gradient(w, index, ids, rows.before)
            if storm:
                rows.earlier = torch.where(new, g, earlier.gather(2, where))
                g_prev, grads_prev = gradient(w_prev, index, ids, rows.before_that)
            else:
                with torch.no_grad():
                    g_prev = problem.g(w_prev, index, ids)
            u_t = rows.updated(g, g_prev)
        if two:
            earlier = table.scatter(2, where, torch.where(new, g, u))
            # rows of other blocks: u_{t-1} = u_{t-2} for the next step, which `table` holds
        table = table.scatter(2, where, u_t)

        alpha = torch.where(c["zmean"] > 0, c["alpha"].clamp(min=1 / t), c["alpha"])
        if t == 1:
            alpha = torch.where(c["zzero"] > 0, alpha, 1.0)
        rate = c["lr"] * torch.where(c["cosine"] > 0, 0.5 * (1 + math.cos(math.pi * (t - 1) / steps)), 1.0)
        moved = []
        if opt == "adam" and second is None:
            second = [torch.zeros_like(q) for q in w]
        for k, (q, grad) in enumerate(zip(w, grads, strict=True)):
            a = shaped(alpha, q)
            if storm:
                z[k] = torch.addcmul(grad, z[k] - grads_prev[k], 1 - a)
            else:
                z[k] = torch.lerp(z[k], grad, a.expand_as(grad))
            step = torch.lerp(z[k], grad, (a * shaped(c["nest"], q)).expand_as(grad))
            if opt == "adam":  # torch.optim.Adam(betas=(0, 0.999)) on what the solver leaves in p.grad
                second[k].lerp_(step.square(), 0.001)
                step = step / ((second[k] / (1 - 0.999**t)).sqrt() + 1e-8)
            moved.append(torch.addcmul(q, step, -shaped(rate, q)))
        w_prev, w = w, moved
        if trace is not None:
            trace.append([q.clone() for q in w])
        if t in marks:
            with torch.no_grad():
                out.append(problem.value(w))
    return torch.stack(out, -1).double().cpu().numpy()


# ---------------------------------------------------------------------- data


def synthetic_tasks(m=20, n=4000, d=50):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((n, d)) * np.geomspace(1.5, 0.4, d)
    score = x @ rng.standard_normal((d, m)) / math.sqrt(d)
    score += 0.15 * score.std() * rng.standard_normal((n, m))
    rates = np.linspace(0.05, 0.4, m)
    y = score > np.stack([np.quantile(score[:, i], 1 - rates[i]) for i in range(m)])
    return torch.from_numpy(x), y


def synthetic_imbalanced(n=4000, d=20, positives=200):
    rng = np.random.default_rng(1)
    x = rng.standard_normal((n, d))
    hidden = np.maximum(x @ rng.standard_normal((d, 8)) / math.sqrt(d) * 1.5 + rng.standard_normal(8), 0)
    score = hidden @ rng.standard_normal(8)
    score += 0.25 * score.std() * rng.standard_normal(n)
    return torch.from_numpy(x), score > np.sort(score)[-positives - 1]


def small_cifar(number):
    """CIFAR-10's first training images at 16x16 (means of 2x2, rounded), uint8, and their classes."""
    with np.load(Path(os.environ["FCCO_DATA"]) / "cifar10.npz") as file:
        x, y = file["x_train"][:number], file["y_train"][:number]
    means = x.reshape(number, 16, 2, 16, 2, 3).mean((2, 4))
    return torch.from_numpy(np.rint(means).astype(np.uint8)), y


def lowest(problem):
    """The least F (convex here), by L-BFGS on the whole data in float64."""
    w = [
        torch.as_tensor(q, device=problem.x.device)[None, None].requires_grad_()
        for q in problem.init(np.random.default_rng(0))
    ]
    optimizer = torch.optim.LBFGS(
        w, max_iter=400, history_size=30, tolerance_grad=1e-9, tolerance_change=1e-13, line_search_fn="strong_wolfe"
    )

    def closure():
        optimizer.zero_grad()
        loss = problem.value(w).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    with torch.no_grad():
        value = float(problem.value(w))
    print(
        f"least F of the linear problem: {value:.6f}, gradient {max(float(q.grad.abs().max()) for q in w):.1e}",
        flush=True,
    )
    return value


def make(name, device, dtype, small=False):
    """The problem, and how many steps."""
    if name == "linear":
        x, y = synthetic_tasks()
        problem = MultiTask(Net(50, 20), x, y, 4, 32, device, dtype)
        problem.best = lowest(MultiTask(Net(50, 20), x, y, 4, 32, device, torch.float64))
        return problem, 800
    if name == "digits":
        digits = load_digits()
        x = torch.from_numpy(digits.data / 16.0)
        y = digits.target[:, None] == np.arange(10)
        return MultiTask(Net(64, 64, 10), x - x.mean(), y, 5, 32, device, dtype), 800
    if name in ("cifar", "cifar-cnn"):
        x, y = small_cifar(1000 if small else 25_000)
        x = x.to(device).float() / 255
        x = (x - x.mean((0, 1, 2))) / x.std((0, 1, 2))
        y = y[:, None] == np.arange(10)
        if name == "cifar":
            return MultiTask(Net(768, 64, 10), x.reshape(len(x), -1), y, 5, 64, device, dtype), 600
        return MultiTask(Conv(10), Conv.patches(x), y, 5, 64, device, dtype, chunk=250), 600
    x, y = synthetic_imbalanced()
    args = (Net(20, 32, 1), x, y, 16, 64, device, dtype)
    if name == "ap":
        return AP(*args), 800
    return PartialAUC(*args, temperature=float(name.split("-")[1])), 800


GRIDS = {  # lowest lr of 7, factor 2: SGD, SGD for v2, Adam, Adam for v2
    "linear": (0.01, 0.01, 0.0001, 0.0001),
    "digits": (0.05, 0.02, 0.00025, 0.000125),
    "cifar": (0.004, 0.002, 0.00006, 0.00003),
    "cifar-cnn": (0.04, 0.02, 0.0005, 0.00025),
    "pauc-0.3": (0.005, 0.0025, 0.00025, 0.0001),
    "pauc-1.0": (0.01, 0.005, 0.00025, 0.0001),
    "ap": (0.1, 0.05, 0.004, 0.001),
}
PROBLEMS = list(GRIDS)
RUNS = {"cifar": 6500, "cifar-cnn": 1500}  # runs side by side; others 9000


# ---------------------------------------------------------------------- the experiment


def cells(structure, problem, cosines):
    betas = (0.1,) if problem == "cifar-cnn" else BETAS
    methods = [k for k, (kind, _) in METHODS.items() if kind == structure]
    if problem == "cifar-cnn":
        methods = [k for k in methods if k in ("sox", "v1-0.5")]
    return [
        {"method": k, "z": z, "nest": n, "u": u, "alpha": a, "beta": b, "cosine": cos}
        for k in methods
        for z, n, u in VARIANTS
        for a in ALPHAS
        for b in betas
        for cos in cosines
    ]


def arrays(rows, lrs):
    gamma = [METHODS[r["method"]][1] for r in rows]
    return {
        "alpha": [r["alpha"] for r in rows],
        "beta": [r["beta"] for r in rows],
        "lr": lrs,
        "cosine": [r["cosine"] for r in rows],
        "zmean": [r["z"] == "mean" for r in rows],
        "zzero": [r["z"] == "zero" for r in rows],
        "nest": [r["nest"] for r in rows],
        "umean": [r["u"] == "mean" for r in rows],
        "gamma": [math.nan if x is None else x for x in gamma],
    }


def start_values(problem, seeds, device, dtype):
    starts = [problem.init(np.random.default_rng([seed, 1])) for seed in seeds]
    w = [torch.as_tensor(np.stack(part), dtype=dtype, device=device)[:, None] for part in zip(*starts, strict=True)]
    with torch.no_grad():
        return [float(f"{x:.6g}") for x in problem.value(w)[:, 0].tolist()]


def pieces(rows, lrs, seeds, limit):
    size = max(1, limit // len(seeds))
    for lo in range(0, len(rows), size):
        yield rows[lo : lo + size], lrs[lo : lo + size]


def run(args, device, dtype):
    out = args.out
    out.mkdir(parents=True, exist_ok=True)
    file = lzma.open(out / "starts.jsonl.xz", "wt", encoding="utf-8")  # noqa: SIM115
    began, done = time.time(), []
    problems = args.problems.split(",") if args.problems else PROBLEMS
    seeds = SEEDS[:2] if args.smoke else SEEDS
    units = [(p, opt, s) for opt in args.opts.split(",") for p in problems for s in ("sox", "v1", "v2")]
    units = [u for u in units if not (u[0] == "cifar-cnn" and (u[2] == "v2" or u[1] == "adam"))]
    cache = {}
    for name, opt, structure in units:
        left = args.budget - (time.time() - began)
        if left < 0:
            print(f"out of time: skipped {name} {opt} {structure}", flush=True)
            continue
        if name not in cache:
            cache.clear()
            cache[name] = make(name, device, dtype, small=args.smoke)
        problem, steps = cache[name]
        steps = args.steps or steps
        marks = (round(steps * 0.25), round(steps * 0.5), steps)
        low = GRIDS[name][2 * (opt == "adam") + (structure == "v2")]
        grid = [low * 2**k for k in range(args.lrs)]
        rows = cells(structure, name, (0, 1))
        if args.smoke:
            rows = [
                r
                for r in rows
                if r["alpha"] == 0.1 and r["beta"] == 0.1 and not r["cosine"] and r["method"] != "v1-formula"
            ]
        limit, clock = RUNS.get(name, 9000), time.time()
        both, lrs = [r for r in rows for _ in grid], [x for _ in rows for x in grid]
        tuned = [
            simulate(problem, structure, opt, arrays(*x), [TUNE_SEED], steps, device, dtype, marks)
            for x in pieces(both, lrs, [TUNE_SEED], limit)
        ]
        tuned = np.concatenate(tuned, 1)[0].reshape(len(rows), len(grid), 3)
        final = np.where(np.isfinite(tuned[..., 2]), tuned[..., 2], np.inf)
        best = final.argmin(1)
        chosen, mid = [grid[k] for k in best], time.time()
        result = [
            simulate(problem, structure, opt, arrays(*x), seeds, steps, device, dtype, marks)
            for x in pieces(rows, chosen, seeds, limit)
        ]
        result = np.concatenate(result, 1)  # (S, rows, 3)
        f0 = start_values(problem, seeds, device, dtype)
        for k, row in enumerate(rows):
            record = {
                "problem": name,
                "opt": opt,
                **row,
                "lr": chosen[k],
                "edge": int(best[k] in (0, len(grid) - 1)),
                "tune": [float(f"{x:.5g}") for x in tuned[k, :, 2]],
                "F0": f0,
                "F": [[float(f"{x:.6g}") for x in result[s, k]] for s in range(len(seeds))],
            }
            file.write(json.dumps(record) + "\n")
            done.append(record)
        seen = np.nan_to_num(result[..., 2], nan=np.inf)
        lost = int((seen >= np.asarray(f0)[:, None]).sum())
        picks = np.bincount(best, minlength=len(grid)).tolist()
        print(
            f"{time.time() - began:6.1f} s  {name} {opt} {structure}: {len(both)} tuning runs {mid - clock:.1f} s, "
            f"{len(rows) * len(seeds)} runs {time.time() - mid:.1f} s; best F {np.nanmin(result[..., 2]):.4g}; "
            f"F at start {np.mean(f0):.3g}; not below it {lost}; lr picks {picks}",
            flush=True,
        )
    file.close()
    report(done, out)


# ---------------------------------------------------------------------- the tables

CONTRASTS = {  # name: (numerator, denominator) as (z, nest, u)
    "z mean": (("mean", 0, "first"), ("first", 0, "first")),
    "z zero": (("zero", 0, "first"), ("first", 0, "first")),
    "u mean": (("first", 0, "mean"), ("first", 0, "first")),
    "both": (("mean", 0, "mean"), ("first", 0, "first")),
    "N": (("first", 1, "first"), ("first", 0, "first")),
    "N z mean": (("mean", 1, "first"), ("first", 1, "first")),
    "N z zero": (("zero", 1, "first"), ("first", 1, "first")),
    "N u mean": (("first", 1, "mean"), ("first", 1, "first")),
    "N both": (("mean", 1, "mean"), ("first", 1, "first")),
    "N/plain, z mean": (("mean", 1, "first"), ("mean", 0, "first")),
    "zero/mean": (("zero", 0, "first"), ("mean", 0, "first")),
}


def center(logs):
    """Mean over cells, then over seeds with its standard error; logs (cells, S) -> ratio, its standard error."""
    by_seed = np.nanmean(np.asarray(logs), 0)
    mean = np.exp(by_seed.mean())
    return mean, mean * by_seed.std(ddof=1) / math.sqrt(len(by_seed))


def row_of(cells_of_row):
    return "| " + " | ".join(cells_of_row) + " |"


class Results:
    """All tuned cells, by (problem, optimizer, method, schedule, variant, alpha, beta)."""

    def __init__(self, records):
        self.records = records
        self.data, self.tuned, self.lost = {}, {}, 0
        self.by_variant = defaultdict(list)
        for record in records:
            self._add(record)
        self.groups = list(dict.fromkeys(key[:3] for key in self.data))

    def _add(self, record):
        f, start = np.asarray(record["F"], float), np.asarray(record["F0"])[:, None]
        self.lost += int((~(f[:, 2:] < start)).any())
        f = np.where(f < start, f, start)  # a run that diverged counts as one that stood still
        variant = (record["z"], record["nest"], record["u"])
        names = ("problem", "opt", "method", "cosine")
        key = (*(record[name] for name in names), variant, record["alpha"], record["beta"])
        self.data[key] = f
        self.by_variant[variant].append(key)
        low = min((x for x in record["tune"] if math.isfinite(x)), default=math.inf)
        if low < self.tuned.get(key[:5], (math.inf,))[0]:  # the best alpha, beta and lr by the tuning seed
            self.tuned[key[:5]] = (low, f, record)

    def ratios(self, contrast, mark, keep):
        """log ratios (cells, S) at equal alpha, beta, schedule, each at its own best lr."""
        over, under = contrast
        found = []
        for key in self.by_variant[over]:
            other = self.data.get((*key[:4], under, *key[5:]))
            if not keep(key) or other is None:
                continue
            pair = np.stack([self.data[key][:, mark], other[:, mark]])
            if np.isfinite(pair).all() and (pair > 0).all():
                found.append(np.log(pair[0] / pair[1]))
        return found

    def pooled(self, contrast, mark, keep):
        found = self.ratios(contrast, mark, keep)
        return f"{center(found)[0]:.3f}" if found else "-"

    def of_group(self, contrast, group):
        return self.ratios(contrast, 2, lambda key: key[:3] == group)

    def all_tuned(self, contrast, opt):
        over, under = contrast
        pairs = [(self.tuned[k], self.tuned.get((*k[:4], under))) for k in self.tuned if k[1] == opt and k[4] == over]
        logs = [np.log(a[1][:, 2] / b[1][:, 2]) for a, b in pairs if b is not None]
        return "{:.3f}±{:.3f}".format(*center(logs)) if logs else "-"

    def votes(self, contrast, opt):
        better = worse = total = 0
        for group in self.groups:
            found = self.of_group(contrast, group)
            if group[1] == opt and found:
                mean, error = center(found)
                better += mean + 2 * error < 1
                worse += mean - 2 * error > 1
                total += 1
        return f"{better}:{worse} of {total}"


def verdict(results):
    """All problems pooled."""
    lines = [
        "## Verdict: all problems pooled (ratio at 25/50/100 % of the steps; by alpha and schedule at 100 %; all tuned: best alpha, beta, lr of each; (problem, method) groups better:worse by > 2 s.e.)",
        "",
        "| opt | contrast | 25 % | 50 % | 100 % | a=.03 | a=.1 | a=.3 | const | cosine | all tuned | better:worse |",
        "|" + "---|" * 12,
    ]
    for opt in dict.fromkeys(group[1] for group in results.groups):
        keeps = [lambda k, o=opt, a=alpha: k[1] == o and k[5] == a for alpha in ALPHAS]
        keeps += [lambda k, o=opt, c=cosine: k[1] == o and k[3] == c for cosine in (0, 1)]
        for name, contrast in CONTRASTS.items():
            row = [opt, name, *(results.pooled(contrast, mark, lambda k, o=opt: k[1] == o) for mark in range(3))]
            row += [results.pooled(contrast, 2, keep) for keep in keeps]
            row += [results.all_tuned(contrast, opt), results.votes(contrast, opt)]
            lines.append(row_of(row))
    return lines


def by_group(results):
    """Each problem, optimizer and method for itself."""
    names = [name for name in CONTRASTS if name != "zero/mean"]
    lines = [
        "",
        "## By problem and method, at 100 %",
        "",
        row_of(["problem opt method", *names]),
        "|" + "---|" * (len(names) + 1),
    ]
    for group in results.groups:
        found = [results.of_group(CONTRASTS[name], group) for name in names]
        lines.append(row_of([" ".join(group), *("{:.2f}±{:.2f}".format(*center(x)) if x else "-" for x in found)]))
    return lines


def everything_tuned(results, group, cosine):
    """Every variant at its best alpha, beta and lr."""
    lines = [
        f"### {' '.join(group)}, {'cosine' if cosine else 'constant'} lr",
        "",
        "| z | nest | u | alpha | beta | lr | 25 % | 50 % | 100 % | ratio 100 % |",
        "|" + "---|" * 10,
    ]
    default = None
    for variant in VARIANTS:
        if (*group, cosine, variant) not in results.tuned:
            continue
        _, f, record = results.tuned[*group, cosine, variant]
        default = f if default is None else default
        error = f.std(0, ddof=1) / math.sqrt(len(f))
        ratio = "{:.3f}±{:.3f}".format(*center([np.log(f[:, 2] / default[:, 2])]))
        figures = [f"{f[:, k].mean():.4f}±{error[k]:.4f}" for k in range(3)]
        lr = f"{record['lr']:.3g}" + "*" * record["edge"]
        rates = [f"{record['alpha']}", f"{record['beta']}", lr]
        lines.append(row_of([variant[0], str(variant[1]), variant[2], *rates, *figures, ratio]))
    return [*lines, ""]


def report(records, out):
    results = Results(records)
    head = [
        "# Starts for z and u",
        "",
        f"{len(records)} tuned cells, {results.lost} of them with a seed that ended above its start (it then counts as F at the start).",
        "Ratio of F (AP: of 1 + F; linear: of F - min F), below 1: the alternative is better. Geometric mean over alpha x beta x schedule,",
        "each cell at its own best lr (tuned on another seed), then over seeds, with its standard error.",
        "",
    ]
    short = [*head, *verdict(results), *by_group(results)]
    long = [
        "",
        "## Everything tuned (alpha, beta, lr by the tuning seed): F at 25/50/100 %, mean ± s.e.; ratio to the default, paired",
        "",
    ]
    for cosine in (0, 1):
        for group in results.groups:
            long += everything_tuned(results, group, cosine)
    edges = defaultdict(list)
    for record in records:
        edges[record["problem"], record["opt"]].append(record["edge"])
    tail = ["", "lr at an end of its grid: " + ", ".join(f"{' '.join(k)} {np.mean(x):.0%}" for k, x in edges.items())]
    (out / "table.md").write_text("\n".join([*short, *long, *tail]) + "\n", encoding="utf-8")
    print("\n".join([*short, *tail]), flush=True)


# ---------------------------------------------------------------------- against the library


class Twin:
    """One of the problems above in small, and the same one as an objective of fcco with the same start weights."""

    def __init__(self, kind, b1):
        rng = np.random.default_rng(5)
        x = torch.from_numpy(rng.standard_normal((120, 7)))
        labels = np.stack([rng.permutation(120) < 40 for _ in range(6)], 1)
        positive = np.arange(120) % 6 == 0
        self.kind, self.x = kind, x
        if kind == "tasks":
            self.problem = MultiTask(Net(7, 5, 6), x, labels, b1, 8, "cpu", torch.float64)
            self.data = fcco.data.Tasks(x, labels)
        else:
            args = (Net(7, 5, 1), x, positive, b1, 10, "cpu", torch.float64)
            self.problem = AP(*args) if kind == "ap" else PartialAUC(*args, temperature=0.5)
            self.data = fcco.data.Points(x, positive)
        outputs = self.problem.net.sizes[-1]
        model = torch.nn.Sequential(torch.nn.Linear(7, 5), torch.nn.ReLU(), torch.nn.Linear(5, outputs)).double()
        with torch.no_grad():
            start = self.problem.init(np.random.default_rng([9, 1]))[: len(list(model.parameters()))]
            for parameter, value in zip(model.parameters(), start, strict=True):
                parameter.copy_(torch.from_numpy(value).reshape(parameter.shape))
        if kind == "tasks":
            self.objective = fcco.objectives.MultiTaskAUC(model, self.data)
        elif kind == "ap":
            self.objective = fcco.objectives.AveragePrecision(model, self.data)
        else:
            self.objective = fcco.objectives.PartialAUC(model, self.data, temperature=0.5)

    def batch(self, index, ids):
        """The draw of a step as a batch of fcco's."""
        problem, ids = self.problem, torch.from_numpy(ids)
        found = {"index": torch.from_numpy(index), "y": self.data.labels_at(ids)}
        if self.kind == "tasks":
            found["serves"] = torch.arange(problem.b1).repeat_interleave(problem.b2)
        else:
            found["block_pos"] = torch.arange(problem.b1)
        if self.kind == "ap":
            found["weight"] = problem.weight()
        return fcco.Batch(self.x[ids], ids, **found)

    def difference(self, weights):
        """The largest difference of any weight from the parameters."""
        by_name = dict(self.objective.named_parameters())
        centres = [by_name.pop(name) for name in ("a", "b") if name in by_name]
        pairs = list(zip([*by_name.values(), *centres], weights, strict=True))
        if self.kind != "tasks":
            pairs.pop()  # F is invariant to the last bias: its gradient is rounding noise, which Adam blows up
        return max(float((p.detach().reshape(-1) - w[1, 0].reshape(-1)).abs().max()) for p, w in pairs)


def cases():
    """kind, B1, method, starts of z and u, optimizer, Nesterov."""
    for kind, b1 in (("tasks", 2), ("tasks", 6), ("pauc", 4), ("ap", 4)):
        for method, (structure, _) in METHODS.items():
            for z in ("first", "mean", "zero"):
                for nest in (0, 1) if structure != "v2" else (0,):
                    for u in ("first", "mean") if b1 == 6 else ("first",):  # all blocks drawn: visits = t
                        yield kind, b1, method, z, u, "adam" if z == "mean" else "sgd", nest


def recipe_of(method, z, u, nest, alpha, beta):
    structure, gamma = METHODS[method]
    rates = {"alpha": alpha, "beta": beta}
    if z == "mean":
        rates["alpha"] = lambda t: max(alpha, 1 / t)
    if u == "mean":
        rates["beta"] = lambda t: max(beta, 1 / t)
    if structure == "sox":
        return fcco.sox(**rates, nesterov=bool(nest))
    if structure == "v1":
        return fcco.msvr_v1(**rates, gamma=gamma, nesterov=bool(nest))
    return fcco.msvr_v2(**rates, gamma=gamma)


def check_case(kind, b1, method, z, u, opt, nest, steps=40, lr=0.05):
    """The largest difference in any weight, after any step, and in F; and F."""
    twin = Twin(kind, b1)
    problem, objective = twin.problem, twin.objective
    row = {"method": method, "z": z, "nest": nest, "u": u, "alpha": 0.2, "beta": 0.3, "cosine": 0}
    other = row | {"z": "mean", "nest": 1, "u": "mean", "alpha": 0.4}  # a configuration beside it must not matter
    conf = arrays([row, other], [lr, lr])
    trace = []
    value = simulate(problem, METHODS[method][0], opt, conf, [3, 9], steps, "cpu", torch.float64, (steps,), trace)
    optimizer = torch.optim.SGD(objective.parameters(), lr=lr)
    if opt == "adam":
        optimizer = torch.optim.Adam(objective.parameters(), lr=lr, betas=(0.0, 0.999))
    recipe = recipe_of(method, z, u, nest, row["alpha"], row["beta"])
    solver = fcco.Solver(objective, optimizer, recipe, z0=0.0 if z == "zero" else None)
    index, ids = problem.draw(np.random.default_rng([9, 2]), steps)
    error = 0.0
    for t in range(steps):
        solver.step(twin.batch(index[t], ids[t]))
        error = max(error, twin.difference(trace[t]))
    f = float(value[1, 0, 0])
    exact = solver.diagnose().value + (kind == "ap")
    return max(error, abs(exact - f)), f


def check():
    torch.set_default_dtype(torch.float64)
    warnings.simplefilter("ignore", fcco.CorrectionWarning)
    worst, count = 0.0, 0
    for case in cases():
        error, f = check_case(*case)
        kind, b1, method, z, u, opt, nest = case
        print(f"{kind:6s} B1={b1} {method:10s} z {z:5s} u {u:5s} {opt:4s} nesterov {nest}: {error:.1e}, F {f:.6f}")
        worst, count = max(worst, error), count + 1
    print(f"largest difference in any weight and in F over 40 steps, {count} cases: {worst:.1e}")
    return int(worst > 1e-9)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--table", help="a finished run's starts.jsonl.xz")
    parser.add_argument("--problems", default="", help=f"some of {', '.join(PROBLEMS)}, with commas between")
    parser.add_argument("--opts", default="sgd,adam")
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--lrs", type=int, default=7)
    parser.add_argument("--budget", type=float, default=420.0, help="seconds after which no further unit starts")
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    if args.check:
        return check()
    if args.table:
        with lzma.open(args.table, "rt", encoding="utf-8") as file:
            report([json.loads(line) for line in file], args.out)
        return 0
    if args.smoke:
        args.steps, args.lrs = args.steps or 8, min(args.lrs, 2)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and not args.smoke:
        print("no GPU: this will take very long", file=sys.stderr)
    torch.backends.cuda.matmul.allow_tf32 = False
    print(f"torch {torch.__version__} on {torch.cuda.get_device_name() if device == 'cuda' else 'cpu'}", flush=True)
    run(args, device, torch.float32)
    return 0


if __name__ == "__main__":
    sys.exit(main())
