"""A small imbalanced problem, and the plain loop that frameworks must equal."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import fcco

EPOCHS = 2


def data():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 4, generator=generator)
    return x, (x[:, 0] > 0.8).long()


def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def make_loss(y, memory=False):
    return fcco.losses.AveragePrecision(y, beta=0.5, memory=memory)


def make_loader(x, y, loss, num_workers=0):
    sampler = loss.sampler(blocks=4, samples=8, seed=2)
    return DataLoader(fcco.data.Indexed(TensorDataset(x, y)), batch_sampler=sampler, num_workers=num_workers)


def plain_run(memory):
    """The weights after the epochs, and the loss's state."""
    x, y = data()
    model = network()
    loss = make_loss(y, memory)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = make_loader(x, y, loss)
    for _ in range(EPOCHS):
        for x_batch, y_batch, id in loader:
            optimizer.zero_grad()
            loss(model(x_batch), y_batch, id).backward()
            optimizer.step()
    return [p.detach() for p in model.parameters()], loss
