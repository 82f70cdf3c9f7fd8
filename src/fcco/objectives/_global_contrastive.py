"""GlobalContrastive: every example against all others of the data set, not of the mini-batch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from fcco._support import checks
from fcco.objectives._base import OutputObjective, log_mean_exp_over, widened
from fcco.objectives._ndcg import own_place, working_dtype
from fcco.sampling.batch import Batch, served


@final
@dataclass(frozen=True)
class LearnedTemperature:
    """A trained temperature: tau = minimum + exp(parameter), with rho tau added to f (iSogCLR).

    Without the price rho an ever higher temperature would always pay. At the optimum rho is the KL divergence of
    the weights that the negatives get from equal weights: about 0.1 to 0.5 for two views, about 6 for two
    modalities; above the log of the number of negatives tau falls to its minimum.

    Args:
        start: where tau starts.
        rho: the price of a unit of temperature.
        minimum: what tau stays above.
        per_example: one temperature for each example and direction, or one for all.
    """

    start: float = 0.1
    rho: float = 0.3
    minimum: float = 0.01
    per_example: bool = False

    def __post_init__(self) -> None:
        checks.positive("start", self.start)
        checks.non_negative("rho", self.rho)
        checks.positive("minimum", self.minimum)
        if self.start <= self.minimum:
            raise ValueError(f"start must be above the minimum {self.minimum}, got {self.start}")


class GlobalContrastive(OutputObjective):
    r"""The global contrastive loss: two views of each example (SogCLR), or two modalities (CLIP style).

    .. math::
        F(w) = \frac1n \sum_i \frac12 \sum_{v \in \{1, 2\}} \tau \log\Bigl(\epsilon + \frac1{|S_i^v|}
               \sum_{z \in S_i^v} e^{(\langle h_i^v, z \rangle - \langle h_i^1, h_i^2 \rangle)/\tau}\Bigr)

    Block i is example i (or pair i), m = n, with features :math:`h_i^1, h_i^2` of its two views or modalities,
    normalised to length 1. The negatives :math:`S_i^v` are both views of all other examples (2(n - 1) of them); with
    two modalities those of the other modality alone (n - 1): direction 1 sets image i against all texts, direction
    2 text i against all images. :math:`g_i(w)` are the two means (dim 2, in the log domain) and
    :math:`f_i(u) = \frac12 \sum_v \tau (\log(\epsilon + u_v) + \rho)`, with :math:`\rho = 0` where tau is a number.
    With :math:`\epsilon = 1/|S|` this is InfoNCE (the positive in the denominator too) of a batch as large as
    the data set, but for a constant.

    Args:
        model: maps examples to features. One modality: (K, ...) -> (K, d), called once on both views of the batch
            put together. Two modalities: called on ``*batch.x``, returns a pair of (K, d). Either may take one
            tensor and return (K, 2, d) instead.
        num_examples: n.
        temperature: tau, a number or a :class:`LearnedTemperature`.
        two_modal: whether the two features are of two modalities.
        epsilon: >= 0, SogCLR's epsilon_0, relative to the positive pair.
        normalize: divide features by their length.

    A batch has ``x``, a tuple of the two views or modalities, (K, ...) each, ``anchor``, where each block's own
    example stands, and at least one other example. An example never serves as a negative of itself (told by
    ``id``).

    Example:
        >>> from fcco.sampling.batch import Batch
        >>> objective = GlobalContrastive(nn.Linear(8, 3), num_examples=100, temperature=0.1)
        >>> x, id = torch.randn(6, 8), torch.tensor([4, 17, 30, 42, 77, 99])
        >>> batch = Batch((x, x + 0.1), id, anchor=torch.arange(6))
        >>> objective(id, batch).shape
        torch.Size([6, 2])

    Reference: Yuan et al., Provable stochastic optimization for global contrastive learning, ICML 2022 (SogCLR);
    Qiu et al., Not all semantics are created equal, ICML 2023 (iSogCLR).
    """

    features = True

    def __init__(
        self,
        model: nn.Module,
        num_examples: int,
        *,
        temperature: float | LearnedTemperature = 0.1,
        two_modal: bool = False,
        epsilon: float = 0.0,
        normalize: bool = True,
    ) -> None:
        super().__init__(model, num_examples, dim=2, log_domain=True)
        self.two_modal, self.normalize = two_modal, normalize
        self.log_epsilon = math.log(epsilon) if checks.non_negative("epsilon", epsilon) > 0.0 else None
        self.temperature = temperature
        self.excess: nn.Parameter | None = None  # log(tau - minimum)
        if isinstance(temperature, LearnedTemperature):
            shape = (num_examples, 2) if temperature.per_example else ()
            start = math.log(temperature.start - temperature.minimum)
            self.excess = nn.Parameter(torch.full(shape, start, dtype=working_dtype(model)))
        else:
            checks.positive("temperature", temperature)

    def tau(self, index: Tensor) -> Tensor | float:
        """The temperatures of the blocks: a number, or (B, 2) where each has its own."""
        given = self.temperature
        if not isinstance(given, LearnedTemperature):
            return given
        assert self.excess is not None
        return given.minimum + widened(self.excess[index] if given.per_example else self.excess).exp()

    def outputs(self, x: Any) -> Tensor:
        """Features (K, 2, d)."""
        if isinstance(x, tuple) and not self.two_modal:
            if len(x) != 2 or x[0].shape != x[1].shape:
                raise ValueError(f"batch.x must be two views of the same shape, got {[tuple(v.shape) for v in x]}")
            both: Tensor = self.model(torch.cat(x))  # one call, so that batch statistics are of both views
            return torch.stack(both.chunk(2), 1)
        result: Tensor | tuple[Tensor, Tensor] = self.model(*x) if isinstance(x, tuple) else self.model(x)
        return result if isinstance(result, Tensor) else torch.stack(tuple(result), 1)

    def values(self, index: Tensor, outputs: Tensor, batch: Batch) -> Tensor:
        if outputs.dim() != 3 or outputs.shape[:2] != (len(batch), 2):
            raise ValueError(f"the features must have shape ({len(batch)}, 2, d), got {tuple(outputs.shape)}")
        anchor = own_place(batch, index, index)
        h = widened(outputs)  # tau may be tiny
        h = normalize(h, dim=2) if self.normalize else h
        own = h[anchor]  # (B, 2, d)
        others = served(batch.id != index.unsqueeze(1), batch)  # (B, K)
        weight = batch.weight
        if self.two_modal:
            similarity = torch.stack([own[:, v] @ h[:, 1 - v].T for v in (0, 1)], 1)  # (B, 2, K)
        else:
            similarity = torch.einsum("bvd,kwd->bvkw", own, h).flatten(2)  # (B, 2, 2K): both views of each
            others = others.repeat_interleave(2, 1)
            weight = None if weight is None else weight.repeat_interleave(2, -1) / 2
        positive = (own[:, 0] * own[:, 1]).sum(1)  # (B,)
        x = self._over_tau(similarity - positive[:, None, None], index)
        return log_mean_exp_over(x, others, weight, index, "other examples")

    def outer(self, index: Tensor, u: Tensor) -> Tensor:
        if self.log_epsilon is not None:
            u = torch.logaddexp(u, torch.full_like(u, self.log_epsilon))
        rho = self.temperature.rho if isinstance(self.temperature, LearnedTemperature) else 0.0
        return (self.tau(index) * (u + rho)).mean(1)

    def _over_tau(self, x: Tensor, index: Tensor) -> Tensor:
        """x / tau, (B, 2, ...)."""
        tau = self.tau(index)
        return x / (tau.unsqueeze(2) if isinstance(tau, Tensor) and tau.dim() == 2 else tau)
