"""Five hundred valid-looking calls per class, seeded: what is accepted trains to a finite F that plain loops confirm.

Most arguments are valid, so that most calls are accepted. What is refused is refused in one sentence.
"""

import math
import os
import sys
import warnings
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch import nn

import fcco
from fcco import data, losses, objectives
from tests.fuzz import literal
from tests.helpers.methods import TABLE

pytestmark = pytest.mark.slow

CALLS = int(os.environ.get("FCCO_FUZZ_CALLS", "500"))
STEPS = 4
HOSTILE = [0, -1, 0.0, -0.5, math.nan, math.inf, "0.5", None, True, [], 1e400, 10**30, torch.ones(3), np.float32(0.3)]
bounded = settings(
    max_examples=CALLS,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],  # the first failure will do; shrinking it would not be bounded
)


class Draws:
    """Draws from hypothesis, of which one in ``rarely`` is not what the argument asks for."""

    def __init__(self, source, rarely=60):
        self._source = source
        self._rarely = rarely

    def of(self, strategy):
        return self._source.draw(strategy)

    def one(self, *choices):
        return self.of(st.sampled_from(choices))

    def mostly(self, strategy, hostile=HOSTILE):
        if self.of(st.integers(1, self._rarely)) == self._rarely // 2:
            return self.of(st.sampled_from(hostile))
        return self.of(strategy)

    def number(self, low, high):
        return self.mostly(st.floats(low, high))

    def whole(self, low, high):
        return self.mostly(st.integers(low, high))

    def flag(self):
        return self.mostly(st.booleans())

    def random(self):
        return torch.Generator().manual_seed(self.of(st.integers(0, 10**6)))


# ------------------------------------------------------------------ data


def weight_of(draw, n):
    """Whole numbers, which literal formulas can count; seldom something else."""
    if draw.one(True, True, False):
        return None
    wrong = [[-1.0] * n, [0.0] * n, [math.nan] + [1.0] * (n - 1), [1.0] * (n + 1), "heavy", 2.0]
    return draw.mostly(st.lists(st.sampled_from([0.0, 1.0, 1.0, 2.0, 3.0]), min_size=n, max_size=n), wrong)


def in_some_form(draw, values):
    """A tensor, an array, or a list of the same numbers."""
    form = draw.one("tensor", "array", "list")
    if form == "tensor":
        return torch.tensor(values)
    if form == "array":
        return np.array(values)
    return values


