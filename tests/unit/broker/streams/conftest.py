"""A streams group over a cluster that has all topics of its topology."""

from __future__ import annotations

import pytest

from tests.support.streams_groups import ALL_TOPICS, StreamsRig


@pytest.fixture
def rig() -> StreamsRig:
    rig = StreamsRig()
    rig.set_topics(ALL_TOPICS)
    return rig
