"""The notebooks run from top to bottom without a warning, and what their prose claims is so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[1] / "docs" / "notebooks"
NAMES = ("contrastive", "imbalanced_table", "molecules", "own_problem", "rare_class_images")

#: What the prose says, read off the notebook's own variables at its end.
CLAIMS = {
    "contrastive": "min(map(neighbours, encoders.values())) > max(pixels, start) + 0.05",
    "imbalanced_table": "ours.mean() > average_precision_score(test_y, scores['logistic regression'])",
    "molecules": "np.isnan(y).any() and all(value > base for value in results.values())",
    "own_problem": "curves['MSVR-v3'][-1][2] < min(rows[-1][2] for name, rows in curves.items() if name != 'MSVR-v3')",
    "rare_class_images": "all(runs['partial AUC', lr][1][-1][1] > runs['cross-entropy', lr][1][-1][1] for lr in RATES)",
}


def cells(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((FOLDER / f"{name}.ipynb").read_text())["cells"]
    return found


def code(name: str) -> list[dict[str, Any]]:
    return [cell for cell in cells(name) if cell["cell_type"] == "code"]


def test_all_are_here() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.ipynb")) == list(NAMES)
    page = (FOLDER / "index.md").read_text()
    assert all(f"({name}.ipynb)" in page and f"\n{name}\n" in page for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_outputs_are_kept_small_and_whole(name: str) -> None:
    assert (FOLDER / f"{name}.ipynb").stat().st_size < 700_000
    assert [cell["execution_count"] for cell in code(name)] == list(range(1, len(code(name)) + 1))
    outputs = [output for cell in code(name) for output in cell["outputs"]]
    assert sum("image/png" in output.get("data", {}) for output in outputs) >= 2
    assert not [output for output in outputs if output["output_type"] == "error" or output.get("name") == "stderr"]
    assert "/tmp/" not in (FOLDER / f"{name}.ipynb").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_it_runs_and_its_claims_hold(name: str, tmp_path: Path) -> None:
    parts = ["import matplotlib\nmatplotlib.use('Agg')\nimport matplotlib.pyplot\n_pictures = []"]
    parts.append("matplotlib.pyplot.show = lambda: (_pictures.append(1), matplotlib.pyplot.close('all'))")
    parts += ["".join(cell["source"]) for cell in code(name)]
    parts.append(f"assert {CLAIMS[name]}\nassert len(_pictures) >= 2")
    script = tmp_path / f"{name}.py"
    script.write_text("\n\n".join(parts))
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},  # on busy cores threads wait for each other
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
