"""The page in headless Chromium: it renders, and its controls do what they say."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import Select

from fcco.lab.report import write_report
from tests.lab.test_report_page import HOSTILE, METHODS, POINTS, SEEDS, objective, write_runs
from tests.lab.test_report_runs import evaluation, write_run

FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--force-color-profile=srgb"),
)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fcco.lab.report.write.write_figures", lambda *_: [])
        return write_report([write_runs(folder / "runs")], folder / "out", f"Four methods {HOSTILE}", note=HOSTILE)


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    binary, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not binary or not driver:
        pytest.skip("chromium or chromedriver is not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=Service(driver))
    yield browser
    browser.quit()


class Page:
    """The page in the browser, and what the tests ask of it."""

    def __init__(self, browser: webdriver.Chrome) -> None:
        self.browser = browser

    def open(self, path: Path, width: int = 1280, media: str = "", scheme: str = "light") -> None:
        """Load the page in a window of this width."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": features})
        self.browser.get(path.as_uri())

    def find(self, selector: str) -> WebElement:
        return self.browser.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector: str) -> list[WebElement]:
        return self.browser.find_elements(By.CSS_SELECTOR, selector)

    def run(self, script: str) -> Any:
        return self.browser.execute_script(f"return {script}")

    def ticks(self) -> list[str]:
        return list(self.run("[...document.querySelectorAll('#chart .tick')].map((text) => text.textContent)"))

    def shown(self) -> list[str]:
        return [str(line.get_attribute("data-group")) for line in self.all("#chart .line[data-group]")]

    def titles(self) -> list[str]:
        return list(self.run("[...document.querySelectorAll('#chart .title')].map((text) => text.textContent)"))

    def rows(self, box: str) -> dict[str, list[str]]:
        """A table's cells by the row's head."""
        rows = f"[...document.querySelectorAll('{box} tbody tr')]"
        cells = self.run(f"{rows}.map((row) => [...row.children].map((cell) => cell.innerText.trim()))")
        return {row[0]: row[1:] for row in cells}

    def background(self) -> int:
        """The body's red, green and blue added up."""
        color = self.run("getComputedStyle(document.documentElement).backgroundColor")
        return sum(map(int, re.findall(r"[0-9]+", color)[:3]))


@pytest.fixture
def view(chromium: webdriver.Chrome, page: Path) -> Iterator[Page]:
    opened = Page(chromium)
    opened.open(page)
    yield opened
    assert chromium.get_log("browser") == []
    assert opened.run("window.hacked") is None
    assert opened.run("performance.getEntriesByType('resource').length") == 0


def test_it_renders(view: Page) -> None:
    assert view.shown() == sorted(METHODS, key=lambda name: (name[0] != "<", name))
    assert view.find("h1").text == f"Four methods {HOSTILE}"
    assert view.find("#note").text == HOSTILE
    assert "4 methods · 13 runs · digits · mlp · commit 0123456789ab" in " ".join(view.find("#facts").text.split())
    assert "2 of 13 runs are incomplete" in view.find("#warning").text
    assert view.titles() == ["Training objective", "Samples drawn"]
    assert view.all("#chart .band")
    assert len(view.all("#legend .key[aria-pressed=true]")) == 4


def test_final_values(view: Page) -> None:
    rows = view.rows("#final")
    assert next(iter(rows)) == "msvr-v2"  # the best first
    assert rows["msvr-v2"][0] == "3"
    assert rows["msvr-v2"][1].startswith("(9.1 ± 0.9)×10⁻⁵●")  # 2 exp(-10), the seeds 10 % apart
    assert rows["sox"][0] == "2 of 3"
    assert rows["sox"][-2:] == ["11k", "550"]
    tests = view.rows("#tests")
    assert tests["msvr-v2"][-1] == "best mean"
    assert tests["msvr-v1"][-1] == "differs"
    assert "Welch's t-test" in view.find("#tests-caption").text
    assert "Holm-corrected over 3 comparisons" in view.find("#tests-caption").text


