"""DenseNet121: every layer of a block sees all layers before it.

Reference: Huang, Liu, van der Maaten, Weinberger, "Densely connected convolutional networks", CVPR 2017.
Parameters carry torchvision's names, so its state dictionaries load, the published ones with older names too.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .resnet import Stem, check_stem, first_convolution

GROWTH = 32  # channels a layer adds
BOTTLENECK = 4  # the 1x1 convolution makes this many times GROWTH channels
START = 64  # channels after the stem
DEPTHS_121 = (6, 12, 24, 16)

_OLD_NAME = re.compile(r"(denselayer\d+\.(?:norm|conv))\.([12])\.")


class DenseLayer(nn.Module):
    """Normalise, 1x1, normalise, 3x3; what it makes is appended: (N, I, H, W) -> (N, I + GROWTH, H, W)."""

    def __init__(self, in_channels: int) -> None:
        super().__init__()
        width = BOTTLENECK * GROWTH
        self.norm1 = nn.BatchNorm2d(in_channels)
        self.relu1 = nn.ReLU(inplace=True)
        self.conv1 = nn.Conv2d(in_channels, width, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.relu2 = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(width, GROWTH, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        narrow = self.conv1(self.relu1(self.norm1(x)))
        return torch.cat([x, self.conv2(self.relu2(self.norm2(narrow)))], dim=1)


def _dense_block(in_channels: int, depth: int) -> nn.Sequential:
    layers = ((f"denselayer{k + 1}", DenseLayer(in_channels + k * GROWTH)) for k in range(depth))
    return nn.Sequential(OrderedDict[str, nn.Module](layers))


def _transition(in_channels: int) -> nn.Sequential:
    """Return a layer that halves the channels and the resolution."""
    return nn.Sequential(
        OrderedDict[str, nn.Module](
            norm=nn.BatchNorm2d(in_channels),
            relu=nn.ReLU(inplace=True),
            conv=nn.Conv2d(in_channels, in_channels // 2, 1, bias=False),
            pool=nn.AvgPool2d(2),
        )
    )


class DenseNet(nn.Module):
    """Dense blocks with transitions between them: (N, C, H, W) float -> (N, num_outputs).

    Args:
        depths: layers in each block; (6, 12, 24, 16) makes DenseNet121.
        in_channels: C.
        num_outputs: the width of the last layer.
        stem: "small" keeps the resolution before the first block; "imagenet" divides it by four.
    """

    def __init__(self, depths: Sequence[int], in_channels: int, num_outputs: int, stem: Stem) -> None:
        super().__init__()
        check_stem(stem)
        layers = OrderedDict[str, nn.Module](
            conv0=first_convolution(stem, in_channels, START),
            norm0=nn.BatchNorm2d(START),
            relu0=nn.ReLU(inplace=True),
        )
        if stem == "imagenet":
            layers["pool0"] = nn.MaxPool2d(3, stride=2, padding=1)
        channels = START
        for number, depth in enumerate(depths, start=1):
            layers[f"denseblock{number}"] = _dense_block(channels, depth)
            channels += depth * GROWTH
            if number < len(depths):
                layers[f"transition{number}"] = _transition(channels)
                channels //= 2
        layers[f"norm{len(depths) + 1}"] = nn.BatchNorm2d(channels)
        self.features = nn.Sequential(layers)
        self.classifier = nn.Linear(channels, num_outputs)
        self._initialise()
        nn.Module.register_load_state_dict_pre_hook(self, _accept_old_names)

    def _initialise(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight)
        nn.init.zeros_(self.classifier.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.features(x))  # (N, 1024, H/8, W/8) behind the small stem
        out: Tensor = self.classifier(x.mean(dim=(2, 3)))
        return out


def _accept_old_names(_module: nn.Module, state_dict: dict[str, Any], *_: Any) -> None:
    """Rename keys: torchvision's published DenseNet files say `norm.1.` where its code says `norm1.`."""
    for key in list(state_dict):
        state_dict[_OLD_NAME.sub(r"\1\2.", key)] = state_dict.pop(key)


def densenet121(in_channels: int = 3, num_outputs: int = 1000, stem: Stem = "imagenet") -> DenseNet:
    """Build DenseNet121; the defaults are torchvision's network, 7,978,856 parameters.

    Args:
        in_channels: channels of the images.
        num_outputs: scores per image.
        stem: the first layers: "imagenet" as torchvision has them, "small" for images of about 32 pixels.
    """
    return DenseNet(DEPTHS_121, in_channels, num_outputs, stem)
