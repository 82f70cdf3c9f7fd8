"""TableNetwork: its encoding against a literal one, its size, and that examples do not see each other."""

import json

import numpy as np
import pytest
import torch

from fcco.tables import TableEncoder, TableNetwork


def table(rows=200, seed=0):
    rng = np.random.default_rng(seed)
    return {
        "a": rng.normal(size=rows),
        "b": rng.poisson(1.0, rows),
        "flag": (rng.random(rows) < 0.1).astype(int),
        "town": rng.choice(["Bonn", "Kiel", "Ulm"], rows).tolist(),
        "gap": np.where(rng.random(rows) < 0.2, np.nan, rng.normal(size=rows)),
    }


@pytest.fixture(scope="module")
def fitted():
    encoder = TableEncoder().fit(table())
    torch.manual_seed(0)
    return encoder, TableNetwork(encoder, outputs=3).eval()


def test_shape_and_description(fitted):
    encoder, network = fitted
    x = encoder.transform(table(17, seed=1))
    assert network(x).shape == (17, 3)
    described = json.loads(json.dumps(encoder.to_dict()))
    other = TableNetwork(described, **network.settings).eval()
    other.load_state_dict(network.state_dict())
    assert torch.equal(other(x), network(x))


def test_the_bins_are_those_of_the_paper(fitted):
    """Equation 1 of Gorishniy et al. (2022), number by number, within the training table's range."""
    encoder, network = fitted
    x = encoder.transform(table(50, seed=2))
    embedded = network.bins(x[:, : len(encoder.numbers)]).reshape(50, len(encoder.numbers), -1)
    for place, number in enumerate(encoder.numbers):
        for row in range(50):
            parts = torch.zeros(network.bins.low.shape[1])
            for bin, (low, high) in enumerate(zip(number.edges, number.edges[1:], strict=False)):
                share = (float(x[row, place]) - low) / (high - low)
                parts[bin] = min(max(share, 0.0), 1.0)
            wanted = (parts @ network.bins.weight[place] + network.bins.bias[place, 0]).relu()
            assert torch.allclose(embedded[row, place], wanted, atol=1e-5)


def test_levels_never_met_say_nothing(fitted):
    _, network = fitted
    codes = torch.tensor([[0.0], [1.0], [2.0]])
    vectors = network.levels(codes)
    assert vectors[:2].abs().max() == 0.0
    assert vectors[2].abs().max() > 0.0


def test_examples_do_not_see_each_other(fitted):
    encoder, network = fitted
    x = encoder.transform(table(40, seed=3)).double()
    network = TableNetwork(encoder, **network.settings).double().train()
    network.body.eval()  # dropout alone differs
    whole = network(x)
    apart = torch.cat([network(row.unsqueeze(0)) for row in x])
    assert torch.allclose(whole, apart, atol=1e-12)
    assert not any("BatchNorm" in type(part).__name__ for part in network.modules())


def test_it_exports_and_traces(fitted):
    encoder, network = fitted
    x = encoder.transform(table(6, seed=4))
    rows = torch.export.Dim("rows", min=1)
    program = torch.export.export(network, (x,), dynamic_shapes=({0: rows},))
    more = encoder.transform(table(9, seed=5))
    assert torch.allclose(program.module()(more), network(more), atol=1e-6)


def test_it_is_sized_by_the_data():
    def network(rows, columns, binary):
        values = np.random.default_rng(0).normal(size=(rows, columns))
        if binary:
            values = (values > 1.0).astype(int)
        return TableNetwork(TableEncoder().fit(values), 1)

    small = network(100, 5, binary=False)
    assert (small.settings["width"], small.settings["embedding"]) == (64, 16)
    wide = network(500, 300, binary=False)
    assert (wide.settings["width"], wide.settings["embedding"]) == (64, 2)
    flags = network(5_000, 50, binary=True)
    assert (flags.settings["width"], flags.settings["embedding"]) == (256, 0)


def test_it_learns_what_a_line_cannot():
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(600, 2, generator=generator)
    y = ((values[:, 0].abs() < 0.6) ^ (values[:, 1] > 0)).float()
    encoder = TableEncoder()
    x = encoder.fit_transform(values)
    torch.manual_seed(0)
    network = TableNetwork(encoder, 1)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-2)
    for _ in range(150):
        loss = torch.nn.functional.binary_cross_entropy_with_logits(network(x)[:, 0], y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    right = (network.eval()(x)[:, 0] > 0) == (y > 0)
    assert right.float().mean() > 0.95


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"outputs": 0}, "outputs must be >= 1, got 0"),
        ({"outputs": 1, "width": 0}, "width must be >= 1, got 0"),
        ({"outputs": 1, "depth": 0}, "depth must be >= 1, got 0"),
        ({"outputs": 1, "dropout": 1.5}, r"dropout must be in \[0, 1\], got 1.5"),
        ({"outputs": 1, "embedding": -1}, "embedding must be >= 0, got -1"),
    ],
)
def test_arguments(fitted, arguments, message):
    with pytest.raises(ValueError, match=message):
        TableNetwork(fitted[0], **arguments)


def test_a_table_of_another_width_is_refused(fitted):
    with pytest.raises(ValueError, match=r"x must be \(K, 6\) as the encoder gives it, got \(2, 3\)"):
        fitted[1](torch.zeros(2, 3))
