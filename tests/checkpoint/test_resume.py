"""Checkpoints: resumed equals uninterrupted bit for bit, and a file that is damaged or foreign changes nothing."""

import copy
import errno
import io
import os
import pickle
import random
import resource
import signal
import sys
import zipfile

import numpy as np
import pytest
import torch
from torch import nn

import fcco
from fcco.checkpoint import read
from fcco.methods.stages import Stage
from fcco.solver import StageWise
from tests.trials import FINITE_SUM, SAMPLES, Noisy, assert_same, data, difference, full_pass, recipe, snapshot

STEPS = 9
# before the first step, after it, just before and just after v3's refreshes (period 4: at 5 and 9)
CUTS = (0, 1, 4, 5, 8)
STAGES = [Stage(2, 0.05, 0.5, 0.6), Stage(4, 0.03, 0.3, 0.4), Stage(3, 0.02, 0.2, 0.3)]


pytestmark = pytest.mark.usefixtures("one_thread")


class Run:
    """A whole training run: solver, Adam with a scheduler, sampler, stages where asked for, a uniform iterate.

    Samples are drawn by torch's, Python's and numpy's global generators in turn: a resumed run must find all three.
    """

    def __init__(self, name="msvr-v2", seed=0, stages=None, optimizer=torch.optim.Adam, **options):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        log = name == "scent"
        self.objective = Noisy(dim=1 if log else 2, log_domain=log)
        self.optimizer = optimizer(self.objective.parameters(), lr=0.02)
        self.x = data()
        if name in FINITE_SUM:
            options["full_pass"] = lambda: full_pass(self.x)
        if name.endswith("-sp"):
            options["radius"] = 2.0
        options = {"keep": "uniform", "seed": seed} | options
        self.solver = fcco.Solver(self.objective, self.optimizer, recipe(name), **options)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)
        self.sampler = fcco.BlockSampler(self.objective.num_blocks, 3, seed=seed)
        self.stages = None if stages is None else StageWise(self.solver, stages, drawn=True, seed=seed)

    @property
    def parts(self):
        parts = (self.solver, self.sampler, self.scheduler)
        return parts if self.stages is None else (*parts, self.stages)

    def step(self):
        index = next(self.sampler)
        one = int(torch.randint(SAMPLES, ()))
        rows = [(one + shift) % SAMPLES for shift in (0, 1 + random.randrange(2), 3 + np.random.randint(2))]
        batch = index, self.x[index][:, rows], torch.full((3, 3), 1 / 3)
        (self.stages or self.solver).step(*batch)
        self.scheduler.step()

    def steps(self, count):
        for _ in range(count):
            if self.stages is None or not self.stages.finished:
                self.step()
        return self

    def snapshot(self):
        return {
            **snapshot(self.solver),
            "kept": self.solver.kept(),
            "sampler": self.sampler.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "stages": None if self.stages is None else self.stages.state_dict(),
        }


def disturb():
    """Leave the random generators somewhere else."""
    torch.manual_seed(77)
    random.seed(77)
    np.random.seed(77)


def resume_everywhere(tmp_path, cuts=CUTS, **setting):
    """One run that is saved at every cut and never loaded; then a fresh run from each of the files."""
    whole = Run(**setting)
    for cut in range(STEPS):
        if cut in cuts:
            fcco.save(tmp_path / f"{cut}.pt", *whole.parts)
        whole.steps(1)
    expected = whole.snapshot()
    for cut in cuts:
        resumed = Run(**setting | {"seed": 5}).steps(2)  # another start, other seeds, and state of its own
        fcco.load(tmp_path / f"{cut}.pt", *resumed.parts)
        found = difference(expected, resumed.steps(STEPS - cut).snapshot())
        assert found is None, f"cut after step {cut}: {found}"


@pytest.mark.parametrize("name", fcco.METHODS)
def test_resumed_equals_uninterrupted(name, tmp_path):
    resume_everywhere(tmp_path, name=name, cuts=CUTS if name in FINITE_SUM else (0, 1, 6))


