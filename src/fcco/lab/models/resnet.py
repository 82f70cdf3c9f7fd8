"""ResNet18 and ResNet34: residual networks of basic blocks.

Reference: He, Zhang, Ren, Sun, "Deep residual learning for image recognition", CVPR 2016. Parameters carry
torchvision's names, so its state dictionaries load.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torch import Tensor, nn

Stem = Literal["small", "imagenet"]


def check_stem(stem: str) -> None:
    """Refuse a stem that is not there."""
    if stem not in ("small", "imagenet"):
        raise ValueError(f"stem must be 'small' or 'imagenet', got {stem!r}")


def first_convolution(stem: Stem, in_channels: int, out_channels: int) -> nn.Conv2d:
    """Return a 7x7 convolution with stride 2 for ImageNet's sizes, or 3x3 with stride 1 for 8 to 64 pixels."""
    if stem == "imagenet":
        return nn.Conv2d(in_channels, out_channels, 7, stride=2, padding=3, bias=False)
    return nn.Conv2d(in_channels, out_channels, 3, padding=1, bias=False)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions around a shortcut: (N, I, H, W) -> (N, O, H / stride, W / stride)."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.downsample: nn.Sequential | None = None
        if stride != 1 or in_channels != out_channels:
            projection = nn.Conv2d(in_channels, out_channels, 1, stride=stride, bias=False)
            self.downsample = nn.Sequential(projection, nn.BatchNorm2d(out_channels))

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x
        if self.downsample is not None:
            shortcut = self.downsample(x)
        residual = self.relu(self.bn1(self.conv1(x)))
        out: Tensor = self.relu(self.bn2(self.conv2(residual)) + shortcut)
        return out


class ResNet(nn.Module):
    """Four stages of basic blocks: (N, C, H, W) float -> (N, num_outputs).

    Args:
        depths: blocks in each of the four stages; [2, 2, 2, 2] makes ResNet18.
        in_channels: C.
        num_outputs: the width of the last layer.
        stem: "small" keeps the resolution before the first stage; "imagenet" divides it by four.
    """

    def __init__(self, depths: Sequence[int], in_channels: int, num_outputs: int, stem: Stem) -> None:
        super().__init__()
        check_stem(stem)
        self.conv1 = first_convolution(stem, in_channels, 64)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool: nn.Module = nn.Identity()
        if stem == "imagenet":
            self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        self.layer1 = _stage(64, 64, depths[0], stride=1)
        self.layer2 = _stage(64, 128, depths[1], stride=2)
        self.layer3 = _stage(128, 256, depths[2], stride=2)
        self.layer4 = _stage(256, 512, depths[3], stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(512, num_outputs)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))  # (N, 64, H', W')
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))  # (N, 512, H'/8, W'/8)
        out: Tensor = self.fc(self.avgpool(x).flatten(1))
        return out


def _stage(in_channels: int, out_channels: int, depth: int, stride: int) -> nn.Sequential:
    """Return `depth` blocks, the first of which changes width and resolution."""
    blocks = [BasicBlock(in_channels, out_channels, stride)]
    blocks += [BasicBlock(out_channels, out_channels, 1) for _ in range(depth - 1)]
    return nn.Sequential(*blocks)


def resnet18(in_channels: int = 3, num_outputs: int = 1000, stem: Stem = "imagenet") -> ResNet:
    """Build ResNet18; the defaults are torchvision's network, 11,689,512 parameters.

    Args:
        in_channels: channels of the images.
        num_outputs: scores per image.
        stem: the first layers: "imagenet" as torchvision has them, "small" for images of about 32 pixels.
    """
    return ResNet([2, 2, 2, 2], in_channels, num_outputs, stem)


def resnet34(in_channels: int = 3, num_outputs: int = 1000, stem: Stem = "imagenet") -> ResNet:
    """Build ResNet34; the defaults are torchvision's network, 21,797,672 parameters.

    Args:
        in_channels: channels of the images.
        num_outputs: scores per image.
        stem: the first layers: "imagenet" as torchvision has them, "small" for images of about 32 pixels.
    """
    return ResNet([3, 4, 6, 3], in_channels, num_outputs, stem)
