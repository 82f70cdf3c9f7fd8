"""The ready-made objectives as plain losses, for your own loop, network and optimizer.

It takes three lines: a loss made with the training labels, a DataLoader that yields the positions of its examples, and
the call.

>>> import torch
>>> from torch.utils.data import DataLoader, TensorDataset
>>> import fcco
>>> x, y = torch.randn(64, 8), torch.arange(64) % 4 == 0
>>> model = torch.nn.Linear(8, 1)
>>> loss = fcco.losses.PartialAUC(y, temperature=0.1)
>>> for x_batch, y_batch, id in DataLoader(fcco.data.Indexed(TensorDataset(x, y)), batch_size=16, shuffle=True):
...     loss(model(x_batch), y_batch, id).backward()
"""

from fcco.losses._base import Loss
from fcco.losses._examples import NCA, GlobalContrastive
from fcco.losses._groups import GroupDRO, MultiInstance
from fcco.losses._lists import NDCG, Cox, ListNet
from fcco.losses._points import AveragePrecision, MultiTaskAUC, PartialAUC, PNormPush

__all__ = [
    "NCA",
    "NDCG",
    "AveragePrecision",
    "Cox",
    "GlobalContrastive",
    "GroupDRO",
    "ListNet",
    "Loss",
    "MultiInstance",
    "MultiTaskAUC",
    "PNormPush",
    "PartialAUC",
]
