"""The rules of the share coordinator, with a log on disk. The names of Kafka's tests are in tests/UPSTREAM.md."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kproc.broker.coordinator.rules import KnownTopics, Write
from kproc.broker.share.state.batches import BATCHES_MAX
from kproc.broker.share.state.messages import (
    DeleteState,
    InitializeState,
    PersistedState,
    ReadSummary,
    StateBatch,
    WriteState,
    parse_state_key,
    state_key,
)
from kproc.broker.share.state.records import Snapshot, Update, encode_share_record
from kproc.common.errors import ErrorCode
from tests.support.logs import NOW_MS, TOPIC_ID
from tests.support.share_states import NAME, OTHER, ShareRig, answer_of, random_request

MINUTE_MS = 60_000
Start = Callable[..., ShareRig]
COLD_MS = 5 * MINUTE_MS
GONE = state_key("g", bytes(16), 0)


@pytest.fixture
def make_rig(tmp_path: Path) -> Iterator[Start]:
    rigs: list[ShareRig] = []

    def made(**settings: Any) -> ShareRig:
        rigs.append(ShareRig(tmp_path, **settings))
        return rigs[-1]

    yield made
    for rig in rigs:
        rig.log.close()


@pytest.fixture
def rig(make_rig: Start) -> ShareRig:
    return make_rig()


def types(rig: ShareRig) -> str:
    """Return S for each snapshot, U for each update, and D for each tombstone in the log."""
    letters = {Snapshot: "S", Update: "U", type(None): "D"}
    return "".join(letters[type(value)] for value in rig.records())


def batches_of(state: PersistedState | int) -> list[tuple[int, int, int, int]]:
    assert isinstance(state, PersistedState)
    return [(each.first, each.last, each.state, each.delivery_count) for each in state.batches]


# ---- initialize, read, write, delete ------------------------------------------------------------------------


def test_initialize_stores_a_snapshot_that_a_read_returns(rig: ShareRig) -> None:
    assert rig.initialize(epoch=3, start=10) == 0
    assert rig.read() == PersistedState(3, 0, 10, 0)
    assert rig.records() == [Snapshot(0, 3, 0, 10, 0, NOW_MS, NOW_MS)]
    rig.reopen()
    assert rig.read() == PersistedState(3, 0, 10, 0)


def test_initialize_without_start_offset_leaves_count_unknown(rig: ShareRig) -> None:
    rig.initialize(start=-1)
    assert rig.read() == PersistedState(0, 0, -1, -1)


def test_initialize_again_replaces_the_state(rig: ShareRig) -> None:
    rig.initialize(epoch=1)
    rig.write((0, 9, 0, 1), epoch=1)
    assert rig.initialize(epoch=1, start=5) == 0
    assert rig.initialize(epoch=2, start=7) == 0
    assert rig.read() == PersistedState(2, 0, 7, 0)
    assert [value.snapshot_epoch for value in rig.records() if value] == [0, 0, 1, 2]


def test_initialize_can_keep_an_existing_state(rig: ShareRig) -> None:
    for start in (5, 7):
        assert rig.outcome("initialize", NAME, InitializeState(2, start, keeps_existing=True)) == 0
    assert rig.read() == PersistedState(2, 0, 5, 0)


def test_initialize_with_an_older_state_epoch_is_fenced(rig: ShareRig) -> None:
    rig.initialize(epoch=2)
    assert rig.initialize(epoch=1) == ErrorCode.FENCED_STATE_EPOCH
    rig.reopen()
    assert rig.initialize(epoch=1) == ErrorCode.FENCED_STATE_EPOCH


def test_operations_before_initialize_are_rejected_or_do_nothing(rig: ShareRig) -> None:
    assert rig.write((0, 9, 0, 1)) == ErrorCode.INVALID_REQUEST
    assert rig.read() == ErrorCode.INVALID_REQUEST
    assert rig.summary() == PersistedState(0, 0, -1, -1)
    assert rig.outcome("delete", NAME, DeleteState()) == 0
    assert rig.records() == []


def test_operations_on_a_missing_partition_are_rejected(rig: ShareRig) -> None:
    rig.initialize()
    rig.partitions.clear()
    for code in (rig.initialize(), rig.write(), rig.read(), rig.summary(), rig.outcome("delete", NAME, DeleteState())):
        assert code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert rig.initialize(GONE) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.long
def test_state_with_too_many_batches_is_rejected(rig: ShareRig) -> None:
    """A snapshot has all of them in one record. If it were too large, no older record could be deleted any more."""
    rig.initialize(start=0)
    most = [(2 * at, 2 * at, 2, 1) for at in range(BATCHES_MAX)]
    one_more = (2 * BATCHES_MAX, 2 * BATCHES_MAX, 2, 1)
    assert rig.write(*most) == 0
    assert rig.write(one_more) == ErrorCode.INVALID_REQUEST
    assert rig.write(*most, one_more) == ErrorCode.INVALID_REQUEST
    rig.clock.advance_ms(COLD_MS)
    rig.coordinator.start_sweep()
    rig.settle()
    assert types(rig)[-1] == "S"
    # A batch between two others joins them.
    assert rig.write((1, 1, 2, 1)) == 0
    assert len(batches_of(rig.read())) == BATCHES_MAX - 1


def test_write_stores_an_update_and_merges_it(rig: ShareRig) -> None:
    rig.initialize()
    assert rig.write((0, 9, 0, 1), (20, 29, 2, 1), start=0, complete=10) == 0
    assert rig.write((5, 14, 4, 2), start=0, complete=20) == 0
    expected = [(0, 4, 0, 1), (5, 14, 4, 2), (20, 29, 2, 1)]
    state = rig.read()
    assert batches_of(state) == expected
    assert rig.records()[1:] == [
        Update(0, 0, 0, 10, (StateBatch(0, 9, 0, 1), StateBatch(20, 29, 2, 1))),
        Update(0, 0, 0, 20, (StateBatch(5, 14, 4, 2),)),
    ]
    rig.reopen()
    assert rig.read() == state


def test_write_merges_batches_of_one_request_in_the_record(rig: ShareRig) -> None:
    rig.initialize()
    rig.write((5, 9, 2, 1), (0, 6, 0, 1), (10, 12, 2, 1))
    update = rig.records()[1]
    assert update is not None
    assert update.batches == (StateBatch(0, 4, 0, 1), StateBatch(5, 12, 2, 1))


@pytest.mark.parametrize(
    ("start", "complete", "expected_start", "expected_complete"),
    [(10, 2, 10, 3), (10, 5, 10, 5), (5, 9, 10, 3), (-1, 9, 10, 3), (15, 1, 15, 1), (15, -1, 15, -1)],
)
def test_write_never_moves_the_start_offset_back(
    rig: ShareRig, start: int, complete: int, expected_start: int, expected_complete: int
) -> None:
    rig.initialize(start=10)
    rig.write((10, 12, 2, 1), (14, 20, 0, 1), complete=3, start=10)
    rig.write(start=start, complete=complete)
    state = rig.read()
    assert isinstance(state, PersistedState)
    assert (state.start_offset, state.delivery_complete_count) == (expected_start, expected_complete)
    assert min(batch.first for batch in state.batches) == expected_start
    rig.reopen()
    assert rig.read() == state


def test_write_that_replaces_the_state_moves_the_start_back(rig: ShareRig) -> None:
    rig.initialize(start=10)
    rig.write((10, 12, 2, 3), (14, 20, 0, 1), complete=3, start=10)
    assert rig.write((7, 7, 2, 1), complete=1, start=6, replaces=True) == 0
    state = rig.read()
    assert isinstance(state, PersistedState)
    assert (state.start_offset, state.delivery_complete_count) == (6, 1)
    assert batches_of(state) == [(7, 7, 2, 1)]
    assert types(rig) == "SUS"
    rig.reopen()
    assert rig.read() == state
    assert rig.write(epoch=-1, start=0, replaces=True) == ErrorCode.FENCED_STATE_EPOCH


def test_write_with_an_older_epoch_is_fenced(rig: ShareRig) -> None:
    rig.initialize(epoch=2)
    rig.read(leader=5)
    assert rig.write(epoch=1, leader=5) == ErrorCode.FENCED_STATE_EPOCH
    assert rig.write(epoch=2, leader=4) == ErrorCode.FENCED_LEADER_EPOCH
    assert rig.write(epoch=3, leader=5) == 0
    summary = rig.summary()
    assert isinstance(summary, PersistedState)
    assert (summary.state_epoch, summary.leader_epoch) == (2, 5)


def test_write_does_not_raise_the_leader_epoch(rig: ShareRig) -> None:
    """As in Kafka, only a read makes an owner known."""
    rig.initialize()
    assert rig.write(leader=7) == 0
    assert rig.write(leader=0) == 0
    assert rig.summary() == PersistedState(0, 0, 0, 0)


def test_read_with_a_higher_leader_epoch_is_recorded_and_fences(rig: ShareRig) -> None:
    rig.initialize(start=4)
    rig.write((4, 9, 2, 1), start=4, complete=6)
    for _ in range(2):
        assert rig.read(leader=3) == PersistedState(0, 3, 4, 6, (StateBatch(4, 9, 2, 1),))
    assert types(rig) == "SUU"
    assert rig.records()[2] == Update(0, 3, 4, 6)
    assert rig.read(leader=2) == ErrorCode.FENCED_LEADER_EPOCH
    rig.reopen()
    assert rig.read(leader=2) == ErrorCode.FENCED_LEADER_EPOCH


def test_initialize_keeps_older_owners_fenced(rig: ShareRig) -> None:
    rig.initialize(epoch=1)
    rig.read(leader=3)
    rig.initialize(epoch=2)
    assert rig.summary() == PersistedState(2, 0, 0, 0)
    assert rig.read(leader=2) == ErrorCode.FENCED_LEADER_EPOCH


def test_summary_has_no_batches_and_writes_no_epoch(rig: ShareRig) -> None:
    rig.initialize(start=2)
    rig.write((2, 9, 2, 1), start=2, complete=8)
    assert rig.summary() == PersistedState(0, 0, 2, 8)
    assert types(rig) == "SU"


def test_delete_removes_the_state(rig: ShareRig) -> None:
    rig.initialize()
    rig.initialize(OTHER)
    rig.read(leader=4)
    assert rig.outcome("delete", NAME, DeleteState()) == 0
    assert rig.read(leader=4) == ErrorCode.INVALID_REQUEST
    rig.reopen()
    assert rig.read(leader=4) == ErrorCode.INVALID_REQUEST
    assert rig.read(OTHER) == PersistedState(0, 0, 0, 0)
    assert rig.initialize() == 0
    assert rig.read() == PersistedState(0, 0, 0, 0)


# ---- snapshots ----------------------------------------------------------------------------------------------


def test_write_stores_a_snapshot_after_the_configured_updates(make_rig: Start) -> None:
    rig = make_rig(share_coordinator_snapshot_update_records_per_snapshot=2)
    rig.initialize(epoch=1)
    rig.clock.advance_ms(5)
    for offset in range(7):
        rig.write((offset, offset, 2, 1), epoch=1, start=0, complete=offset + 1)
    assert types(rig) == "SUUSUUSU"
    whole = Snapshot(1, 1, 0, 0, 3, NOW_MS + 5, NOW_MS + 5, (StateBatch(0, 2, 2, 1),))
    assert rig.records()[3] == whole
    rig.reopen()
    assert batches_of(rig.read()) == [(0, 6, 2, 1)]


def test_snapshot_keeps_batches_that_the_write_does_not_name(make_rig: Start) -> None:
    """Kafka's example: the second of three batches is neither acknowledged nor below the new start offset."""
    rig = make_rig(share_coordinator_snapshot_update_records_per_snapshot=0)
    rig.initialize()
    rig.write((100, 109, 1, 1), (110, 119, 1, 2), (120, 129, 1, 0), start=100, complete=0)
    rig.write((100, 109, 2, 1), complete=10)
    rig.write((120, 129, 2, 1), start=110, complete=10)
    assert batches_of(rig.read()) == [(110, 119, 1, 2), (120, 129, 2, 1)]
    assert types(rig) == "SSSS"


