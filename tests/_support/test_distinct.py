import copy
import pickle

import pytest
import torch

from fcco._support.distinct import Distinct


@pytest.mark.parametrize("seed", range(5))
def test_distinct_numbers_are_told_from_others(seed):
    generator = torch.Generator().manual_seed(seed)
    distinct = Distinct(20)
    for _ in range(50):
        count = int(torch.randint(1, 9, (), generator=generator))
        numbers = torch.randint(20, (count,), generator=generator)
        assert distinct.are(numbers) == (len(set(numbers.tolist())) == count)


def test_a_table_made_in_inference_mode_serves_outside_of_it():
    distinct = Distinct(4)
    with torch.inference_mode():
        assert distinct.are(torch.tensor([3, 1]))
    assert not distinct.are(torch.tensor([3, 3]))


def test_copies_start_without_the_table():
    distinct = Distinct(10**6)
    assert distinct.are(torch.arange(3))
    assert len(pickle.dumps(distinct)) < 1000
    assert not copy.deepcopy(distinct).are(torch.tensor([2, 2]))


def test_numbers_of_another_size_are_taken_as_they_are():
    distinct = Distinct(5)
    assert distinct.are(torch.tensor([4, 1], dtype=torch.int32))
    assert not distinct.are(torch.tensor([4, 4], dtype=torch.int32))
