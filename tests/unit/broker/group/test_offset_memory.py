"""The memory of committed offsets counts towards one limit of the Handler, and leaves with the offsets."""

from __future__ import annotations

import logging

import pytest

from kproc.broker.coordinator.rules import Producer
from kproc.broker.group.offset_memory import GROUP_BYTES, OFFSET_BYTES, offset_limit
from kproc.common.errors import ErrorCode
from tests.support.consumer_groups import cluster_of
from tests.support.coordinators import run_steps
from tests.support.group_coordinator_rig import Rig

FULL = [ErrorCode.INVALID_COMMIT_OFFSET_SIZE]


@pytest.fixture
def rig() -> Rig:
    return Rig(cluster_of({}))


def commit(
    rig: Rig, topic: str = "t", group: str = "g", producer: Producer | None = None, metadata: str = ""
) -> list[int]:
    codes = rig.commit(1, topic=topic, group=group, producer=producer, metadata=metadata)
    rig.log.sync()
    return codes


def test_only_new_offsets_are_rejected_in_full_memory(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    limit = rig.cluster.offset_memory
    assert commit(rig) == [ErrorCode.NONE]
    assert 0 <= limit.used_bytes - GROUP_BYTES - OFFSET_BYTES < 200
    limit.bytes_max = limit.used_bytes
    records = len(rig.log.entries)
    with caplog.at_level(logging.INFO):
        assert commit(rig, topic="u") == FULL
        assert commit(rig, group="other") == FULL
    assert len(rig.log.entries) == records
    assert [record.message[:29] for record in caplog.records] == ["kproc.group.offsets.max.bytes"]
    limit.bytes_max = 0
    assert commit(rig) == [ErrorCode.NONE]
    assert len(rig.log.entries) == records + 1


def test_longer_metadata_of_known_offsets_have_a_reserve(rig: Rig) -> None:
    """A client could fill the memory with short offsets, and then replace each by one with 4 KiB."""
    limit = rig.cluster.offset_memory
    for topic in "tu":
        commit(rig, topic)
    used = limit.bytes_max = limit.used_bytes
    assert commit(rig, metadata="m" * used) == [ErrorCode.NONE]
    assert used < limit.used_bytes <= 2 * used + 100
    assert commit(rig, "u", metadata="m" * 1_000) == FULL
    assert commit(rig, metadata="n" * used) == [ErrorCode.NONE]
    assert commit(rig) == [ErrorCode.NONE]
    assert limit.used_bytes == used


def test_pending_offsets_of_known_ones_have_a_reserve(rig: Rig) -> None:
    """Each producer could have a pending offset of the same partition."""
    limit = rig.cluster.offset_memory
    commit(rig)
    limit.bytes_max = limit.used_bytes
    codes = [commit(rig, producer=Producer(number, 0), metadata="m" * 500) for number in range(20)]
    assert codes[0] == [ErrorCode.NONE]
    assert codes[-1] == FULL
    assert limit.used_bytes <= 2 * limit.bytes_max + GROUP_BYTES
    assert commit(rig, producer=Producer(0, 0), metadata="m" * 500) == [ErrorCode.NONE]


def test_offsets_count_until_they_are_removed(rig: Rig) -> None:
    limit = rig.cluster.offset_memory
    commit(rig)
    one = limit.used_bytes
    commit(rig)
    assert limit.used_bytes == one
    commit(rig, topic="u")
    commit(rig, group="other")
    assert limit.used_bytes > 2 * one
    used = limit.used_bytes
    rig.coordinator.resign()
    run_steps(rig.coordinator)
    rig.make()
    assert limit.used_bytes == used
    rig.pass_ms(3 * 3_600_000)
    rig.sweep()
    assert rig.offset() is None
    assert limit.used_bytes == 0


def test_repeated_partition_of_a_request_is_replaced_once(rig: Rig) -> None:
    limit = rig.cluster.offset_memory
    commit(rig)
    commit(rig, topic="u")
    limit.bytes_max = limit.used_bytes
    offsets = [rig.offset_row("t")] * 50 + [rig.offset_row(f"new{number}") for number in range(5)]
    assert rig.commit_rows(offsets) == FULL


def test_known_offsets_may_grow_after_a_load_above_the_limit(rig: Rig) -> None:
    limit = rig.cluster.offset_memory
    commit(rig)
    limit.bytes_max = limit.used_bytes // 3
    assert commit(rig, producer=Producer(1, 0)) == FULL
    rig.coordinator.resign()
    run_steps(rig.coordinator)
    rig.make()
    assert commit(rig, producer=Producer(1, 0)) == [ErrorCode.NONE]
    assert commit(rig, topic="u") == FULL


def test_pending_offsets_count_until_their_transaction_ends(rig: Rig) -> None:
    limit = rig.cluster.offset_memory
    commit(rig)
    before = limit.used_bytes
    for producer_id, is_commit in ((1, False), (2, True), (3, True)):
        commit(rig, producer=Producer(producer_id, 0))
        commit(rig, producer=Producer(producer_id, 0))
        assert before < limit.used_bytes < 2 * before + 200
        rig.end(producer_id, is_commit=is_commit)
        assert limit.used_bytes == before
    commit(rig, producer=Producer(4, 0))
    codes: list[int] = []
    rig.coordinator.deletion.delete("g", codes.append)
    run_steps(rig.coordinator)
    rig.log.sync()
    assert codes == [ErrorCode.NONE]
    assert limit.used_bytes == 0


def test_limit_has_the_name_and_the_value_of_the_setting() -> None:
    limit = offset_limit(7)
    assert (limit.setting, limit.bytes_max) == ("kproc.group.offsets.max.bytes", 7)
