"""A node's derivative taken beside the graph is that of the graph, and nobody is left out who waits for a gradient."""

import pytest
import torch
from torch import nn

from fcco._support.fused import fused, recorded


class Times(torch.autograd.Function):
    """x y."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx, slope):
        x, y = ctx.saved_tensors
        return slope * y, slope * x


X = torch.tensor([1.0, 2.0])
SLOPE = torch.tensor([1.0, 10.0])


def leaves():
    return nn.Parameter(X.clone()), nn.Parameter(torch.tensor([3.0, 4.0]))


@pytest.mark.parametrize("directly", [True, False])
@pytest.mark.parametrize("passes", [1, 2])
def test_gradients_are_those_of_the_graph(directly, passes):
    x, y = leaves()
    wanted_x, wanted_y = leaves()
    for _ in range(passes):
        result, node = recorded(lambda: fused(Times, x.exp(), y))
        assert node is not None
        assert not result.requires_grad
        node.backward(SLOPE, directly=directly)
        fused(Times, wanted_x.exp(), wanted_y).backward(SLOPE)
    assert torch.equal(x.grad, wanted_x.grad)
    assert torch.equal(y.grad, wanted_y.grad)


@pytest.mark.parametrize("register", ["register_hook", "register_post_accumulate_grad_hook"])
def test_who_waits_for_a_gradient_is_told(register):
    x, y = leaves()
    told = []
    getattr(y, register)(lambda found: told.append(found is not None) and None)
    _, node = recorded(lambda: fused(Times, x, y))
    node.backward(SLOPE, directly=True)
    assert told == [True]


def test_a_gradient_takes_the_precision_and_layout_of_its_leaf():
    class Turned(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.double().t().contiguous()

        @staticmethod
        def backward(ctx, slope):
            return slope.t()

    x = nn.Parameter(torch.ones(2, 3))
    _, node = recorded(lambda: fused(Turned, x))
    node.backward(torch.ones(3, 2, dtype=torch.float64), directly=True)
    assert x.grad.dtype == torch.float32
    assert x.grad.is_contiguous()


@pytest.mark.parametrize(
    "work",
    [
        lambda x, y: 2 * fused(Times, x, y),  # something after the node
        lambda x, y: fused(Times, x, y).mul_(2),  # the same, in place
        lambda x, y: fused(Times, fused(Times, x, y), 2 * torch.ones(2)),  # a node after the node
        lambda x, y: 2 * x * y,  # none at all
    ],
)
def test_what_does_not_end_in_a_node_has_its_graph(work):
    x, y = leaves()
    result, node = recorded(lambda: work(x, y))
    assert node is None
    result.backward(SLOPE)
    assert torch.equal(x.grad, 2 * SLOPE * y.detach())


def test_without_parameters_there_is_no_node():
    result, node = recorded(lambda: fused(Times, X, X))
    assert node is None
    assert torch.equal(result, X * X)


def test_an_error_ends_the_recording():
    def fails():
        fused(Times, *leaves())
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        recorded(fails)
    assert fused(Times, *leaves()).requires_grad
