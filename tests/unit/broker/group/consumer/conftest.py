"""Fixtures of the tests of consumer groups."""

from __future__ import annotations

import pytest

from tests.support.consumer_groups import GroupRig


@pytest.fixture
def rig() -> GroupRig:
    rig = GroupRig()
    rig.set_topics({"t": 4})
    return rig
