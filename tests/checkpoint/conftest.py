"""A file that every test of this folder may read."""

import pytest

import fcco
from tests.helpers.runs import Run


@pytest.fixture(scope="session")
def good_file(tmp_path_factory):
    """Four steps of the usual run."""
    path = tmp_path_factory.mktemp("good") / "run.pt"
    fcco.save(path, **Run().steps(4).parts)
    return path
