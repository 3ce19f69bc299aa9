"""One coordinator of transactions on a log in memory: what it writes before what it says, markers, time, reload."""

from __future__ import annotations

import pytest

from kproc.broker.coordinator.rules import Marker
from kproc.broker.transaction import rules
from kproc.broker.transaction.entry import PARTITION_BYTES
from kproc.broker.transaction.marker_delivery import RETRY_MS
from kproc.broker.transaction.messages import AddRequest, Granted
from kproc.broker.transaction.records import decode_record, encode_key, encode_value
from kproc.broker.transaction.state import EXHAUSTED_EPOCH, NO_TIME, State, Transaction
from kproc.common.errors import Corrupt, ErrorCode, KafkaError
from tests.support.coordinators import run_steps
from tests.support.transaction_rig import ABORT, COMMIT, NAME, P0, P1, TIMEOUT_MS, CoordinatorRig

CONCURRENT = int(ErrorCode.CONCURRENT_TRANSACTIONS)
NONE = int(ErrorCode.NONE)
WAIT_MS = 100


def words(rig: CoordinatorRig) -> list[str]:
    """The states in the log."""
    decoded = [decode_record(key, value) for key, value in rig.log.records]
    return [transaction.state.word if transaction else "-" for _, transaction in decoded]


def codes(answers: list[Granted]) -> list[int]:
    return [answer.error_code for answer in answers]


def test_a_transaction_is_committed() -> None:
    rig = CoordinatorRig()
    producer = rig.ongoing()
    assert rig.end(producer, COMMIT) == [Granted(NONE, producer.producer_id, 1)]
    marker = Marker(producer.producer_id, 1, 7, True, 2)
    assert rig.take_markers() == [(P0, marker), (P1, marker)]
    assert words(rig) == ["Empty", "Ongoing", "PrepareCommit", "CompleteCommit"]
    assert not rig.state().partitions


def test_markers_carry_producer_epoch_at_old_transaction_version() -> None:
    rig = CoordinatorRig(version=1)
    producer = rig.ongoing(version=0)
    assert rig.end(producer, ABORT, version=0) == [producer]
    assert rig.take_markers() == [(key, Marker(producer.producer_id, 0, 7, False, 0)) for key in (P0, P1)]
    assert rig.word == "CompleteAbort"


@pytest.mark.parametrize(("version", "written"), [(0, 0), (1, 1), (2, 1)])
def test_the_version_of_the_records_follows_the_clusters_level(version: int, written: int) -> None:
    rig = CoordinatorRig(version=version)
    rig.producer()
    ((_, value),) = rig.log.records
    assert value is not None
    assert value[:2] == bytes((0, written))


def test_nothing_is_answered_before_it_is_durable() -> None:
    rig = CoordinatorRig()
    rig.log.holds_syncs = True
    begun = rig.init()
    assert begun == []
    rig.log.sync()
    (producer,) = begun

    added = rig.add(producer)
    again = rig.add(producer)
    assert (added, again) == ([], [])  # The second is in it already, by a record that is not durable yet.
    rig.log.sync()
    assert (added, again) == ([NONE], [NONE])

    ended = rig.end(producer, COMMIT)
    rig.work()
    assert (ended, rig.sent) == ([], [])
    rig.log.sync()
    assert codes(ended) == [NONE]
    assert len(rig.take_markers()) == 1
    # Nothing waits for Complete* to be durable: the next record is behind it in the same log.
    assert rig.add(ended[0]) == []
    assert words(rig)[-2:] == ["CompleteCommit", "Ongoing"]
    rig.log.sync()


def test_requests_during_a_pending_state_are_concurrent() -> None:
    rig = CoordinatorRig()
    rig.log.holds_syncs = True
    rig.init()
    assert codes(rig.init()) == [CONCURRENT]
    rig.log.sync()
    producer = Granted(NONE, rig.state().producer_id, 0)
    rig.add(producer)
    # Before any other check.
    assert codes(rig.end(Granted(NONE, 1, 9), COMMIT)) == [CONCURRENT]
    assert codes(rig.init()) == [CONCURRENT]


def test_a_verification_writes_only_what_its_own_id_waits_for() -> None:
    rig = CoordinatorRig()
    producer, other = rig.producer(), rig.producer("other")
    rig.add(producer, P0)
    rig.log.holds_appends = True
    rig.add(other, P1, name="other")
    asked = AddRequest(producer.producer_id, producer.epoch, (P0,))
    assert rig.coordinator.verify(NAME, asked) == [NONE]
    assert len(rig.log.gathered) == 1
    asked = AddRequest(other.producer_id, other.epoch, (P1,))
    assert rig.coordinator.verify("other", asked) == [NONE]
    assert not rig.log.gathered


