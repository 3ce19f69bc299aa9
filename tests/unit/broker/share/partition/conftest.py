"""The owner of the partitions of a topic, in a real Handler with a real log."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.handler_rig import HandlerRig
from tests.support.share_partition_rig import ShareOwner


@pytest.fixture
def owner(start: Callable[..., HandlerRig]) -> ShareOwner:
    return ShareOwner(start())
