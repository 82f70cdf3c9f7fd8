"""A step of the memory can be captured: fixed shapes, no wait for a device, no branch on data; seen on the CPU."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import fcco
from fcco.memory import MemoryState, OutputTable
from fcco.memory._table import last_draws
from fcco.memory.forms import PairwiseForm
from fcco.solver._engine import Probed
from tests.memory.cases import CASES, TASKS, N, engine_of, solver_for, state_of

NEVER = 10**6  # no evaluation of the whole table
#: those whose steps have shapes that depend on data, and say so
SHAPED_BY_DATA = {"ndcg", "ap-logistic", "push-logistic", "nca"}
#: those that can be captured once all examples were seen
WHEN_COMPLETE = {"contrastive", "contrastive-modal", "contrastive-learned", "contrastive-each"}
CAPTURED = [name for name in CASES if name not in SHAPED_BY_DATA]

FORBIDDEN = {
    "_local_scalar_dense": "the host reads a number",
    "nonzero": "a shape depends on data",
    "masked_select": "a shape depends on data",
    "unique_dim": "a shape depends on data",
    "_unique": "a shape depends on data",
    "_unique2": "a shape depends on data",
    "unique_consecutive": "a shape depends on data",
    "lift_fresh": "a tensor is made from a number of the host",
    "equal": "the host reads a number",
    "is_nonzero": "the host reads a number",
    "repeat_interleave": "a shape depends on data",
}


class NoWaits(TorchDispatchMode):
    """Fails at what a CUDA graph cannot hold."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.removeprefix("aten::")
        if name in FORBIDDEN:
            raise AssertionError(f"{name}: {FORBIDDEN[name]}")
        if name in ("index", "index_put", "index_put_", "_index_put_impl_"):
            for index in args[1]:
                if index is not None and index.dtype in (torch.bool, torch.uint8):
                    raise AssertionError(f"{name} by a mask: a shape depends on data")
        if name == "_to_copy" and (kwargs or {}).get("device") is not None:
            raise AssertionError("a copy between devices")
        return func(*args, **(kwargs or {}))


class NoReads(TorchFunctionMode):
    """Fails at what the dispatcher does not see on the CPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in ("tolist", "numpy", "cpu", "item", "__bool__", "__int__", "__float__", "__index__"):
            raise AssertionError(f"{name}: the host reads a number")
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def no_waits() -> Iterator[None]:
    with NoReads(), NoWaits():
        yield


def watched(solver: fcco.Solver, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """From now on the engine's part of every step is watched; how many were, in a list."""
    engine = engine_of(solver)
    probe = engine.probe
    steps: list[int] = []

    def watch(*arguments: Any) -> Probed:
        with no_waits():
            probed = probe(*arguments)
        steps.append(1)
        return probed

    monkeypatch.setattr(engine, "probe", watch)
    as_on_accelerators(solver)
    return steps


def as_on_accelerators(solver: fcco.Solver) -> None:
    """Pairs are not left out by their scores, as they are on the CPU."""
    form = state_of(solver).form
    if isinstance(form, PairwiseForm):
        assert form.selects
        form.selects = False


@pytest.mark.parametrize(
    "wrong",
    [
        lambda x: x.sum().item(),
        lambda x: bool(x[0] > 0),
        lambda x: x[x > 0],
        lambda x: (x > 0).nonzero(),
        lambda x: x.unique(),
        lambda x: x.masked_select(x > 0),
        lambda x: x.to("meta"),
        lambda x: torch.tensor(3.0),
        lambda x: x.tolist(),
        lambda x: x.repeat_interleave(torch.arange(4)),
    ],
)
def test_the_watch_sees_what_it_should(wrong: Callable[[Tensor], Any]) -> None:
    x = torch.tensor([1.0, -1.0, 2.0, 2.0])
    with pytest.raises(AssertionError), no_waits():
        wrong(x)