def test_adds_do_not_wait_for_each_other() -> None:
    rig = CoordinatorRig()
    producer = rig.producer()
    rig.log.holds_appends = True
    answers = [rig.add(producer, P0), rig.add(producer, P1), rig.add(producer, P0)]
    rig.log.append()
    assert answers == [[NONE]] * 3
    assert words(rig) == ["Empty", "Ongoing", "Ongoing"]
    assert rig.state().partitions == {P0, P1}


def test_add_before_end_of_last_transaction_waits_for_it() -> None:
    rig = CoordinatorRig()
    producer = rig.ongoing()
    (next_one,) = rig.end(producer, COMMIT)
    added = rig.add(next_one)
    rig.work()
    assert added == []
    rig.take_markers()
    assert added == [NONE]
    assert rig.state().partitions == {P0}


def test_next_transaction_before_durable_end_also_ends() -> None:
    rig = CoordinatorRig()
    producer = rig.ongoing()
    for _ in range(3):
        (producer,) = rig.end(producer, COMMIT)
        added = rig.add(producer)
        rig.log.holds_syncs = True
        rig.take_markers()
        assert added == []
        # CompleteCommit and the next Ongoing, one after the other.
        rig.log.sync()
        rig.log.holds_syncs = False
        assert added == [NONE]


def test_an_add_does_not_wait_for_ever() -> None:
    rig = CoordinatorRig()
    (next_one,) = rig.end(rig.ongoing(), COMMIT)
    added = rig.add(next_one)
    rig.pass_ms(WAIT_MS - 1)
    assert added == []
    rig.pass_ms(1)
    assert added == [CONCURRENT]
    rig.take_markers()
    assert rig.word == "CompleteCommit"


def test_a_late_add_of_the_last_transaction_is_fenced() -> None:
    rig = CoordinatorRig()
    producer = rig.ongoing()
    rig.end(producer, COMMIT)
    assert rig.add(producer) == [ErrorCode.PRODUCER_FENCED]


def test_requests_about_an_unknown_id() -> None:
    rig = CoordinatorRig()
    stranger = Granted(NONE, 5, 0)
    mapping = ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert rig.add(stranger) == [mapping]
    assert codes(rig.end(stranger, COMMIT)) == [mapping]
    assert rig.coordinator.verify(NAME, AddRequest(5, 0, (P0,))) == [mapping]
    assert rig.coordinator.describe(NAME) is None
    assert not rig.log.records