def test_every_write_is_a_snapshot_with_a_limit_of_no_updates(make_rig: Start) -> None:
    rig = make_rig(share_coordinator_snapshot_update_records_per_snapshot=0)
    rig.initialize()
    rig.write((0, 0, 2, 1))
    rig.read(leader=1)
    assert types(rig) == "SSS"


def test_sweep_repeats_the_snapshots_of_cold_share_partitions(rig: ShareRig) -> None:
    rig.initialize()
    rig.clock.advance_ms(COLD_MS - 1)
    rig.initialize(OTHER)
    rig.clock.advance_ms(1)
    rig.sweep()
    assert types(rig)[-1] == "S"
    cold = rig.records()[-1]
    assert isinstance(cold, Snapshot)
    assert (cold.snapshot_epoch, cold.created_ms, cold.written_ms) == (1, NOW_MS, NOW_MS + COLD_MS)


def test_sweep_repeats_snapshot_from_before_clock_went_back(rig: ShareRig) -> None:
    """Until the clock has caught up, the old snapshot would keep all later records."""
    rig.initialize()
    rig.clock.set_wall_ms(NOW_MS - 3_600_000)
    rig.initialize(OTHER)
    rig.sweep()
    repeated = rig.records()[-1]
    assert isinstance(repeated, Snapshot)
    assert (repeated.snapshot_epoch, repeated.written_ms) == (1, NOW_MS - 3_600_000)


