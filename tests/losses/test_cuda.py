"""On a GPU a loss gives the numbers of the CPU, wherever ids and labels are."""

import pytest
import torch

from fcco.memory._keeper import TableKeeper
from fcco.methods import OutputMemory
from tests.losses.cases import LOSSES, Loop, batches, inputs, labels
from tests.objectives.cases import LABEL, N

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def run(name, device, ids_on, **options):
    loop = Loop(name, **options)
    loop.model.to(device)
    loop.loss.to(device)
    for id in batches(6):
        x = inputs(name, id)
        if isinstance(x, tuple):
            given = tuple(loop.model(view.to(device)) for view in x)
        else:
            given = loop.model(x.to(device))
        y = labels(name, id)
        if y is not None:
            y = y.to(ids_on)
        loop.optimizer.zero_grad()
        loop.loss(given, y, id.to(ids_on)).backward()
        loop.optimizer.step()
    return [value.cpu() for value in loop.loss.state_dict().values()]


@pytest.mark.parametrize("ids_on", ["cpu", "cuda"])
@pytest.mark.parametrize("name", LOSSES)
def test_the_same_as_on_the_cpu(name, ids_on):
    for one, other in zip(run(name, "cuda", ids_on), run(name, "cpu", "cpu"), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("name", ["pAUC", "NDCG", "Cox"])
def test_the_memory_the_same_as_on_the_cpu(name, monkeypatch):
    # A step on the CPU may evaluate the whole table, not its draws alone: no matter of rounding.
    monkeypatch.setattr(TableKeeper, "_takes_whole", lambda self, t: False)
    settings = OutputMemory(refresh=2)
    for one, other in zip(
        run(name, "cuda", "cpu", memory=settings), run(name, "cpu", "cpu", memory=settings), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-9)


def test_labels_on_the_device_are_compared_in_the_first_call():
    loss = Loop("pAUC").loss.to("cuda")
    id = torch.arange(N)
    with pytest.raises(ValueError, match="for id 0, whose label is"):
        loss(torch.zeros(N, device="cuda").double(), (1 - LABEL).cuda(), id.cuda())
