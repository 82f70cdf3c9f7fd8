"""The front page's picture is drawn from the runs' table, and its caption says what the table says."""

from pathlib import Path

import pytest

from benchmarks.rare_class_figure import CLASSES, draw, read

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "results" / "cifar_rare" / "table.md"


def test_it_reads_every_class_and_draws(tmp_path: Path) -> None:
    values = read(TABLE)
    assert values["memory"][CLASSES.index("cat")] == 0.6124
    draw(values, tmp_path / "figure.svg")
    assert "output memory" in (tmp_path / "figure.svg").read_text()


def test_the_caption_is_true() -> None:
    values = read(TABLE)
    ahead = [kind for kind in range(len(CLASSES)) if values["memory"][kind] > values["cross-entropy"][kind]]
    caption = " ".join((ROOT / "docs" / "index.md").read_text().split())
    assert len(ahead) == 9
    assert "is ahead of balanced cross-entropy on nine classes and behind on one" in caption


def test_a_table_without_a_class_is_refused(tmp_path: Path) -> None:
    lines = [line for line in TABLE.read_text().splitlines() if not line.startswith("| 3 | SOX")]
    (tmp_path / "table.md").write_text("\n".join(lines))
    with pytest.raises(ValueError, match="10 classes of SOX, got 9"):
        read(tmp_path / "table.md")
