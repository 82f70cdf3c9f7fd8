"""Dependencies point one way, and the core needs torch alone (docs/design.md). Read from the source, at every depth."""

import ast
import functools
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "fcco"
OUTSIDE = ("lab", "integrations", "tables", "sklearn")  # may use anything, and nothing of the core may use them
# A module of the core, or a package of it as a whole, imports only from rows above its own.
LAYERS = (
    ("_support",),
    ("_objective", "checkpoint", "data", "methods"),
    ("memory.forms",),
    ("objectives",),
    ("solver",),
    ("memory",),
    ("losses", "fitting"),
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
ENTRY = ("__init__", "__main__", "_api")  # the front door opens onto everything


FORMS = (["memory", "forms"], ["memory", "_table"])  # what objectives name of the memory: below them, not above


def part_of(path):
    """The module or package of fcco that a file belongs to: solver, data, lab, ..."""
    return part([name.removesuffix(".py") for name in path.relative_to(SOURCE).parts])


def part(names):
    return "memory.forms" if names[:2] in FORMS else names[0]


def files():
    return sorted(SOURCE.rglob("*.py"))


CORE = [path for path in files() if part_of(path) not in OUTSIDE]


class Imports(ast.NodeVisitor):
    """Every module that a file imports, wherever in it, except what is there for the type checker only."""

    def __init__(self, path):
        self.package = ["fcco", *path.relative_to(SOURCE).parts[:-1]]
        self.found = set()
        self.visit(ast.parse(path.read_text()))

    def visit_If(self, node):
        if ast.unparse(node.test) not in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            self.generic_visit(node)

    def visit_Import(self, node):
        self.found |= {name.name for name in node.names}

    def visit_ImportFrom(self, node):
        module = node.module or ""
        if node.level:
            module = ".".join([*self.package[: len(self.package) - node.level + 1], *([module] if module else [])])
        self.found |= {f"{module}.{name.name}" for name in node.names}

    def visit_Call(self, node):
        called = ast.unparse(node.func)
        assert called not in ("__import__", "importlib.import_module"), "the core imports nothing by name"
        self.generic_visit(node)


@functools.cache
def imports(path):
    return Imports(path).found


def own(path):
    """The parts of fcco that a file imports."""
    names = (name.split(".") for name in imports(path))
    return {part(name[1:]) for name in names if name[0] == "fcco" and len(name) > 1}


def test_every_part_has_its_place():
    parts = {part_of(path) for path in CORE} - set(ENTRY)
    assert parts == set(LEVEL), "give it a row in LAYERS, or take it out"


@pytest.mark.parametrize("path", CORE, ids=lambda path: str(path.relative_to(SOURCE)))
def test_direction(path):
    part = part_of(path)
    if path.parent == SOURCE and part in ENTRY:
        return
    wrong = {name for name in own(path) - {part} if LEVEL.get(name, len(LAYERS)) >= LEVEL[part]}
    assert not wrong, f"{part} must not import {', '.join(sorted(wrong))}"


#: What torch's CUDA builds bring along, and the core does without elsewhere.
WITH_CUDA = {
    SOURCE / "data" / "_shuffle_kernel.py": {"triton"},
    SOURCE / "memory" / "forms" / "_pairs_kernel.py": {"triton"},
}
#: What a call of fit's results asks for, when it is called: the extra `fit`, and who listens to it.
WHEN_CALLED = {
    SOURCE / "fitting" / "_calibration.py": {"sklearn"},
    SOURCE / "fitting" / "_callbacks.py": {"tqdm", "mlflow", "wandb"},
    SOURCE / "fitting" / "_result.py": {"safetensors"},
}


@pytest.mark.parametrize("path", CORE, ids=lambda path: str(path.relative_to(SOURCE)))
def test_the_core_needs_torch_alone(path):
    allowed = sys.stdlib_module_names | {"torch", "fcco"} | WITH_CUDA.get(path, set()) | WHEN_CALLED.get(path, set())
    foreign = {name for name in imports(path) if name.split(".")[0] not in allowed}
    assert not foreign


def test_the_core_does_without_triton():
    """Every tensor operation that a kernel stands for is there without it, whether or not it is installed."""
    script = (
        "import sys; sys.modules['triton'] = None; import torch; from fcco.data._draws import choose; "
        "print(sorted(choose(torch.tensor([3]), 3, torch.Generator())[0].tolist())); "
        "from fcco.memory.forms._exponential import Exponential; x = torch.zeros(2).double(); "
        "print(Exponential(0.0, 1.0, True).rows(x, x, torch.ones(2, 1).double(), waits=False)[0].exp().tolist())"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.split("\n")[0] == "[0, 1, 2]"
    assert found.stdout.split("\n")[1] == "[[2.0], [2.0]]"


def test_nothing_of_the_core_uses_the_lab():
    users = {str(path.relative_to(SOURCE)) for path in CORE if own(path) & set(OUTSIDE)}
    assert users <= {"__main__.py"}


@pytest.mark.parametrize(
    ("part", "others"),
    [
        ("methods", {"solver"}),
        ("_objective", {"methods", "solver"}),
        ("_support", {"methods", "solver"}),
        ("objectives", {"solver", "lab"}),
        ("data", {"objectives", "solver", "methods", "lab"}),
        ("memory.forms", {"objectives", "solver", "methods", "lab"}),
        ("solver", {"memory", "memory.forms", "lab"}),
        ("checkpoint", {"methods", "solver", "data", "objectives", "memory"}),
    ],
)
def test_the_arrows_of_the_design(part, others):
    """The design's own sentence, in case LAYERS is ever loosened."""
    for path in CORE:
        if part_of(path) == part:
            assert not own(path) & others


@pytest.mark.parametrize(
    ("name", "others"),
    [
        ("methods.schedules", {"trackers", "estimators", "_recipes", "_box"}),
        ("methods.trackers", {"estimators", "_recipes", "_box"}),
        ("methods.estimators", {"trackers", "_recipes", "_box"}),
        ("solver._state", {"_solver", "_engine", "_tracked", "_blocks"}),
        ("solver._blocks", {"_solver", "_engine", "_tracked"}),
        ("solver._engine", {"_solver", "_tracked", "_blocks"}),
        ("solver._solver", {"_tracked", "_blocks", "_draw", "_reference"}),  # it knows no engine from inside
    ],
)
def test_the_arrows_within_a_package(name, others):
    path = SOURCE / (name.replace(".", "/") + ".py")
    package = name.split(".")[0]
    names = (found.split(".") for found in imports(path))
    inside = {found[2] for found in names if found[:2] == ["fcco", package] and len(found) > 2}
    assert not inside & others


def test_only_torch_is_required():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert [name.split(">")[0] for name in project["dependencies"]] == ["torch"]


ALONE = """
import sys

class Blind:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        return None if name.split(".")[0] in BLOCKED else self.finder.find_spec(name, path, target)

BLOCKED = set(sys.argv[2:])
sys.meta_path[:] = [Blind(finder) for finder in sys.meta_path]
import torch
import fcco

outside = ("fcco.lab", "fcco.integrations", "fcco.tables", "fcco.sklearn")
assert not any(name.startswith(outside) for name in sys.modules)
w = torch.nn.Parameter(torch.ones(2))
f = fcco.objective(
    lambda i, x: (x @ w).mean(1, keepdim=True), lambda i, u: u.square().squeeze(1), num_blocks=4, parameters=[w]
)
solver = fcco.Solver(f, torch.optim.Adam([w], lr=0.1), fcco.msvr_v2(alpha=0.5, beta=0.5))
solver.step([0, 3], torch.ones(2, 8, 2))
x = torch.randn(60, 2)
quick = fcco.fitting.Recipe(epochs=1, least_examples=1, checks=2)
assert fcco.fit(torch.nn.Linear(2, 1), (x, x[:, 0] > 0.5), recipe=quick).predict(x).shape == (60,)
fcco.save(sys.argv[1], solver=solver)
solver.step([0, 3], torch.ones(2, 8, 2))
end = w.detach().clone()
fcco.load(sys.argv[1], solver=solver)
assert not torch.equal(w.detach(), end)
solver.step([0, 3], torch.ones(2, 8, 2))
assert torch.equal(w.detach(), end)
assert not BLOCKED & set(sys.modules)
"""


def test_the_core_works_where_there_is_nothing_but_torch(tmp_path):
    """numpy is blocked too, although torch would use it: steps, saving and loading do without."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    names = [name for extra in ("lab", "fit", "accelerate", "lightning", "transformers") for name in extras[extra]]
    blocked = {"numpy", "sklearn"} | {re.split(r"[\[>]", name)[0].replace("-", "_") for name in names}
    blocked.remove("fcco")  # an extra may take another one along
    done = subprocess.run(
        [sys.executable, "-c", ALONE, str(tmp_path / "run.pt"), *sorted(blocked)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_part_that_is_imported_alone_finds_every_engine():
    """`from fcco.fitting import fit` loads no memory engine by itself; the output memory is found all the same."""
    code = (
        "import torch; from fcco.solver import Solver; from fcco.methods import output_memory; "
        "from fcco.objectives import PartialAUC; from fcco.data import Points; "
        "data = Points(torch.randn(40, 3), torch.arange(40) % 4 == 0); "
        "objective = PartialAUC(torch.nn.Linear(3, 1), data); "
        "solver = Solver(objective, torch.optim.SGD(objective.parameters(), 0.1), output_memory()); "
        "print(solver.step(next(iter(solver.loader(4, 8)))).step)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["1"], done.stderr
