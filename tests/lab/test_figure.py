"""Figures: an axis has ticks, however much it spans."""

from __future__ import annotations

import pytest

from fcco.lab.figure import _plain_ticks


@pytest.mark.parametrize("low", [0.5, 1e-2, 1e-4, 1e-8, 1e-13])
def test_a_logarithmic_axis_has_labelled_ticks_whatever_it_spans(low: float) -> None:
    figures = pytest.importorskip("matplotlib.figure")
    axes = figures.Figure((4, 3)).subplots()
    axes.plot([0, 1], [low, 1.0])
    axes.set_yscale("log")
    _plain_ticks(axes)
    bottom, top = axes.get_ylim()
    shown = [
        label
        for place, label in zip(axes.get_yticks(), axes.yaxis.get_ticklabels(), strict=True)
        if bottom <= place <= top
    ]
    assert 2 <= len(shown) <= 15
    assert all(label.get_text() for label in shown)