def inputs(draw, n):
    scale = draw.one(0.1, 1.0, 1.0, 4.0)
    dtype = draw.one(torch.float32, torch.float64)
    x = scale * torch.randn(n, 3, generator=draw.random(), dtype=dtype)
    broken = draw.mostly(st.just("whole"), ["nan", "short", "array"])
    if broken == "nan":
        x[n // 2, 1] = math.nan
    if broken == "short":
        return x[:-1]
    if broken == "array":
        return x.numpy()
    return x


def labels(draw, n):
    """Labels of points, what they are called, and how many outputs the model has."""
    kind = draw.one("binary", "binary", "words", "classes", "targets")
    if kind in ("binary", "words"):
        y = [1, 0, *draw.of(st.lists(st.integers(0, 1), min_size=n - 2, max_size=n - 2))]
        if kind == "words":
            return [["ham", "spam"][value] for value in y], {"positive": draw.mostly(st.just("spam"), ["eggs", 1])}, 1
        return in_some_form(draw, y), {}, 1
    if kind == "classes":
        y = [0, 1, 2, *draw.of(st.lists(st.integers(0, 2), min_size=n - 3, max_size=n - 3))]
        return in_some_form(draw, y), {}, 3
    values = st.sampled_from([0.0, 0.0, 1.0, 1.0, math.nan])
    y = [
        [1.0, 0.0],
        [0.0, 1.0],
        *draw.of(st.lists(st.lists(values, min_size=2, max_size=2), min_size=n - 2, max_size=n - 2)),
    ]
    return in_some_form(draw, y), {}, 2


def size_of(draw):
    return draw.of(st.integers(5, 10))


def over_labels(kind):
    def made(draw):
        n = size_of(draw)
        y, named, width = labels(draw, n)
        return kind(inputs(draw, n), y, weight=weight_of(draw, n), **named), width

    return made


def queries(draw):
    n = size_of(draw)
    query = draw.of(st.lists(st.sampled_from([3, 7, 8]), min_size=n, max_size=n))
    relevance = [1, *draw.of(st.lists(st.integers(0, 3), min_size=n - 1, max_size=n - 1))]
    relevance = draw.mostly(st.just(relevance), [[-1] * n, [0] * n, [math.nan] * n, [5000] * n])
    return data.Queries(inputs(draw, n), in_some_form(draw, query), relevance, weight=weight_of(draw, n)), 1


def risk_sets(draw):
    n = size_of(draw)
    time = draw.of(st.lists(st.sampled_from([0.5, 1.0, 2.0, 2.0, 3.5]), min_size=n, max_size=n))
    event = [1, *draw.of(st.lists(st.integers(0, 1), min_size=n - 1, max_size=n - 1))]
    event = draw.mostly(st.just(event), [[0] * n, [2] * n])
    return data.RiskSets(inputs(draw, n), in_some_form(draw, time), event, weight=weight_of(draw, n)), 1


def groups(draw):
    n = size_of(draw)
    group = [0, 1, *draw.of(st.lists(st.integers(0, 2), min_size=n - 2, max_size=n - 2))]
    y = [0, 1, 2, *draw.of(st.lists(st.integers(0, 2), min_size=n - 3, max_size=n - 3))]
    return data.Groups(inputs(draw, n), torch.tensor(y), in_some_form(draw, group), weight=weight_of(draw, n)), 3


def bags(draw):
    n = size_of(draw)
    bag = [0, 1, 2, *draw.of(st.lists(st.integers(0, 2), min_size=n - 3, max_size=n - 3))]
    y = draw.mostly(st.permutations([0, 1, 1]), [[1, 1, 1], [0, 1], [0, 1, 2]])
    return data.Bags(
        inputs(draw, n), in_some_form(draw, bag), in_some_form(draw, list(y)), weight=weight_of(draw, n)
    ), 1


def views(draw):
    n = size_of(draw)
    x = inputs(draw, n)
    return data.Examples((x, x + 0.3 * torch.randn(x.shape, generator=draw.random())), weight=weight_of(draw, n)), 2


def neighbours(draw):
    n = size_of(draw)
    y = [0, 0, 1, 1, *draw.of(st.lists(st.integers(0, 1), min_size=n - 4, max_size=n - 4))]
    return data.Examples(inputs(draw, n), in_some_form(draw, y), weight=weight_of(draw, n)), 2


# ------------------------------------------------------------------ objectives


def surrogate(draw, *, quadratic=False):
    kinds = [objectives.SquaredHinge, objectives.Square]
    if not quadratic:
        kinds += [objectives.Logistic, objectives.Exponential]
    kind = draw.one(None, *kinds)
    if kind is None:
        return None
    if kind in (objectives.SquaredHinge, objectives.Square):
        return kind(draw.number(0.1, 2.0), draw.number(0.1, 2.0))
    return kind(draw.number(0.1, 2.0))


def temperature(draw):
    if draw.one(True, True, False):
        return draw.number(0.1, 2.0)
    return objectives.LearnedTemperature(
        draw.number(0.2, 1.0), draw.number(0.0, 1.0), draw.number(0.01, 0.1), draw.flag()
    )


def risk(draw):
    if draw.flag():
        return objectives.KLRisk(draw.number(0.1, 2.0))
    return objectives.CVaRRisk(draw.number(0.1, 1.0), draw.number(0.0, 1.0))


OPTIONS = {
    "PartialAUC": lambda draw: {
        "temperature": draw.number(0.1, 3.0),
        "positive_temperature": draw.one(None, draw.number(0.1, 3.0)),
        "loss": surrogate(draw),
        "start": draw.number(-1.0, 2.0),
    },
    "AveragePrecision": lambda draw: {"loss": surrogate(draw)},
    "PNormPush": lambda draw: {
        "p": draw.number(1.0, 4.0),
        "loss": surrogate(draw),
        "logarithm": draw.flag(),
        "start": draw.number(-1.0, 1.0),
    },
    "MultiTaskAUC": lambda draw: {"loss": surrogate(draw, quadratic=True), "trained_centers": draw.flag()},
    "NDCG": lambda draw: {"surrogate": surrogate(draw)},
    "ListNet": lambda draw: {"relevant_only": draw.flag()},
    "Cox": lambda draw: {},
    "GroupDRO": lambda draw: {"risk": risk(draw), "start": draw.number(-1.0, 2.0)},
    "MultiInstance": lambda draw: {"temperature": draw.number(0.1, 2.0), "loss": surrogate(draw, quadratic=True)},
    "GlobalContrastive": lambda draw: {
        "temperature": temperature(draw),
        "two_modal": draw.mostly(st.just(False)),
        "epsilon": draw.number(0.0, 1.0),
        "normalize": draw.flag(),
    },
    "NCA": lambda draw: {"log_likelihood": draw.flag()},
}
DATA = {
    "PartialAUC": over_labels(data.Points),
    "AveragePrecision": over_labels(data.Points),
    "PNormPush": over_labels(data.Points),
    "MultiTaskAUC": over_labels(data.Tasks),
    "NDCG": queries,
    "ListNet": queries,
    "Cox": risk_sets,
    "GroupDRO": groups,
    "MultiInstance": bags,
    "GlobalContrastive": views,
    "NCA": neighbours,
}


def network(draw, outputs):
    torch.manual_seed(draw.of(st.integers(0, 100)))
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, outputs))
    return model.to(draw.one(torch.float32, torch.float64))


