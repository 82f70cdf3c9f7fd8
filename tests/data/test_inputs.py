"""What x may be: tensors, arrays, data frames, lists, dicts, tuples, data sets; the core imports none of them."""

import subprocess
import sys
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

import fcco
from fcco.data import Bags, ExampleBlocks, Examples, Groups, Loader, Points, Queries, RiskSets
from fcco.data._source import DatasetSource, TensorSource

ROWS = [[float(k), 10.0 + k] for k in range(6)]
Y = [1, 0, 0, 1, 0, 1]
ARRAY = np.array(ROWS)
FRAME = pd.DataFrame({"a": ARRAY[:, 0], "b": ARRAY[:, 1]}, index=[5, 5, 3, 2, 1, 0])
READ_ONLY = np.array(ROWS)
READ_ONLY.flags.writeable = False


class Dicts(Dataset[Any]):
    """Items that are dicts, as tokenizers give."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, k: int) -> dict[str, Any]:
        return {"input_ids": torch.tensor([k, 10 + k]), "length": k}


class Items(Dataset[Any]):
    """Items (x, label) of NumPy arrays."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, k: int) -> tuple[Any, int]:
        return ARRAY[k], Y[k]


SAME: dict[str, Any] = {
    "tensor": torch.tensor(ROWS),
    "numpy": ARRAY,
    "numpy float32": ARRAY.astype(np.float32),
    "numpy integers": ARRAY.astype(np.uint16),
    "read-only": READ_ONLY,
    "backwards": ARRAY[::-1].copy()[::-1],
    "big-endian": ARRAY.astype(">f8"),
    "data frame": FRAME,
    "list": ROWS,
    "TensorDataset": TensorDataset(torch.tensor(ROWS), torch.tensor(Y)),
    "data set": Items(),
    "list of tensors": list(torch.tensor(ROWS)),
    "list of pairs": [(torch.tensor(row), 0) for row in ROWS],
}


@pytest.mark.parametrize("x", SAME.values(), ids=SAME.keys())
def test_x_of_many_kinds(x: Any) -> None:
    data = Points(x, Y)
    assert len(data) == data.num_examples == 6
    assert data.source.take(torch.tensor([4, 0])).tolist() == [[4, 14], [0, 10]]
    part = data.subset([5, 4, 1]).subset([2, 0])
    assert part.source.take(torch.tensor([1, 0])).tolist() == [[5, 15], [1, 11]]
    assert part.y.tolist() == [0, 1]


@pytest.mark.parametrize("x", SAME.values(), ids=SAME.keys())
def test_floating_x_takes_the_models_dtype(x: Any) -> None:
    loader = Loader(ExampleBlocks(Examples(x)), 2, 1, dtype=torch.float32)
    batch = next(iter(loader))
    assert batch.x.dtype == torch.float32 or not batch.x.is_floating_point()
    assert batch.x[:, 0].tolist() == batch.id.tolist()


def test_arrays_are_not_copied() -> None:
    for array in (ARRAY, READ_ONLY):
        source = Points(array, Y).source
        assert isinstance(source, TensorSource)
        assert source.x.data_ptr() == array.__array_interface__["data"][0]


@pytest.mark.parametrize("of", [torch.tensor, np.array, pd.DataFrame], ids=["tensor", "numpy", "pandas"])
def test_a_tuple_is_modalities_and_a_dict_stays_one(of: Any) -> None:
    two = Examples((of(ROWS), torch.arange(6)))
    image, text = two.source.take(torch.tensor([3]))
    assert image.tolist() == [[3, 13]]
    assert text.tolist() == [3]
    named = Examples({"image": of(ROWS), "text": np.arange(6)})
    taken = named.source.take(torch.tensor([2, 5]))
    assert taken["image"].tolist() == [[2, 12], [5, 15]]
    assert taken["text"].tolist() == [2, 5]


def test_dict_items_collate_to_dicts() -> None:
    data = Examples(Dicts(), Y)
    assert isinstance(data.source, DatasetSource)
    batch = next(iter(Loader(ExampleBlocks(data), 3, 0, num_workers=1)))
    assert batch.x["length"].tolist() == batch.id.tolist()
    assert batch.x["input_ids"].shape == (3, 2)
    assert batch.y is not None
    assert batch.y.tolist() == [Y[k] for k in batch.id.tolist()]


