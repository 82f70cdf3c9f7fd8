"""MSVR-SP: Jacobian-vector products by forward mode, by double backward, or an error that names the layer."""

import warnings

import pytest
import torch
from torch import nn

import fcco

M, B1, B2, D = 5, 2, 3, 4


class Scores(fcco.Objective):
    def __init__(self, net):
        super().__init__(num_blocks=M, dim=1)
        self.net = net

    def inner(self, index, x):
        return self.net(x).mean(1)

    def outer(self, index, u):
        return (1 + u.square()).sqrt().squeeze(1)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix, self.head = nn.Linear(D, 8), nn.Linear(8, 1)

    def forward(self, x):
        q = self.mix(x).unsqueeze(1)
        return self.head(nn.functional.scaled_dot_product_attention(q, q, q).squeeze(1))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.LSTM(D, 6, batch_first=True), nn.Linear(6, 1)

    def forward(self, x):
        return self.head(self.cell(x)[0])


class Once(torch.autograd.Function):
    """A kernel that can be differentiated once, and not in forward mode."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.tanh()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * (1 - x.tanh().square())


class WaveFunction(torch.autograd.Function):
    """A kernel that can be differentiated twice, but not in forward mode."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0].cos()


class Wave(nn.Module):
    def forward(self, x):
        return WaveFunction.apply(x)


class Sine(nn.Module):
    def forward(self, x):
        return x.sin()


class Kernel(nn.Module):
    def forward(self, x):
        return Once.apply(x)


def run(net, method, steps=6, functional=False, dtype=torch.float64):
    torch.manual_seed(0)
    objective = Scores(net().to(dtype))
    if functional:
        model = objective.net
        objective = fcco.objective(lambda i, x: model(x).mean(1), objective.outer, num_blocks=M, parameters=model)
    solver = fcco.Solver(objective, torch.optim.SGD(objective.parameters(), lr=0.3), method, radius=100.0)
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        index = torch.randperm(M, generator=generator)[:B1]
        solver.step(index, torch.randn(B1, B2, D, generator=generator, dtype=torch.float64).to(dtype))
    return solver


def mlp():
    return nn.Sequential(nn.Linear(D, 6), nn.Tanh(), nn.Linear(6, 1))


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("name", ["msvr-v1-sp", "msvr-v2-sp"])
def test_forward_mode_equals_double_backward(name, lag):
    method = fcco.METHODS[name](alpha=0.3, beta=0.4, lag=lag)
    by_forward, by_backward = run(mlp, method), run(mlp, method, functional=True)
    for p, q in zip(by_forward.parameters, by_backward.parameters, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(by_forward.u(), by_backward.u(), rtol=1e-12, atol=1e-12)


def test_the_correction_is_the_jacobian_vector_product():
    """Against finite differences of g along w_t - w_{t-1}."""
    solver = run(mlp, fcco.msvr_v1_sp(alpha=0.3, beta=0.4), steps=4)
    index, x = torch.tensor([0, 3]), torch.randn(B1, B2, D, dtype=torch.float64)
    moved = [p.detach() - w for p, w in zip(solver.parameters, solver.state.engine.previous, strict=True)]
    _, product = solver._evaluator.inner_and_jvp(index, (x,), moved)
    step = 1e-6
    values = []
    for sign in (1, -1):
        with torch.no_grad():
            for p, v in zip(solver.parameters, moved, strict=True):
                p += sign * step * v
            values.append(solver.objective(index, x))
            for p, v in zip(solver.parameters, moved, strict=True):
                p -= sign * step * v
    assert max(float(v.norm()) for v in moved) > 1e-3
    torch.testing.assert_close(product, (values[0] - values[1]) / (2 * step), rtol=1e-6, atol=1e-9)


def test_a_layer_without_forward_mode_falls_back_to_double_backward():
    def net():
        return nn.Sequential(nn.Linear(D, 6), Wave(), nn.Linear(6, 1))

    def plain():
        return nn.Sequential(nn.Linear(D, 6), Sine(), nn.Linear(6, 1))

    with pytest.warns(UserWarning, match="double backward"):
        solver = run(net, fcco.msvr_v1_sp(alpha=0.3, beta=0.4))
    twin = run(plain, fcco.msvr_v1_sp(alpha=0.3, beta=0.4))
    for p, q in zip(solver.parameters, twin.parameters, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-12, atol=1e-12)


def test_attention_works_although_its_fused_kernels_have_no_forward_mode():
    single = run(Attention, fcco.msvr_v1_sp(alpha=0.3, beta=0.4), dtype=torch.float32)
    exact = run(Attention, fcco.msvr_v1_sp(alpha=0.3, beta=0.4), functional=True)
    for p, q in zip(single.parameters, exact.parameters, strict=True):
        torch.testing.assert_close(p.double(), q, rtol=1e-3, atol=1e-5)


def test_a_recurrent_kernel_either_works_or_is_named():
    """LSTM's fused CPU kernel has no forward mode in float32 and may have no double backward: never a wrong number."""
    exact = run(Recurrent, fcco.msvr_v1_sp(alpha=0.3, beta=0.4))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            solver = run(Recurrent, fcco.msvr_v1_sp(alpha=0.3, beta=0.4), dtype=torch.float32)
        except ValueError as error:
            assert "layer 'net.cell' (LSTM)" in str(error)  # noqa: PT017
            return
    for p, q in zip(solver.parameters, exact.parameters, strict=True):
        torch.testing.assert_close(p.double(), q, rtol=1e-3, atol=1e-5)


def test_a_layer_without_either_is_named():
    def net():
        return nn.Sequential(nn.Linear(D, 6), Kernel(), nn.Linear(6, 1))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(ValueError, match=r"layer 'net\.1' \(Kernel\) supports neither forward mode nor double"):
            run(net, fcco.msvr_v1_sp(alpha=0.3, beta=0.4))


def test_the_theory_wants_a_radius():
    objective = Scores(mlp())
    with pytest.warns(UserWarning, match="radius"):
        fcco.Solver(objective, torch.optim.SGD(objective.parameters(), lr=0.1), fcco.msvr_v1_sp(alpha=0.3, beta=0.4))


def test_batch_norm_and_dropout_under_forward_mode():
    def net():
        return nn.Sequential(
            nn.Flatten(0, 1),
            nn.Linear(D, 6),
            nn.BatchNorm1d(6),
            nn.Dropout(0.3),
            nn.Linear(6, 1),
            nn.Unflatten(0, (B1, B2)),
        )

    method = fcco.msvr_v2_sp(alpha=0.3, beta=0.4)
    by_forward, by_backward = run(net, method), run(net, method, functional=True)
    for p, q in zip(by_forward.parameters, by_backward.parameters, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-10, atol=1e-10)
    states = by_forward.objective.net.state_dict(), by_backward.objective.model.state_dict()
    for key in states[0]:
        torch.testing.assert_close(states[0][key], states[1][key])
