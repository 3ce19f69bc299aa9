"""Commits that are written straight into the log of a group coordinator, while its broker is stopped."""

from __future__ import annotations

import time
from pathlib import Path

from kproc.broker.group.records import CommittedOffset, OffsetKey, encode_offset_key, encode_offset_value
from kproc.broker.storage.checkpoints import read_partition_metadata
from kproc.broker.storage.log import LastStop, Log, LogConfig, LogIdentity
from kproc.broker.storage.os_fs import OsFs
from kproc.broker.storage.validate import COORDINATOR
from kproc.common.clock import SystemClock
from kproc.wire.record_batch import encode_batch
from kproc.wire.records import Record

_TOPIC = "__consumer_offsets"


def write_commits(data: Path, groups: list[str], topic: str, partitions: int, offset: int) -> None:
    """Append one batch for each group: it commits `offset` for every partition of `topic`.

    The internal topic has one partition, and its log was closed in order. So it is here.
    """
    directory = data / f"{_TOPIC}-0"
    topic_id = read_partition_metadata(OsFs(), directory)
    assert topic_id is not None, directory
    now_ms = int(time.time() * 1000)
    value = encode_offset_value(CommittedOffset(offset=offset, commit_timestamp_ms=now_ms))
    log = Log.open(
        LogIdentity(directory, _TOPIC, topic_id, 0), LogConfig(), leader_epoch=0, clock=SystemClock(), fs=OsFs(),
        last=LastStop(clean=True),
    )  # fmt: skip
    for group in groups:
        keys = (encode_offset_key(OffsetKey(group, topic, index)) for index in range(partitions))
        (result,) = log.append([memoryview(encode_batch([Record(key, value, now_ms) for key in keys]))], COORDINATOR)
        assert result.error_code == 0, result
    log.close()