def test_description_shows_the_partitions_without_a_marker() -> None:
    """As in Kafka: an administrator sees which partition holds the transaction up."""
    rig = CoordinatorRig()
    producer = rig.producer()
    rig.add(producer, P0, P1)
    rig.log.holds_syncs = True
    rig.end(producer, COMMIT)
    read: list[tuple[str, list[int]]] = []

    def note(_code: int, found: Transaction | None) -> None:
        assert found is not None
        read.append((found.state.word, sorted(index for _, index in found.partitions)))

    def look() -> None:
        rig.coordinator.read(NAME, note)
        rig.log.sync()

    look()
    rig.log.holds_syncs = False
    rig.take_markers(p0=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    look()
    assert read == [("PrepareCommit", [0, 1]), ("PrepareCommit", [0])]


def test_described_state_is_durable() -> None:
    """DescribeTransactions showed a decision to commit that a power loss could take back."""
    rig = CoordinatorRig()
    producer = rig.ongoing()
    rig.log.holds_syncs = True
    rig.end(producer, COMMIT)
    read: list[tuple[int, str]] = []
    rig.coordinator.read(NAME, lambda code, found: read.append((code, found.state.word if found else "")))
    assert read == []
    rig.log.sync()
    assert read == [(NONE, "PrepareCommit")]
    rig.coordinator.read("unknown", lambda code, found: read.append((code, str(found))))
    rig.log.sync()
    assert read[1:] == [(NONE, "None")]


def test_verification_writes_nothing() -> None:
    rig = CoordinatorRig()
    producer = rig.producer()
    rig.add(producer, P0)
    asked = AddRequest(producer.producer_id, producer.epoch, (P0, P1))
    assert rig.coordinator.verify(NAME, asked) == [NONE, ErrorCode.TRANSACTION_ABORTABLE]
    assert len(rig.log.records) == 2


def test_a_new_producer_aborts_the_transaction_of_the_one_before() -> None:
    for version in (1, 2):
        rig = CoordinatorRig(version=version)
        producer = rig.ongoing(version=version)
        assert codes(rig.init()) == [CONCURRENT]
        assert {marker.epoch for _, marker in rig.take_markers()} == {1}
        assert rig.word == "CompleteAbort"
        assert rig.init() == [Granted(NONE, producer.producer_id, 2)]
        assert codes(rig.end(producer, COMMIT, version=version)) == [ErrorCode.PRODUCER_FENCED]


def test_an_idle_coordinator_asks_for_no_ticks() -> None:
    rig = CoordinatorRig()
    (producer,) = rig.end(rig.ongoing(), COMMIT)
    rig.take_markers()
    rig.pass_ms(20_000)
    assert len(rig.deadlines) == 0
    rig.add(producer)
    assert len(rig.deadlines) == 1


def test_the_end_is_written_again_until_there_is_room() -> None:
    rig = CoordinatorRig()
    rig.end(rig.ongoing(), COMMIT)
    rig.work()
    rig.log.error = ErrorCode.KAFKA_STORAGE_ERROR
    rig.take_markers()
    assert rig.word == "PrepareCommit"
    rig.log.error = ErrorCode.NONE
    rig.pass_ms(RETRY_MS)
    assert rig.word == "CompleteCommit"


@pytest.mark.parametrize(
    ("failed", "told"),
    [
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
    ],
)
def test_a_write_that_fails_changes_nothing(failed: ErrorCode, told: ErrorCode) -> None:
    rig = CoordinatorRig()
    rig.log.error = failed
    assert codes(rig.init()) == [told]
    rig.log.error = ErrorCode.NONE
    producer = rig.producer()
    rig.log.error = failed
    assert rig.add(producer) == [told]
    assert rig.word == "Empty"
    rig.log.error = ErrorCode.NONE
    assert rig.add(producer) == [NONE]
    rig.log.error = failed
    assert codes(rig.end(producer, COMMIT)) == [told]
    rig.log.error = ErrorCode.NONE
    assert codes(rig.end(producer, COMMIT)) == [NONE]
    assert len(rig.take_markers()) == 1


def test_init_producer_id_without_an_id_returns_its_error() -> None:
    rig = CoordinatorRig()
    rig.id_error = KafkaError(ErrorCode.REQUEST_TIMED_OUT)
    assert codes(rig.init()) == [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]
    rig.id_error = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)
    assert codes(rig.init()) == [ErrorCode.UNKNOWN_SERVER_ERROR]
    rig.id_error = None
    assert codes(rig.init()) == [NONE]


def test_an_abort_of_nothing_sends_no_markers() -> None:
    rig = CoordinatorRig()
    producer = rig.producer()
    assert rig.end(producer, ABORT) == [Granted(NONE, producer.producer_id, 1)]
    assert rig.take_markers() == []
    assert words(rig) == ["Empty", "PrepareAbort", "CompleteAbort"]


def test_an_exhausted_epoch_changes_the_producer_id() -> None:
    rig = CoordinatorRig()
    producer = rig.producer()
    last = Transaction(
        producer_id=producer.producer_id, epoch=EXHAUSTED_EPOCH, timeout_ms=TIMEOUT_MS, updated_ms=0
    )
    rig.restart([(encode_key(NAME), encode_value(last, 1))])
    worn = Granted(NONE, producer.producer_id, EXHAUSTED_EPOCH)
    rig.add(worn)
    rig.id_error = KafkaError(ErrorCode.REQUEST_TIMED_OUT)
    assert codes(rig.end(worn, COMMIT)) == [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]
    rig.id_error = None
    (fresh,) = rig.end(worn, COMMIT)
    assert (fresh.error_code, fresh.epoch) == (NONE, 0)
    added = rig.add(fresh)
    assert {(marker.producer_id, marker.epoch) for _, marker in rig.take_markers()} == {
        (producer.producer_id, EXHAUSTED_EPOCH + 1)
    }
    assert added == [NONE]
    assert rig.state().producer_id == fresh.producer_id != producer.producer_id


