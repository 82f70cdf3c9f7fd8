"""ResNet18, ResNet34, DenseNet121 with torchvision's parameter names; an MLP and a linear model."""

from .build import NAMES, build
from .densenet import DenseNet, densenet121
from .plain import MLP, Linear
from .resnet import ResNet, resnet18, resnet34

__all__ = ["MLP", "NAMES", "DenseNet", "Linear", "ResNet", "build", "densenet121", "resnet18", "resnet34"]