@pytest.mark.parametrize("scored", [False, True])
@pytest.mark.parametrize("name", CAPTURED)
def test_a_step_waits_for_nobody(name: str, scored: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a table that fills up, and with a full one."""
    if name in WHEN_COMPLETE and not scored:
        pytest.skip("said by the form, below")
    solver, loader = solver_for(CASES[name](), fcco.output_memory(refresh=NEVER), lr=0.01, steps_per_epoch=6)
    if scored:
        loader.score()
    batches = iter(loader)
    solver.step(next(batches))  # the warm-up
    table = state_of(solver).table
    assert table is not None
    assert table.complete == scored
    steps = watched(solver, monkeypatch)
    for batch in batches:
        solver.step(batch)
    assert len(steps) == 5


@pytest.mark.parametrize("name", CASES)
def test_forms_say_whether_they_can_be_captured(name: str) -> None:
    solver, loader = solver_for(CASES[name](), fcco.output_memory(refresh=NEVER))
    solver.step(next(iter(loader)))
    form = state_of(solver).form
    assert form is not None
    assert form.capturable == (name not in SHAPED_BY_DATA | WHEN_COMPLETE)
    assert form.capturable or form.why_not.count(" ") > 5
    loader.score()
    form = state_of(solver).form
    assert form is not None
    assert form.capturable == (name not in SHAPED_BY_DATA)


@pytest.mark.parametrize("name", CAPTURED)
def test_what_a_step_replaces_keeps_its_shape(name: str) -> None:
    """So that a captured step can write the new into the old."""
    solver, loader = solver_for(CASES[name](), fcco.output_memory(refresh=NEVER), steps_per_epoch=4)
    loader.score()
    found = []
    for batch in loader:
        report = solver.step(batch)
        assert report.f is not None
        found.append([(tuple(t.shape), t.dtype) for t in (*replaced(state_of(solver)), report.f)])
    assert found[1] == found[2] == found[3]


def replaced(state: MemoryState) -> list[Tensor]:
    """What every step replaces."""
    assert state.clock is not None
    assert state.figures is not None
    return [*state.rows, state.staleness, state.clock, *state.figures]


@pytest.mark.parametrize("name", ["pauc", "two-way", "ap", "pauc-tasks", "ap-tasks", "listnet", "cox", "tasks"])
def test_masks_give_what_the_full_table_gives(name: str) -> None:
    """The host need not know that all were seen."""
    found = []
    for known in (True, False):
        solver, loader = solver_for(CASES[name](), fcco.output_memory(refresh=NEVER), steps_per_epoch=6)
        loader.score()
        table = state_of(solver).table
        assert table is not None
        table.complete = known
        values = [solver.step(batch).value for batch in loader]
        found.append([*(p.detach().clone() for p in solver.parameters), *state_of(solver).rows, torch.tensor(values)])
    for mine, wanted in zip(*found, strict=True):
        torch.testing.assert_close(mine, wanted, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("scored", [False, True])
@pytest.mark.parametrize("name", ["pauc", "two-way", "pauc-square", "ap", "auc"])
def test_pairs_left_out_change_nothing(name: str, scored: bool) -> None:
    """Steps as on the CPU against steps as on accelerators, where many pairs are outside of the hinge."""
    found = []
    for selects in (True, False):
        case = CASES[name]()
        last = list(case.model.children())[-1]
        with torch.no_grad():
            for p in last.parameters():
                p *= 8.0
        solver, loader = solver_for(case, fcco.output_memory(refresh=NEVER), lr=0.001, steps_per_epoch=12)
        if scored:
            loader.score()
        for batch in loader:
            solver.step(batch)
            if not selects and solver.t == 1:
                as_on_accelerators(solver)
        found.append([*(p.detach().clone() for p in solver.parameters), *state_of(solver).rows])
    for mine, wanted in zip(*found, strict=True):
        torch.testing.assert_close(mine, wanted, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["pauc", "ap", "push", "two-way"])
def test_sizes_that_are_not_known_change_nothing(name: str) -> None:
    """A step by hand over the loader's draws, which does not say how many are of which class."""
    found = []
    for known in (True, False):
        solver, loader = solver_for(CASES[name](), fcco.output_memory(refresh=NEVER), steps_per_epoch=6)
        loader.score()
        state = state_of(solver)
        assert state.form is not None
        evaluate = state.form.evaluate

        def without(ids: Tensor, rows: Any, old: Any, evaluate: Any = evaluate, known: bool = known) -> Any:
            if known:
                assert old.sizes is not None
                return evaluate(ids, rows, old)
            return evaluate(ids, rows, old._replace(sizes=None))

        state.form.evaluate = without  # type: ignore[method-assign]
        for batch in loader:
            solver.step(batch)
        found.append([p.detach().clone() for p in solver.parameters])
    for mine, wanted in zip(*found, strict=True):
        torch.testing.assert_close(mine, wanted, rtol=1e-10, atol=1e-12)


def test_anchors_of_many_tasks_seen_before_anyone_to_compare_them_with() -> None:
    """First the positives of a task, then its negatives: their rows are then those of everything anew."""
    case = CASES["pauc-tasks"]()
    solver, _ = solver_for(case, fcco.output_memory(refresh=NEVER), lr=0.0)
    y = case.data.y
    alone = ((y == 1).any(1) & ~(y == 0).any(1)).nonzero()[:, 0]
    positive = (y[:, 0] == 1).nonzero()[:, 0]
    negative = (y[:, 0] == 0).nonzero()[:, 0]
    for id in (alone, positive, negative[:7]):
        if id.numel():
            share = torch.full((len(id),), 1 / len(id), dtype=torch.float64)
            solver.step(fcco.data.Batch(case.data.source.take(id), id, weight=share, probability=share))
    state = state_of(solver)
    assert state.form is not None
    wanted = state.form.evaluate_all(state.rows).rows[0]
    first_task = slice(0, int((y[:, 0] == 1).sum()))
    assert bool(state.rows[0][first_task].isfinite().all())
    torch.testing.assert_close(state.rows[0][first_task], wanted[first_task], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["pauc", "ap-tasks", "tasks"])
@pytest.mark.parametrize("ok", [False, True])
def test_a_commit_is_masked_on_the_device(name: str, ok: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the probe wrote is put back where the step is not to be taken."""
    case = CASES[name]()
    solver, loader = solver_for(case, fcco.output_memory(refresh=NEVER), steps_per_epoch=4)
    batches = iter(loader)
    solver.step(next(batches))
    table = state_of(solver).table
    assert table is not None
    before = [table.values.clone(), table.written.clone()]
    engine = engine_of(solver)
    probe = engine.probe

    def masked(*arguments: Any) -> Probed:
        probed = probe(*arguments)
        commit = functools.partial(probed.commit, torch.tensor(ok))

        def watched_commit(_: Tensor | None) -> None:
            with no_waits():
                commit()

        return _with_commit(probed, watched_commit)

    monkeypatch.setattr(engine, "probe", masked)
    solver.step(next(batches))
    same = [torch.equal(mine, old) for mine, old in zip((table.values, table.written), before, strict=True)]
    assert same == [not ok] * 2


def _with_commit(probed: Probed, commit: Callable[[Tensor | None], None]) -> Probed:
    return probed._replace(commit=commit)


def test_the_last_draw_of_each_example() -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        id = torch.randint(12, (30,), generator=generator)
        last = last_draws(id)
        wanted = [max(place for place in range(30) if id[place] == example) for example in id.tolist()]
        assert last.tolist() == wanted


def test_duplicates_are_counted_once_in_the_moments() -> None:
    """An example that a batch has twice is written once."""
    case = CASES["tasks"]()
    solver, _ = solver_for(case, fcco.output_memory(refresh=NEVER), lr=0.0)
    ids = torch.tensor([3, 7, 3, 3, 9])
    share = torch.full((5,), 0.2, dtype=torch.float64)
    for _ in range(2):
        solver.step(fcco.data.Batch(case.data.source.take(ids), ids, weight=share, probability=share))
    state = state_of(solver)
    assert state.form is not None
    # The centres differ, and with them the sums about them; the weights of those seen do not.
    wanted = state.form.evaluate_all(state.rows).rows[0]
    torch.testing.assert_close(state.rows[0][1], wanted[1], rtol=1e-12, atol=1e-12)
    assert float(state.rows[0][1].sum()) <= 3 * TASKS
    assert state.figures is not None
    assert int(state.figures.known) == 3


def test_the_number_of_a_step_is_counted_on_the_device() -> None:
    solver, loader = solver_for(CASES["pauc"](), fcco.output_memory(refresh=2), steps_per_epoch=5)
    for batch in loader:
        solver.step(batch)
        state = state_of(solver)
        assert state.clock is not None
        assert state.written is not None
        assert int(state.clock) == solver.t == int(state.written[batch.id].min())
    again, other = solver_for(CASES["pauc"](), fcco.output_memory(refresh=2))
    again.load_state_dict(solver.state_dict())
    batch = next(iter(other))
    again.step(batch)
    written = state_of(again).written
    assert written is not None
    assert int(written[batch.id].min()) == 6


def test_a_table_knows_that_it_is_full_where_the_host_looks() -> None:
    table = OutputTable.empty(N, (), like=torch.zeros(0))
    table.write(torch.arange(N), torch.zeros(N), 1)
    assert not table.complete
    table.recount()
    assert table.complete


def test_outputs_that_are_not_finite_are_named_at_the_end_of_the_step() -> None:
    solver, loader = solver_for(CASES["ap-tasks"](), fcco.output_memory(refresh=NEVER), steps_per_epoch=4)
    batches = iter(loader)
    solver.step(next(batches))
    batch = next(batches)
    batch.x[2] = torch.nan
    with pytest.raises(fcco.NonFiniteError, match=f"the output is not finite for example {int(batch.id[2])}"):
        solver.step(batch)