@pytest.mark.parametrize("version", [0, 1, 2])
def test_producer_id_change_survives_coordinator_restart(version: int) -> None:
    rig = CoordinatorRig(version=version)
    producer = rig.producer()
    last = Transaction(
        producer_id=producer.producer_id, epoch=EXHAUSTED_EPOCH, timeout_ms=TIMEOUT_MS, updated_ms=0
    )
    rig.restart([(encode_key(NAME), encode_value(last, min(version, 1)))])
    worn = Granted(NONE, producer.producer_id, EXHAUSTED_EPOCH)
    rig.add(worn)
    (fresh,) = rig.end(worn, COMMIT)
    rig.restart(rig.log.records)
    rig.take_markers()
    assert (rig.state().producer_id, rig.state().epoch) == (fresh.producer_id, 0)
    rig.restart(rig.log.records)
    assert rig.end(worn, COMMIT) == [fresh], "a repeated request, over the change"
    assert rig.add(fresh) == [NONE]


def test_nothing_waits_for_the_last_state_and_for_a_tombstone() -> None:
    rig = CoordinatorRig(transactional_id_expiration_ms=1_000)
    rig.end(rig.ongoing(), COMMIT)
    rig.log.holds_syncs = True
    rig.take_markers()
    assert rig.word == "CompleteCommit"
    rig.clock.advance_ms(2_000)
    rig.coordinator.start_sweep()
    run_steps(rig.coordinator)
    assert words(rig)[-2:] == ["CompleteCommit", "-"]
    assert list(rig.coordinator.overviews()) == []
    assert rig.log.unsynced == []


def test_a_transaction_goes_on_after_a_reload() -> None:
    rig = CoordinatorRig()
    producer = rig.ongoing()
    rig.restart(rig.log.records)
    assert rig.add(producer) == [NONE]
    assert codes(rig.end(producer, COMMIT)) == [NONE]


def test_a_tombstone_and_a_key_of_a_newer_broker_are_replayed() -> None:
    rig = CoordinatorRig()
    rig.producer()
    rig.restart([*rig.log.records, (b"\0\1x", b"?"), (encode_key(NAME), None)])
    assert rig.coordinator.describe(NAME) is None
    with pytest.raises(Corrupt):
        rig.coordinator.replay(encode_key(NAME), b"?", 0, None)


# ---- the end ----------------------------------------------------------------------------------------------


def test_resigning_redirects_waiters_and_sends_no_markers() -> None:
    rig = CoordinatorRig()
    (next_one,) = rig.end(rig.ongoing(), COMMIT)
    added = rig.add(next_one)
    rig.work()
    rig.coordinator.resign()
    run_steps(rig.coordinator)
    assert added == [ErrorCode.NOT_COORDINATOR]
    rig.take_markers()
    assert words(rig)[-1] == "PrepareCommit"
    assert len(rig.deadlines) == 0
    assert codes(rig.init()) == [ErrorCode.NOT_COORDINATOR]
    assert rig.add(next_one) == [ErrorCode.NOT_COORDINATOR]


def test_decision_durable_after_resignation_is_left_to_next() -> None:
    rig = CoordinatorRig()
    producer = rig.ongoing()
    rig.log.holds_syncs = True
    ended = rig.end(producer, COMMIT)
    rig.coordinator.resign()
    run_steps(rig.coordinator)
    rig.log.sync()
    assert codes(ended) == [NONE]
    rig.work()
    assert rig.sent == []
    assert len(rig.deadlines) == 0


def test_looking_in_shows_each_id() -> None:
    rig = CoordinatorRig()
    producer = rig.producer()
    assert rig.state().started_ms == NO_TIME
    rig.add(producer)
    (seen,) = rig.coordinator.overviews()
    assert (seen.transactional_id, seen.transaction.state, seen.is_open) == (NAME, State.ONGOING, True)
    assert seen.transaction.started_ms == rig.clock.wall_ms()


def test_counts_by_state_match_ids_over_random_changes() -> None:
    rig = CoordinatorRig(transactional_id_expiration_ms=1_000)

    def counts() -> dict[str, int]:
        found = {state.word: count for state, count in zip(State, rig.coordinator.state_counts, strict=True)}
        seen = [each.transaction.state.word for each in rig.coordinator.overviews()]
        assert found == {word: seen.count(word) for word in found}
        return {word: count for word, count in found.items() if count}

    assert counts() == {}
    producers = {name: rig.producer(name) for name in ("a", "b", "c", "d")}
    assert counts() == {"Empty": 4}
    for name in ("b", "c", "d"):
        rig.add(producers[name], P0, name=name)
    rig.end(producers["c"], COMMIT, name="c")
    rig.end(producers["d"], ABORT, name="d")
    assert counts() == {"Empty": 1, "Ongoing": 1, "PrepareCommit": 1, "PrepareAbort": 1}
    rig.log.error = ErrorCode.KAFKA_STORAGE_ERROR
    rig.init(name="e")
    assert counts() == {"Empty": 1, "Ongoing": 1, "PrepareCommit": 1, "PrepareAbort": 1}
    rig.log.error = ErrorCode.NONE
    rig.restart(rig.log.records)
    assert counts() == {"Empty": 1, "Ongoing": 1, "PrepareCommit": 1, "PrepareAbort": 1}
    rig.take_markers()
    assert counts() == {"Empty": 1, "Ongoing": 1, "CompleteCommit": 1, "CompleteAbort": 1}
    rig.clock.advance_ms(2_000)
    rig.coordinator.start_sweep()
    run_steps(rig.coordinator)
    assert counts() == {"Ongoing": 1}
    rig.restart(rig.log.records)
    assert counts() == {"Ongoing": 1}


