"""fcco bench: the literal steps are the methods, the parts run, and the figures are written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import fcco
from fcco.lab.bench import BenchCommand, settings, verdicts
from fcco.lab.bench.command import budgets, chosen
from fcco.lab.bench.libauc import there_is_libauc
from fcco.lab.bench.literal import Literal, LiteralSOX, LiteralV1, LiteralV2, Rates, TaskDraw
from fcco.lab.bench.operations import OUTSIDE, operations, operations_by_caller
from fcco.lab.bench.parts import all_parts
from fcco.lab.bench.problems import CLASSES, QUICK, Layout, Network, Precision, images, solver_of, tasks
from fcco.lab.bench.rows import Name, Results, Row, Step, Way
from fcco.lab.bench.timing import Budget, interleaved
from fcco.lab.cli import main
from fcco.lab.models import is_channels_last
from fcco.objectives import MultiTaskAUC

CPU = torch.device("cpu")
ONCE = Budget(0.0, rounds=1, warm=1)
RATES = Rates(lr=0.05, alpha=0.3, beta=0.4)


# ---------------------------------------------------------------------- the floors are the methods


def normalised_network() -> nn.Sequential:
    """With BatchNorm, whose statistics only the pass at w_t may move."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, CLASSES)).double()


@pytest.mark.parametrize(
    ("kind", "method"),
    [
        (LiteralSOX, fcco.sox(alpha=RATES.alpha, beta=RATES.beta)),
        (LiteralV1, fcco.msvr_v1(alpha=RATES.alpha, beta=RATES.beta)),
        (LiteralV2, fcco.msvr_v2(alpha=RATES.alpha, beta=RATES.beta)),
    ],
    ids=["sox", "v1", "v2"],
)
def test_the_literal_step_is_the_solvers(kind: type[Literal], method: fcco.Method) -> None:
    x = torch.randn(60, 5, generator=torch.Generator().manual_seed(1)).double()
    objective = MultiTaskAUC(normalised_network(), tasks(x))
    optimizer = torch.optim.SGD(objective.parameters(), lr=RATES.lr)
    solver = fcco.Solver(objective, optimizer, method, u0=0.0, z0=0.0)
    literal = kind(normalised_network(), x, CLASSES, positives=3, rates=RATES)
    for batch in solver.loader(blocks=4, samples=6, steps_per_epoch=12):
        solver.step(batch)
        assert batch.index is not None
        literal.step(batch.index, batch.id)
    assert solver.z is not None
    close(solver.u(), literal.u)
    for name, value in objective.model.state_dict().items():
        close(value, literal.model.state_dict()[name])
    close(objective.a, literal.a)
    close(objective.b, literal.b)
    # The objective lists its own parameters before those of its model.
    for parameter, z in zip(solver.parameters, solver.z, strict=True):
        place = next(i for i, w in enumerate(literal.w) if same(w, parameter))
        close(z, literal.z[place])


def same(first: Tensor, second: Tensor) -> bool:
    return first.shape == second.shape and bool((first - second).abs().max() < 1e-9)


def close(first: Tensor | None, second: Tensor) -> None:
    assert first is not None
    torch.testing.assert_close(first.detach(), second.detach(), rtol=1e-10, atol=1e-10)


def test_the_literal_draw_has_distinct_blocks_and_the_right_classes() -> None:
    y = torch.arange(60) % CLASSES
    members = y.argsort(stable=True).view(CLASSES, -1)
    draw = TaskDraw(members, blocks=4, positives=16, generator=torch.Generator().manual_seed(0))
    seen = set()
    for _ in range(20):
        index, id = draw()
        assert len(index.unique()) == 4
        classes = y[id].view(4, 32)
        assert bool((classes[:, :16] == index.unsqueeze(1)).all())
        assert bool((classes[:, 16:] != index.unsqueeze(1)).all())
        seen.update(id.tolist())
    assert seen == set(range(60))


# ---------------------------------------------------------------------- timing and figures


def test_contenders_take_turns() -> None:
    calls: list[str] = []

    def contender(name: str) -> object:
        return lambda number: calls.append(name * number)

    times = interleaved([contender("a"), contender("b")], CPU, Budget(0.0, rounds=3))  # type: ignore[list-item]
    assert calls == ["aa", "bb", "a", "b", "b", "a", "a", "b"]  # the first two say how long a visit is
    assert [len(each) for each in times] == [3, 3]


