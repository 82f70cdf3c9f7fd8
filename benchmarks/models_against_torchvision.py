"""Every model against torchvision's with shared weights, both ways, in evaluation and in training mode.

    python benchmarks/models_against_torchvision.py

Needs torchvision. Prints one line a comparison and exits with 1 where outputs differ by more than 1e-5 of the
largest output (double precision is compared too: there the difference shows whether the function is the same,
in single precision it also holds the order of summation).
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable

import torch
from torch import Tensor, nn

from fcco.lab import models

LIMIT = 1e-5
NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "resnet18": models.resnet18,
    "resnet34": models.resnet34,
    "densenet121": models.densenet121,
}


def randomise(model: nn.Module, generator: torch.Generator) -> None:
    """Batch-norm statistics, scales and shifts away from 0 and 1, where a mix-up would go unseen."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None
            assert module.running_var is not None
            with torch.no_grad():
                for value in (module.weight, module.running_var):
                    value.copy_(0.5 + torch.rand(value.shape, generator=generator))
                for value in (module.bias, module.running_mean):
                    value.copy_(0.1 * torch.randn(value.shape, generator=generator))


def outputs(model: nn.Module, x: Tensor, train: bool) -> list[Tensor]:
    """The outputs and, in training mode, every buffer after the pass and every gradient of a scalar."""
    model.train(train)
    model.zero_grad()
    out = model(x)
    if not train:
        return [out.detach()]
    out.square().mean().backward()
    buffers = [buffer.clone().to(x.dtype) for buffer in model.buffers()]
    return [out.detach(), *buffers, *(p.grad for p in model.parameters() if p.grad is not None)]


def difference(first: list[Tensor], second: list[Tensor]) -> tuple[float, float]:
    """Largest difference, absolute and against the largest value of its own tensor."""
    assert len(first) == len(second)
    pairs = [(float((a - b).abs().max()), float(b.abs().max())) for a, b in zip(first, second, strict=True)]
    return max(d for d, _ in pairs), max(d / max(scale, 1e-30) for d, scale in pairs)


def compare(name: str, theirs: Callable[..., nn.Module], dtype: torch.dtype, train: bool, forth: bool) -> bool:
    """One line: weights carried from torchvision to fcco (`forth`) or back."""
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    ours, other = NETWORKS[name]().to(dtype), theirs(weights=None).to(dtype)
    source, target = (other, ours) if forth else (ours, other)
    randomise(source, generator)
    target.load_state_dict(source.state_dict())
    x = torch.randn(4, 3, 96, 96, generator=generator, dtype=torch.float64).to(dtype)
    out_ours, out_other = outputs(ours, x, train), outputs(other, x, train)
    out_abs, out_rel = difference(out_ours[:1], out_other[:1])
    all_abs, all_rel = difference(out_ours, out_other)
    mode, way = "train" if train else "eval ", "torchvision -> fcco" if forth else "fcco -> torchvision"
    line = f"{name:12s} {str(dtype)[6:]:8s} {mode} {way}: outputs max {out_abs:.2e} (relative {out_rel:.2e})"
    if train:
        line += f", with buffers and gradients max {all_abs:.2e} (relative {all_rel:.2e})"
    good = out_rel <= LIMIT
    print(line + ("" if good else "  TOO LARGE"))
    return good


def main() -> int:
    try:
        torchvision = importlib.import_module("torchvision")
    except ImportError:
        print("torchvision cannot be imported here; nothing compared")
        return 2
    print(f"torch {torch.__version__}, torchvision {torchvision.__version__}")
    good = [
        compare(name, getattr(torchvision.models, name), dtype, train, forth)
        for name in NETWORKS
        for dtype in (torch.float32, torch.float64)
        for train in (False, True)
        for forth in (True, False)
    ]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