def method(draw):
    name = draw.one(*TABLE)
    rates = {rate: draw.number(0.05, 1.0) for rate in TABLE[name].rates if rate not in ("period", "step", "gamma")}
    if "period" in TABLE[name].rates:
        rates["period"] = draw.whole(1, 4)
    if TABLE[name].momentum and draw.one(True, False):
        rates["nesterov"] = draw.flag()
    return fcco.METHODS[name](**rates)


def solver(draw, objective):
    optimizer = draw.one(torch.optim.SGD, torch.optim.Adam)(objective.parameters(), lr=0.01)
    return fcco.Solver(
        objective,
        optimizer,
        method(draw),
        radius=draw.mostly(st.sampled_from([None, 1.0, 5.0])),
        normalize=draw.mostly(st.just(False)),
        nonfinite=draw.mostly(st.sampled_from(["raise", "raise", "skip"])),
        keep=draw.mostly(st.sampled_from(["last", "uniform"])),
        seed=draw.whole(0, 10),
        capture=draw.mostly(st.sampled_from([False, "auto"])),
    )


def loader(draw, made):
    most = made.objective.num_blocks
    return made.loader(
        blocks=draw.whole(min(2, most), min(4, most)),
        samples=draw.whole(3, 6),
        seed=draw.whole(0, 10),
        steps_per_epoch=draw.mostly(st.sampled_from([None, 1, 5])),
    )


# ------------------------------------------------------------------ the trial


