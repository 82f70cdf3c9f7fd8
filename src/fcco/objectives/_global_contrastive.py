"""GlobalContrastive: every example against all others of the data set, not of the mini-batch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, final

import torch
from torch import Tensor, nn

from fcco._support import checks
from fcco._support.fused import fused
from fcco._support.remembered import Remembered
from fcco.data import Batch, ExampleBlocks, Examples
from fcco.data._batch import served
from fcco.data._draws import exact_dtype
from fcco.objectives._anchored import own_position
from fcco.objectives._base import OutputObjective, called, check_data
from fcco.objectives._means import log_shares
from fcco.objectives._precision import like_parameters, to_float64
from fcco.objectives._similarities import LogMeanSimilarities, exponent_dtype, plain_similarities

if TYPE_CHECKING:
    from fcco.memory._table import OutputTable
    from fcco.memory.forms import Form


@final
@dataclass(frozen=True)
class LearnedTemperature:
    """A trained temperature, tau = minimum + exp(parameter), with rho tau added to f (iSogCLR).

    Without the price rho, an ever higher temperature would always pay. At the optimum, rho is the KL divergence of
    the weights that the negatives get from equal weights: about 0.1 to 0.5 for two views, about 6 for two
    modalities; above the log of the number of negatives tau falls to its minimum.

    Args:
        start: initial tau.
        rho: the price of a unit of temperature.
        minimum: lower bound of tau.
        per_example: whether each example and direction has its own temperature; otherwise there is one for all.
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
        checks.flag("per_example", self.per_example)


