"""Tree: whatever is added, removed, replaced or moved in a module is a change."""

import pytest
from torch import nn

from fcco._support.module_state import Tree


def pair():
    model = nn.Module()
    model.first = nn.Linear(2, 1)
    model.second = nn.Module()
    return model


def moved(model):
    bias = model.first.bias
    del model.first.bias
    model.second.bias = bias


CHANGES = {
    "added": lambda model: model.second.register_parameter("own", nn.Parameter(model.first.bias.detach().clone())),
    "removed": lambda model: delattr(model.first, "bias"),
    "replaced": lambda model: setattr(model, "first", nn.Linear(2, 1)),
    "moved to the module behind": moved,
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_seen(change):
    model = pair()
    tree = Tree(model)
    assert not tree.has_changed()
    CHANGES[change](model)
    assert tree.has_changed()