def test_a_batch_moves_with_all_its_tensors() -> None:
    batch = next(iter(Loader(ExampleBlocks(Examples({"a": torch.tensor(ROWS)})), 3, 0)))
    moved = batch.to("meta")
    assert moved.x["a"].is_meta
    assert moved.index is not None
    assert moved.index.is_meta
    assert moved.weight is not None
    assert moved.weight.is_meta


@pytest.mark.parametrize("of", [list, np.array, torch.tensor, pd.Series], ids=["list", "numpy", "tensor", "pandas"])
def test_facts_of_many_kinds(of: Any) -> None:
    x = torch.zeros(6, 1)
    weight = of([1.0, 2.0, 0.0, 0.5, 1.0, 1.0])
    queries = Queries(x, of([7, 7, 3, 3, 7, 9]), of([1.0, 0, 2, 0, 0, 1]), weight=weight)
    assert queries.query.tolist() == [1, 1, 0, 0, 1, 2]
    assert queries.query_names == (3, 7, 9)
    assert queries.weight is not None
    assert queries.weight.dtype == torch.float64
    risk = RiskSets(x, of([3.0, 1, 2, 4, 1, 1]), of([True, False, True, False, True, True]))
    assert risk.event.tolist() == [True, False, True, False, True, True]
    groups = Groups(x, of([0, 1, 1, 0, 1, 0]), of([2, 2, 5, 5, 2, 5]))
    assert groups.group.tolist() == [0, 0, 1, 1, 0, 1]
    assert groups.group_names == (2, 5)
    bags = Bags(x, of([0, 0, 1, 2, 2, 2]), of([-1, 1, -1]))
    assert bags.bag_label.tolist() == [0, 1, 0]


def test_names_of_groups() -> None:
    x = torch.zeros(4, 1)
    assert Groups(x, [0, 1, 0, 1], pd.Series(["b", "a", "b", "c"])).group_names == ("a", "b", "c")
    assert Queries(x, ["q2", "q1", "q2", "q1"], [0, 1, 2, 0]).query.tolist() == [1, 0, 1, 0]
    bags = Bags(x, ["u", "v", "u", "w"], {"w": "sick", "u": "well", "v": "sick"}, positive="sick")
    assert bags.bag_names == ("u", "v", "w")
    assert bags.bag_label.tolist() == [0, 1, 1]


def test_targets_of_groups() -> None:
    x, group = torch.zeros(4, 1), [0, 1, 0, 1]
    assert Groups(x, [-1, 1, 1, -1], group).y.tolist() == [0, 1, 1, 0]
    assert Groups(x, [0.0, 1.0, 1.0, 0.0], group).y.dtype == torch.float32
    assert Groups(x, [3, 0, 5, 1], group).y.tolist() == [3, 0, 5, 1]  # classes of a cross-entropy keep their numbers
    assert Groups(x, np.array([0.3, 1.2, -0.4, 2.0]), group).y.dtype == torch.float64
    assert Groups(x, ["cat", "dog", "cat", "cow"], group).y.tolist() == [0, 2, 0, 1]
    assert Groups(x, torch.zeros(4, 3), group).y.shape == (4, 3)


def test_neither_numpy_nor_pandas_is_imported() -> None:
    code = (
        "import sys; sys.modules['pandas'] = None; import torch; before = 'numpy' in sys.modules; import fcco.data;"
        "fcco.data.Points(torch.zeros(4, 1), [1, 0, 0, 1]); assert ('numpy' in sys.modules) == before"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_table_of_numbers_of_several_kinds_is_a_table_of_numbers():
    frame = pd.DataFrame({"age": [20.0, 30.0, 40.0], "city": ["a", "b", "a"], "n": pd.array([1, 2, 3], dtype="Int64")})
    data = Points(pd.get_dummies(frame), [1, 0, 1])
    rows = data.source.take(torch.tensor([1]))
    assert rows.tolist() == [[30.0, 2.0, 0.0, 1.0]]
    with pytest.raises(TypeError, match=r"x must hold numbers, got .* in column 'city'"):
        Points(frame, [1, 0, 1])


def test_numbers_of_numpy_and_boolean_inputs_are_welcome():
    y = np.array([1, 0, 0, 1])
    data = Points(np.eye(4, dtype=bool), y)
    objective = fcco.objectives.PartialAUC(torch.nn.Linear(4, 1), data)
    solver = fcco.Solver(objective, torch.optim.SGD(objective.parameters(), lr=0.1), fcco.sox())
    for batch in solver.loader(blocks=y.sum(), samples=np.int64(2)):
        assert batch.x.dtype == torch.float32
        solver.step(batch)
