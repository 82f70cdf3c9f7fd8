"""What is said where something of the user's is wrong: whose fault it is, and nothing else is blamed."""

import pytest
import torch

import fcco
from fcco._support.randomness import OtherDevice, Randomness
from fcco.solver._fingerprint import Fingerprint

pytestmark = pytest.mark.usefixtures("one_thread")


def solver_over(x, method=None, **options):
    y = (torch.arange(len(x)) % 5 == 0).long()
    objective = fcco.objectives.PartialAUC(torch.nn.Linear(3, 1), fcco.data.Points(x, y))
    optimizer = torch.optim.SGD(objective.parameters(), lr=0.1)
    return fcco.Solver(objective, optimizer, method or fcco.sox(), **options)


def test_nan_in_x_names_the_row_of_the_data():
    x = torch.randn(20, 3)
    x[7, 1] = torch.nan  # a negative, which every positive is compared with
    solver = solver_over(x)
    batch = next(iter(solver.loader(blocks=2, samples=16)))  # all negatives
    with pytest.raises(fcco.NonFiniteError, match=r"x is not finite in row 7 of the data$"):
        solver.step(batch)


def test_nan_in_x_names_the_row_in_a_full_pass_too():
    x = torch.randn(20, 3)
    x[7, 1] = torch.nan
    with pytest.raises(fcco.NonFiniteError, match=r"full_pass computed a g .* x is not finite in row 7 of the data$"):
        solver_over(x).diagnose()
    solver = solver_over(x, fcco.msvr_v3())
    with pytest.raises(fcco.NonFiniteError, match=r"full_pass computed .* x is not finite in row 7 of the data$"):
        solver.step(next(iter(solver.loader(blocks=2, samples=4))))


def test_nan_in_one_of_two_views_names_the_row():
    first = torch.randn(20, 3)
    second = first.clone()
    second[7, 1] = torch.nan
    data = fcco.data.Examples((first, second))
    objective = fcco.objectives.GlobalContrastive(torch.nn.Linear(3, 2), data)
    solver = fcco.Solver(objective, torch.optim.SGD(objective.parameters(), lr=0.1), fcco.sox())
    batch = next(iter(solver.loader(blocks=20, samples=20)))  # everybody
    with pytest.raises(fcco.NonFiniteError, match=r"x is not finite in row 7 of the data$"):
        solver.step(batch)


def test_nan_in_x_that_shows_in_the_gradient_names_the_row():
    x = torch.randn(20, 3)
    x[7, 1] = torch.nan
    objective = fcco.objectives.NCA(torch.nn.Linear(3, 2), fcco.data.Examples(x, torch.arange(20) % 2))
    solver = fcco.Solver(objective, torch.optim.SGD(objective.parameters(), lr=0.1), fcco.sox())
    batch = next(iter(solver.loader(blocks=20, samples=20)))
    with pytest.raises(fcco.NonFiniteError, match=r"x is not finite in row 7 of the data$"):
        solver.step(batch)


def test_an_error_of_inner_passes_through_with_a_note():
    w = torch.nn.Parameter(torch.ones(3))
    f = fcco.objective(lambda i, x: (x @ w).mean(1, keepdim=True), lambda i, u: u.sum(1), num_blocks=4, parameters=[w])
    solver = fcco.Solver(f, torch.optim.SGD([w], lr=0.1), fcco.sox())
    with pytest.raises(RuntimeError) as caught:
        solver.step([0, 1], torch.ones(2, 5, 2))
    assert "size mismatch" in str(caught.value)
    assert caught.value.__notes__ == ["fcco: raised by inner, called for 2 blocks with a tensor (2, 5, 2)"]


