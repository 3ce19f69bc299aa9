"""These tests are pure functions of bytes and start nothing, so the guard against leaks has nothing to find.

It looks through all processes after every test, which would take longer than the tests themselves.
"""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def leak_guard() -> None:
    """Take the place of the guard in tests/conftest.py."""