def refusal(build):
    """What a call gave, or the sentence by which it was refused."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return build(), None
        except (TypeError, ValueError) as error:
            return None, error
        except fcco.NonFiniteError as error:  # NaN in x
            return None, error


def check_sentence(error):
    said = str(error)
    assert said, repr(error)
    assert len(said.splitlines()) == 1, said
    assert len(said) < 500, said
    # What Python or torch say where nobody looked before: the argument would not be named.
    for unlooked in (
        "unsupported operand",
        "object is not",
        "object has no",
        "unexpected keyword",
        "argument(s)",
        "size mismatch",
    ):
        assert unlooked not in said, said


def close(objective, found, wanted):
    digits = 1e-8
    if next(objective.model.parameters()).dtype == torch.float32:
        digits = 2e-4
    return math.isfinite(found) and abs(found - wanted) <= digits * max(1.0, abs(wanted))


def train(draw, name):
    """A solver over an objective, some steps, and F before and after."""
    given_data, width = DATA[name](draw)
    objective = getattr(objectives, name)(network(draw, width), given_data, **OPTIONS[name](draw))
    made = solver(draw, objective)
    batches = loader(draw, made)
    checked(objective, made)
    taken = 0
    while taken < STEPS:
        for batch in batches:
            report = made.step(batch)
            assert report.skipped or math.isfinite(report.value)
            taken += 1
            if taken == STEPS:
                break
    assert made.t + made.skipped == STEPS
    for p in made.parameters:
        assert bool(p.isfinite().all())
    checked(objective, made)
    return made


def finite(x):
    """Whether all inputs are."""
    parts = x if isinstance(x, tuple) else (x,)
    return all(bool(torch.as_tensor(part).isfinite().all()) for part in parts)


def checked(objective, made):
    found = made.diagnose(gradient=False).value
    if math.isnan(found) and not finite(objective.data.source.take(torch.arange(objective.data.num_examples))):
        return  # what is not finite in x shows in F
    wanted = literal.value(objective)
    if math.isinf(wanted) and found == wanted and made.t > 0:
        raise fcco.NonFiniteError("the run has diverged: F is infinite, by plain loops too", [])
    assert close(objective, found, wanted), f"F is {found}, by hand {wanted}"


def tell(capsys, name, counts):
    said = ", ".join(f"{count} {what}" for what, count in sorted(counts.items()))
    with capsys.disabled():
        sys.stdout.write(f"\n{name}: {said}\n")


@pytest.mark.usefixtures("one_thread")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", DATA)
def test_what_an_objective_accepts_it_trains(name, capsys):
    counts = Counter()

    @bounded
    @given(st.data())
    def trial(source):
        draw = Draws(source)
        made, error = refusal(lambda: train(draw, name))
        if error is not None:
            check_sentence(error)
        counts["accepted" if made is not None else "refused"] += 1

    trial()
    tell(capsys, name, counts)
    assert counts.total() >= CALLS
    assert counts["accepted"] > 0.4 * counts.total()


# ------------------------------------------------------------------ losses


LOSS_FACTS = {
    "PartialAUC": ("y",),
    "AveragePrecision": ("y",),
    "PNormPush": ("y",),
    "MultiTaskAUC": ("y",),
    "NDCG": ("query", "relevance"),
    "ListNet": ("query", "relevance"),
    "Cox": ("time", "event"),
    "GroupDRO": ("y", "group"),
    "MultiInstance": ("bag", "bag_label"),
    "GlobalContrastive": (),
    "NCA": ("y",),
}


def call(draw, name):
    """A loss over the same facts, called on everybody at first and then on draws of its sampler."""
    known, width = DATA[name](draw)
    facts = [getattr(known, fact) for fact in LOSS_FACTS[name]]
    if name == "GlobalContrastive":
        facts = [known.num_examples]
    options = OPTIONS[name](draw)
    options["weight"] = known.weight
    if (
        name in ("GlobalContrastive", "NCA", "NDCG", "ListNet", "Cox", "GroupDRO", "MultiInstance")
        and known.weight is None
    ):
        del options["weight"]
    loss = getattr(losses, name)(*facts, beta=draw.number(0.1, 1.0), **options)
    model = network(draw, width)
    loss.to(next(model.parameters()).dtype)
    optimizer = torch.optim.SGD([*model.parameters(), *loss.parameters()], lr=0.01)
    sampler = loss.sampler(draw.whole(2, 3), draw.whole(3, 6), seed=draw.whole(0, 10))
    everybody = torch.arange(known.num_examples)
    batches = [everybody, *list(sampler)[:STEPS]]
    beside = getattr(objectives, name)(model, known, **{key: options[key] for key in options if key != "weight"})
    beside.load_state_dict({f"model.{key}": value for key, value in model.state_dict().items()} | own_state(loss))
    first = None
    for id in batches:
        id = torch.as_tensor(id)
        optimizer.zero_grad()
        x = known.source.take(id)
        dtype = next(model.parameters()).dtype
        scores = tuple(model(part.to(dtype)) for part in x) if isinstance(x, tuple) else model(x.to(dtype))
        value = loss(scores, id=id)
        if math.isnan(value.item()) and not finite(x):
            assert finite(loss.u)  # it shows in the loss, and stays nowhere
            raise fcco.NonFiniteError("the loss is not finite, since x is not", [])
        assert math.isfinite(value.item())
        if first is None:  # the first u is g itself
            first = value.item()
            wanted = literal.value(beside)
            assert close(beside, first, wanted), f"the loss is {first}, by hand {wanted}"
        value.backward()
        optimizer.step()
        assert all(bool(p.isfinite().all()) for p in [*model.parameters(), *loss.parameters()])
    return loss


def own_state(loss):
    """The variables that the loss trains itself."""
    return {name: value.detach().clone() for name, value in loss.objective.named_parameters()}


@pytest.mark.usefixtures("one_thread")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", LOSS_FACTS)
def test_what_a_loss_accepts_it_trains(name, capsys):
    counts = Counter()

    @bounded
    @given(st.data())
    def trial(source):
        draw = Draws(source)
        made, error = refusal(lambda: call(draw, name))
        if error is not None:
            check_sentence(error)
        counts["accepted" if made is not None else "refused"] += 1

    trial()
    tell(capsys, f"losses.{name}", counts)
    assert counts["accepted"] > 0.4 * counts.total()