@pytest.mark.parametrize("name", ["sox", "soap", "msvr-v2", "msvr-v3", "variant-v3", "scent"])
def test_resumed_equals_uninterrupted_in_stages(name, tmp_path):
    """Stages of drawn lengths; v3's anchor is renewed where a stage begins. The scheduler changes lr inside them."""
    resume_everywhere(tmp_path, name=name, stages=STAGES)


@pytest.mark.parametrize("option", [{"normalize": True}, {"u0": 0.1, "z0": 0.0}, {"radius": 0.5}, {"keep": "last"}])
@pytest.mark.parametrize("name", ["soap", "msvr-v2"])
def test_resumed_equals_uninterrupted_with_options(name, option, tmp_path):
    resume_everywhere(tmp_path, cuts=(0, 3, 7), name=name, **option)


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.RMSprop, fcco.Adaptive])
def test_resumed_equals_uninterrupted_with_other_optimizers(optimizer, tmp_path):
    resume_everywhere(tmp_path, cuts=(1, 5), optimizer=optimizer)


def test_resumed_with_the_librarys_learning_rates(tmp_path):
    def run():
        torch.manual_seed(0)
        objective = Noisy()
        optimizer = torch.optim.SGD(objective.parameters(), lr=1.0)
        solver = fcco.Solver(objective, optimizer, recipe("msvr-v2"))
        return solver, fcco.LRSchedule(optimizer, lambda t: 0.1 / t)

    def steps(solver, scheduler, count):
        for _ in range(count):
            solver.step([1, 4], data()[[1, 4]], torch.full((2, SAMPLES), 1 / SAMPLES))
            scheduler.step()
        return snapshot(solver), scheduler.state_dict()

    parts = run()
    steps(*parts, 3)
    fcco.save(tmp_path / "cut.pt", *parts)
    expected = steps(*parts, 3)
    parts = run()
    fcco.load(tmp_path / "cut.pt", *parts)
    assert_same(expected, steps(*parts, 3))


def test_saving_changes_nothing(tmp_path):
    plain, saved = Run().steps(4).snapshot(), Run()
    for _ in range(4):
        fcco.save(tmp_path / "run.pt", *saved.parts)
        saved.step()
    assert_same(plain, saved.snapshot())


def test_a_state_is_a_copy():
    """Going on must not change a state that was taken before."""
    run = Run("msvr-v3").steps(5)
    state = run.solver.state_dict()
    before = copy.deepcopy(state)
    run.steps(4)
    assert_same(before, state)


def test_a_state_may_be_loaded_twice():
    """A loaded state is a copy too: the run that goes on from it must not write into it."""
    run = Run("msvr-v3").steps(5)
    states = [part.state_dict() for part in run.parts]
    states[2] = copy.deepcopy(states[2])
    expected = run.steps(3).snapshot()
    for _ in range(2):
        again = Run("msvr-v3", seed=3)
        for part, state in zip(again.parts, states, strict=True):
            part.load_state_dict(state)
        assert_same(expected, again.steps(3).snapshot())


@pytest.mark.parametrize("name", ["msvr-v3", "variant-v2", "scent"])
def test_the_file_is_plain_tensors_and_values(name, tmp_path):
    run = Run(name, stages=STAGES).steps(3)
    fcco.save(tmp_path / "run.pt", *run.parts)
    content = torch.load(tmp_path / "run.pt", weights_only=True)
    assert content["parts"] == [type(part).__name__ for part in run.parts]
    assert_same(content["states"][0], run.solver.state_dict())


# ---------------------------------------------------------------------- files that are not what they should be


@pytest.fixture(scope="module")
def good_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("good") / "run.pt"
    fcco.save(path, *Run().steps(4).parts)
    return path


def refused(path, run, says="."):
    """Loading must raise a CheckpointError and leave the run as it was; returns the message."""
    before = run.snapshot()
    with pytest.raises(fcco.CheckpointError, match=says) as caught:
        fcco.load(path, *run.parts)
    assert_same(before, run.snapshot())
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def goes_on_as_before(run, **setting):
    """After the refusals, the next steps are those of a run that never tried to load."""
    went_on = run.steps(2).snapshot()
    assert_same(went_on, Run(**setting).steps(4).snapshot())