def test_update_does_not_make_a_snapshot_younger(rig: ShareRig) -> None:
    rig.initialize()
    rig.clock.advance_ms(COLD_MS - 1)
    rig.write((0, 0, 2, 1))
    rig.clock.advance_ms(1)
    rig.sweep()
    snapshot = rig.records()[-1]
    assert isinstance(snapshot, Snapshot)
    assert snapshot.batches == (StateBatch(0, 0, 2, 1),)


def test_sweep_of_an_empty_coordinator_keeps_the_tombstone(rig: ShareRig) -> None:
    rig.sweep()
    rig.initialize()
    rig.outcome("delete", NAME, DeleteState())
    rig.sweep()
    assert rig.log.state.start_offset == 1


def test_sweep_stops_when_all_share_partitions_are_cold(rig: ShareRig) -> None:
    rig.initialize()
    for _ in range(3):
        rig.clock.advance_ms(COLD_MS)
        rig.sweep()
    assert rig.log.state.end_offset == 2
    rig.reopen()
    rig.clock.advance_ms(COLD_MS)
    rig.sweep()
    assert rig.log.state.end_offset == 2


def test_sweep_deletes_records_below_the_oldest_snapshot(make_rig: Start) -> None:
    rig = make_rig(share_coordinator_snapshot_update_records_per_snapshot=2)
    rig.initialize()
    rig.initialize(OTHER)
    for offset in range(4):
        rig.write((offset, offset, 2, 1))
    rig.sweep()
    assert rig.log.state.start_offset == 1
    rig.initialize(OTHER)
    rig.sweep()
    assert rig.log.state.start_offset == rig.coordinator.pruned_offset == 4
    before = rig.read(), rig.read(OTHER)
    rig.reopen()
    assert (rig.read(), rig.read(OTHER)) == before


