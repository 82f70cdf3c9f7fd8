"""Steps written by hand: what SOX, MSVR-v1 and MSVR-v2 cost when nothing but the algorithm is computed.

They are the floors of the benchmark. A floor draws its blocks and samples, takes the passes of its method, updates u, z
and w, and does nothing else: it checks nothing, undoes nothing and keeps no report. On a CUDA device the whole step,
draws included, is one graph. The objective is the multi-task AUC of :class:`fcco.objectives.MultiTaskAUC` with trained
centres, and the update rules are those of the Solver with ``u0=0`` and ``z0=0``; a test compares the two to 1e-10.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fcco.lab.bench.timing import Steps

WARM_UP = 3  # eager steps before a capture: cuDNN and cuBLAS make their workspaces


@final
@dataclass(frozen=True)
class Rates:
    """lr, alpha and beta."""

    lr: float = 1e-3
    alpha: float = 0.1
    beta: float = 0.1


@final
@dataclass(frozen=True)
class TaskDraw:
    """Draws blocks and, for each, positives and negatives; classes of equal size, one task per class.

    Args:
        members: (m, n) the examples of each class.
        blocks: B1.
        positives: positives of a block; as many negatives.
        generator: on the device of the examples.
    """

    members: Tensor
    blocks: int
    positives: int
    generator: torch.Generator

    def __call__(self) -> tuple[Tensor, Tensor]:
        """The blocks (B1,), and the examples (B1 * B2,), block by block, its positives first."""
        classes, size = self.members.shape
        shape = (self.blocks, self.positives)
        device = self.members.device
        keys = torch.rand(classes, generator=self.generator, device=device)
        index = keys.argsort()[: self.blocks]  # distinct: the keys are
        own = torch.randint(size, shape, generator=self.generator, device=device)
        other = torch.randint((classes - 1) * size, shape, generator=self.generator, device=device)
        # Samples with replacement: cheaper than distinct ones, and a floor may be too low but never too high.
        start = (index * size).unsqueeze(1)
        other = torch.where(other < start, other, other + size)  # jump over the block's own class
        place = torch.cat([start + own, other], 1)
        return index, self.members.flatten()[place.flatten()]


class Literal(ABC):
    """A step by hand; abstract.

    Args:
        model: (K, ...) -> (K, m) scores.
        x: all examples.
        num_blocks: m.
        positives: how many of a block's samples are positives; they come first.
        rates: constant.
    """

    def __init__(self, model: nn.Module, x: Tensor, num_blocks: int, positives: int, rates: Rates) -> None:
        self.model = model
        self.x = x
        self.rates = rates
        self.positives = positives
        like = next(model.parameters())
        self.a = torch.zeros(num_blocks, dtype=like.dtype, device=like.device, requires_grad=True)
        self.b = torch.zeros_like(self.a, requires_grad=True)
        self.w: list[Tensor] = [*model.parameters(), self.a, self.b]
        self.z = [torch.zeros_like(p) for p in self.w]
        self.u = torch.zeros(num_blocks, 3, dtype=like.dtype, device=like.device)  # u_{t-1}

    @abstractmethod
    def step(self, index: Tensor, id: Tensor) -> None:
        """One step on the blocks (B1,) and their samples (B1 * B2,)."""

    def values(self, scores: Tensor, index: Tensor, a: Tensor, b: Tensor) -> Tensor:
        """g (B1, 3): the mean squares about a and b, and the difference of the means."""
        blocks = index.shape[0]
        own = index.view(blocks, 1, 1).expand(blocks, scores.shape[0] // blocks, 1)
        h = scores.view(blocks, -1, scores.shape[1]).gather(2, own).squeeze(2)  # (B1, B2)
        positive = h[:, : self.positives]
        negative = h[:, self.positives :]
        around_a = (positive - a.index_select(0, index).unsqueeze(1)).square().mean(1)
        around_b = (negative - b.index_select(0, index).unsqueeze(1)).square().mean(1)
        return torch.stack([around_a, around_b, negative.mean(1) - positive.mean(1)], 1)

    def probe(self, index: Tensor, x: Tensor) -> Tensor:
        """g at w_t, with its graph."""
        return self.values(self.model(x), index, self.a, self.b)

    def gradient(self, g: Tensor, u: Tensor, w: list[Tensor]) -> tuple[Tensor, ...]:
        """The mean over the blocks of grad f(u) grad g(w); f(u) = u_1 + u_2 + max(1 + u_3, 0)^2 / 2."""
        slope = torch.ones_like(u)
        slope[:, 2] = (1.0 + u[:, 2]).relu()
        return torch.autograd.grad((slope * g).sum() / u.shape[0], w)

    @torch.no_grad()
    def move(self) -> None:
        """w_{t+1} = w_t - lr z_t."""
        torch._foreach_add_(self.w, self.z, alpha=-self.rates.lr)


@final
class LiteralSOX(Literal):
    """u = (1-b)u + b g; z = (1-a)z + a G(u_t); one pass forward, one backward."""

    def step(self, index: Tensor, id: Tensor) -> None:
        g = self.probe(index, self.x[id])
        u = torch.lerp(self.u[index], g.detach(), self.rates.beta)
        grads = self.gradient(g, u, self.w)
        self.u[index] = u
        torch._foreach_lerp_(self.z, grads, self.rates.alpha)
        self.move()


class _Earlier(Literal):
    """What also needs w_{t-1}; abstract."""

    def __init__(self, model: nn.Module, x: Tensor, num_blocks: int, positives: int, rates: Rates) -> None:
        super().__init__(model, x, num_blocks, positives, rates)
        self.previous = [p.detach().clone().requires_grad_() for p in self.w]  # w_{t-1}
        self._names = [name for name, _ in model.named_parameters()]
        # The pass at w_{t-1} must leave BatchNorm's statistics alone: it moves copies that nobody reads.
        self._scratch = {name: buffer.clone() for name, buffer in model.named_buffers()}

    def probe_previous(self, index: Tensor, x: Tensor) -> Tensor:
        """g at w_{t-1}."""
        *weights, a, b = self.previous
        named = dict(zip(self._names, weights, strict=True))
        scores = functional_call(self.model, {**named, **self._scratch}, (x,))
        return self.values(scores, index, a, b)

    def track(self, index: Tensor, g: Tensor, g_previous: Tensor) -> Tensor:
        """u_t of the blocks: (1-b)u + b g + c (g - g-)."""
        beta = self.rates.beta
        ratio = (self.u.shape[0] - index.shape[0]) / index.shape[0]
        c = ratio / (1.0 - beta) + (1.0 - beta)
        return torch.lerp(self.u[index], g, beta) + c * (g - g_previous)

    @torch.no_grad()
    def move(self) -> None:
        torch._foreach_copy_(self.previous, self.w)
        super().move()


@final
class LiteralV1(_Earlier):
    """MSVR's u; z = (1-a)z + a G(u_{t-1}); two passes forward, one backward."""

    def step(self, index: Tensor, id: Tensor) -> None:
        x = self.x[id]
        g = self.probe(index, x)
        grads = self.gradient(g, self.u[index], self.w)
        with torch.no_grad():
            g_previous = self.probe_previous(index, x)
        self.u[index] = self.track(index, g.detach(), g_previous)
        torch._foreach_lerp_(self.z, grads, self.rates.alpha)
        self.move()


