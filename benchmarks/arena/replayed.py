"""A network's passes as CUDA graphs, and all its weights in one tensor: the same numbers from a fraction of the launches.

LibAUC's optimizers go through the parameters one by one in Python, and treat every weight on its own. So they do to one
long parameter what they do to sixty short ones, and an image run is no longer bound by its host.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


def flatten(model: nn.Module) -> nn.Parameter:
    """All parameters of a network in one (N,), of which they become views."""
    parameters = list(model.parameters())
    flat = nn.Parameter(torch.cat([_laid_out(parameter.detach()).reshape(-1) for parameter in parameters]))
    for parameter, part in zip(parameters, _parts(flat.data, parameters), strict=True):
        parameter.data = part
    return flat


def _parts(flat: Tensor, parameters: list[nn.Parameter]) -> list[Tensor]:
    """Views of ``flat`` in the parameters' shapes."""
    sizes = [parameter.numel() for parameter in parameters]
    found = []
    for part, parameter in zip(flat.split(sizes), parameters, strict=True):
        view = part.view(_laid_out(parameter).shape)
        if _is_channels_last(parameter):
            view = view.permute(0, 3, 1, 2)
        found.append(view)
    return found


def _is_channels_last(parameter: Tensor) -> bool:
    """Whether a parameter's channels go innermost: weights of convolutions on a GPU, where that is faster."""
    return parameter.is_cuda and parameter.dim() == 4


def _laid_out(parameter: Tensor) -> Tensor:
    """The parameter with its dimensions in the order in which they lie in ``flat``."""
    if _is_channels_last(parameter):
        return parameter.permute(0, 2, 3, 1)
    return parameter


class Passes:
    """Forward and backward passes of a network on rows of its training images.

    Args:
        model: the network.
        flat: what :func:`flatten` made of its parameters.
        x: (N, 3, 32, 32) the images.
        rows: per batch; on a GPU batches of this size are replayed, others are passed eagerly.

    Example:
        outputs = passes.outputs(index)
        loss(outputs).backward()  # as far as the outputs
        passes.backward(outputs)  # the rest of the way, into flat.grad
        optimizer.step()
        passes.settle()
    """

    def __init__(self, model: nn.Module, flat: nn.Parameter, x: Tensor, rows: int) -> None:
        self.model = model
        self.flat = flat
        self.x = x
        self.rows = rows
        self._parameters = list(model.parameters())
        self._memory = flat.data
        flat.grad = torch.zeros_like(flat)
        for parameter, part in zip(self._parameters, _parts(flat.grad, self._parameters), strict=True):
            parameter.grad = part
        self._eager: Tensor | None = None
        self._graphs: tuple[torch.cuda.CUDAGraph, torch.cuda.CUDAGraph] | None = None

    def outputs(self, index: Tensor) -> Tensor:
        """The network's outputs (B, 1) for rows (B,), cut off from it."""
        if not self.x.is_cuda or len(index) != self.rows:
            self._eager = self.model(self.x[index])
            return self._eager.detach().requires_grad_()
        if self._graphs is None:
            self._record()
        assert self._graphs is not None
        self._eager = None
        self._index.copy_(index)
        self._graphs[0].replay()
        return self._outputs.detach().requires_grad_()

    def backward(self, outputs: Tensor) -> None:
        """From the outputs' gradient to the weights' in ``flat.grad``; what was there is overwritten."""
        assert outputs.grad is not None
        if self._eager is not None:
            assert self.flat.grad is not None
            self.flat.grad.zero_()
            self._eager.backward(outputs.grad)
            return
        assert self._graphs is not None
        self._slope.copy_(outputs.grad)
        self._graphs[1].replay()

    @torch.no_grad()
    def settle(self) -> None:
        """After an optimizer's step: some of LibAUC's give a parameter new memory, which the network does not look at."""
        if self.flat.data_ptr() != self._memory.data_ptr():
            self._memory.copy_(self.flat.data)
            self.flat.data = self._memory

    def _record(self) -> None:
        """Both passes as graphs; the buffers are afterwards as they were."""
        kept = [buffer.clone() for buffer in self.model.buffers()]
        self._index = torch.zeros(self.rows, dtype=torch.int64, device=self.x.device)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                outputs = self.model(self.x[self._index])
                torch.autograd.grad(outputs, self._parameters, torch.zeros_like(outputs))
        torch.cuda.current_stream().wait_stream(side)
        forward = torch.cuda.CUDAGraph()
        with torch.cuda.graph(forward):
            self._outputs = self.model(self.x[self._index])
        self._slope = torch.zeros_like(self._outputs)
        backward = torch.cuda.CUDAGraph()
        with torch.cuda.graph(backward, pool=forward.pool()):
            gradients = torch.autograd.grad(self._outputs, self._parameters, self._slope)
            torch._foreach_copy_([parameter.grad for parameter in self._parameters], list(gradients))
        self._graphs = (forward, backward)
        for buffer, value in zip(self.model.buffers(), kept, strict=True):
            buffer.copy_(value)
