"""`__consumer_offsets`: internal, compacted, and closed for Produce."""

from __future__ import annotations

import pytest

from kproc.common.errors import ErrorCode
from tests.support.configs import TOPIC, read_configs
from tests.support.groups import (
    find_coordinator,
)
from tests.support.raw import RawClient, batch
from tests.support.topics import fresh_name


@pytest.fixture
def group(client: RawClient) -> str:
    """The id of a group that nobody has used, with its coordinator found."""
    name = fresh_name("group")
    find_coordinator(client, name)
    return name


def test_consumer_offsets_topic_is_internal_and_compacted(client: RawClient, group: str) -> None:
    row = client.describe_topic("__consumer_offsets")
    assert (row["error_code"], row["is_internal"], len(row["partitions"])) == (0, True, 50)
    configs = read_configs(client, kind=TOPIC, resource=row["name"])
    shown = [configs[name]["value"] for name in ("cleanup.policy", "compression.type", "segment.bytes")]
    assert shown == ["compact", "producer", "104857600"]


def test_produce_to_consumer_offsets_topic_is_rejected(client: RawClient, group: str) -> None:
    row = client.produce("__consumer_offsets", batch(b"x"))
    assert row["error_code"] == ErrorCode.INVALID_TOPIC_EXCEPTION
