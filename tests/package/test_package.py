"""One version, a whole package, workflows that may do no more than they have to."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

import fcco

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
SDIST = (ROOT / "PKG-INFO").exists()


def test_the_version_stands_in_one_place() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" not in project["project"]
    assert "version" in project["project"]["dynamic"]
    path = ROOT / project["tool"]["hatch"]["version"]["path"]
    assert re.findall(r'^__version__ = "(.+)"$', path.read_text(), re.MULTILINE) == [fcco.__version__]


def test_the_citation_and_the_changelog_are_of_this_version() -> None:
    cited = re.findall(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert cited == [fcco.__version__]
    headings = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[:2] == ["Unreleased", fcco.__version__]


def test_the_index_gets_a_readme_without_links_that_lead_nowhere() -> None:
    """A package index shows the README on a page of its own."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    settings = project["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]
    assert settings["fragments"] == [{"path": "README.md"}]
    text = (ROOT / "README.md").read_text()
    for change in settings["substitutions"]:
        text, count = re.subn(change["pattern"], change["replacement"], text)
        assert count > 0, change["pattern"]
    targets = re.findall(r"\]\(([^)]*)\)", text)
    assert len(targets) >= 5
    assert [target for target in targets if not target.startswith(("https://", "#"))] == []
    assert "`docs/fit.md`" in text
    assert "cross-entropy\nhas fewer knobs" not in text  # what is said under a picture goes with it


def test_the_types_are_in_the_package() -> None:
    assert (ROOT / "src" / "fcco" / "py.typed").exists()


def test_what_the_sdist_names_is_there() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    for name in project["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]:
        assert (ROOT / name.lstrip("/")).exists(), name


@pytest.mark.skipif(SDIST, reason="an sdist has no workflows")
def test_actions_are_pinned_and_rights_are_few() -> None:
    assert [path.stem for path in WORKFLOWS] == ["docs", "release", "tests"]
    for path in WORKFLOWS:
        text = path.read_text()
        used = re.findall(r"uses: (\S+)( # v[\d.]+)?$", text, re.MULTILINE)
        assert len(used) == text.count("uses:")
        assert all(re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", name) and version for name, version in used)
        assert re.search(r"^permissions:\n  contents: read\n", text, re.MULTILINE)
        assert "secrets." not in text
        assert text.count("write") == text.count("id-token: write")
    assert sum("id-token: write" in path.read_text() for path in WORKFLOWS) == 1


@pytest.mark.skipif(SDIST, reason="an sdist has no workflows")
def test_the_workflows_try_every_python_and_the_oldest_torch() -> None:
    text = (ROOT / ".github" / "workflows" / "tests.yml").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    assert re.findall(r'"(3\.\d+)"', re.search(r"python: \[(.+)\]", text).group(1)) == named  # type: ignore[union-attr]
    floor = next(name for name in project["dependencies"] if name.startswith("torch")).split(">=")[1]
    assert f"torch=={floor}.0" in text


@pytest.mark.skipif(SDIST, reason="an sdist has no results")
def test_every_folder_of_results_says_what_made_it() -> None:
    for folder in sorted((ROOT / "results").iterdir()):
        text = (folder / "README.md").read_text()
        assert re.search(r"python (-m )?benchmarks|benchmarks/\w+\.py|fcco (rates|bench)", text), folder.name
