"""Problems whose F, grad F and optimum are known in closed form, with draws vectorised over seeds.

    g_i(w; xi) = (a_i + s xi) . w + (q/2) ||w - c_i||^2 + o_i + sigma zeta,      F(w) = (1/m) sum_i f_i(g_i(w)),
    f_i(u) = h(u) + k_i u.

xi and zeta are standard normal, so a batch of B2 samples is one draw scaled by B2^(-1/2); in the finite-sum form
they come from a table (m, n) whose mean is exactly zero. Either way g_i(w) is the formula without its noise.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, final

import torch
from torch import Tensor

CHUNK = 256  # steps whose random numbers are drawn in one call


class Outer(ABC):
    """h of f_i(u) = h(u) + k_i u."""

    @abstractmethod
    def value(self, u: Tensor) -> Tensor:
        """Return h(u)."""

    @abstractmethod
    def slope(self, u: Tensor) -> Tensor:
        """Return h'(u)."""


@final
class Wavy(Outer):
    """sqrt(1 + u^2) + 0.75 sin u: not convex, yet coercive, so a small gradient means a stationary point."""

    def value(self, u: Tensor) -> Tensor:
        return (1.0 + u * u).sqrt() + 0.75 * u.sin()

    def slope(self, u: Tensor) -> Tensor:
        return u * (1.0 + u * u).rsqrt() + 0.75 * u.cos()


@final
class Smooth(Outer):
    """sqrt(1 + u^2): convex, smooth, with every derivative."""

    def value(self, u: Tensor) -> Tensor:
        return (1.0 + u * u).sqrt()

    def slope(self, u: Tensor) -> Tensor:
        return u * (1.0 + u * u).rsqrt()


@final
class Kinked(Outer):
    """max(u, 0)^2/2: convex and smooth, but its slope has a kink at 0."""

    def value(self, u: Tensor) -> Tensor:
        return 0.5 * u.clamp(min=0.0).square()

    def slope(self, u: Tensor) -> Tensor:
        return u.clamp(min=0.0)


@final
class Rippled(Outer):
    """(u^2 + 3 sin^2 u)/4: not convex, with one stationary point, and PL."""

    def value(self, u: Tensor) -> Tensor:
        return 0.25 * u * u + 0.75 * u.sin().square()

    def slope(self, u: Tensor) -> Tensor:
        return 0.5 * u + 0.75 * (2.0 * u).sin()


class Draw(NamedTuple):
    """One step's blocks and samples: g_i(w; xi) = linear . w + (q/2)||w||^2 + offset."""

    blocks: Tensor  # (S, B) which ones
    linear: Tensor  # (S, B, d) a_i - q c_i + s xi
    offset: Tensor  # (S, B, 1) o_i + (q/2)||c_i||^2 + sigma zeta
    tilt: Tensor  # (S, B, 1) k_i


