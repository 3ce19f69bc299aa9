"""A group on a log in memory, with a clock that the test sets."""

from __future__ import annotations

import pytest

from tests.support.group_rig import GroupRig


@pytest.fixture
def rig() -> GroupRig:
    return GroupRig()