def test_verdicts_follow_from_the_rows() -> None:
    setting = settings.auc_setting(Network.SMALL_STEM, Precision.BF16)
    rows = [
        Row(Name(setting, Step.PLAIN), [26.0, 26.0]),
        Row(Name(setting, Step.PLAIN_CONTIGUOUS), [46.0, 46.0]),
        Row(Name(setting, Step.V2, Way.CAPTURED), [22.0, 44.0]),
        Row(Name(setting, Step.V2, Way.FLOOR), [20.0, 40.0]),
        Row(Name(setting, Step.SOX, Way.CAPTURED), [12.0, 24.0]),
        Row(Name(setting, Step.SOX, Way.FLOOR), [10.0, 20.0]),
    ]
    found = {verdict.line: verdict for verdict in verdicts.verdicts(Results(rows))}
    start = "ResNet18, small-image stem, bf16: captured "
    assert found[start + "MSVR-v2 / floor"].figure == pytest.approx(1.1)
    assert found[start + "MSVR-v2 / floor"].verdict == "holds"
    assert found[start + "SOX / floor"].verdict == "MISSED"
    assert found[start + "MSVR-v1 / floor"].verdict == "not measured"
    assert found[start + "v2 / eager plain SGD"].verdict == "MISSED"
    assert found[start + "v2 / eager plain SGD, contiguous weights"].verdict == "holds"
    assert len(found) == len(verdicts.verdicts(Results()))  # every line has a name of its own


@pytest.mark.parametrize(("figure", "expected"), [(2.9, "MISSED"), (3.0, "holds"), (None, "not measured")])
def test_a_bound_from_below(figure: float | None, expected: str) -> None:
    verdict = verdicts.Verdict("ap-resnet", "LibAUC / SOX", 3.0, figure, at_least=True)
    assert (verdict.verdict, verdict.bound_text) == (expected, ">= 3 x")


def test_every_verdict_belongs_to_a_part() -> None:
    names = {part.name for part in all_parts(quick=True)}
    assert {verdict.part for verdict in verdicts.verdicts(Results())} == names


# ---------------------------------------------------------------------- the parts


@pytest.mark.parametrize("precision", list(Precision), ids=lambda precision: precision.value)
def test_the_contenders_of_the_device_step_on_the_cpu_too(precision: Precision) -> None:
    problem = settings.AUC.over(images(QUICK.images, CPU), Network.MLP, precision, QUICK)
    rows = settings.timed(problem.makers(), CPU, ONCE)
    assert [row.failed for row in rows] == [None] * 8
    ways = {(row.name.step, row.name.way) for row in rows}
    assert {(step, Way.FLOOR) for step in (Step.SOX, Step.V1, Step.V2)} < ways
    assert all(row.ms is not None and row.ms > 0.0 for row in rows)


def test_average_precision_and_a_full_table() -> None:
    problem = settings.AP.over(images(QUICK.images, CPU), Network.MLP, QUICK)
    rows = settings.timed(problem.makers(), CPU, ONCE)
    steps = [Step.PLAIN, Step.SOX, Step.MEMORY_AP, Step.MEMORY_PAUC, Step.LIBAUC]
    assert [row.name.step for row in rows] == steps
    *ours, theirs = rows
    assert [row.failed for row in ours] == [None] * 4
    assert (theirs.failed is None) == there_is_libauc()


def test_the_tables_filling_needs_no_network() -> None:
    problem = settings.AP.over(images(QUICK.images, CPU), Network.MLP, QUICK)
    model = problem._model()
    id = torch.tensor([3, 3 + QUICK.images, 5])
    scores = model(id)
    assert bool(scores[0] == scores[1])  # two examples, one image
    assert bool(scores[0] != scores[2])
    with model.instead(torch.arange(600.0)):
        assert model(id).tolist() == id.tolist()
    assert torch.equal(model(id), scores)


def test_on_a_cuda_device_every_method_is_captured_too(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, object]] = []
    x = images(QUICK.images, CPU)
    problem = settings.AUC(Network.MLP, Precision.BF16, QUICK, torch.device("cuda"), tasks(x), x)
    found = [name for name in problem.makers() if name.way is Way.CAPTURED]
    assert [name.step for name in found] == [Step.SOX, Step.V1, Step.V2, Step.V3]
    monkeypatch.setattr(fcco, "Solver", lambda *parts, **options: asked.append(options))
    objective = MultiTaskAUC(normalised_network(), tasks(torch.randn(60, 5)))
    for capture in (False, True):
        solver_of(objective, Step.SOX, capture=capture)
    assert asked == [{}, {"capture": True}]


