"""What the tests of the adapters share."""

from __future__ import annotations

import pytest

from tests.integrations.worlds import Watched


@pytest.fixture(autouse=True)
def fresh_sessions() -> None:
    """A test counts its own open sessions, not those that a failed one left."""
    Watched.alive, Watched.begun = set(), []
