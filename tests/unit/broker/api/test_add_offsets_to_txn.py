"""AddOffsetsToTxn: the partition of the group joins the transaction."""

from __future__ import annotations

from kproc.broker.cluster.internal_topics import GROUP_METADATA_TOPIC
from kproc.broker.coordinator.topic_coordinators import partition_for
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.handler_transactions import Start, begun, cluster


def test_group_offsets_join_transaction_by_groups_partition(start: Start) -> None:
    rig = cluster(start)
    producer = begun(rig)
    answer = producer.ask(
        ApiKey.ADD_OFFSETS_TO_TXN,
        3,
        transactional_id=producer.name,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        group_id="readers",
    )
    assert answer["error_code"] == ErrorCode.NONE
    expected = {"topic": GROUP_METADATA_TOPIC, "partitions": [partition_for("readers", 2)]}
    assert producer.describe()["topics"] == [expected]
