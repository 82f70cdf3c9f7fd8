"""Wrapped models: DDP, FSDP2, torch.compile, hooks and autocast see the same steps."""

import re
import shutil

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import fcco
from fcco._support.sharded import whole

M, B1, B2, D = 6, 2, 4, 5


class Scores(fcco.Objective):
    def __init__(self, net):
        super().__init__(num_blocks=M, dim=1)
        self.net = net

    def inner(self, index, x):
        return self.net(x.flatten(0, 1)).view(*x.shape[:2]).mean(1, keepdim=True)

    def outer(self, index, u):
        return (1 + u.square()).sqrt().squeeze(1)


def everything():
    # inputs that differ: of equal ones BatchNorm would return rounding noise, made large
    yield torch.arange(M), torch.randn(M, 3, D, generator=torch.Generator().manual_seed(2))


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(D, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 1))


def run(model, name, **options):
    objective = Scores(model)
    rates = {"alpha": 0.3, "beta": 0.4} | ({"period": 3} if name.endswith("v3") else {})
    optimizer = torch.optim.Adam(objective.parameters(), lr=0.05)
    solver = fcco.Solver(objective, optimizer, fcco.METHODS[name](**rates), full_pass=everything, **options)
    generator = torch.Generator().manual_seed(1)
    for _ in range(6):
        index = torch.randperm(M, generator=generator)[:B1]
        solver.step(index, torch.randn(B1, B2, D, generator=generator))
    return [p.detach() for p in solver.parameters]


def close(one, other):
    for p, q in zip(one, other, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["sox", "msvr-v1", "msvr-v2", "msvr-v3"])
def test_a_model_under_ddp_takes_the_same_steps(name, tmp_path):
    plain = run(net(), name)
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        close(run(DistributedDataParallel(net()), name), plain)
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("name", ["sox", "msvr-v1", "msvr-v2", "msvr-v3"])
def test_a_model_under_fsdp_takes_the_same_steps(name, tmp_path):
    """One rank: nothing is spread, but the parameters are another kind of tensor; test_distributed.py has two."""
    plain = run(net(), name, radius=0.3)
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        found = run(fully_shard(net(), mesh=init_device_mesh("cpu", (1,))), name, radius=0.3)
        close([whole(p) for p in found], plain)
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("name", ["sox", "msvr-v2"])
def test_a_compiled_model_takes_the_same_steps(name):
    close(run(torch.compile(net(), backend="aot_eager"), name), run(net(), name))


@pytest.fixture(autouse=True)
def compiled_anew():
    """After some models of one class torch stops compiling them and runs them as they are: then nothing is tested."""
    torch.compiler.reset()


class Own(nn.Module):
    """A class of the user's: torch compiles its own containers in place without a word and without effect.

    No bias before the BatchNorm: its gradient is rounding noise, which Adam would blow up.
    """

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(D, 6, bias=False), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 1))

    def forward(self, x):
        return self.layers(x)


@pytest.mark.parametrize("name", ["sox", "msvr-v1", "msvr-v2"])
def test_a_model_compiled_in_place_takes_the_same_steps(name):
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)

    model = Own()
    model.compile(backend=backend)
    close(run(model, name), run(Own(), name))
    assert 1 <= len(graphs) <= 2  # with gradient and without: other weights do not compile anew


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="the default backend needs a C++ compiler")
@pytest.mark.filterwarnings("ignore:`torch.jit")
@pytest.mark.filterwarnings("ignore:Skipping serialization of")  # torch 2.6, of its own settings
@pytest.mark.parametrize("name", ["sox", "msvr-v1", "msvr-v2", "msvr-v3"])
def test_a_model_compiled_by_the_default_backend_takes_the_same_steps(name):
    close(run(torch.compile(Own()), name), run(Own(), name))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch looks at it itself
def test_a_compiled_model_has_jacobian_vector_products_or_is_refused():
    """torch 2.15 has forward mode through a compiled model, 2.13 has not: never other steps than the plain one's."""
    try:
        found = run(torch.compile(Own(), backend="aot_eager"), "msvr-v1-sp", radius=5.0)
    except ValueError as refused:
        assert re.search("neither forward mode nor double backward .*; use the two-point form", str(refused))  # noqa: PT017
    else:
        close(found, run(Own(), "msvr-v1-sp", radius=5.0))


def test_a_half_precision_inner_is_tracked_in_single():
    class Half(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net()

        def forward(self, x):
            with torch.autocast("cpu", torch.bfloat16):
                return self.net(x)

    objective = Scores(Half())
    optimizer = torch.optim.SGD(objective.parameters(), lr=0.05)
    solver = fcco.Solver(objective, optimizer, fcco.msvr_v2(alpha=0.3, beta=0.4))
    for _ in range(3):
        report = solver.step(torch.tensor([0, 3]), torch.randn(B1, B2, D))
    assert report.g.dtype == solver.u().dtype == torch.float32
    assert all(p.grad.dtype == torch.float32 for p in solver.parameters)