@pytest.mark.parametrize("part", [0.0, 0.001, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 0.9999, 1.0])
def test_truncated(part, good_file, tmp_path):
    content = good_file.read_bytes()
    length = min(int(part * len(content)), len(content) - 1)
    (tmp_path / "run.pt").write_bytes(content[:length])
    run = Run(seed=2).steps(2)
    refused(tmp_path / "run.pt", run, "damaged|not a checkpoint")
    goes_on_as_before(run, seed=2)


def test_flipped_bytes(good_file, tmp_path):
    """Every kind of byte: data, pickle, headers, directory, padding. Where a flip hits nothing that matters the file
    may load, but then it must load the very state that was saved."""
    content, path = good_file.read_bytes(), tmp_path / "run.pt"
    chosen = random.Random(0)
    places = {0, 1, 2, 3, len(content) - 1, len(content) - 22}
    places |= {chosen.randrange(len(content)) for _ in range(70)}
    places |= set(_pickle_bytes(good_file, chosen, 70))
    expected, run = read(good_file)["states"], Run(seed=2).steps(2)
    before, harmless = run.snapshot(), 0
    for place in sorted(places):
        damaged = bytearray(content)
        damaged[place] ^= chosen.choice([0x01, 0x20, 0x80, 0xFF])
        path.write_bytes(damaged)
        try:
            assert_same(expected, read(path)["states"])
        except fcco.CheckpointError:
            if place % 4 == 0:
                refused(path, run, r"run\.pt")
        else:
            harmless += 1
    assert_same(before, run.snapshot())
    assert harmless < len(places) // 4
    goes_on_as_before(run, seed=2)


def _pickle_bytes(path, chosen, count):
    """Places within the pickle, where a flip does most: names, opcodes, lengths."""
    with zipfile.ZipFile(path) as archive:
        info = next(info for info in archive.infolist() if info.filename.endswith("data.pkl"))
    return [info.header_offset + chosen.randrange(info.file_size) for _ in range(count)]


