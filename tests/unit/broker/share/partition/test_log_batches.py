"""The batches of a real log that a member acquires: ranges of files, gaps and aborted transactions."""

from __future__ import annotations

from collections.abc import Callable

from kproc.broker.share.partition.messages import (
    ShareHolder,
)
from kproc.broker.storage.validate import CONFIRMED
from kproc.wire.record_batch import TRANSACTIONAL
from tests.support.handler_rig import HandlerRig
from tests.support.logs import append_one, sequenced
from tests.support.share_partition_rig import ShareOwner, all_of

ANN = ShareHolder("g", "ann", 1, 0)


def test_records_leave_as_ranges_of_whole_batches(owner: ShareOwner) -> None:
    owner.load(ANN)
    owner.produce(3, 3, 3)
    (part,) = owner.acquire(ANN, records_max=4) or []
    assert [(each.first, each.last) for each in part.acquired] == [(0, 5)]
    log = owner.rig.open("t").log
    (whole,) = log.read(0, 1 << 20).ranges
    (sent,) = part.ranges
    assert (sent.path, sent.position, sent.length) == (whole.path, 0, whole.length // 3 * 2)
    assert part.bytes == sent.length


def test_limit_of_bytes_allows_the_first_batch(owner: ShareOwner) -> None:
    owner.load(ANN)
    owner.produce(1, 1, value=b"x" * 500)
    assert owner.offsets(ANN, bytes_max=1, can_exceed=False) == []
    assert owner.offsets(ANN, bytes_max=1) == [(0, 0, 1)]


def test_gap_of_a_compacted_log_is_skipped(owner: ShareOwner) -> None:
    owner.load(ANN)
    owner.produce(1)
    assert owner.offsets(ANN) == [(0, 0, 1)]
    log = owner.rig.open("t").log
    log.state.end_offset += 5  # As if compaction had removed five records.
    owner.produce(1)
    assert owner.offsets(ANN) == [(6, 6, 1)]
    owner.acknowledge(ANN, all_of(0, 0), all_of(6, 6))
    assert owner.state.start_offset == 7


def test_aborted_records_are_not_for_read_committed(start: Callable[..., HandlerRig]) -> None:
    owner = ShareOwner(start(settings={"transaction.partition.verification.enable": "false"}))
    owner.configure(share_isolation_level="read_committed")
    owner.load(ANN)
    log = owner.rig.open("t").log
    # The marker of the abort is delivered, as Kafka delivers it. Clients answer that it is no record.
    for sequence, is_commit, before in ((0, False, []), (3, True, [(3, 3, 1)])):
        append_one(log, sequenced(7, sequence, count=3, flags=TRANSACTIONAL), origin=CONFIRMED)
        assert owner.offsets(ANN) == before
        log.appender.append_marker(7, 0, 0, is_commit=is_commit, transaction_version=0)
    assert owner.offsets(ANN) == [(4, 7, 1)]
    owner.acknowledge(ANN, all_of(3, 7))
    assert owner.state.start_offset == 8
