"""ResNet18, ResNet34, DenseNet121 with torchvision's parameter names; an MLP and a linear model."""

from fcco._support.layout import channels_last, is_channels_last

from .build import NAMES, build
from .densenet import DenseNet, densenet121
from .plain import MLP, Linear
from .resnet import ResNet, resnet18, resnet34

__all__ = [
    "MLP",
    "NAMES",
    "DenseNet",
    "Linear",
    "ResNet",
    "build",
    "channels_last",
    "densenet121",
    "is_channels_last",
    "resnet18",
    "resnet34",
]
