"""Work is done again where anything that it follows from has changed, and only there."""

import copy
import pickle

import torch

from fcco._support.remembered import Remembered, one_program_run


class Counted:
    def __init__(self):
        self.remembered = Remembered()
        self.times = 0

    def get(self, *source):
        def work():
            self.times += 1
            return self.times

        return self.remembered.get(source, work)


def test_once_for_the_same_tensors():
    counted = Counted()
    x, y = torch.ones(2), torch.ones(2)
    assert [counted.get(x, y, None, torch.float32) for _ in range(3)] == [1, 1, 1]


def test_again_for_another_tensor_of_the_same_numbers():
    counted = Counted()
    x = torch.ones(2)
    assert [counted.get(x), counted.get(x.clone()), counted.get(x)] == [1, 2, 3]


def test_again_for_another_value_beside_it():
    counted = Counted()
    x = torch.ones(2)
    assert [counted.get(x, torch.float32), counted.get(x, torch.float64)] == [1, 2]


def test_again_where_a_tensor_was_written_to():
    counted = Counted()
    x = torch.ones(2)
    counted.get(x)
    x[0] = 3.0
    assert counted.get(x) == 2
    assert counted.get(x) == 2


def test_a_tensor_that_went_is_not_taken_for_one_in_its_place():
    counted = Counted()
    for time in range(1, 20):
        assert counted.get(torch.ones(2)) == time


def test_nothing_of_inference_mode_is_kept():
    counted = Counted()
    x = torch.ones(2)
    with torch.inference_mode():
        counted.get(x)
        inside = torch.ones(2)
    assert counted.get(x) == 2
    assert [counted.get(inside), counted.get(inside)] == [3, 4]


def test_copies_start_empty():
    remembered = Remembered()
    x = torch.ones(2)
    remembered.get((x,), lambda: 1)
    for twin in (copy.deepcopy(remembered), pickle.loads(pickle.dumps(remembered))):
        assert twin.get((x,), lambda: 2) == 2


def test_a_program_run_does_its_own_work_once():
    counted = Counted()
    x = torch.ones(2)
    assert counted.get(x) == 1
    for wanted in (2, 3):
        with one_program_run():
            assert [counted.get(x), counted.get(x)] == [wanted, wanted]
    assert counted.get(x) == 4


def test_other_devices_only_within_a_program_run():
    counted = Counted()
    x = torch.ones(2, device="meta")
    assert [counted.get(x), counted.get(x)] == [1, 2]
    with one_program_run():
        assert [counted.get(x), counted.get(x)] == [3, 3]
        x.zero_()
        assert counted.get(x) == 4
