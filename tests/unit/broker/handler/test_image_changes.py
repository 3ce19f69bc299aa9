"""ImageChanges: what a delta and a whole image of the metadata do to a Handler's parts."""

from __future__ import annotations

from pathlib import Path

import pytest

from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.handler_rig import HandlerRig
from tests.support.in_memory_controller import topic
from tests.support.raw import NO_TOPIC_ID, batch, produce_fields


def produce(rig: HandlerRig) -> int:
    fields = produce_fields([("t", NO_TOPIC_ID, [(0, bytes(batch(b"v")))])])
    answer = rig.processors[0].ask(ApiKey.PRODUCE, 8, fields)
    return answer["responses"][0]["partition_responses"][0]["error_code"]


@pytest.mark.parametrize("is_whole", [False, True])
def test_deleted_topic_is_unknown_to_a_learned_produce(tmp_path: Path, *, is_whole: bool) -> None:
    with HandlerRig(tmp_path) as rig:
        rig.cluster.create(topic("t", 1))
        rig.tell()
        assert [produce(rig) for _ in range(3)] == [0, 0, 0]
        rig.cluster.do("delete_topics", topics=[{"name": "t", "topic_id": NO_TOPIC_ID}])
        if is_whole:
            rig.send_snapshot(0)
        else:
            rig.tell()
        assert produce(rig) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert not len(rig.handler()._partitions)
