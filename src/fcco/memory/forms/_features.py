"""ContrastiveForm: F as a function of a table of features, for the global contrastive loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, final

import torch
from torch import Tensor
from torch.nn.functional import normalize

from fcco.data import ExampleBlocks
from fcco.data._draws import exact_dtype
from fcco.memory._table import Entries, OutputTable
from fcco.memory.forms._form import (
    BlockShares,
    Evaluation,
    Form,
    TableObjective,
    add_to,
    example_weights,
    joined,
)

_LEAST = -1.0e30  # an exponent that stands for -inf where it is multiplied by 0

#: the temperatures of the blocks: a number, or (B, 2) where each has its own
Temperatures = Callable[[Tensor], Tensor | float]


class Features(NamedTuple):
    """What the table says of S examples.

    Args:
        id: (S,) the examples, in growing order.
        h: (S, 2, d) their features.
        positive: (S,) the product of the two.
        tau: (S, 2) their temperatures.
        weight: (S,) what they weigh.
    """

    id: Tensor
    h: Tensor
    positive: Tensor
    tau: Tensor
    weight: Tensor

    def at(self, places: Tensor | slice) -> Features:
        """Some of them."""
        return Features(*(tensor[places] for tensor in self))

    def __len__(self) -> int:
        return int(self.id.shape[0])


class _Weighed(NamedTuple):
    """f (A,) of some anchors, share_i df/d(log g) / tau (A, 2), and the gradients of the trained temperatures."""

    f: Tensor
    b: Tensor
    param_gradients: list[Tensor]


@final
class ContrastiveForm(Form):
    r""":math:`\Phi(h) = \frac1n \sum_i f_i(\log g_i)`, where :math:`g_i^v` is the mean of exp(x) over the others z,
    :math:`x = (\langle h_i^v, z \rangle - \langle h_i^1, h_i^2 \rangle) / \tau_i^v`.

    A step sets the drawn examples against all others twice: as anchors (whose rows are then fresh), and as others of
    all anchors (with the rows that these had last). All pairs are met only when everything is evaluated.

    Rows are one tensor (N, 4): log g and the mean of x, in both directions; of an example that was not compared
    yet: inf.

    Args:
        objective: gives f, its ``outer``.
        blocks: all examples, and what they weigh.
        tau: the temperatures.
        table: where the features come from, (N, 2, d).
        two_modal: whether direction v compares with the other modality alone (else with both views).
        normalized: whether features are divided by their length.
    """

    max_changed_fraction = 1.0  # whoever is drawn gets a fresh row
    why_not = "the contrastive form takes the examples seen alone, as many as there are, until all were seen"

    def __init__(
        self,
        objective: TableObjective,
        blocks: ExampleBlocks,
        tau: Temperatures,
        table: OutputTable,
        *,
        two_modal: bool,
        normalized: bool,
    ) -> None:
        self._objective = objective
        self._tau = tau
        self._table = table
        self._two_modal = two_modal
        self._normalized = normalized
        self._sides = 2  # of each other example, how many features an anchor meets
        if two_modal:
            self._sides = 1
        self._weight = example_weights(blocks, table.device)
        self._counting = (self._weight > 0).nonzero()[:, 0]  # those that take part once all were seen
        self._silent = table.size - int(self._counting.shape[0])  # those of weight 0
        self._shares = BlockShares(blocks, table.device)
        self.objective_params = objective.objective_params()

    @property
    def capturable(self) -> bool:
        return self._table.complete

    def cost(self) -> int:
        n, directions, d = self._table.values.shape
        return self._sides * directions * n * n * (6 * d + 20) // 200

    def start_rows(self) -> list[Tensor]:
        device = self._table.device
        return [torch.full((self._table.size, 4), torch.inf, dtype=exact_dtype(device), device=device)]

    def evaluate_all(self, rows: list[Tensor]) -> Evaluation:
        found = self._features()  # S examples
        fresh = rows[0].clone()
        by_feature = torch.zeros_like(found.h)  # (S, 2, d)
        gradients = [torch.zeros_like(p) for p in self.objective_params]
        c = torch.zeros_like(self._table.values)
        f: list[Tensor] = []
        if len(found) < 2:
            return Evaluation(c, joined(f, c), gradients, rows)
        for some in _pieces(found, 2 * len(found)):
            anchors = found.at(some)
            shares, fresh[anchors.id] = self._compare(anchors, found)
            weighed = self._weigh(anchors, fresh[anchors.id], found)
            # An anchor gets a gradient through its own row, the others through the rows that they are in.
            means = [share @ self._others(found.h, v) for v, share in enumerate(shares)]
            by_feature[some] += _by_anchor(anchors, weighed.b, means)
            for v, share in enumerate(shares):
                self._others(by_feature, v).addmm_((share * weighed.b[:, v, None]).T, anchors.h[:, v])
            f.append(weighed.f)
            add_to(gradients, weighed.param_gradients)
        c[found.id] = self._by_output(found.id, by_feature)
        return Evaluation(c, self._all_values(f), gradients, [fresh])

    def evaluate(self, ids: Tensor, rows: list[Tensor], old: Entries | None = None) -> Evaluation:
        id = ids.contiguous()
        found = self._features()
        place = torch.searchsorted(found.id, id)  # (K,) where the drawn stand among those seen
        gradients = [torch.zeros_like(p) for p in self.objective_params]
        f: list[Tensor] = []
        if len(found) < 2:
            nothing = torch.zeros_like(self._table.values[id])
            return Evaluation(nothing, joined(f, nothing), gradients, rows)
        fresh = rows[0].clone()
        drawn = found.at(place)  # K examples
        means = self._renew(fresh, drawn, found)
        # Some were seen before there was anything to compare them with.
        if not self._table.complete:
            first = fresh[found.id].isinf().any(1).nonzero()[:, 0]
            self._renew(fresh, found.at(first), found)
        by_feature = torch.zeros_like(drawn.h)
        slopes = torch.zeros_like(found.tau)  # (S, 2)
        for some in _pieces(found, 2 * len(drawn)):
            anchors = found.at(some)
            weighed, x = self._against(anchors, drawn, fresh[anchors.id], found)
            for v in (0, 1):
                share = x[v].exp_().mul_(weighed.b[:, v, None])
                self._others(by_feature, v).addmm_(share.T, anchors.h[:, v])
            slopes[some] = weighed.b
            f.append(weighed.f)
            add_to(gradients, weighed.param_gradients)
        by_feature += _by_anchor(drawn, slopes[place], means)
        return Evaluation(self._by_output(id, by_feature), self._all_values(f), gradients, [fresh])

    # ------------------------------------------------------------------ parts

    def _features(self) -> Features:
        """Of all examples seen that count."""
        table = self._table
        id = self._counting
        if not table.complete:  # else a device would wait
            id = id[table.seen_at(id)]
        h = table.values[id].to(exact_dtype(table.device))  # tau may be tiny; and autocast leaves it alone
        if self._normalized:
            h = normalize(h, dim=2)
        return Features(id, h, (h[:, 0] * h[:, 1]).sum(1), self._temperatures(id, h), self._weight[id])

    def _temperatures(self, id: Tensor, like: Tensor) -> Tensor:
        """(S, 2) of the examples, with their graph where they are trained."""
        tau = self._tau(id)
        if not isinstance(tau, Tensor):  # written by a kernel: a copy from the host would make a device wait
            tau = like.new_full((), tau)
        return tau.to(like.dtype).expand(id.shape[0], 2)

    def _all_values(self, f: list[Tensor]) -> Tensor:
        """f of the blocks that took part: where all were seen, those of weight 0 too, for which it is 0."""
        together = torch.cat(f)
        if together.shape[0] < self._counting.shape[0]:
            return together
        return torch.cat([together, together.new_zeros(self._silent)])

    def _others(self, h: Tensor, v: int) -> Tensor:
        """(Q, d), what direction v compares with: the other modality, or both views. A view of h (P, 2, d)."""
        if self._two_modal:
            return h[:, 1 - v]
        return h.flatten(0, 1)

    def _per_other(self, value: Tensor) -> Tensor:
        """(Q,) from values (P,) of the examples."""
        if self._two_modal:
            return value
        return value.repeat_interleave(2)

    def _log_total(self, anchors: Features, found: Features) -> Tensor:
        """(A, 1) log of what the others of each anchor weigh together, in either direction."""
        return (self._sides * (found.weight.sum() - anchors.weight)).log().unsqueeze(1)

    def _exponents(self, anchors: Features, v: int, others: Features) -> Tensor:
        """x (A, Q); -inf where an anchor meets itself."""
        x = anchors.h[:, v] @ self._others(others.h, v).T  # (A, Q)
        x = (x - anchors.positive.unsqueeze(1)).div_(anchors.tau[:, v, None])
        return x.masked_fill_(anchors.id.unsqueeze(1) == self._per_other(others.id), -torch.inf)

    def _compare(self, anchors: Features, found: Features) -> tuple[list[Tensor], Tensor]:
        """The anchors against all others: the shares (A, Q) of the others in both directions, and the rows (A, 4)."""
        log_weight = self._per_other(found.weight).log()
        log_total = self._log_total(anchors, found).squeeze(1)
        shares: list[Tensor] = []
        log_g: list[Tensor] = []
        mean: list[Tensor] = []
        for v in (0, 1):
            x = self._exponents(anchors, v, found)
            exponent = x + log_weight  # (A, Q)
            total = exponent.logsumexp(1, keepdim=True)  # (A, 1)
            share = exponent.sub_(total).exp_()  # (A, Q), adds up to 1 in each row
            if self.objective_params:
                mean.append((share * x.clamp_(min=_LEAST)).sum(1))
            else:
                mean.append(torch.zeros_like(log_total))
            log_g.append(total.squeeze(1) - log_total)
            shares.append(share)
        return shares, torch.stack([*log_g, *mean], 1)

    def _renew(self, rows: Tensor, anchors: Features, found: Features) -> list[Tensor]:
        """Renew the anchors' rows, in place; the means (A, d) of the others by their shares, in both directions."""
        means = [torch.zeros_like(anchors.h[:, v]) for v in (0, 1)]
        for some in _pieces(anchors, 2 * len(found)):
            part = anchors.at(some)
            shares, rows[part.id] = self._compare(part, found)
            for v, share in enumerate(shares):
                means[v][some] = share @ self._others(found.h, v)  # (A, d)
        return means

    def _against(
        self, anchors: Features, drawn: Features, rows: Tensor, found: Features
    ) -> tuple[_Weighed, list[Tensor]]:
        """The anchors, whose rows (A, 4) may be old, weighed; log of the shares (A, Q) of the drawn, per direction."""
        log_weight = self._per_other(drawn.weight).log() - self._log_total(anchors, found)  # (A, Q)
        x = [self._exponents(anchors, v, drawn).add_(log_weight) for v in (0, 1)]
        alone = torch.stack([part.amax(1) for part in x], 1)  # the most that a fresh example adds to log g
        rows[:, :2] = torch.maximum(rows[:, :2], alone)
        for v in (0, 1):
            x[v].sub_(rows[:, v, None])
        return self._weigh(anchors, rows, found), x

    def _weigh(self, anchors: Features, rows: Tensor, found: Features) -> _Weighed:
        log_g, x = rows.chunk(2, 1)  # (A, 2) each
        share = self._shares.at(found.id, complete=self._table.complete)[torch.searchsorted(found.id, anchors.id)]
        with torch.enable_grad():
            leaf = log_g.detach().requires_grad_()
            f = self._objective.outer(anchors.id, leaf)
            scale = share.to(f.dtype)
            slope = torch.autograd.grad(f, leaf, scale, retain_graph=bool(self.objective_params))[0]
            b = slope.to(anchors.tau.dtype) / anchors.tau  # (A, 2)
            if not self.objective_params:
                return _Weighed(f.detach(), b, [])
            tau = self._temperatures(anchors.id, b)  # d(log g)/d(tau) = -(mean of x)/tau
            gradients = torch.autograd.grad([f, tau], self.objective_params, [scale, -b * x])
        return _Weighed(f.detach(), b, list(gradients))

    def _by_output(self, id: Tensor, by_feature: Tensor) -> Tensor:
        """Derivatives by the outputs from those by the features."""
        if self._normalized:
            with torch.enable_grad():
                outputs = self._table.values[id].to(by_feature.dtype).requires_grad_()
                by_feature = torch.autograd.grad(normalize(outputs, dim=2), outputs, by_feature)[0]
        return by_feature.to(self._table.values.dtype)


def _pieces(anchors: Features, others: int) -> Iterator[slice]:
    """The anchors in parts, each small enough to be set against ``others`` in memory."""
    budget = 1 << 27
    if anchors.h.device.type == "cpu":
        budget = 1 << 22
    size = max(1, budget // max(1, others))
    return (slice(at, at + size) for at in range(0, len(anchors), size))


def _by_anchor(anchors: Features, b: Tensor, means: list[Tensor]) -> Tensor:
    """What the anchors' own features get through their rows, (A, 2, d)."""
    b = b.unsqueeze(2)
    return b * (torch.stack(means, 1) - anchors.h.flip(1)) - (b * anchors.h).flip(1)