def test_records_are_deleted_when_newer_snapshots_are_durable(rig: ShareRig) -> None:
    rig.initialize()
    rig.initialize(OTHER)
    rig.clock.advance_ms(COLD_MS)
    rig.coordinator.start_sweep()
    while rig.coordinator.steps:
        rig.coordinator.steps.run()
    assert (rig.log.state.end_offset, rig.log.state.start_offset) == (4, 0)
    rig.owned.sync()
    assert rig.log.state.start_offset == 2


def test_failed_sync_deletes_no_records(rig: ShareRig) -> None:
    rig.initialize()
    rig.clock.advance_ms(COLD_MS)
    rig.coordinator.start_sweep()
    while rig.coordinator.steps:
        rig.coordinator.steps.run()
    rig.owned.sync(int(ErrorCode.KAFKA_STORAGE_ERROR))
    assert rig.log.state.start_offset == 0
    rig.sweep()
    assert rig.log.state.start_offset == 1


def test_released_coordinator_deletes_no_records(rig: ShareRig) -> None:
    rig.initialize()
    rig.clock.advance_ms(COLD_MS)
    rig.coordinator.start_sweep()
    while rig.coordinator.steps:
        rig.coordinator.steps.run()
    rig.coordinator.resign()
    rig.owned.sync()
    assert rig.log.state.start_offset == 0


# ---- writes that are not durable yet, or fail ---------------------------------------------------------------


def test_answers_wait_for_the_sync(rig: ShareRig) -> None:
    outcomes: list[Any] = []
    rig.coordinator.initialize(NAME, InitializeState(0, 0), outcomes.append)
    rig.coordinator.summarize(NAME, ReadSummary(), outcomes.append)
    rig.shard.flush()
    assert outcomes == []
    rig.owned.sync()
    assert outcomes == [0, PersistedState(0, 0, 0, 0)]


def test_writes_of_one_cycle_build_on_each_other(rig: ShareRig) -> None:
    """A start offset of a queued write must not be lost to the next write, which has none."""
    outcomes: list[Any] = []
    coordinator = rig.coordinator
    coordinator.initialize(NAME, InitializeState(1, 0), outcomes.append)
    coordinator.write(NAME, WriteState(1, 0, 5, 0), outcomes.append)
    coordinator.write(NAME, WriteState(1, 0, -1, 0, (StateBatch(3, 9, 2, 1),)), outcomes.append)
    rig.settle()
    assert outcomes == [0, 0, 0]
    assert rig.read() == PersistedState(1, 0, 5, 0, (StateBatch(5, 9, 2, 1),))


