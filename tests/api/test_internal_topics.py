"""`__consumer_offsets`: internal, compacted, and closed for Produce."""

from __future__ import annotations

from kproc.common.errors import ErrorCode
from tests.support.configs import TOPIC, read_configs
from tests.support.raw import RawClient, batch


def test_consumer_offsets_topic_is_internal_and_compacted(client: RawClient, group: str) -> None:
    row = client.describe_topic("__consumer_offsets")
    assert (row["error_code"], row["is_internal"], len(row["partitions"])) == (0, True, 50)
    configs = read_configs(client, kind=TOPIC, resource=row["name"])
    shown = [configs[name]["value"] for name in ("cleanup.policy", "compression.type", "segment.bytes")]
    assert shown == ["compact", "producer", "104857600"]


def test_produce_to_consumer_offsets_topic_is_rejected(client: RawClient, group: str) -> None:
    row = client.produce("__consumer_offsets", batch(b"x"))
    assert row["error_code"] == ErrorCode.INVALID_TOPIC_EXCEPTION