def test_convolutions_lie_channels_last_beside_the_usual_layout() -> None:
    problem = settings.AUC.over(images(QUICK.images, CPU), Network.OWN_STEM, Precision.TF32, QUICK)
    plain = [name.step for name in problem.makers() if name.step in (Step.PLAIN, Step.PLAIN_CONTIGUOUS)]
    assert plain == [Step.PLAIN, Step.PLAIN_CONTIGUOUS]
    assert is_channels_last(problem._network())
    usual = problem._network(Layout.CONTIGUOUS)
    assert not is_channels_last(usual)
    for one, other in zip(usual.parameters(), problem._network().parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_contender_that_fails_leaves_the_others() -> None:
    def broken() -> None:
        raise RuntimeError("no such\nthing")

    problem = settings.AUC.over(images(QUICK.images, CPU), Network.MLP, Precision.TF32, QUICK)
    makers = {Name("a", Step.PLAIN): problem.plain, Name("a", Step.SOX): broken}
    plain, sox = settings.timed(makers, CPU, ONCE)  # type: ignore[arg-type]
    assert plain.ms is not None
    assert sox.failed == "RuntimeError: no such thing"


@pytest.mark.skipif(torch.cuda.is_available(), reason="the parts on the device would run too")
def test_a_quick_run_writes_its_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new" / "bench.json"
    argv = ["bench", "--quick", "--out", str(out), "--only", "mlp", "tiny", "wide", "memory", "ratios", "blocks"]
    assert main(argv) == 0
    shown = capsys.readouterr().out
    assert "left out: mlp: needs a CUDA device" in shown
    assert "It must hold" not in shown  # the figures of a quick run mean nothing
    written = json.loads(out.read_text())
    assert set(written) == {"environment", "left_out", "rows", "verdicts"}
    assert written["left_out"] == {"mlp": "needs a CUDA device"}
    assert {row["failed"] for row in written["rows"]} == {None}
    assert all(row["ms"] > 0.0 and len(row["times_ms"]) == 1 for row in written["rows"])
    tiny = [row["step"] for row in written["rows"] if row["setting"] == "batch of 64, MLP 20-32-10, given batch"]
    assert tiny == ["plain SGD", "SOX", "MSVR-v1", "MSVR-v2", "MSVR-v3"]
    by_line = {verdict["line"]: verdict for verdict in written["verdicts"]}
    assert by_line["batch of 64, MLP 20-32-10, given batch: SOX / plain"]["bound"] == 2.0
    assert by_line["MLP 3072-64-10, bf16: captured SOX - floor"]["verdict"] == "not measured"
    assert by_line["memory, 27 labels of 1,000 rows: memory, AP"]["figure"] > 0.0
    assert not list(tmp_path.rglob("*.partial"))


def test_groups_and_names_choose_parts() -> None:
    parts = all_parts(quick=True)
    cuda = ["resnet-small", "resnet-own", "mlp", "ap-resnet", "ap-mlp", "launches"]
    assert [part.name for part in chosen(parts, ["cuda"])] == cuda
    assert [part.name for part in chosen(parts, ["blocks", "mlp"])] == ["mlp", "blocks"]
    assert chosen(parts, []) == parts


def test_seconds_are_shared_out() -> None:
    parts = chosen(all_parts(quick=False), ["cuda"])
    found = budgets(parts, BenchCommand(seconds=90.0))
    assert sum(budget.seconds for _, budget in found) == pytest.approx(90.0)
    assert all(budget.seconds > 0.0 for part, budget in found if part.name != "launches")


def test_help_names_the_parts(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["bench", "--help"])
    assert not stopped.value.code
    shown = capsys.readouterr().out
    for part in all_parts(quick=True):
        assert part.name in shown


@pytest.mark.parametrize(
    ("argv", "expected"),
    [(["--only", "tyni"], "did you mean 'tiny'?"), (["--seconds", "0"], "--seconds must be > 0, got 0")],
)
def test_what_is_wrong_is_said_in_one_line(argv: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *argv]) == 2
    error = capsys.readouterr().err
    assert expected in error
    assert error.count("\n") == 1


def test_a_file_that_cannot_be_written_is_refused_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--quick", "--only", "tiny", "--out", str(tmp_path)]) == 2
    captured = capsys.readouterr()
    assert f"{tmp_path} is a folder" in captured.err
    assert "SOX" not in captured.out


def test_operations_of_a_step_are_counted_backward_included() -> None:
    x = torch.ones(3, requires_grad=True)
    taken: list[None] = []

    def step() -> None:
        taken.append(None)
        (x.detach() * 2).sum()

    def with_backward() -> None:
        (x * 2).sum().backward()

    assert operations(step) == 3  # detach, multiply, sum
    assert len(taken) == 4  # three warm steps and the one that is counted
    assert operations(with_backward) > operations(step)
    assert set(operations_by_caller(step)) == {OUTSIDE}


def test_operations_of_a_method_stand_under_its_functions() -> None:
    objective = MultiTaskAUC(normalised_network(), tasks(torch.randn(60, 5).double()))
    solver = fcco.Solver(objective, torch.optim.SGD(objective.parameters(), lr=RATES.lr), fcco.sox())
    batches = iter(solver.loader(blocks=4, samples=6, steps_per_epoch=10))
    found = operations_by_caller(lambda: solver.step(next(batches)))
    assert OUTSIDE not in found
    assert found["solver._gradients:_joined"] > 0