# The memory of transactional ids.


def test_new_id_without_room_is_rejected_and_known_ids_go_on() -> None:
    rig = CoordinatorRig()
    producer = rig.producer()
    records = len(rig.log.records)
    rig.memory.bytes_max = rig.memory.used_bytes
    assert codes(rig.init(name="other")) == [ErrorCode.POLICY_VIOLATION]
    assert len(rig.log.records) == records
    assert rig.coordinator.describe("other") is None
    assert rig.add(producer, P0, P1) == [NONE]
    assert rig.memory.used_bytes > rig.memory.bytes_max
    rig.end(producer, is_commit=True)
    rig.take_markers()
    assert codes(rig.init()) == [NONE]


def test_large_transaction_needs_room_for_its_partitions() -> None:
    rig = CoordinatorRig()
    producer = rig.producer()
    before = rig.memory.used_bytes
    rig.memory.bytes_max = before + 60 * PARTITION_BYTES
    assert rig.add(producer, *(("t", index) for index in range(100))) == [NONE]
    assert rig.add(producer, ("t", 100)) == [ErrorCode.POLICY_VIOLATION]
    assert rig.memory.used_bytes == before + 100 * PARTITION_BYTES
    rig.end(producer, is_commit=False)
    rig.take_markers()
    assert rig.memory.used_bytes == before


def test_log_names_the_limit_of_a_transactions_partitions(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """AddPartitionsToTxn has no field for a message."""
    monkeypatch.setattr(rules, "PARTITIONS_MAX", 1)
    rig = CoordinatorRig()
    assert rig.add(rig.producer(), P0, P1) == [ErrorCode.POLICY_VIOLATION]
    assert "a transaction can have 1 partitions" in caplog.text
    for _ in range(20):
        rig.add(rig.producer(), P0, P1)
    assert caplog.text.count("a transaction can have 1 partitions") == 10, "a client may not fill the log"


def test_small_transactions_of_known_ids_have_a_reserve() -> None:
    """Each id could have a transaction of 100 partitions, which take 20 times the memory of the id."""
    rig = CoordinatorRig()
    producers = [rig.producer(name=name) for name in "abc"]
    limit = rig.memory.bytes_max = rig.memory.used_bytes
    results = [
        rig.add(producer, *(("t", index) for index in range(12)), name=name)
        for name, producer in zip("abc", producers, strict=True)
    ]
    assert results == [[NONE], [ErrorCode.POLICY_VIOLATION], [ErrorCode.POLICY_VIOLATION]]
    assert rig.add(producers[1], P0, name="b") == [NONE]
    assert limit < rig.memory.used_bytes <= 2 * limit


def test_known_id_goes_on_after_a_load_above_the_limit() -> None:
    rig = CoordinatorRig()
    producer = rig.producer()
    rig.memory.bytes_max = rig.memory.used_bytes // 3
    assert rig.add(producer) == [ErrorCode.POLICY_VIOLATION]
    rig.coordinator.resign()
    run_steps(rig.coordinator)
    rig.restart(rig.log.records)
    assert rig.add(producer) == [NONE]
    assert codes(rig.init(name="other")) == [ErrorCode.POLICY_VIOLATION]


def test_ids_of_a_log_count_and_leave_with_their_coordinator() -> None:
    rig = CoordinatorRig()
    rig.ongoing()
    used = rig.memory.used_bytes
    rig.coordinator.resign()
    run_steps(rig.coordinator)
    rig.restart(rig.log.records)
    assert rig.memory.used_bytes == used
    rig.coordinator.resign()
    run_steps(rig.coordinator)
    assert rig.memory.used_bytes == 0
