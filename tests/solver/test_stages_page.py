"""The examples of docs/stages.md run as they stand, and with the adaptive steps that the page allows."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "stages.md"
OPTIMIZERS = {"sgd": "torch.optim.SGD([w], lr=1.0", "adaptive": "fcco.Adaptive([w], lr=1.0, delta=1.0"}


@pytest.fixture(scope="module", params=OPTIMIZERS)
def page(request):
    """The names that the page's blocks leave, one block after another."""
    text = PAGE.read_text(encoding="utf-8")
    assert text.count(OPTIMIZERS["sgd"]) == 2
    text = text.replace(OPTIMIZERS["sgd"], OPTIMIZERS[request.param])
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert len(blocks) == 3
    names = {"print": lambda said: names.setdefault("said", []).append(said)}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    return names


def test_the_pl_example_comes_to_the_minimum(page):
    start, end = re.search(r"gap ([\d.]+) -> ([\d.]+)", page["said"][0]).groups()
    assert float(start) > 5.0
    assert float(end) < 0.02
    assert "in 1575 steps, last stage 6 of 6" in page["said"][0]


def test_the_convex_example_reaches_its_accuracy(page):
    assert page["convex_gap"] < page["eps"]
    assert float(page["w"][-1].detach()) < 0.9  # the flat direction, which the regulariser alone pulls in


def test_the_proofs_own_stages_are_as_long_as_the_page_says(page):
    steps = sum(stage.steps for stage in page["v2"])
    assert 2e13 < steps < 4e13
    total = sum(stage.steps for stage in page["v3"])
    assert 5.5e5 < total < 6.5e5