def test_failed_sync_is_reported_as_not_coordinator(rig: ShareRig) -> None:
    outcomes: list[Any] = []
    rig.coordinator.initialize(NAME, InitializeState(0, 0), outcomes.append)
    rig.shard.flush()
    rig.owned.sync(int(ErrorCode.KAFKA_STORAGE_ERROR))
    assert outcomes == [ErrorCode.NOT_COORDINATOR]


# ---- deleted topics, foreign records ------------------------------------------------------------------------


def test_deletion_of_a_topic_deletes_its_states(rig: ShareRig) -> None:
    rig.initialize()
    rig.initialize(OTHER)
    deleted = KnownTopics(lambda _name: None, {TOPIC_ID: "t"}, lambda _name, _index: -1)
    rig.coordinator.topics_deleted(deleted)
    rig.settle()
    assert types(rig) == "SSDD"
    rig.reopen(deleted)
    rig.settle()
    assert types(rig) == "SSDD"


def test_topic_deleted_before_the_load_loses_its_states(rig: ShareRig) -> None:
    rig.initialize()
    rig.reopen(KnownTopics(lambda _name: None, {TOPIC_ID: "t"}, lambda _name, _index: -1))
    rig.settle()
    assert types(rig) == "SD"


def test_update_without_its_snapshot_makes_a_state(rig: ShareRig) -> None:
    """As in Kafka. Only another program can have deleted the snapshot."""
    update = Update(2, 3, 0, 10, (StateBatch(0, 9, 2, 1),))
    rig.shard.write(Write([encode_share_record(parse_state_key(NAME), update)], lambda _code: None))
    rig.settle()
    rig.reopen()
    assert rig.read(leader=3) == PersistedState(0, 3, 0, 10, (StateBatch(0, 9, 2, 1),))


@pytest.mark.parametrize("seed", range(8))
def test_restarts_change_no_answer(tmp_path: Path, seed: int) -> None:
    """Random requests and sweeps; one of two coordinators is loaded again and again from what the log has left."""
    rng = random.Random(seed)
    rigs = []
    for name in ("steady", "restarted"):
        (tmp_path / name).mkdir()
        settings = {
            "share_coordinator_snapshot_update_records_per_snapshot": 3,
            "share_coordinator_cold_partition_snapshot_interval_ms": 1_000,
        }
        rigs.append(ShareRig(tmp_path / name, **settings))
    for _ in range(80):
        request = random_request(rng, may_reset=True)
        if request.startswith("INITIALIZE"):
            # A load may forget the fence of a state that was initialized again.
            name = state_key("g", TOPIC_ID, int(request.split()[1]))
            for rig in rigs:
                rig.outcome("delete", name, DeleteState())
        passed_ms = rng.choice((0, 300))
        if rng.random() < 0.2:
            rigs[1].reopen()
        answers = []
        for rig in rigs:
            rig.clock.advance_ms(passed_ms)
            answers.append(
                answer_of(rig, request).rpartition("|")[0]
            )  # Not the records: a load begins a new count.
        assert answers[0] == answers[1], request
    assert rigs[0].log.state.start_offset > 0
    for rig in rigs:
        rig.log.close()


# ---- the memory of the states ---------------------------------------------------------------------------------


def test_new_state_without_room_is_rejected_and_others_go_on(rig: ShareRig) -> None:
    limit = rig.coordinator._environment.memory
    assert rig.initialize() == 0
    one = limit.used_bytes
    limit.bytes_max = one
    assert rig.initialize(OTHER) == ErrorCode.POLICY_VIOLATION
    assert types(rig) == "S"
    assert rig.write((0, 9, 0, 1), (10, 19, 2, 1)) == 0
    assert one < limit.used_bytes < 2 * one
    assert rig.initialize(epoch=1) == 0
    assert limit.used_bytes == one
    assert rig.outcome("delete", NAME, DeleteState()) == 0
    assert limit.used_bytes == 0
    assert rig.initialize(OTHER) == 0
    used = limit.used_bytes
    rig.reopen()
    assert rig.coordinator._environment.memory.used_bytes == used
    rig.coordinator.resign()
    assert rig.coordinator._environment.memory.used_bytes == 0