@final
@dataclass(frozen=True)
class Problem:
    """A problem of the family above.

    Args:
        linear: (m, d) a_i - q c_i.
        offset: (m,) o_i + (q/2)||c_i||^2.
        q: curvature of every g_i.
        jacobian_noise: s.
        value_noise: sigma.
        outer: h.
        tilt: (m,) k_i.
        table: (m, n, d + 1) samples (xi, zeta) of the finite-sum form, mean zero; None: normal draws.
    """

    linear: Tensor
    offset: Tensor
    q: float
    jacobian_noise: float
    value_noise: float
    outer: Outer
    tilt: Tensor
    table: Tensor | None = None

    @property
    def m(self) -> int:
        """How many blocks."""
        return self.linear.shape[0]

    @property
    def d(self) -> int:
        """The dimension of w."""
        return self.linear.shape[1]

    @property
    def n(self) -> int:
        """Samples of a block in the finite-sum form; 0 outside it."""
        if self.table is None:
            return 0
        return self.table.shape[1]

    def probe(self, w: Tensor, draw: Draw) -> Tensor:
        """Return g_i(w; xi) (..., S, B, 1) at w (..., S, d)."""
        w = w.unsqueeze(-2)
        return ((draw.linear + (0.5 * self.q) * w) * w).sum(-1, keepdim=True) + draw.offset

    def along(self, w: Tensor, draw: Draw, move: Tensor) -> Tensor:
        """Return J_i(w; xi) move (..., S, B, 1), the Jacobian-vector product."""
        return ((draw.linear + self.q * w.unsqueeze(-2)) * move.unsqueeze(-2)).sum(-1, keepdim=True)

    def pull(self, w: Tensor, draw: Draw, u: Tensor) -> Tensor:
        """Return the sum over the drawn blocks of f_i'(u_i) J_i(w; xi) (..., S, d), u (..., S, B, 1)."""
        slope = self.outer.slope(u) + draw.tilt
        return (slope * (draw.linear + self.q * w.unsqueeze(-2))).sum(-2)

    @cached_property
    def exact(self) -> Draw:
        """All blocks without noise, as a draw."""
        return Draw(torch.arange(self.m), self.linear, self.offset.unsqueeze(-1), self.tilt.unsqueeze(-1))

    def inner(self, w: Tensor) -> Tensor:
        """Return g_i(w) (..., m, 1)."""
        return self.probe(w, self.exact)

    def value(self, w: Tensor) -> Tensor:
        """Return F(w) (...)."""
        g = self.inner(w).squeeze(-1)
        return (self.outer.value(g) + self.tilt * g).mean(-1)

    def gradient(self, w: Tensor, u: Tensor | None = None) -> Tensor:
        """Return (1/m) sum_i f_i'(u_i) grad g_i(w) (..., d); u = g(w), so grad F(w), where none is given."""
        if u is None:
            u = self.inner(w)
        return self.pull(w, self.exact, u) / self.m

    def draws(self, seeds: Sequence[int], b1: int, b2: int, purpose: int = 0) -> Iterator[Draw]:
        """Yield draws without end.

        A seed's stream does not depend on the other seeds. ``purpose`` tells the streams of one seed apart.
        """
        generators = [torch.Generator().manual_seed(1_000_003 * purpose + seed) for seed in seeds]
        while True:
            parts = [self._chunk(generator, b1, b2) for generator in generators]
            index = torch.stack([blocks for blocks, _ in parts], 1)  # (T, S, B)
            xi = torch.stack([noise for _, noise in parts], 1)  # (T, S, B, d + 1)
            linear = self.linear[index] + self.jacobian_noise * xi[..., :-1]
            offset = self.offset[index].unsqueeze(-1) + self.value_noise * xi[..., -1:]
            tilt = self.tilt[index].unsqueeze(-1)
            yield from map(Draw, index.unbind(), linear.unbind(), offset.unbind(), tilt.unbind())

    def _chunk(self, generator: torch.Generator, b1: int, b2: int) -> tuple[Tensor, Tensor]:
        """Draw blocks (T, B) without replacement, and (xi, zeta) (T, B, d + 1) as a batch's mean."""
        index = _blocks(generator, self.m, b1)
        if self.table is None:
            noise = torch.randn(CHUNK, b1, self.d + 1, generator=generator, dtype=torch.float64)
            return index, noise / math.sqrt(b2)
        which = torch.randint(self.n, (CHUNK, b1, b2), generator=generator)
        return index, self.table[index.unsqueeze(-1), which].mean(-2)


def _blocks(generator: torch.Generator, m: int, b1: int) -> Tensor:
    if b1 == 1:
        return torch.randint(m, (CHUNK, 1), generator=generator)
    if b1 == m:
        return torch.arange(m).expand(CHUNK, m)
    return torch.rand(CHUNK, m, generator=generator).topk(b1).indices


def _normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def sample_table(generator: torch.Generator, m: int, n: int, d: int) -> Tensor:
    """Draw samples (m, n, d + 1) with mean exactly zero and mean square about one in every column."""
    table = _normal(generator, m, n, d + 1)
    table = table - table.mean(1, keepdim=True)
    return table / table.square().mean(1, keepdim=True).sqrt()


def _table_of(generator: torch.Generator, m: int, n: int | None, d: int) -> Tensor | None:
    """Return the table of the finite-sum form; None where no n is given."""
    if n is None:
        return None
    return sample_table(generator, m, n, d)


