"""Where tests of other folders find these until they ask tests.helpers themselves."""

from tests.helpers.same import assert_same, difference  # noqa: F401
