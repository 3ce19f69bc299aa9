"""Reads of a log's records by their offsets, for copies in dead letters."""

from __future__ import annotations

from collections.abc import Callable

from kproc.broker.share.partition.original_records import OriginalRecords
from kproc.wire.record_batch import encode_batch
from kproc.wire.records import Record
from tests.support.handler_rig import HandlerRig
from tests.support.share_partition_rig import ShareOwner


def test_original_records_are_found_in_any_order(start: Callable[..., HandlerRig]) -> None:
    owned = ShareOwner(start()).rig.open("t")
    for codec in (0, 4):
        records = [Record(None, b"%d" % number, 5, []) for number in range(4)]
        owned.log.append([memoryview(encode_batch(records, codec=codec))])
    originals = OriginalRecords(owned.log)
    wanted = [0, 3, 3, 1, 7, 7, 0, 4, 9, 5]
    found = [originals.find(offset) for offset in wanted]
    assert [each and each.offset for each in found] == [0, 3, 3, 1, 7, 7, 0, 4, None, 5]
