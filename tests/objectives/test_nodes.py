"""Nodes that stand for many small operations: values, gradients of both orders, forward mode."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad, gradcheck, gradgradcheck

from fcco._support.logs import ZERO
from fcco.data import Batch, Points, Queries
from fcco.objectives import NDCG, AveragePrecision, ListNet, PartialAUC, PNormPush
from fcco.objectives._class_moments import Classes, ClassesByExample, ClassMoments, MomentsByExample
from fcco.objectives._query_pairs import (
    ItemPairs,
    LogMeansByQuery,
    LogMeansOfExponentials,
    LogMeansOfWholeQueries,
    QuadraticMeans,
    QueryShares,
    common_length,
    members_of,
)
from fcco.objectives._similarities import LogMeanSimilarities, exponent_dtype, plain_similarities


def generator():
    return torch.Generator().manual_seed(0)


def normal(*shape):
    return torch.randn(shape, generator=generator(), dtype=torch.float64)


# ---------------------------------------------------------------------- moments of classes

TASK = torch.tensor([2, 0])
ENTERING = torch.tensor(
    [[[1, 0, 1, 0, 0], [0, 1, 0, 1, 0]], [[0, 0, 0, 1, 0], [0, 1, 1, 0, 0]]], dtype=torch.bool
)  # (2, 2, 5)
CLASS_WEIGHT = ENTERING * torch.rand(5, generator=generator(), dtype=torch.float64)


def moments(outputs, a=None, b=None):
    return ClassMoments.apply(outputs, a, b, Classes.of(TASK, ENTERING, CLASS_WEIGHT))


SERVES = torch.tensor([0, 0, 1, 1, 0])
POSITIVE = torch.tensor([True, False, True, False, True])
EXAMPLE_WEIGHT = torch.rand(5, generator=generator(), dtype=torch.float64)


def moments_by_example(outputs, a, b):
    classes = ClassesByExample.of(torch.tensor([0, 1]), SERVES, POSITIVE, EXAMPLE_WEIGHT, 3)
    column = TASK.index_select(0, SERVES)
    return MomentsByExample.apply(outputs, a, b, classes.at(column))


def test_moments_by_example_are_those_by_class():
    outputs, a, b = normal(5, 3), normal(3), normal(3) + 1
    entering = torch.zeros(2, 2, 5, dtype=torch.bool)
    entering[SERVES, (~POSITIVE).long(), torch.arange(5)] = True
    classes = Classes.of(TASK, entering, entering * EXAMPLE_WEIGHT)
    found = [x.clone().requires_grad_() for x in (outputs, a, b)]
    wanted = [x.clone().requires_grad_() for x in (outputs, a, b)]
    slope = normal(2, 3)
    g = moments_by_example(*found)
    by_class = ClassMoments.apply(*wanted, classes)
    assert torch.allclose(g, by_class, rtol=1e-14)
    g.backward(slope)
    by_class.backward(slope)
    for mine, other in zip(found, wanted, strict=True):
        assert torch.allclose(mine.grad, other.grad, rtol=1e-13)


def literal_moments(outputs, a=None, b=None):
    rows = []
    for block, task in enumerate(TASK.tolist()):
        sums = []
        means = []
        for kind, center in enumerate((a, b)):
            c = 0.0 if center is None else center[task]
            here = [k for k in range(5) if ENTERING[block, kind, k]]
            sums.append(sum(CLASS_WEIGHT[block, kind, k] * (outputs[k, task] - c) ** 2 for k in here))
            means.append(sum(CLASS_WEIGHT[block, kind, k] * outputs[k, task] for k in here))
        rows.append(torch.stack([*sums, *means] if a is None else [*sums, means[1] - means[0]]))
    return torch.stack(rows)


def test_moments_are_the_literal_sums():
    outputs, a, b = normal(5, 3), normal(3), normal(3) + 1
    assert torch.allclose(moments(outputs, a, b), literal_moments(outputs, a, b), rtol=1e-13)
    assert torch.allclose(moments(outputs), literal_moments(outputs), rtol=1e-13)


def test_scores_that_enter_nowhere_may_be_infinite():
    outputs = normal(5, 3)
    outputs[4] = torch.inf
    outputs.requires_grad_()
    g = moments(outputs)
    g.sum().backward()
    assert torch.isfinite(g).all()
    assert (outputs.grad[4] == 0).all()


# ---------------------------------------------------------------------- similarities

POSITION = torch.tensor([3, 0])


def log_weight(two_modal):
    weight = torch.rand(2, 4, generator=generator(), dtype=torch.float64)
    weight[0, 3] = weight[1, 0] = 0.0
    return weight.log() if two_modal else weight.log().repeat(1, 2)


def similarities(two_modal, normalized):
    weight = log_weight(two_modal)
    return lambda outputs: LogMeanSimilarities.apply(outputs, POSITION, weight, 0.3, two_modal, normalized)


def literal_similarities(outputs, two_modal, normalized):
    h = outputs / outputs.norm(dim=2, keepdim=True) if normalized else outputs
    weight = log_weight(two_modal).exp()
    rows = []
    for block, place in enumerate(POSITION.tolist()):
        row = []
        for view in range(2):
            against = [h[k, 1 - view] for k in range(4)] if two_modal else [h[k, v] for v in range(2) for k in range(4)]
            positive = h[place, 0] @ h[place, 1]
            terms = [
                w * ((h[place, view] @ z - positive) / 0.3).exp() for w, z in zip(weight[block], against, strict=True)
            ]
            row.append(sum(terms).log())
        rows.append(torch.stack(row))
    return torch.stack(rows)


@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize("two_modal", [True, False])
def test_similarities_are_the_literal_sums(two_modal, normalized):
    outputs = normal(4, 2, 3)
    wanted = literal_similarities(outputs, two_modal, normalized)
    assert torch.allclose(similarities(two_modal, normalized)(outputs), wanted, rtol=1e-13)
    plain = plain_similarities(outputs, POSITION, log_weight(two_modal), 0.3, two_modal, normalized)
    assert torch.allclose(plain, wanted, rtol=1e-13)


@pytest.mark.parametrize("two_modal", [True, False])
def test_every_example_a_block_is_as_some_of_them(two_modal):
    """Where own features are all features, products are shared."""
    generator_ = generator()
    weight = torch.rand(4, 4, generator=generator_, dtype=torch.float64).fill_diagonal_(0.0).log()
    if not two_modal:
        weight = weight.repeat(1, 2)
    factor = torch.rand(4, 2, generator=generator_, dtype=torch.float64)
    whole = normal(4, 2, 3).requires_grad_()
    in_parts = whole.detach().clone().requires_grad_()
    g = LogMeanSimilarities.apply(whole, torch.arange(4), weight, 0.3, two_modal, True)
    (factor * g).sum().backward()
    for some in (torch.tensor([0, 2]), torch.tensor([3, 1])):
        part = LogMeanSimilarities.apply(in_parts, some, weight[some], 0.3, two_modal, True)
        assert torch.allclose(part, g[some], rtol=1e-13)
        (factor[some] * part).sum().backward()
    assert torch.allclose(whole.grad, in_parts.grad, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("tau", [0.2, 0.5])
@pytest.mark.parametrize("two_modal", [True, False])
def test_exponents_in_single_precision_keep_six_digits(two_modal, tau):
    exact = normal(64, 2, 16).float().double().requires_grad_()
    single = exact.detach().float().requires_grad_()
    place = torch.arange(64)
    found = []
    for outputs in (exact, single):
        dtype = exponent_dtype(outputs, tau, normalized=True)
        assert dtype == outputs.dtype
        weight = torch.where(place != place.unsqueeze(1), -math.log(63.0), -torch.inf).to(dtype)
        if not two_modal:
            weight = weight.repeat(1, 2)
        g = LogMeanSimilarities.apply(outputs, place, weight, tau, two_modal, True)
        assert g.dtype == torch.float64
        g.sum().backward()
        found.append(g.detach())
    assert (found[0] - found[1]).abs().max() < 1e-6
    assert (single.grad - exact.grad).norm() < 1e-6 * exact.grad.norm()


def test_exponents_are_in_double_precision_where_they_may_be_large():
    outputs = torch.zeros(4, 2, 3)
    assert exponent_dtype(outputs, 0.1, normalized=True) == torch.float64
    assert exponent_dtype(outputs, 0.5, normalized=False) == torch.float64
    assert exponent_dtype(outputs.bfloat16(), 0.5, normalized=True) == torch.float64


def test_nobody_to_compare_with_is_log_zero_with_gradient_zero():
    outputs = normal(4, 2, 3).requires_grad_()
    weight = log_weight(two_modal=True)
    weight[1] = -torch.inf
    g = LogMeanSimilarities.apply(outputs, POSITION, weight, 0.3, True, True)
    assert g[1].tolist() == [ZERO, ZERO]
    g[1].sum().backward()
    assert (outputs.grad == 0).all()


def test_features_that_are_not_numbers_are_not_hidden():
    outputs = normal(4, 2, 3)
    outputs[3] = torch.nan
    assert similarities(two_modal=True, normalized=True)(outputs)[0].isnan().all()


def test_single_precision_gradients_keep_their_digits():
    exact = normal(4, 2, 3).requires_grad_()
    single = exact.detach().float().requires_grad_()
    for outputs in (exact, single):
        similarities(two_modal=False, normalized=True)(outputs).sum().backward()
    assert single.grad.dtype == torch.float32
    assert torch.allclose(single.grad.double(), exact.grad, rtol=1e-5, atol=1e-6)


# ---------------------------------------------------------------------- pairs of a query

QUERY = torch.tensor([1, 0, 1, 1, 0, 2])
OWN = torch.tensor([2, 1, 5])


def pairs():
    found = members_of(QUERY, QUERY[OWN], OWN, most=100)
    weight = torch.rand(found.place.shape, generator=generator(), dtype=torch.float64).masked_fill(~found.real, 0.0)
    return ItemPairs(OWN, found.place, weight)


def test_members_are_the_items_of_the_query():
    found = members_of(QUERY, QUERY[OWN], OWN, most=9)
    items = [sorted(row[mark].tolist()) for row, mark in zip(found.place, found.real, strict=True)]
    assert items == [[0, 2, 3], [1, 4], [5]]
    assert found.length.tolist() == [3, 2, 1]
    assert (found.place[~found.real] == torch.tensor([1, 5, 5])).all()  # rows are filled up by the own item
    assert found.shortest == 1
    assert members_of(QUERY, QUERY[OWN], OWN, most=8) is None


def test_queries_of_one_length_are_not_filled_up():
    query = torch.tensor([1, 0, 1, 0])
    own = torch.tensor([3, 0, 1])
    found = members_of(query, query[own], own, most=100)
    assert found.real is None
    assert found.place.tolist() == [[1, 3], [0, 2], [1, 3]]
    assert found.shortest == 2


def whole_queries(queries, order):
    """A batch of two of eight queries with three items each, of which the first two are blocks, in some order."""
    first = 3 * torch.tensor(queries).unsqueeze(1)
    items = (first + torch.arange(3)).flatten()
    relevant = (first + torch.arange(2)).flatten()
    id = items[order]
    block_pos = (id == relevant.unsqueeze(1)).int().argmax(1)
    block = 2 * torch.div(relevant, 3, rounding_mode="floor") + relevant % 3
    return Batch(id, id, block, block_pos=block_pos)


@pytest.mark.parametrize("kind", [ListNet, NDCG])
def test_a_known_pattern_of_queries_gives_the_pairs_of_a_new_layout(kind):
    """Queries change from batch to batch, their places in it do not; a batch that only looks like it is laid out."""
    data = Queries(torch.arange(24), torch.arange(8).repeat_interleave(3), torch.tensor([2, 1, 0]).repeat(8))
    options = {"relevant_only": True} if kind is ListNet else {}
    objective = kind(nn.Linear(1, 1), data, **options)
    straight = torch.arange(6)
    swapped = torch.tensor([0, 1, 5, 3, 4, 2])  # the last item of each query stands among those of the other
    known = []
    for queries, order in [((0, 5), straight), ((7, 2), straight), ((7, 2), swapped), ((1, 4), straight)]:
        batch = whole_queries(queries, order)
        outputs = torch.randn(6, 1, dtype=torch.float64, generator=generator())
        afresh = kind(nn.Linear(1, 1), data, **options)
        wanted = afresh.values(batch.index, outputs, batch)
        assert torch.equal(objective.values(batch.index, outputs, batch), wanted)
        assert torch.equal(copy.deepcopy(objective).values(batch.index, outputs, batch), wanted)
        known.append(objective._pattern.last)
    assert known[0] is known[1]
    assert known[1] is not known[2]


def quadratic(hinge):
    made = pairs()
    return lambda h: QuadraticMeans.apply(h, made, 0.7, 1.5, hinge)


def exponentials():
    made = pairs()
    made = made._replace(weight=made.weight.log())
    return lambda h: LogMeansOfExponentials.apply(h, made)


SHARES = QueryShares(
    own=OWN,
    group=QUERY,
    row=QUERY[OWN],
    of_own=torch.tensor([0.25, 0.5, 1.0], dtype=torch.float64),
    of_other=torch.tensor([0.375, 0.5, 0.0], dtype=torch.float64),
    num_queries=3,
)


def means_by_query(h):
    return LogMeansByQuery.apply(h, SHARES)


def literal_means_by_query(h):
    rows = []
    for block, own in enumerate(OWN.tolist()):
        others = [k for k in range(6) if QUERY[k] == QUERY[own] and k != own]
        total = SHARES.of_own[block] + sum(SHARES.of_other[block] * (h[k] - h[own]).exp() for k in others)
        rows.append(total.log())
    return torch.stack(rows).unsqueeze(1)


@pytest.mark.parametrize("scale", [1.0, 100.0])
def test_means_by_query_are_the_literal_sums(scale):
    h = scale * normal(6)
    assert torch.allclose(means_by_query(h), literal_means_by_query(h), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("scale", [1.0, 100.0])
def test_derivatives_by_query_are_those_of_the_literal_sums(scale):
    found = (scale * normal(6)).requires_grad_()
    wanted = found.detach().clone().requires_grad_()
    means_by_query(found).sum().backward()
    literal_means_by_query(wanted).sum().backward()
    assert torch.allclose(found.grad, wanted.grad, rtol=1e-12, atol=1e-13)


WHOLE = QueryShares(
    own=torch.tensor([1, 5, 0]),
    group=torch.tensor([0, 0, 0, 1, 1, 1]),
    row=torch.tensor([0, 1, 0]),
    of_own=torch.full((3,), 1 / 3, dtype=torch.float64),
    of_other=torch.full((3,), 1 / 3, dtype=torch.float64),
    num_queries=2,
    length=3,
)


def means_of_whole_queries(h):
    return LogMeansOfWholeQueries.apply(h, WHOLE)


@pytest.mark.parametrize("scale", [1.0, 100.0])
def test_means_of_whole_queries_are_those_by_query(scale):
    found = (scale * normal(6)).requires_grad_()
    wanted = found.detach().clone().requires_grad_()
    g = means_of_whole_queries(found)
    literal = LogMeansByQuery.apply(wanted, WHOLE)
    assert torch.allclose(g, literal, rtol=1e-13, atol=1e-13)
    slope = torch.tensor([[1.0], [-2.0], [0.5]], dtype=torch.float64)
    g.backward(slope)
    literal.backward(slope)
    assert torch.allclose(found.grad, wanted.grad, rtol=1e-10, atol=1e-13)


def test_queries_of_one_length_one_after_the_other_are_told():
    assert common_length(torch.tensor([0, 0, 2, 2, 1, 1]), torch.tensor([2, 2, 2])) == 2
    assert common_length(torch.tensor([0, 1, 0, 1]), torch.tensor([2, 2])) is None
    assert common_length(torch.tensor([0, 0, 0, 1]), torch.tensor([3, 1])) is None


@pytest.mark.parametrize("hinge", [True, False])
def test_quadratic_means_are_the_literal_sums(hinge):
    h = normal(6)
    x = h[pairs().member] - h[OWN].unsqueeze(1) + 0.7
    wanted = 1.5 * (pairs().weight * (x.clamp(min=0) if hinge else x).square()).sum(1, keepdim=True)
    assert torch.allclose(quadratic(hinge)(h), wanted, rtol=1e-14)


def test_log_means_are_the_literal_sums():
    h = 100 * normal(6)
    x = h[pairs().member] - h[OWN].unsqueeze(1)
    assert torch.allclose(exponentials()(h), (x + pairs().weight.log()).logsumexp(1, keepdim=True), rtol=1e-14)


def test_items_without_weight_do_not_set_the_scale():
    h = torch.tensor([900.0, 0.0, 0.1, -0.2, 0.3, 0.0], dtype=torch.float64)
    made = pairs()
    weight = made.weight.masked_fill(made.member == 0, 0.0)
    g = LogMeansOfExponentials.apply(h, made._replace(weight=weight.log()))
    assert torch.isfinite(g).all()
    assert g[0] > -10.0


def test_a_row_in_which_nothing_enters_is_log_zero_with_gradient_zero():
    h = normal(6).requires_grad_()
    made = pairs()
    g = LogMeansOfExponentials.apply(h, made._replace(weight=torch.full_like(made.weight, -torch.inf)))
    assert g.flatten().tolist() == [-torch.inf] * 3
    g.sum().backward()
    assert (h.grad == 0).all()


# ---------------------------------------------------------------------- derivatives of all of them

CASES = {
    "moments": (lambda x: moments(x), normal(5, 3)),
    "moments about centers": (lambda x: moments(x[:5], x[5], x[6]), normal(7, 3)),
    "moments by example": (lambda x: moments_by_example(x[:5], x[5], x[6]), normal(7, 3)),
    "two modalities": (similarities(True, True), normal(4, 2, 3)),
    "two views": (similarities(False, True), normal(4, 2, 3)),
    "two views of any length": (similarities(False, False), normal(4, 2, 3)),
    "squared hinge": (quadratic(True), normal(6)),
    "square": (quadratic(False), normal(6)),
    "exponentials": (exponentials(), normal(6)),
    "exponentials by query": (means_by_query, normal(6)),
    "exponentials of whole queries": (means_of_whole_queries, normal(6)),
}


@pytest.mark.parametrize("name", CASES)
def test_gradients_of_both_orders(name):
    function, x = CASES[name]
    assert gradcheck(function, x.clone().requires_grad_())
    assert gradgradcheck(function, x.clone().requires_grad_())


@pytest.mark.parametrize("name", CASES)
def test_forward_mode_equals_backward(name):
    function, x = CASES[name]
    change = torch.randn(x.shape, generator=generator(), dtype=torch.float64)
    with forward_ad.dual_level():
        product = forward_ad.unpack_dual(function(forward_ad.make_dual(x, change))).tangent
    jacobian = torch.autograd.functional.jacobian(function, x)
    wanted = (jacobian * change).flatten(jacobian.dim() - x.dim()).sum(-1)
    assert torch.allclose(product, wanted, rtol=1e-12)


def test_forward_mode_of_a_center_alone():
    a, b = normal(3), normal(3) + 1
    outputs = normal(5, 3)
    for node in (moments, moments_by_example):
        with forward_ad.dual_level():
            product = forward_ad.unpack_dual(node(outputs, a, forward_ad.make_dual(b, torch.ones_like(b)))).tangent
        wanted = torch.autograd.functional.jacobian(lambda b, node=node: node(outputs, a, b), b).sum(-1)
        assert torch.allclose(product, wanted, rtol=1e-12)


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 2, 0]])
def test_whole_queries_may_stand_in_any_order(order):
    """Each block's slope goes to its own query, whichever comes first in the batch."""
    length = 2
    query = torch.arange(3).repeat_interleave(length)
    data = Queries(torch.zeros(6, 1), query, torch.tensor([1, 0, 1, 0, 1, 0]))
    objective = ListNet(nn.Linear(1, 1).double(), data)
    items = torch.cat([length * q + torch.arange(length) for q in order])
    batch = Batch(None, items, items, None, torch.arange(6))
    h = normal(6).requires_grad_()
    slope = normal(6, 1)
    (gradient,) = torch.autograd.grad((objective.values(items, h, batch) * slope).sum(), h)
    rows = h.view(3, length)
    literal = (rows.unsqueeze(1) - rows.unsqueeze(2)).exp().mean(2).log().reshape(6, 1)
    (wanted,) = torch.autograd.grad((literal * slope).sum(), h)
    torch.testing.assert_close(gradient, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", [AveragePrecision, PNormPush, PartialAUC])
def test_a_batch_in_which_no_block_is_complete_has_no_values(kind):
    data = Points(torch.zeros(6, 1), torch.tensor([1, 0, 0, 0, 0, 0]))
    objective = kind(nn.Linear(1, 1), data)
    batch = objective.complete(data.batch(torch.tensor([1, 2]), torch.zeros(2, 1)))
    assert objective.outer(batch.index, objective.inner(batch.index, batch)).shape == (0,)


@pytest.mark.parametrize("kind", [NDCG, ListNet])
def test_a_batch_of_single_items_of_queries_has_no_values(kind):
    data = Queries(torch.zeros(4, 1), torch.tensor([0, 0, 1, 1]), torch.tensor([1, 0, 1, 0]))
    objective = kind(nn.Linear(1, 1), data)
    batch = objective.complete(data.batch(torch.tensor([0, 2]), torch.zeros(2, 1)))
    assert objective.outer(batch.index, objective.inner(batch.index, batch)).shape == (0,)