def test_an_error_of_outer_passes_through_with_a_note():
    w = torch.nn.Parameter(torch.ones(1))
    table = torch.ones(2)
    f = fcco.objective(lambda i: w.expand(len(i), 1), lambda i, u: u.sum(1) * table[i], num_blocks=4, parameters=[w])
    solver = fcco.Solver(f, torch.optim.SGD([w], lr=0.1), fcco.sox())
    with pytest.raises(IndexError) as caught:
        solver.step([0, 3])
    assert caught.value.__notes__ == ["fcco: raised by outer, called for 2 blocks with a tensor (2, 1)"]


def test_an_error_of_the_model_passes_through_with_a_note():
    solver = solver_over(torch.randn(20, 4))
    with pytest.raises(RuntimeError) as caught:
        solver.step(next(iter(solver.loader(blocks=2, samples=4))))
    assert caught.value.__notes__ == ["fcco: raised by the model, called for 2 blocks with a tensor (6, 4)"]


def test_parameters_without_values():
    model = torch.nn.Linear(2, 1, device="meta")
    f = fcco.objective(lambda i: i, lambda i, u: u, num_blocks=2, parameters=model)
    with pytest.raises(ValueError, match=r"parameters without values, on the device meta: .*weight"):
        fcco.Solver(f, torch.optim.SGD(f.parameters(), lr=0.1), fcco.sox())


def test_articles():
    with pytest.raises(TypeError, match=r"^objective must be an Objective, got int$"):
        fcco.Solver(3, None, fcco.sox())


class Elsewhere(torch.nn.Module):
    """A module that says it is on a device that this machine does not have."""

    def parameters(self, recurse=True):
        yield type("Parameter", (), {"device": torch.device("mps")})()


def test_random_numbers_of_other_devices_are_replayed(monkeypatch):
    state = [torch.tensor([1])]
    monkeypatch.setattr(torch.mps, "get_rng_state", lambda: state[0].clone())
    monkeypatch.setattr(torch.mps, "set_rng_state", lambda new: state.__setitem__(0, new))
    randomness = Randomness(Elsewhere())
    before = randomness.capture()
    state[0] = torch.tensor([2])
    randomness.restore(before)
    assert state[0].item() == 1


def test_devices_whose_random_state_cannot_be_set_are_refused():
    with pytest.raises(ValueError, match=r"got opencl$"):
        OtherDevice("opencl")


@pytest.mark.usefixtures("capturing")
def test_nonfinite_stays_what_it_was_where_steps_are_captured():
    solver = solver_over(torch.randn(20, 3), capture=True)
    solver.nonfinite = "raise"
    with pytest.raises(ValueError, match="nonfinite must stay 'raise' while steps are captured, got 'skip'"):
        solver.nonfinite = "skip"
    eager = solver_over(torch.randn(20, 3))
    eager.nonfinite = "skip"
    assert eager.nonfinite is fcco.NonFinite.SKIP


@pytest.mark.usefixtures("capturing")
def test_the_precision_of_convolutions_is_part_of_a_graph(monkeypatch):
    solver = solver_over(torch.randn(20, 3), capture=True)
    fingerprint = Fingerprint(solver._capture._works)
    before = fingerprint.take()
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", not torch.backends.cudnn.allow_tf32)
    assert fingerprint.take() != before


@pytest.mark.parametrize("nonfinite", ["raise", "skip"])
@pytest.mark.parametrize("method", [fcco.sox, fcco.msvr_v2, fcco.output_memory])
def test_weights_that_are_not_finite_are_named_and_no_block_is_blamed(method, nonfinite):
    """With nonfinite="skip" every further step was skipped without a word."""
    solver = solver_over(torch.randn(20, 3), method(), nonfinite=nonfinite)
    batches = list(solver.loader(blocks=2, samples=4, steps_per_epoch=3))
    solver.step(batches[0])
    with torch.no_grad():
        for parameter in solver.optimizer.param_groups[0]["params"]:
            parameter.fill_(torch.nan)
    with pytest.raises(fcco.NonFiniteError, match=r"^the weights are not finite: model\.weight, model\.bias; load"):
        solver.step(batches[1])
    assert solver.skipped == 0
