"""The two autograd functions that stand for many small operations: values, gradients of both orders, forward mode."""

import pytest
import torch
from torch.autograd import forward_ad, gradcheck, gradgradcheck

from fcco.objectives._average_precision import LogHingeSums
from fcco.objectives._means import ZERO, LogSumExp, log_mean_exp_over


def generator():
    return torch.Generator().manual_seed(0)


def values():
    return torch.randn(3, 5, generator=generator(), dtype=torch.float64, requires_grad=True)


def log_weight():
    weight = torch.rand(3, 5, generator=generator(), dtype=torch.float64)
    weight[0, 2] = weight[1, :4] = 0.0
    return weight.log()


def sums(h):
    own = torch.tensor([0, 2, 3])
    over = torch.tensor([0.1, 0.0, 0.2, 0.3, 0.0, 0.0], dtype=torch.float64)
    rest = torch.tensor([0.0, 0.2, 0.0, 0.0, 0.1, 0.4], dtype=torch.float64)
    return LogHingeSums.apply(h, own, over, rest, 0.7, 0.3)


def scores():
    return torch.tensor([0.3, -0.2, 0.9, -1.1, 0.4, 0.15], dtype=torch.float64, requires_grad=True)


def plain_sums(h):
    x = (h - h[[0, 2, 3]].unsqueeze(1) + 0.7).clamp(min=0).square()
    over = torch.tensor([0.1, 0.0, 0.2, 0.3, 0.0, 0.0], dtype=torch.float64)
    rest = torch.tensor([0.0, 0.2, 0.0, 0.0, 0.1, 0.4], dtype=torch.float64)
    return torch.stack([(x * over).sum(1), (x * (over + rest)).sum(1)], 1).log() + 0.3


def test_log_sum_exp():
    x, weight = values(), log_weight()
    assert torch.allclose(LogSumExp.apply(x, weight), (x + weight).logsumexp(1), rtol=1e-14)
    assert gradcheck(lambda x: LogSumExp.apply(x, weight), x)
    assert gradgradcheck(lambda x: LogSumExp.apply(x, weight), x)


def test_log_hinge_sums():
    assert torch.allclose(sums(scores()), plain_sums(scores()), rtol=1e-13)
    assert gradcheck(sums, scores())
    assert gradgradcheck(sums, scores())


@pytest.mark.parametrize(("function", "x"), [(sums, scores()), (lambda x: LogSumExp.apply(x, log_weight()), values())])
def test_forward_mode_equals_backward(function, x):
    change = torch.randn(x.shape, generator=generator(), dtype=torch.float64)
    with forward_ad.dual_level():
        product = forward_ad.unpack_dual(function(forward_ad.make_dual(x.detach(), change))).tangent
    jacobian = torch.autograd.functional.jacobian(function, x.detach())
    wanted = (jacobian * change).flatten(jacobian.dim() - x.dim()).sum(-1)
    assert torch.allclose(product, wanted, rtol=1e-12)


def test_a_row_in_which_nothing_enters_is_log_zero_with_gradient_zero():
    x = values()
    weight = torch.zeros(3, 5, dtype=torch.float64).log()
    weight[1] = 0.0
    total = LogSumExp.apply(x, weight)
    assert total.tolist()[::2] == [-torch.inf, -torch.inf]
    total.sum().backward()
    assert (x.grad[::2] == 0).all()
    assert torch.allclose(x.grad[1], x.detach()[1].softmax(0))


def test_sums_of_zero():
    h = torch.tensor([1.0, 0.0, 2.0, 1.0, -1.0, 0.5], dtype=torch.float64, requires_grad=True)
    one = torch.zeros(6, dtype=torch.float64)
    g = LogHingeSums.apply(h, torch.tensor([2]), one.index_fill(0, torch.tensor([2]), 1.0), one + 1.0, 0.0, 0.0)
    assert g.tolist() == [[ZERO, ZERO]]
    g.sum().backward()
    assert (h.grad == 0).all()


def test_exponents_of_hundreds():
    x = torch.tensor([[400.0, -400.0], [-400.0, -400.0]], dtype=torch.float64, requires_grad=True)
    mask = torch.ones(2, 2, dtype=torch.bool)
    total = log_mean_exp_over(x, mask, None, torch.arange(2), "examples")
    assert torch.allclose(total, torch.tensor([400.0 - torch.log(torch.tensor(2.0)), -400.0], dtype=torch.float64))
    total.sum().backward()
    assert torch.allclose(x.grad, torch.tensor([[1.0, 0.0], [0.5, 0.5]], dtype=torch.float64))