def curved(
    m: int, *, kinds: int | None = None, d: int = 5, n: int | None = None, outer: Outer | None = None
) -> Problem:
    """Return blocks with their own directions and centres: for tracking, and with the wavy f not convex.

    Args:
        m: how many blocks.
        kinds: how many different blocks; more blocks repeat them, so F does not depend on m. None: m.
        d: the dimension of w.
        n: samples of a block in the finite-sum form; None: normal draws.
        outer: h; None: the wavy one.
    """
    q = 0.5
    if kinds is None:
        kinds = m
    generator = torch.Generator().manual_seed(7)
    a = _normal(generator, kinds, d) / math.sqrt(d)
    c = _normal(generator, kinds, d)
    table = _table_of(generator, m, n, d)
    linear = a - q * c
    offset = 0.5 * q * c.square().sum(1)
    kind = torch.arange(m) % kinds
    return Problem(
        linear=linear[kind],
        offset=offset[kind],
        q=q,
        jacobian_noise=0.5,
        value_noise=1.0,
        outer=outer or Wavy(),
        tilt=torch.zeros(m, dtype=torch.float64),
        table=table,
    )


def paired(
    m: int,
    *,
    q: float,
    scales: Sequence[float],
    n: int | None = None,
    outer: Outer | None = None,
    tilt: float = 1.5,
    lopsided: float = 1.0,
    depth: float = 0.5,
) -> Problem:
    """Return a convex problem whose optimum is w* = (1, ..., 1): blocks come in pairs that cancel there.

        g_i(w) = a_i . (w - w*) + (q/2)||w - w*||^2 + o_i,    partners a and -lopsided a, same o, slopes to match.

    f_i rises and g_i is convex, so F is; for tilt >= 1.5 it is strongly convex with mu >= q/2, and at w*
    a direction of scale 0 has curvature q mean f_i'(o_i).

    Args:
        m: how many blocks.
        q: curvature of every g_i.
        scales: (d,) standard deviation of each coordinate of the a_i.
        n: samples of a block in the finite-sum form; None: normal draws.
        outer: h; None: the smooth one.
        tilt: k_i of the first of two partners.
        lopsided: the partners' ratio; 1: mirror images, for which the bias of a plain mini-batch cancels.
        depth: standard deviation of the o_i; 0 puts every g_i(w*) at 0.
    """
    outer = outer or Smooth()
    d = len(scales)
    generator = torch.Generator().manual_seed(11)
    half = _normal(generator, m // 2, d) * torch.tensor(scales, dtype=torch.float64)
    o = depth * _normal(generator, m // 2)
    table = _table_of(generator, m, n, d)
    slope = outer.slope(o)
    partner_tilt = (slope + tilt) / lopsided - slope  # so that f'(o) a - f_partner'(o) lopsided a = 0
    a = torch.cat([half, -lopsided * half])
    optimum = torch.ones(d, dtype=torch.float64)
    return Problem(
        linear=a - q * optimum,
        offset=torch.cat([o, o]) - a @ optimum + 0.5 * q * d,
        q=q,
        jacobian_noise=0.5,
        value_noise=1.0,
        outer=outer,
        tilt=torch.cat([torch.full_like(o, tilt), partner_tilt]),
        table=table,
    )


def separate(m: int, *, d: int = 4, n: int | None = None) -> Problem:
    """Return a PL problem that is not convex, with its optimum w* = (1, ..., 1) and F* = 0.

        g_i(w) = a_i (w_j - w*_j),    f(u) = (u^2 + 3 sin^2 u)/4

    Block i belongs to coordinate j = i mod d, with a_i from 0.5 to 1.5. F is a sum of functions of one coordinate
    each, whose slopes vanish at w* alone.
    """
    generator = torch.Generator().manual_seed(13)
    table = _table_of(generator, m, n, d)
    slopes = torch.linspace(0.5, 1.5, m, dtype=torch.float64)
    linear = torch.zeros(m, d, dtype=torch.float64)
    linear[torch.arange(m), torch.arange(m) % d] = slopes
    return Problem(
        linear=linear,
        offset=-slopes,
        q=0.0,
        jacobian_noise=0.2,
        value_noise=0.5,
        outer=Rippled(),
        tilt=torch.zeros(m, dtype=torch.float64),
        table=table,
    )
