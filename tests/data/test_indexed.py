"""Indexed: items tell their position."""

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset

from fcco.data import Indexed

X = torch.arange(10.0).reshape(5, 2)
Y = torch.tensor([0, 1, 0, 1, 1])


def test_items_end_in_their_id():
    data = Indexed(TensorDataset(X, Y))
    assert len(data) == 5
    x, y, id = data[3]
    assert torch.equal(x, X[3])
    assert (int(y), id) == (1, 3)
    assert data[-1][2] == 4
    assert Indexed([7.0, 8.0])[1] == (8.0, 1)
    assert Indexed([{"x": 1.0}])[0] == {"x": 1.0, "id": 0}


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_data_loader_yields_ids(num_workers):
    loader = DataLoader(Indexed(TensorDataset(X, Y)), batch_size=2, shuffle=True, num_workers=num_workers)
    ids = []
    for x, y, id in loader:
        assert torch.equal(x, X[id])
        assert torch.equal(y, Y[id])
        ids += id.tolist()
    assert sorted(ids) == [0, 1, 2, 3, 4]


def test_a_subset_counts_from_its_own_start():
    _, y, id = next(iter(DataLoader(Indexed(Subset(TensorDataset(X, Y), [4, 2])), batch_size=2)))
    assert id.tolist() == [0, 1]
    assert y.tolist() == [1, 0]


def test_many_items_at_once_where_the_data_set_can():
    class Many(list):
        def __getitems__(self, indices):
            return [(self[index], "many") for index in indices]

    assert Indexed(Many([5, 6])).__getitems__([1, 0]) == [(6, "many", 1), (5, "many", 0)]


def test_what_it_refuses():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter([])

    with pytest.raises(TypeError, match="dataset must have __getitem__ and __len__, got Stream"):
        Indexed(Stream())
    with pytest.raises(IndexError, match=r"index must be in 0..4, got 5"):
        Indexed(TensorDataset(X, Y))[5]
    with pytest.raises(ValueError, match="items must not have a key 'id' of their own, got one in item 0"):
        Indexed([{"id": 3}])[0]
