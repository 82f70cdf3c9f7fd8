"""TableNetwork: the default network for tables."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, final

import torch
from torch import Tensor, nn

from fcco._support import checks

from ._encoder import TableEncoder
from ._learnt import FIRST_CODE, Levels, Number

_EMBEDDED = 512  # inputs of the first layer that the numbers' embeddings make up, about
_LEVEL_WIDTH = 8  # of a category's embedding


@final
class TableNetwork(nn.Module):
    """Scores (K, T) of encoded rows (K, D): embeddings of every column, then a perceptron with dropout.

    A number x with bin edges b_0 < ... < b_B is encoded piecewise linearly,

        e_j = clip((x - b_{j-1}) / (b_j - b_{j-1}), 0, 1),

    and each column has a linear layer of its own over its e; a category has a learnt vector per code. Outputs of an
    example do not depend on the batch.

    Args:
        description: a TableEncoder that was fitted, or its `to_dict()`.
        outputs: scores per row, T.
        width: units per hidden layer; None: by the number of rows.
        depth: hidden layers.
        dropout: share of hidden units left out in training.
        embedding: width of a number's embedding; 0: the scaled number alone; None: by the number of columns.

    Example:
        >>> encoder = TableEncoder().fit([[0.5, 1], [1.5, 0], [2.5, 1], [3.0, 0]])
        >>> network = TableNetwork(encoder.to_dict(), outputs=3)
        >>> tuple(network(encoder.transform([[1.0, 1], [2.0, 0]])).shape)
        (2, 3)

    Reference:
        Gorishniy, Rubachev and Babenko, "On Embeddings for Numerical Features in Tabular Deep Learning", NeurIPS 2022.
    """

    def __init__(
        self,
        description: TableEncoder | Mapping[str, Any],
        outputs: int,
        *,
        width: int | None = None,
        depth: int = 2,
        dropout: float = 0.25,
        embedding: int | None = None,
    ) -> None:
        super().__init__()
        encoder = description
        if not isinstance(encoder, TableEncoder):
            encoder = TableEncoder.from_dict(encoder)
        if width is None:
            width = default_width(encoder.rows)
        if embedding is None:
            embedding = default_embedding(len(encoder.numbers))
        self.outputs = checks.positive_int("outputs", outputs)
        self.in_features = encoder.width
        self.settings = {
            "outputs": outputs,
            "width": checks.positive_int("width", width),
            "depth": checks.positive_int("depth", depth),
            "dropout": checks.fraction("dropout", dropout),
            "embedding": int(checks.non_negative("embedding", embedding)),
        }
        self._num_numbers = len(encoder.numbers)
        self._num_categories = len(encoder.categories)
        self.bins: _Bins | None = None
        self.levels: _Levels | None = None
        inputs = encoder.width - self._num_categories
        if self._num_numbers > 0 and embedding > 0:
            self.bins = _Bins(encoder.numbers, embedding)
            inputs += self._num_numbers * embedding
        if self._num_categories > 0:
            self.levels = _Levels(encoder.categories, _LEVEL_WIDTH)
            inputs += self._num_categories * _LEVEL_WIDTH
        layers: list[nn.Module] = []
        for _ in range(depth):
            layers += [nn.Linear(inputs, width), nn.ReLU(), nn.Dropout(dropout)]
            inputs = width
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Scores (K, T) of rows (K, D) as the encoder gives them.

        Args:
            x: (K, D), float32.
        """
        if x.dim() != 2 or x.shape[1] != self.in_features:
            raise ValueError(f"x must be (K, {self.in_features}) as the encoder gives it, got {tuple(x.shape)}")
        numeric = x[:, : self.in_features - self._num_categories]
        parts = [numeric]
        if self.bins is not None:
            parts.append(self.bins(x[:, : self._num_numbers]))
        if self.levels is not None:
            parts.append(self.levels(x[:, self.in_features - self._num_categories :]))
        joined = numeric
        if len(parts) > 1:
            joined = torch.cat(parts, 1)
        scores: Tensor = self.head(self.body(joined))
        return scores


@final
class _Bins(nn.Module):
    """Numbers (K, C) -> ReLU of a linear layer per column over its piecewise-linear encoding, (K, C * E)."""

    def __init__(self, numbers: tuple[Number, ...], width: int) -> None:
        super().__init__()
        count = max(len(number.edges) for number in numbers) - 1
        low = torch.zeros(len(numbers), count)
        per_width = torch.zeros(len(numbers), count)  # 0 in the places that a column does not have: they stay 0
        for place, number in enumerate(numbers):
            edges = torch.tensor(number.edges, dtype=torch.float64)
            bins = len(number.edges) - 1
            low[place, :bins] = edges[:-1].float()
            per_width[place, :bins] = (1.0 / edges.diff()).float()
        self.low: Tensor
        self.per_width: Tensor
        self.register_buffer("low", low)  # (C, B)
        self.register_buffer("per_width", per_width)  # (C, B)
        bound = 1.0 / math.sqrt(count)
        self.weight = nn.Parameter(torch.empty(len(numbers), count, width).uniform_(-bound, bound))  # (C, B, E)
        self.bias = nn.Parameter(torch.empty(len(numbers), 1, width).uniform_(-bound, bound))  # (C, 1, E)

    def forward(self, x: Tensor) -> Tensor:
        columns = x.t().unsqueeze(2)  # (C, K, 1)
        encoded = ((columns - self.low.unsqueeze(1)) * self.per_width.unsqueeze(1)).clamp(0.0, 1.0)  # (C, K, B)
        embedded = torch.baddbmm(self.bias, encoded, self.weight).relu()  # (C, K, E)
        return embedded.transpose(0, 1).flatten(1)


@final
class _Levels(nn.Module):
    """Codes (K, C) -> a learnt vector per code, (K, C * E)."""

    def __init__(self, categories: tuple[Levels, ...], width: int) -> None:
        super().__init__()
        codes = torch.tensor([levels.codes for levels in categories])
        start = codes.cumsum(0) - codes
        self.start: Tensor
        self.register_buffer("start", start)  # (C,)
        self.vectors = nn.Embedding(int(codes.sum()), width)
        with torch.no_grad():
            # A code that training never meets says nothing, instead of something at random.
            for code in range(FIRST_CODE):
                self.vectors.weight[start + code] = 0.0

    def forward(self, codes: Tensor) -> Tensor:
        places = codes.to(torch.int64) + self.start
        vectors: Tensor = self.vectors(places)
        return vectors.flatten(1)


def default_width(rows: int) -> int:
    """Units per hidden layer: 64 for a hundred rows, 256 for ten thousand and more."""
    exponent = round(math.log2(max(rows, 1)) / 2 + 2)
    width: int = 2**exponent
    return min(max(width, 64), 256)


def default_embedding(numbers: int) -> int:
    """Width of a number's embedding: 16 for a few numbers, 2 for hundreds."""
    if numbers == 0:
        return 0
    return min(max(_EMBEDDED // numbers, 2), 16)
