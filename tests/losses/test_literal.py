"""The losses against literal transcriptions of SOAP (Qi et al. 2021) and SOPA-s (Zhu et al. 2022), sum by sum."""

import math

import torch

import fcco
from tests.objectives.cases import LABEL, N, X

BETA = 0.3
STEPS = 20


def draws():
    generator = torch.Generator().manual_seed(4)
    positive = LABEL.nonzero()[:, 0]
    negative = (LABEL == 0).nonzero()[:, 0]
    for _ in range(STEPS):
        p = positive[torch.randperm(len(positive), generator=generator)[:3]]
        n = negative[torch.randperm(len(negative), generator=generator)[:4]]
        yield torch.cat([p, n])


def hinge(x):
    return max(1.0 + x, 0.0) ** 2


def hinge_slope(x):
    return 2.0 * max(1.0 + x, 0.0)


def score_gradient(model, push, id):
    """sum_k push_k grad h_k, by autograd on the network alone."""
    weights = torch.tensor([push.get(k, 0.0) for k in id.tolist()], dtype=torch.float64)
    return torch.autograd.grad((weights * model(X[id]).squeeze(1)).sum(), list(model.parameters()))


def sopa_s(h, u, id, temperature):
    """u_i <- (1-b) u_i + b mean_j exp(l_ij/T), l_ij = l(h_j - h_i);  G = mean_ij exp(l_ij/T)/u_i grad l_ij."""
    positives = [i for i in id.tolist() if LABEL[i] == 1]
    negatives = [j for j in id.tolist() if LABEL[j] == 0]
    push = {}
    value = 0.0
    for i in positives:
        exponentials = {j: math.exp(hinge(h[j] - h[i]) / temperature) for j in negatives}
        g = sum(exponentials.values()) / len(negatives)
        u[i] = g if i not in u else (1 - BETA) * u[i] + BETA * g
        value += temperature * math.log(u[i]) / len(positives)
        for j in negatives:
            each = exponentials[j] / u[i] * hinge_slope(h[j] - h[i]) / (len(positives) * len(negatives))
            push[j] = push.get(j, 0.0) + each
            push[i] = push.get(i, 0.0) - each
    return push, value


def soap(h, u, id):
    """u1, u2 track the means of l(h_j - h_i) over positives and over all;  G = mean_i (u1 g2' - u2 g1') / u2^2."""
    positives = [i for i in id.tolist() if LABEL[i] == 1]
    negatives = [j for j in id.tolist() if LABEL[j] == 0]
    all_positives = int(LABEL.sum())
    push = {}
    value = 0.0
    for i in positives:
        others = [j for j in positives if j != i]
        # What each stands for among all N: itself once, the others of its class for the rest of it.
        weight = {i: 1.0 / N}
        weight |= {j: (all_positives - 1) / len(others) / N for j in others}
        weight |= {j: (N - all_positives) / len(negatives) / N for j in negatives}
        g1 = sum(weight[j] * hinge(h[j] - h[i]) for j in positives)
        g2 = g1 + sum(weight[j] * hinge(h[j] - h[i]) for j in negatives)
        if i not in u:
            u[i] = (g1, g2)
        else:
            u[i] = ((1 - BETA) * u[i][0] + BETA * g1, (1 - BETA) * u[i][1] + BETA * g2)
        u1, u2 = u[i]
        value -= u1 / u2 / len(positives)
        for j, w in weight.items():
            change = w * hinge_slope(h[j] - h[i]) / len(positives)
            each = change * u1 / u2**2
            if LABEL[j] == 1:
                each -= change / u2
            push[j] = push.get(j, 0.0) + each
            push[i] = push.get(i, 0.0) - each
    return push, value


def assert_transcribed(loss, literal):
    torch.manual_seed(1)
    model = torch.nn.Linear(3, 1).double()
    u = {}
    for id in draws():
        h = dict(enumerate(model(X).squeeze(1).tolist()))
        push, wanted = literal(h, u, id)
        gradient = score_gradient(model, push, id)
        model.zero_grad()
        value = loss(model(X[id]), LABEL[id], id)
        value.backward()
        assert math.isclose(value.item(), wanted, rel_tol=1e-12)
        for p, expected in zip(model.parameters(), gradient, strict=True):
            torch.testing.assert_close(p.grad, expected, rtol=1e-11, atol=1e-12)
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.1 * p.grad


def test_partial_auc_is_sopa_s():
    loss = fcco.losses.PartialAUC(LABEL, beta=BETA, temperature=0.7)
    assert_transcribed(loss, lambda h, u, id: sopa_s(h, u, id, 0.7))


def test_average_precision_is_soap():
    assert_transcribed(fcco.losses.AveragePrecision(LABEL, beta=BETA), soap)