class GlobalContrastive(OutputObjective):
    r"""The global contrastive loss: two views of each example (SogCLR), or two modalities (CLIP style).

    .. math::
        F(w) = \frac1n \sum_i \frac12 \sum_{v \in \{1, 2\}} \tau \log\Bigl(\epsilon + \frac1{|S_i^v|}
               \sum_{z \in S_i^v} e^{(\langle h_i^v, z \rangle - \langle h_i^1, h_i^2 \rangle)/\tau}\Bigr)

    Block i is example i (or pair i), m = n, with features :math:`h_i^1, h_i^2` of its two views or modalities,
    normalised to length 1. The negatives :math:`S_i^v` are both views of all other examples (2(n - 1) of them). With
    two modalities they are only those of the other one (n - 1): direction 1 compares image i with all texts, direction
    2 compares text i with all images. :math:`g_i(w)` are the two means (dim 2, in the log domain) and
    :math:`f_i(u) = \frac12 \sum_v \tau (\log(\epsilon + u_v) + \rho)`, with :math:`\rho = 0` where tau is a number.
    With :math:`\epsilon = 1/|S|` this is InfoNCE (the positive in the denominator too) of a batch as large as
    the data set, up to a constant. The data's weights enter the means over i and over the negatives. An example is
    never a negative of itself, whatever its weight.

    Args:
        model: maps examples to features. One modality: (K, ...) -> (K, d), called once on both views of the batch
            put together. Two modalities: called on ``*batch.x``, returns a pair of (K, d). Either may take one
            tensor and return (K, 2, d) instead.
        data: the examples, x a tuple of the two views or modalities.
        temperature: tau, a number or a :class:`LearnedTemperature`.
        two_modal: whether the two features belong to two modalities.
        epsilon: >= 0, SogCLR's epsilon_0, relative to the positive pair.
        normalize: divide features by their length.

    A batch of the loader has the blocks' own examples and others, which ``id`` tells apart.

    Example:
        >>> from fcco.data import Examples
        >>> x = torch.randn(100, 8)
        >>> objective = GlobalContrastive(nn.Linear(8, 3), Examples((x, x + 0.1)), temperature=0.1)
        >>> batch = next(iter(objective.loader(blocks=6, samples=6)))
        >>> objective(batch.index, batch).shape
        torch.Size([6, 2])

    Reference: Yuan et al., Provable stochastic optimization for global contrastive learning, ICML 2022 (SogCLR);
    Qiu et al., Not all semantics are created equal, ICML 2023 (iSogCLR).
    """

    features: ClassVar[bool] = True
    blocks: ExampleBlocks

    def __init__(
        self,
        model: nn.Module,
        data: Examples,
        *,
        temperature: float | LearnedTemperature = 0.1,
        two_modal: bool = False,
        epsilon: float = 0.0,
        normalize: bool = True,
    ) -> None:
        check_data("GlobalContrastive", data, Examples)
        blocks = ExampleBlocks(data)
        super().__init__(model, blocks, dim=2, log_domain=True)
        self.two_modal = checks.flag("two_modal", two_modal)
        self.normalize = checks.flag("normalize", normalize)
        self.epsilon = checks.non_negative("epsilon", epsilon)
        self.temperature = temperature
        self.excess: nn.Parameter | None = None  # log(tau - minimum)
        if isinstance(temperature, LearnedTemperature):
            shape: tuple[int, ...] = ()
            if temperature.per_example:
                shape = (self.num_blocks, 2)
            # As a logarithm above the minimum, no step of an optimizer can make it negative.
            start = math.log(temperature.start - temperature.minimum)
            self.excess = nn.Parameter(like_parameters(model, torch.full(shape, start)))
        else:
            checks.positive("temperature", temperature)
        self._log_weight: Remembered[Tensor] = Remembered()
        self.register_scale(blocks.block_weight)

    def constants(self) -> dict[str, Any]:
        temperature: Any = self.temperature
        if isinstance(temperature, LearnedTemperature):
            # Where it starts is no part of F.
            temperature = {
                "rho": temperature.rho,
                "minimum": temperature.minimum,
                "per_example": temperature.per_example,
            }
        return {
            "temperature": temperature,
            "two_modal": self.two_modal,
            "epsilon": self.epsilon,
            "normalize": self.normalize,
        }

    def tau(self, index: Tensor) -> Tensor | float:
        """The temperatures of the blocks: a number, or (B, 2) where each has its own.

        Args:
            index: blocks (B,).
        """
        given = self.temperature
        if not isinstance(given, LearnedTemperature):
            return given
        assert self.excess is not None
        excess: Tensor = self.excess
        if given.per_example:
            excess = excess[index]
        return given.minimum + to_float64(excess).exp()

    def outputs(self, x: Any) -> Tensor:
        """Features (K, 2, d)."""
        if isinstance(x, tuple) and not self.two_modal:
            if len(x) != 2 or x[0].shape != x[1].shape:
                raise ValueError(f"x must be two views of the same shape, got {[tuple(v.shape) for v in x]}")
            both: Tensor = called(self.model, torch.cat(x))  # one call, so that batch statistics are of both views
            return torch.stack(both.chunk(2), 1)
        result = called(self.model, x)
        if isinstance(result, Tensor):
            return result
        if not isinstance(result, tuple | list) or len(result) != 2:
            raise TypeError(f"the model must return a pair of features, got {type(result).__name__}")
        return torch.stack(tuple(result), 1)

    def values(self, index: Tensor, outputs: Tensor, batch: Batch) -> Tensor:
        if outputs.dim() != 3 or outputs.shape[:2] != (len(batch), 2):
            raise ValueError(f"the features must have shape ({len(batch)}, 2, d), got {tuple(outputs.shape)}")
        position = own_position(batch, index, index)  # (B,)
        tau = self.tau(index)
        dtype = exact_dtype(outputs.device)
        if not isinstance(tau, Tensor):
            dtype = exponent_dtype(outputs, tau, self.normalize)
        source = (index, batch.id, batch.weight, batch.serves, dtype)
        log_weight = self._log_weight.get(source, lambda: self._log_weight_of(index, batch, dtype))
        if not isinstance(tau, Tensor):
            return fused(LogMeanSimilarities, outputs, position, log_weight, tau, self.two_modal, self.normalize)
        if tau.dim() == 2:
            tau = tau.t().unsqueeze(2)  # (2, B, 1)
        return plain_similarities(outputs, position, log_weight, tau, self.two_modal, self.normalize)

    def _log_weight_of(self, index: Tensor, batch: Batch, dtype: torch.dtype) -> Tensor:
        """log of what the examples count as negatives of each block, -inf: not at all; (B, K) or (B, 2 K)."""
        others = served(batch.id != index.unsqueeze(1), batch)  # (B, K)
        log_weight = log_shares(others, batch.weight, dtype, index, "other examples")
        if self.two_modal:
            return log_weight
        return (log_weight - math.log(2.0)).repeat(1, 2)  # both views of each are negatives

    def outer(self, index: Tensor, u: Tensor) -> Tensor:
        if self.epsilon > 0.0:
            # log(epsilon + u) from log u
            u = torch.logaddexp(u, torch.full_like(u, math.log(self.epsilon)))
        if isinstance(self.temperature, LearnedTemperature):
            u = u + self.temperature.rho  # the price of temperature: tau rho, once multiplied by tau below
        f = (self.tau(index) * u).mean(1)
        return self.weighted(index, f)

    def outer_and_slope(self, index: Tensor, u: Tensor) -> tuple[Tensor, Tensor] | None:
        if isinstance(self.temperature, LearnedTemperature):
            return None
        slope = torch.full_like(u, 0.5 * self.temperature)
        if self.epsilon > 0.0:
            least = math.log(self.epsilon)
            slope = slope * torch.sigmoid(u - least)  # u / (epsilon + u), from log u
            u = torch.logaddexp(u, torch.full_like(u, least))
        f = (self.temperature * u).mean(1)
        if self.block_scale is None:
            return f, slope
        scale = self.block_scale[index].to(u.dtype)
        return f * scale, slope * scale.unsqueeze(1)

    def table_form(self, table: OutputTable) -> Form | None:
        from fcco.memory.forms import ContrastiveForm

        if len(table.shape) != 2 or table.shape[0] != 2:
            return None
        return ContrastiveForm(self, self.blocks, self.tau, table, two_modal=self.two_modal, normalized=self.normalize)
