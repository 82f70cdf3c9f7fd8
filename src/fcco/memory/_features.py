"""ContrastivePhi: F as a function of a table of features, for the global contrastive loss."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple, final

import torch
from torch import Tensor
from torch.nn.functional import normalize

from fcco.memory._phi import Coefficients, add, joined, own_variables, sent
from fcco.memory._table import Entries, OutputTable
from fcco.objectives._base import OutputObjective
from fcco.objectives._global_contrastive import GlobalContrastive
from fcco.sampling.draws import exact_dtype
from fcco.sampling.examples import ExampleLoader
from fcco.sampling.loader import Loader


class Features(NamedTuple):
    """What the table says of S examples.

    Args:
        id: (S,) who they are, in growing order.
        h: (S, 2, d) their features.
        own: (S,) the product of the two.
        tau: (S, 2) their temperatures.
    """

    id: Tensor
    h: Tensor
    own: Tensor
    tau: Tensor

    def at(self, places: Tensor | slice) -> Features:
        """Some of them."""
        return Features(*(tensor[places] for tensor in self))


@final
class ContrastivePhi:
    r""":math:`\Phi(h) = \frac1n \sum_i f_i(\log g_i)`, where :math:`g_i^v` is the mean of exp(x) over the others z,
    :math:`x = (\langle h_i^v, z \rangle - \langle h_i^1, h_i^2 \rangle) / \tau_i^v`.

    A step sets the drawn examples against all others twice: as anchors (whose rows are then fresh), and as others of
    all anchors (with the rows that these had last). All pairs are met only when everything is evaluated.

    Args:
        objective: gives f, its ``outer``, and the temperatures.
        table: where the features come from, (n, 2, d).
    """

    stretch = 1.0  # whoever is drawn gets a fresh row

    def __init__(self, objective: GlobalContrastive, table: OutputTable) -> None:
        self._objective, self._table = objective, table
        self.own = own_variables(objective)
        self._exact = exact_dtype(table.values.device)  # tau may be tiny; and autocast leaves it alone
        self._sides = 1 if objective.two_modal else 2  # of each other example, how many features an anchor meets
        # log g and the mean of x, in both directions; of an example that was not compared with anyone yet: inf
        self.rows = [table.values.new_full((table.values.shape[0], 4), torch.inf, dtype=self._exact)]
        self._complete = False  # no row is inf any more
        self._replaced: list[tuple[Tensor, Tensor]] = []  # whose rows, what the last look replaced there

    def pairs(self) -> int:
        n, directions, d = self._table.values.shape
        return self._sides * directions * n * n * (6 * d + 20) // 200

    def everything(self) -> Coefficients:
        found, rows = self._features(), self.rows[0]
        push, own = torch.zeros_like(found.h), [torch.zeros_like(p) for p in self.own]
        c, f = torch.zeros_like(self._table.values), list[Tensor]()
        if found.id.shape[0] < 2:
            return Coefficients(c, joined(f, c), own)
        for some in _pieces(found, 2 * found.id.shape[0]):
            anchors = found.at(some)
            shares, rows[anchors.id] = self._compare(anchors, found)
            value, b, parts = self._outer(anchors, rows[anchors.id], found)
            push[some] += _pulls(anchors, b, [share @ self._others(found.h, v) for v, share in enumerate(shares)])
            for v, share in enumerate(shares):
                self._others(push, v).addmm_((share * b[:, v, None]).T, anchors.h[:, v])
            f.append(value)
            add(own, parts)
        c[found.id] = self._by_outputs(found.id, push)
        return Coefficients(c, joined(f, c), own)

    def at(self, id: Tensor, old: Entries | None = None) -> Coefficients:
        id, found = sent(id.contiguous(), self._table.values.device), self._features()
        place, own = torch.searchsorted(found.id, id), [torch.zeros_like(p) for p in self.own]
        drawn = found.at(place)
        push, f, slopes = torch.zeros_like(drawn.h), list[Tensor](), torch.zeros_like(found.tau)
        self._replaced.clear()
        if found.id.shape[0] < 2:
            return Coefficients(torch.zeros_like(self._table.values[id]), joined(f, push), own)
        means = self._renew(drawn, found)
        if not self._complete:
            self._renew(found.at(self.rows[0][found.id].isinf().any(1).nonzero()[:, 0]), found)
        for some in _pieces(found, 2 * id.shape[0]):
            anchors, rows = found.at(some), self.rows[0][found.id[some]]
            x = [self._exponents(anchors, v, drawn) - self._log_count(found) for v in (0, 1)]
            alone = torch.stack([part.amax(1) for part in x], 1)  # the most that a fresh example adds to log g
            rows[:, :2] = torch.maximum(rows[:, :2], alone)
            value, b, parts = self._outer(anchors, rows, found)
            for v in (0, 1):
                share = x[v].sub_(rows[:, v, None]).exp_()
                self._others(push, v).addmm_(share.mul_(b[:, v, None]).T, anchors.h[:, v])
            slopes[some] = b
            f.append(value)
            add(own, parts)
        push += _pulls(drawn, slopes[place], means)
        self._complete = not self._table.missing
        return Coefficients(self._by_outputs(id, push), joined(f, push), own)

    def undo(self) -> None:
        for id, before in reversed(self._replaced):
            self.rows[0][id] = before
        self._complete = False
        self._replaced.clear()

    def settle(self) -> None:
        self._replaced.clear()

    # ------------------------------------------------------------------ parts

    def _features(self) -> Features:
        """Of everyone seen."""
        id, values = torch.arange(self._table.values.shape[0], device=self._table.values.device), self._table.values
        if self._table.missing:
            id = id[self._table.seen]
            values = values[id]
        values = values.to(self._exact)
        h = normalize(values, dim=2) if self._objective.normalize else values
        tau = torch.as_tensor(self._objective.tau(id), dtype=h.dtype, device=h.device).expand(id.shape[0], 2)
        return Features(id, h, (h[:, 0] * h[:, 1]).sum(1), tau)

    def _others(self, h: Tensor, v: int) -> Tensor:
        """(Q, d), whom direction v compares with: the other modality, or both views. A view of h (P, 2, d)."""
        return h[:, 1 - v] if self._objective.two_modal else h.flatten(0, 1)

    def _log_count(self, found: Features) -> float:
        """log of how many others an anchor has, in either direction."""
        return math.log(self._sides * (found.id.shape[0] - 1))

    def _exponents(self, anchors: Features, v: int, others: Features) -> Tensor:
        """x (A, Q); -inf where an anchor meets itself."""
        x = anchors.h[:, v] @ self._others(others.h, v).T
        x = (x - anchors.own.unsqueeze(1)).div_(anchors.tau[:, v, None])
        id = others.id if self._objective.two_modal else others.id.repeat_interleave(2)
        return x.masked_fill_(anchors.id.unsqueeze(1) == id, -torch.inf)

    def _compare(self, anchors: Features, found: Features) -> tuple[list[Tensor], Tensor]:
        """The anchors against everyone: the shares (A, Q) of the others in both directions, and the rows (A, 4)."""
        shares, log_g, mean = [], [], []
        for v in (0, 1):
            x = self._exponents(anchors, v, found)
            total = x.logsumexp(1, keepdim=True)
            share = (x - total).exp_()
            # 0 times -inf is not what an anchor's own feature adds
            mean.append((share * x.clamp_(min=-1e30)).sum(1) if self.own else torch.zeros_like(total[:, 0]))
            log_g.append(total.squeeze(1) - self._log_count(found))
            shares.append(share)
        return shares, torch.stack([*log_g, *mean], 1)

    def _renew(self, anchors: Features, found: Features) -> list[Tensor]:
        """Store the anchors' rows; the means (A, d) of the others by their shares, in both directions."""
        rows, means = self.rows[0], [torch.zeros_like(anchors.h[:, v]) for v in (0, 1)]
        self._replaced.append((anchors.id, rows[anchors.id]))
        for some in _pieces(anchors, 2 * found.id.shape[0]):
            part = anchors.at(some)
            shares, rows[part.id] = self._compare(part, found)
            for v, share in enumerate(shares):
                means[v][some] = share @ self._others(found.h, v)
        return means

    def _outer(self, anchors: Features, rows: Tensor, found: Features) -> tuple[Tensor, Tensor, list[Tensor | None]]:
        """f (A,), (1/S) df/d(log g) / tau (A, 2), and the gradients of the trained temperatures."""
        log_g, x = rows.chunk(2, 1)
        with torch.enable_grad():
            leaf = log_g.detach().requires_grad_()
            f = self._objective.outer(anchors.id, leaf)
            scale = torch.full_like(f, 1.0 / found.id.shape[0])
            slope = torch.autograd.grad(f, leaf, scale, retain_graph=bool(self.own))[0]
            b = slope.to(anchors.tau.dtype) / anchors.tau
            if not self.own:
                return f.detach(), b, []
            tau = torch.as_tensor(self._objective.tau(anchors.id)).expand(b.shape)  # d(log g)/d(tau) = -(mean of x)/tau
            own = torch.autograd.grad([f, tau], self.own, [scale, (-b * x).to(tau.dtype)])
        return f.detach(), b, list(own)

    def _by_outputs(self, id: Tensor, push: Tensor) -> Tensor:
        """Derivatives by the outputs from those by the features."""
        if self._objective.normalize:
            with torch.enable_grad():
                outputs = self._table.values[id].to(self._exact).requires_grad_()
                push = torch.autograd.grad(normalize(outputs, dim=2), outputs, push)[0]
        return push.to(self._table.values.dtype)


def _pieces(anchors: Features, others: int) -> Iterator[slice]:
    """The anchors in parts that, each against so many others, fit into memory."""
    budget, n = 1 << 22 if anchors.h.device.type == "cpu" else 1 << 27, anchors.id.shape[0]
    size = max(1, budget // max(1, others))
    return (slice(at, at + size) for at in range(0, n, size))


def _pulls(anchors: Features, b: Tensor, means: list[Tensor]) -> Tensor:
    """What the anchors' own features get through their rows, (A, 2, d)."""
    b, h = b.unsqueeze(2), anchors.h
    return b * (torch.stack(means, 1) - h.flip(1)) - (b * h).flip(1)


def contrastive_phi(objective: OutputObjective, loader: Loader, table: OutputTable) -> ContrastivePhi | None:
    """The fast form, where there is one for this objective and this loader."""
    if type(objective) is not GlobalContrastive or not isinstance(loader, ExampleLoader):
        return None  # a subclass may have values of its own
    if table.values.dim() != 3 or table.values.shape[1] != 2:
        return None
    return ContrastivePhi(objective, table)