@final
class LiteralV2(_Earlier):
    """MSVR's u; z = (1-a)z + G(u_{t-1}) - (1-a)G-(u_{t-2}); two passes forward, two backward."""

    def __init__(self, model: nn.Module, x: Tensor, num_blocks: int, positives: int, rates: Rates) -> None:
        super().__init__(model, x, num_blocks, positives, rates)
        self.earlier = self.u.clone()  # u_{t-2}

    def step(self, index: Tensor, id: Tensor) -> None:
        kept = 1.0 - self.rates.alpha
        x = self.x[id]
        g = self.probe(index, x)
        grads = self.gradient(g, self.u[index], self.w)
        g_previous = self.probe_previous(index, x)
        grads_previous = self.gradient(g_previous, self.earlier[index], self.previous)
        u = self.track(index, g.detach(), g_previous.detach())
        self.earlier.copy_(self.u)
        self.u[index] = u
        torch._foreach_sub_(self.z, grads_previous)  # (1-a)(z - G-) + G
        torch._foreach_mul_(self.z, kept)
        torch._foreach_add_(self.z, grads)
        self.move()


def repeated(step: Callable[[], object]) -> Steps:
    """A step as a contender."""

    def steps(number: int) -> None:
        for _ in range(number):
            step()

    return steps


def captured(step: Callable[[], object], generator: torch.Generator) -> Steps:
    """A step as one CUDA graph.

    Args:
        step: reads and writes tensors in place only; its shapes never change.
        generator: what it draws from.
    """
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(generator)  # a replay draws anew
    with torch.cuda.graph(graph):
        step()
    return Replays(graph, step)


@final
@dataclass(frozen=True)
class Replays:
    """A captured step as a contender; it keeps alive what the graph reads and writes."""

    graph: torch.cuda.CUDAGraph
    step: Callable[[], object]

    def __call__(self, number: int) -> None:
        for _ in range(number):
            self.graph.replay()
