"""CoordinatorReplay reads a log in pieces, wherever a piece ends."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kproc.broker.config import Config
from kproc.broker.coordinator import coordinator_log
from kproc.broker.coordinator.coordinator_log import CoordinatorLog
from kproc.broker.coordinator.coordinator_replay import CoordinatorReplay
from kproc.broker.coordinator.rules import DueOf
from kproc.broker.group.records import CommittedOffset, OffsetKey, encode_offset_key, encode_offset_value
from kproc.broker.handler.coordinator_kinds import groups
from kproc.broker.storage.validate import COORDINATOR
from kproc.common.clock import ManualClock
from kproc.common.deadlines import Deadlines
from kproc.wire.batch_header import HEADER_BYTES
from kproc.wire.record_batch import TRANSACTIONAL, encode_batch
from kproc.wire.records import Record
from tests.support.consumer_groups import NO_TOPICS
from tests.support.coordinators import ALL_TOPICS, UNGUARDED
from tests.support.logs import TOPIC_ID, LogRig

BATCHES = 12


def test_replay_yields_neither_tombstones_nor_deleted_records() -> None:
    """The states of groups and transactions rely on it: a tombstone would name a member that they do not have."""
    replay = CoordinatorReplay(0, has_transactions=True)
    transactional = {"flags": TRANSACTIONAL, "producer_id": 7, "producer_epoch": 0}
    log: tuple[tuple[bytes, bytes | None, dict[str, Any]], ...] = (
        (b"deleted", b"1", {}),
        (b"kept", b"1", {}),
        (b"pending", b"1", transactional),
        (b"deleted pending", b"1", transactional),
        (b"deleted", None, {}),
        (b"deleted pending", None, {}),
        (b"kept", None, {}),
        (b"kept", b"2", {}),
        (b"never there", None, {}),
        (b"pending tombstone", b"1", {}),
        (b"pending tombstone", None, transactional),
    )
    for offset, (key, value, options) in enumerate(log):
        for _ in replay.add(bytes(encode_batch([Record(key, value, 1)], base_offset=offset, **options))):
            pass
    assert [(each.key, each.value) for each in replay.survivors()] == [(b"kept", b"2"), (b"pending", b"1")]


@pytest.mark.long
def test_a_piece_may_end_at_every_byte_of_a_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also inside the header of the next one, of which only the length is looked at otherwise."""
    log = LogRig(tmp_path / "log").open()
    for number in range(BATCHES):
        value = encode_offset_value(CommittedOffset(offset=number, commit_timestamp_ms=1, topic_id=TOPIC_ID))
        record = Record(encode_offset_key(OffsetKey("g", "t", number)), value, 1)
        log.append([memoryview(encode_batch([record]))], COORDINATOR)
    size = log.state.active_bytes // BATCHES
    clock = ManualClock()
    deadlines: Deadlines[DueOf] = Deadlines()
    for piece in range(size, 3 * size + HEADER_BYTES):
        monkeypatch.setattr(coordinator_log, "LOAD_CHUNK_BYTES", piece)
        owned = cast(Any, SimpleNamespace(log=log, key=("__consumer_offsets", 0)))
        shard = CoordinatorLog(groups(Config(), clock, NO_TOPICS), owned, Config(), clock, deadlines, {}, 0, UNGUARDED)
        for _ in range(BATCHES + 1):
            if shard.is_loaded or shard.is_damaged:
                break
            shard.load_some(ALL_TOPICS)
        assert shard.is_loaded, f"pieces of {piece} bytes"
        found = shard.coordinator.offsets.of_group("g")["t"]
        assert {index: each.offset for index, each in found.items()} == {n: n for n in range(BATCHES)}
    log.close(clean=True)