class Payload:
    """Runs a command where a pickle is loaded without care."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.system, (f"touch {self.marker}",)


def write_foreign(kind, path, marker):
    if kind == "text":
        path.write_text("epoch,loss\n1,0.5\n")
    elif kind == "bare pickle":
        path.write_bytes(pickle.dumps({"format": "fcco checkpoint", "version": 1, "states": []}))
    elif kind == "malicious pickle":
        path.write_bytes(pickle.dumps(Payload(marker)))
    elif kind == "malicious torch file":
        torch.save({"format": "fcco checkpoint", "version": 1, "states": [Payload(marker)]}, path)
    elif kind == "old torch file":
        torch.save({"a": torch.ones(2)}, path, _use_new_zipfile_serialization=False)
    elif kind == "state dict":
        torch.save(nn.Linear(2, 2).state_dict(), path)
    elif kind == "tensor":
        torch.save(torch.ones(3), path)
    elif kind == "module":
        torch.save(nn.Linear(2, 2), path)
    elif kind == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("hello.txt", "hello")
    elif kind == "right name, nothing else":
        torch.save({"format": "fcco checkpoint", "version": 1}, path)
    elif kind == "parts of the wrong kind":
        torch.save({"format": "fcco checkpoint", "version": 1, "states": 3, "digest": "", "parts": 4}, path)
    elif kind == "folder":
        path.mkdir()


@pytest.mark.parametrize(
    "kind",
    [
        "text",
        "bare pickle",
        "malicious pickle",
        "malicious torch file",
        "old torch file",
        "state dict",
        "tensor",
        "module",
        "zip",
        "right name, nothing else",
        "parts of the wrong kind",
        "folder",
    ],
)
def test_foreign_file(kind, tmp_path):
    path, marker = tmp_path / "run.pt", tmp_path / "marker"
    write_foreign(kind, path, marker)
    run = Run(seed=2).steps(2)
    refused(path, run)
    assert not marker.exists()
    goes_on_as_before(run, seed=2)


def rewritten(good_file, path, **changes):
    """The same file with some of its content changed, and the digest kept right."""
    content = read(good_file)
    content.update(changes)
    torch.save(content, path)
    return path


def test_another_version(good_file, tmp_path):
    run = Run(seed=2).steps(2)
    says = refused(rewritten(good_file, tmp_path / "run.pt", version=99), run)
    assert "version 99" in says
    goes_on_as_before(run, seed=2)


def test_changed_content_with_the_old_digest(good_file, tmp_path):
    states = read(good_file)["states"]
    states[0]["t"] += 1
    says = refused(rewritten(good_file, tmp_path / "run.pt", states=states), Run(seed=2).steps(2))
    assert "digest" in says


def test_no_file(tmp_path):
    run = Run(seed=2).steps(2)
    before = run.snapshot()
    with pytest.raises(FileNotFoundError, match="nowhere"):
        fcco.load(tmp_path / "nowhere.pt", *run.parts)
    assert_same(before, run.snapshot())


@pytest.mark.parametrize("name", ["sox", "msvr-v1", "msvr-v3", "variant-v2", "msvr-v2-sp"])
def test_another_methods_state(name, good_file):
    run = Run(name, seed=2).steps(2)
    says = refused(good_file, run)
    assert "msvr-v2" in says
    assert name in says
    goes_on_as_before(run, name=name, seed=2)


def test_another_lag(tmp_path):
    run = Run(seed=2).steps(2)
    other = Run(seed=3)
    other.solver.method = recipe("msvr-v2", lag=0)
    fcco.save(tmp_path / "run.pt", *other.steps(2).parts)
    torch.manual_seed(2)
    refused(tmp_path / "run.pt", run, "method")


class Other(Run):
    """A run of another objective, or with other parts."""

    def __init__(self, objective, keep="uniform", optimizer=torch.optim.Adam):
        super().__init__(keep=keep, optimizer=optimizer)
        self.objective = objective
        self.optimizer = optimizer(objective.parameters(), lr=0.02)
        self.solver = fcco.Solver(objective, self.optimizer, recipe("msvr-v2"), keep=keep)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)


class Grouped(torch.optim.Adam):
    """Adam over two groups of parameters."""

    def __init__(self, parameters, lr):
        first, *rest = parameters
        super().__init__([{"params": [first]}, {"params": rest}], lr=lr)


DIFFERENT = {
    "wider": (lambda: Other(Noisy(width=7)), "model"),
    "more blocks": (lambda: Other(Noisy(num_blocks=8)), r"\(6, 2\).*\(8, 2\)"),
    "another dim": (lambda: Other(Noisy(dim=3)), r"\(6, 2\).*\(6, 3\)"),
    "another dtype": (lambda: Other(Noisy().double()), "model"),
    "no batch norm": (lambda: Other(Noisy(batch_norm=False)), "running_mean"),
    "something frozen": (lambda: Other(frozen()), "z has tensors of shapes"),
    "another optimizer": (lambda: Other(Noisy(), optimizer=torch.optim.SGD), "Adam.*SGD"),
    "the optimizer's sister": (lambda: Other(Noisy(), optimizer=torch.optim.AdamW), "Adam.*AdamW"),
    "other groups": (lambda: Other(Noisy(), optimizer=Grouped), "group|Grouped"),
    "another keep": (lambda: Other(Noisy(), keep="last"), "keep"),
}


def frozen():
    objective = Noisy()
    objective.model[0].weight.requires_grad_(False)
    return objective


@pytest.mark.parametrize("case", DIFFERENT)
def test_another_model(case, good_file):
    make, says = DIFFERENT[case]
    run = make()
    refused(good_file, run, says)
    state = read(good_file)["states"][0]
    before = run.snapshot()
    with pytest.raises(ValueError, match=says):  # the solver alone refuses it too, and is as it was
        run.solver.load_state_dict(state)
    assert_same(before, run.snapshot())


STATES = {
    "nothing": (lambda state: {}, "lacks"),
    "no z": (lambda state: {k: v for k, v in state.items() if k != "z"}, "lacks.*z"),
    "no random": (lambda state: {k: v for k, v in state.items() if k != "random"}, "lacks.*random"),
    "not a dict": (lambda state: [state], "dict.*list"),
    "z cut short": (lambda state: state | {"z": state["z"][:-1]}, "z"),
    "z of other shapes": (lambda state: state | {"z": state["z"][::-1]}, "z"),
    "earlier weights of other shapes": (lambda state: state | {"previous": state["previous"][::-1]}, "previous"),
}


@pytest.mark.parametrize("case", STATES)
def test_state_of_the_wrong_make(case, good_file):
    """A state that somebody cut up: refused before anything is changed."""
    make, says = STATES[case]
    run = Run(seed=2).steps(2)
    before, state = run.snapshot(), make(read(good_file)["states"][0])
    with pytest.raises((ValueError, TypeError), match=says):
        run.solver.load_state_dict(state)
    assert_same(before, run.snapshot())


def test_other_parts(good_file):
    run = Run(seed=2).steps(2)
    before = run.snapshot()
    with pytest.raises(fcco.CheckpointError, match=r"\['Solver', 'BlockSampler', 'ExponentialLR'\].*\['Solver'\]"):
        fcco.load(good_file, run.solver)
    with pytest.raises(fcco.CheckpointError, match="asked for were"):
        fcco.load(good_file, run.sampler, run.solver, run.scheduler)
    assert_same(before, run.snapshot())


class Refuses:
    """A part whose state never fits."""

    def state_dict(self):
        return {"a": 1}

    def load_state_dict(self, state):
        raise RuntimeError("does not fit today")


@pytest.mark.parametrize("name", ["msvr-v3", "soap"])
def test_a_later_part_that_refuses_takes_the_earlier_ones_back(name, tmp_path):
    """Stages, solver, sampler and scheduler have been loaded by the time the last part says no."""
    other, path = Run(name, stages=STAGES).steps(5), tmp_path / "run.pt"
    broken = Refuses()
    broken.load_state_dict = lambda state: None
    fcco.save(path, other.stages, *other.parts[:3], broken)
    for steps in (0, 2):
        run, refuses = Run(name, seed=2, stages=STAGES).steps(steps), Refuses()
        calls = []

        def once(state, calls=calls):
            calls.append(state)
            if len(calls) == 1:
                raise RuntimeError("does not fit today")

        refuses.load_state_dict = once
        before = run.snapshot()
        with pytest.raises(fcco.CheckpointError, match="does not fit today"):
            fcco.load(path, run.stages, *run.parts[:3], refuses)
        assert_same(before, run.snapshot())


# ---------------------------------------------------------------------- disks that fail


def survives(path, run, old):
    """The old file is whole and nothing of the run has changed."""
    assert path.read_bytes() == old
    read(path)
    fresh = Run(seed=9)
    fcco.load(path, *fresh.parts)


FAILURES = {
    "fsync": ("os.fsync", errno.EIO),
    "replace": ("os.replace", errno.EACCES),
    "torch.save": ("torch.save", errno.ENOSPC),
}


@pytest.mark.parametrize("where", FAILURES)
def test_error_while_saving(where, good_file, tmp_path, monkeypatch):
    name, number = FAILURES[where]
    path = tmp_path / "run.pt"
    path.write_bytes(good_file.read_bytes())
    run = Run(seed=2).steps(2)
    before = run.snapshot()

    def fails(*_, **__):
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(name, fails)
        with pytest.raises(OSError, match=os.strerror(number)):
            fcco.save(path, *run.parts)
    assert_same(before, run.snapshot())
    survives(path, run, good_file.read_bytes())
    run = Run(seed=2).steps(2)
    fcco.save(path, *run.parts)  # and the next save works, over what the failed one left
    assert_same(read(path)["states"][0], run.solver.state_dict())


# torch has threads, but the child only writes a file and leaves
forks = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


def in_a_child(work):
    """Run ``work`` in a forked process; it returns what the parent gets to see, as text."""
    out, inlet = os.pipe()
    pid = os.fork()
    if pid == 0:  # pragma: no cover
        try:
            os.write(inlet, work().encode())
        except BaseException as error:
            os.write(inlet, f"child failed: {error!r}".encode())
        finally:
            os._exit(0)
    os.close(inlet)
    with os.fdopen(out, "rb") as pipe:
        said = pipe.read().decode()
    os.waitpid(pid, 0)
    return said


def error_of(path, parts):
    try:
        fcco.save(path, *parts)
    except BaseException as error:
        return f"{type(error).__name__} {getattr(error, 'errno', None)} {isinstance(error, OSError)}"
    return "no error"


@forks
@pytest.mark.skipif(sys.platform != "linux", reason="file size limits as Linux has them")
@pytest.mark.parametrize("part", [0.0, 0.3, 0.99])
def test_disk_that_is_full(part, good_file, tmp_path):
    """A real one: the system lets the process write that much of the file and no more."""
    path, size = tmp_path / "run.pt", good_file.stat().st_size
    path.write_bytes(good_file.read_bytes())
    parts = Run(seed=2).steps(2).parts

    def work():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        limit = int(part * size)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        return error_of(path, parts)

    assert in_a_child(work) == f"OSError {errno.EFBIG} True"
    survives(path, None, good_file.read_bytes())


@forks
def test_folder_that_is_not_writable(good_file, tmp_path):
    folder = tmp_path / "closed"
    folder.mkdir()
    path = folder / "run.pt"
    path.write_bytes(good_file.read_bytes())
    folder.chmod(0o555)
    parts = Run(seed=2).steps(2).parts

    def work():
        if os.getuid() == 0:  # root may write anywhere: be nobody
            os.setuid(65534)
        return error_of(path, parts)

    for parent in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        parent.chmod(0o755)
    try:
        assert in_a_child(work) == f"PermissionError {errno.EACCES} True"
    finally:
        folder.chmod(0o755)
    survives(path, None, good_file.read_bytes())


def test_folder_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        fcco.save(tmp_path / "nowhere" / "run.pt", Run().solver)


def test_part_without_a_state(tmp_path):
    with pytest.raises(TypeError, match=r"parts .*state_dict.*3, a int"):
        fcco.save(tmp_path / "run.pt", 3)
    assert not (tmp_path / "run.pt").exists()


class Odd:
    """A part whose state holds one value of any kind."""

    def __init__(self, value):
        self.value = value

    def state_dict(self):
        return {"best": [self.value]}

    def load_state_dict(self, state):
        self.value = state["best"][0]


ODD = {
    "a class": (io.StringIO, r"Odd\['best'\]\[0\] is .*StringIO"),
    "an array": (np.ones(2), r"Odd\['best'\]\[0\] is .* of type ndarray"),
    "a function": (len, r"Odd\['best'\]\[0\] is .*len"),
    "a key": ({np.int64(3): 1}, "a key of Odd.* of type int64"),
}


@pytest.mark.parametrize("case", ODD)
def test_state_that_could_not_be_loaded_is_refused_when_saving(case, tmp_path):
    """Better an error now than a file that cannot be read when it is needed; the old one stays."""
    run, path = Run().steps(1), tmp_path / "run.pt"
    fcco.save(path, run.solver)
    old = path.read_bytes()
    with pytest.raises(TypeError, match=ODD[case][1]):
        fcco.save(path, Odd(ODD[case][0]))
    assert path.read_bytes() == old


@pytest.mark.parametrize("value", [1, 0.5, True, None, "a", b"a", 1j, torch.float32, (1, 2), torch.ones(2).bfloat16()])
def test_what_a_state_may_hold(value, tmp_path):
    fcco.save(tmp_path / "run.pt", Odd(value))
    other = Odd(None)
    fcco.load(tmp_path / "run.pt", other)
    assert_same(value, other.value)


def test_infinities_and_nan_survive(tmp_path):
    """As ReduceLROnPlateau's best value at its start."""
    values = [float("inf"), float("-inf"), float("nan"), -0.0, torch.tensor([float("nan"), -0.0])]
    fcco.save(tmp_path / "run.pt", Odd(values))
    other = Odd(None)
    fcco.load(tmp_path / "run.pt", other)
    assert_same(values, other.value)