def test_a_hover_explains(view: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fcco.lab.report.write.write_figures", lambda *_: [])
    for seed in range(2):
        rows = [evaluation(10 * t, 3.0 - t, tracking_error=0.1) for t in range(3)]
        write_run(tmp_path / "runs" / str(seed), rows, seed=seed)
    view.open(write_report([tmp_path / "runs"], tmp_path / "out"))
    for name, word in {"Oracle calls": "Jacobian", "Tracking error": "running estimates u"}.items():
        for selector in ("label", "th, th button"):
            titles = [place.get_attribute("title") for place in view.all(selector) if place.text.strip(" ↓↑") == name]
            assert any(word in str(title) for title in titles), (name, selector)
    unexplained = "[...document.querySelectorAll('#x label, #y label')].filter((label) => !label.title).length"
    assert view.run(unexplained) == 0


def test_the_legend_toggles(view: Page) -> None:
    key = view.all("#legend .key")[-2]
    assert key.text == "sox"
    key.click()
    assert "sox" not in view.shown()
    assert key.get_attribute("aria-pressed") == "false"
    key.send_keys(Keys.SPACE)
    assert "sox" in view.shown()
    ActionChains(view.browser).key_down(Keys.SHIFT).click(key).key_up(Keys.SHIFT).perform()
    assert view.shown() == ["sox"]
    key.click()
    assert "Nothing to show" in view.find("#chart").text
    view.find("#all").click()
    assert len(view.shown()) == 4


def test_hover_lists_every_method(view: Page) -> None:
    plot, tip = view.find("#plot"), view.find("#tip")
    assert not tip.is_displayed()
    ActionChains(view.browser).move_to_element(plot).perform()
    assert tip.is_displayed()
    for method in METHODS:
        assert method in tip.text
    assert len(view.all("#cross circle")) == 4
    first = tip.text
    ActionChains(view.browser).move_to_element_with_offset(plot, -300, 0).perform()
    assert tip.text != first
    ActionChains(view.browser).move_to_element(view.find("h1")).perform()
    assert not tip.is_displayed()


def test_the_crosshair_moves_by_keyboard(view: Page) -> None:
    plot, tip = view.find("#plot"), view.find("#tip")
    plot.send_keys(Keys.HOME)
    values = [objective("sox", seed, 0) for seed in range(SEEDS)]
    assert "Samples drawn 0" in tip.text
    assert f"{np.mean(values):.2f} ± {np.std(values, ddof=1):.2f}" in tip.text
    plot.send_keys(Keys.ARROW_RIGHT)
    assert "Samples drawn 1000" in str(plot.get_attribute("aria-valuetext"))
    plot.send_keys(Keys.END)
    assert "n=2" in tip.text  # the interrupted run is no longer there
    plot.send_keys(Keys.ESCAPE)
    assert not tip.is_displayed()
    view.find("#x-seconds").click()
    plot.send_keys(Keys.ARROW_LEFT)  # from the right end
    assert "Seconds 550" in tip.text


def test_axes_switch(view: Page) -> None:
    before = view.find("#chart .line").get_attribute("d")
    for key, title in (
        ("step", "Steps"),
        ("seconds", "Seconds"),
        ("oracle", "Oracle calls"),
        ("samples", "Samples drawn"),
    ):
        view.find(f"#x-{key}").click()
        assert view.titles() == ["Training objective", title]
    assert view.find("#chart .line").get_attribute("d") == before
    view.find("#y-auroc").click()
    assert view.titles() == ["AUROC", "Samples drawn"]
    assert view.find("#target-metric").text.startswith("AUROC ≥")
    assert "AUROC" in view.find("#final th.chosen").text
    view.find("#final th:nth-child(3) button").click()  # back, by the table's head
    assert view.find("#chart .line").get_attribute("d") == before


def test_log_and_linear(view: Page) -> None:
    assert view.find("#scale-y-log").is_selected()
    before = view.ticks()
    view.find("#scale-y-log").click()
    linear = view.ticks()
    assert linear != before
    view.find("#scale-x-log").click()
    assert view.ticks() != linear
    assert "4 points at or below zero" in view.find("#chart-caption").text  # samples drawn: 0


def test_spread(view: Page) -> None:
    select = Select(view.find("#band"))
    select.select_by_value("runs")
    assert len(view.all("#chart .line.run")) == 12
    assert not view.all("#chart .band")
    for value in ("error", "extremes"):
        select.select_by_value(value)
        assert len(view.all("#chart .band")) == 4
    select.select_by_value("none")
    assert not view.all("#chart .band, #chart .line.run")


def test_target(view: Page) -> None:
    whole = [(method, seed) for method in METHODS for seed in range(SEEDS) if (method, seed) != ("sox", 2)]
    hardest = max(objective(method, seed, POINTS - 1) for method, seed in whole)
    automatic, field = view.find("#target-auto"), view.find("#target-value")
    assert float(str(field.get_attribute("value"))) == pytest.approx(hardest, rel=1e-4)
    assert automatic.get_attribute("aria-pressed") == "true"
    field.send_keys(Keys.CONTROL, "a")
    field.send_keys("0.5", Keys.ENTER)
    assert automatic.get_attribute("aria-pressed") == "false"
    for method, cells in view.rows("#target").items():
        first = [next(t for t in range(POINTS) if objective(method, s, t) <= 0.5) for s in range(SEEDS)]
        assert cells[0] == "3 of 3"
        assert float(cells[2].split()[0]) == pytest.approx(100 * np.mean(first), rel=0.02)
    view.find("#target-slider").send_keys(Keys.HOME)
    assert all(cells[1].startswith("0") for cells in view.rows("#target").values())
    automatic.click()
    assert automatic.get_attribute("aria-pressed") == "true"


def test_runs_configuration_environment(view: Page) -> None:
    runs = view.rows("#runs")
    assert "interrupted" in runs["0/seed-2"][0]
    assert HOSTILE in runs["0/seed-2"][-1]
    assert "the last line of metrics.jsonl (12) is cut off" in runs["0/seed-2"][-1]
    assert "metrics.jsonl is missing" in runs["broken"][-1]
    assert "digits" in view.find("#config").text
    assert "0123456789abcdef" in view.find("#environment").text


def test_dark_mode(view: Page, page: Path) -> None:
    light = view.background()
    view.open(page, scheme="dark")
    dark = view.background()
    assert dark < 150 < 600 < light
    assert view.find("#theme").text == "Light"
    view.find("#theme").click()
    assert view.background() == light
    view.open(page)
    view.find("#theme").click()
    assert view.background() == dark
    view.open(page, media="print", scheme="dark")
    assert view.background() == 3 * 255
    assert not view.find("#theme").is_displayed()


@pytest.mark.parametrize("width", [320, 375, 768, 1280])
def test_no_horizontal_scroll(view: Page, page: Path, width: int) -> None:
    view.open(page, width=width)
    assert view.run("document.documentElement.scrollWidth") <= width
    assert view.run("innerWidth") == width
    assert view.run("document.getElementById('chart').getBoundingClientRect().right") <= width


def test_every_control_is_reached_by_keyboard(view: Page) -> None:
    seen = set()
    for _ in range(60):
        ActionChains(view.browser).send_keys(Keys.TAB).perform()
        seen.add(view.run("document.activeElement.id || document.activeElement.className"))
    assert {
        "theme",
        "y-objective",
        "x-samples",
        "scale-y-log",
        "band",
        "key",
        "plot",
        "target-slider",
        "scroll",
    } <= seen


def test_nothing_to_compare(view: Page, tmp_path: Path) -> None:
    (write_run(tmp_path / "runs" / "a") / "metrics.jsonl").write_text("")
    view.open(write_report([tmp_path / "runs"], tmp_path))
    assert "No run has an evaluation yet" in view.find("#comparison").text
    assert "metrics.jsonl has no evaluation" in view.find("#runs").text


def test_several_problems(view: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fcco.lab.report.write.write_figures", lambda *_: [])
    for dataset, methods in (("mnist", ("sox", "bsgd")), ("svhn", ("sox",))):
        for method in methods:
            run = write_run(tmp_path / "runs" / f"{dataset}-{method}", method=method, dataset=dataset)
            (run / "environment.json").write_text(json.dumps({"commit": f"{dataset}+"}))
    view.open(write_report([tmp_path / "runs"], tmp_path))
    assert "2 problems · 2 commits" in " ".join(view.find("#facts").text.split())
    assert view.shown() == ["bsgd", "sox"]
    color = view.all("#chart .line")[-1].value_of_css_property("stroke")
    Select(view.find("#problem")).select_by_visible_text("svhn")
    assert view.shown() == ["sox"]
    assert view.find("#chart .line").value_of_css_property("stroke") == color
