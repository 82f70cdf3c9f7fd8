"""Tables of forty examples: one thread for all tests of the memory."""

import pytest


@pytest.fixture(autouse=True)
def _one_thread(one_thread: None) -> None:
    """Where cores are shared, a second thread costs more than it gives."""
