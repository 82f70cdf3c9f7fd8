"""The page as a file: it stands alone, is escaped, and has its figures beside it."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from fcco.lab.report import write_report
from fcco.lab.report.columns import AXES
from fcco.lab.report.figures import COLORS, SETTINGS, write_figures
from fcco.lab.report.groups import group_runs
from fcco.lab.report.payload import draw_curves
from fcco.lab.report.runs import read_runs
from fcco.lab.report.write import embed
from tests.lab.test_report_runs import evaluation, write_run

HOSTILE = "<script>hacked=1</script><img src=x onerror=hacked=1>\"'&$\\$_^{"
METHODS = {"sox": 1.0, "msvr-v1": 1.4, "msvr-v2": 2.0, HOSTILE: 1.2}
SEEDS, POINTS = 3, 12


def objective(method: str, seed: int, point: int) -> float:
    """Falls by a factor e**-speed over the run; the seeds lie 10 % apart."""
    return 2 * float(np.exp(-5 * METHODS[method] * point / (POINTS - 1))) * (0.9 + 0.1 * seed)


def write_runs(folder: Path) -> Path:
    """Four methods with three seeds each, one run interrupted, one folder broken."""
    for method in METHODS:
        for seed in range(SEEDS):
            values = [objective(method, seed, point) for point in range(POINTS)]
            rows = [evaluation(100 * t, v, auroc=1 - v / 4) for t, v in enumerate(values)]
            write_run(folder / f"{list(METHODS).index(method)}" / f"seed-{seed}", rows, method=method, seed=seed)
    path = folder / "0" / "seed-2" / "metrics.jsonl"
    path.write_text(path.read_text()[:-40])
    (folder / "0" / "seed-2" / "status.json").write_text(json.dumps({"status": "interrupted", "message": HOSTILE}))
    (folder / "broken").mkdir()
    (folder / "broken" / "config.json").write_text("{")
    return folder


class Elements(HTMLParser):
    """Counts the start tags."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fcco.lab.report.figures.AXES", AXES[:2])  # fewer figures: each takes its time
        patch.setitem(SETTINGS, "savefig.dpi", 60)
        return write_report([write_runs(folder / "runs")], folder / "out", f"Four methods {HOSTILE}", note=HOSTILE)


def test_one_page_and_figures(page: Path) -> None:
    names = {path.name for path in page.parent.iterdir()}
    expected = {f"report-objective-{axis}" for axis in ("samples", "step")} | {"report-auroc-samples"}
    assert names == {"report.html"} | {f"{name}.{ending}" for name in expected for ending in ("png", "pdf")}
    for path in page.parent.glob("*.png"):
        assert path.read_bytes().startswith(b"\x89PNG")
    for path in page.parent.glob("*.pdf"):
        assert path.read_bytes().startswith(b"%PDF")


def test_the_page_stands_alone_and_is_escaped(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    parser = Elements()
    parser.feed(text)
    assert parser.tags.count("script") == 2
    assert not {"img", "link", "iframe", "base"} & set(parser.tags)
    assert not {"src", "style"} & set(parser.attributes)
    assert not [name for name in parser.attributes if name.startswith("on")]
    assert set(re.findall(r"https?://[^\s\"']+", text)) == {"http://www.w3.org/2000/svg"}  # a name, never fetched
    assert "hacked=1</script><img" not in text
    assert "default-src 'none'" in text


def test_embedded_data_cannot_leave_its_element() -> None:
    assert not set("<>&") & set(embed(HOSTILE + "</script><!--\u2028"))
    assert json.loads(embed(HOSTILE)) == HOSTILE


def test_colours_of_page_and_figures_agree(page: Path) -> None:
    light = re.findall(r"--s[0-9]: light-dark\((#[0-9a-f]{6})", page.read_text(encoding="utf-8"))
    assert [color.upper() for color in light] == list(COLORS)


def test_out_may_be_a_file_and_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fcco.lab.report.write.write_figures", lambda *_: [])
    write_run(tmp_path / "runs" / "a", method="\ud800")
    for title in ("first", "\ud800second"):
        path = write_report([tmp_path / "runs"], tmp_path / "deep" / "name.html", title)
        assert path == tmp_path / "deep" / "name.html"
        assert title.lstrip("\ud800") in path.read_text(encoding="utf-8")
    assert list(path.parent.iterdir()) == [path]
    with pytest.raises(ValueError, match="no run in"):
        write_report([path.parent], tmp_path)


def test_odd_names_in_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for position, name in enumerate(["$x_{", "_hidden", "名前", "a\nb", "x" * 90, r"\alpha$"]):
        write_run(tmp_path / str(position), [1.0], method=name, dataset=f"set{position % 2}")
    groups = group_runs(read_runs([tmp_path]))
    curves = {"objective": draw_curves(groups)["objective"]}
    monkeypatch.setattr("fcco.lab.report.figures.AXES", AXES[:1])
    png, pdf = write_figures(groups, curves, tmp_path / "figure", "$note_{")
    assert (png.name, pdf.name) == ("figure-objective-samples.png", "figure-objective-samples.pdf")
