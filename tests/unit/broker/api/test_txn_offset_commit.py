"""TxnOffsetCommit and stable OffsetFetch at Handlers, with a scripted coordinator of transactions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from kproc.broker.cluster.internal_topics import GROUP_METADATA_TOPIC
from kproc.broker.coordinator.rules import Marker
from kproc.broker.coordinator.topic_coordinators import partition_for
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.handler_rig import HandlerRig, parts_of

Start = Callable[..., HandlerRig]
NEWEST = 6
TXN_ID, PRODUCER_ID = "x", 7
FEW = {"offsets.topic.num.partitions": 2}


class ScriptedTransactions:
    """The coordinator of transactions: what it is asked, and its code, at once or when the test says so."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.code: int | None = 0  # None: later.
        self.waiting: list[Callable[[int], None]] = []

    def request_join(
        self,
        _services: Any,
        txn: Any,
        partitions: Iterable[Any],
        *,
        adds: bool,
        on_code: Callable[[int], None],
    ) -> None:
        self.asked.append((tuple(txn), list(partitions), adds))
        if self.code is None:
            self.waiting.append(on_code)
        else:
            on_code(self.code)


@pytest.fixture
def transactions(monkeypatch: pytest.MonkeyPatch) -> ScriptedTransactions:
    made = ScriptedTransactions()
    monkeypatch.setattr("kproc.broker.api.txn_offset_commit.request_join", made.request_join)
    return made


class Scene:
    """Two Handlers: a client's, and the one that coordinates its group."""

    def __init__(self, rig: HandlerRig, transactions: ScriptedTransactions) -> None:
        self.rig = rig
        self.transactions = transactions
        rig.create_topic("t")
        rig.cluster.do("auto_create_topics", names=[GROUP_METADATA_TOPIC])
        rig.tell()
        partitions = rig.cluster.image.topics_by_name[GROUP_METADATA_TOPIC].partitions
        owned = {each.index for each in partitions if each.owner == 1}
        self.group = next(f"g{n}" for n in range(1000) if partition_for(f"g{n}", len(partitions)) in owned)
        self.index = partition_for(self.group, len(partitions))
        self.topic_id = rig.cluster.image.topics_by_name["t"].topic_id

    def fields(self, offset: int, **changes: Any) -> dict[str, Any]:
        part = {"partition_index": 0, "committed_offset": offset, "committed_metadata": "m"}
        return {
            "transactional_id": TXN_ID,
            "group_id": self.group,
            "producer_id": PRODUCER_ID,
            "producer_epoch": 0,
            "topics": [{"name": "t", "topic_id": self.topic_id, "partitions": [part]}],
            **changes,
        }

    def send(self, offset: int, *, version: int = NEWEST, **changes: Any) -> None:
        self.rig.processors[0].send(ApiKey.TXN_OFFSET_COMMIT, version, self.fields(offset, **changes))

    def answers(self, version: int = NEWEST) -> list[int]:
        return [
            part["error_code"]
            for answer in self.rig.processors[0].answers()
            for topic in answer.fields(ApiKey.TXN_OFFSET_COMMIT, version)["topics"]
            for part in topic["partitions"]
        ]

    def commit(self, offset: int, *, version: int = NEWEST, **changes: Any) -> int:
        self.send(offset, version=version, **changes)
        (code,) = self.answers(version)
        return code

    def end(self, *, is_commit: bool = True, epoch: int = 0) -> None:
        codes: list[int] = []
        groups = parts_of(self.rig.handler(1)).coordinators.by_topic[GROUP_METADATA_TOPIC]
        groups.append_marker(self.index, Marker(PRODUCER_ID, epoch, 0, is_commit, 0), codes.append)
        self.rig.settle()
        assert codes == [0]

    def fetch(self, *, is_stable: bool = True, version: int = 8, wants_all: bool = False) -> Any:
        topics = None if wants_all else [{"name": "t", "partition_indexes": [0]}]
        group = {"group_id": self.group, "topics": topics}
        fields = {**group, "groups": [group], "require_stable": is_stable}
        answer = self.rig.processors[0].ask(ApiKey.OFFSET_FETCH, version, fields)
        if version >= 8:
            (answer,) = answer["groups"]
        rows = [row for topic in answer["topics"] for row in topic["partitions"]]
        return [(row["committed_offset"], row["metadata"], row["error_code"]) for row in rows]


@pytest.fixture
def scene(start: Start, transactions: ScriptedTransactions) -> Scene:
    return Scene(start(handlers=2, settings=FEW), transactions)


UNSTABLE = [(-1, "", ErrorCode.UNSTABLE_OFFSET_COMMIT)]


@pytest.mark.parametrize("version", range(NEWEST + 1))
def test_every_version_commits_what_counts_with_its_transaction(scene: Scene, version: int) -> None:
    assert scene.commit(5, version=version) == 0
    assert scene.transactions.asked == [
        ((TXN_ID, PRODUCER_ID, 0), [(GROUP_METADATA_TOPIC, scene.index)], version >= 5)
    ]
    assert scene.fetch(is_stable=False) == [(-1, "", 0)]
    scene.end()
    assert scene.fetch() == [(5, "m", 0)]


@pytest.mark.parametrize("version", [7, 8])
def test_stable_offset_fetch_waits_for_the_transaction(scene: Scene, version: int) -> None:
    scene.commit(5)
    scene.end()
    scene.commit(6)
    assert scene.fetch(version=version) == UNSTABLE
    assert scene.fetch(version=version, wants_all=True) == UNSTABLE
    assert scene.fetch(version=version, is_stable=False) == [(5, "m", 0)]
    scene.end(is_commit=False)
    assert scene.fetch(version=version) == [(5, "m", 0)]
    assert scene.fetch(version=version, wants_all=True) == [(5, "m", 0)]


def test_begun_transaction_is_not_verified_again(scene: Scene) -> None:
    assert [scene.commit(5), scene.commit(6)] == [0, 0]
    assert len(scene.transactions.asked) == 1
    scene.end()
    assert scene.commit(7) == 0
    assert scene.commit(8, producer_epoch=1) == 0
    assert len(scene.transactions.asked) == 3


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.CONCURRENT_TRANSACTIONS),
        (ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.TRANSACTION_ABORTABLE),
        (ErrorCode.NETWORK_EXCEPTION, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_COORDINATOR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
    ],
)
def test_rejection_of_coordinator_is_answered_not_appended(
    scene: Scene, code: ErrorCode, told: ErrorCode
) -> None:
    scene.transactions.code = code
    assert scene.commit(5) == told
    assert scene.fetch() == [(-1, "", 0)]


def test_old_producer_epoch_is_fenced_without_coordinator(scene: Scene) -> None:
    """The partition knows the newer epoch. The coordinator could give another reason, or change the transaction."""
    assert scene.commit(5, producer_epoch=1) == 0
    scene.transactions.asked.clear()
    for version in (4, NEWEST):
        assert scene.commit(6, version=version) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert not scene.transactions.asked


def test_unknown_producers_attempts_leave_no_state(scene: Scene) -> None:
    scene.transactions.code = ErrorCode.INVALID_PRODUCER_ID_MAPPING
    for producer_id in range(3):
        assert scene.commit(5, producer_id=producer_id) == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert not scene.rig.open(GROUP_METADATA_TOPIC, scene.index).log.state.producers.verifying


@pytest.mark.parametrize(
    ("version", "code", "told"),
    [
        (1, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (2, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        (3, ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.INVALID_TXN_STATE),
        (4, ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.TRANSACTION_ABORTABLE),
    ],
)
def test_old_txn_offset_commit_versions_get_known_errors(
    scene: Scene, version: int, code: ErrorCode, told: ErrorCode
) -> None:
    scene.transactions.code = code
    assert scene.commit(5, version=version) == told


@pytest.mark.parametrize(
    ("epoch", "told"), [(0, ErrorCode.INVALID_TXN_STATE), (1, ErrorCode.INVALID_PRODUCER_EPOCH)]
)
def test_transaction_ended_before_answer_begins_no_other(
    scene: Scene, epoch: int, told: ErrorCode
) -> None:
    scene.transactions.code = None
    scene.send(5, version=4)
    assert scene.answers(4) == []
    scene.end(is_commit=False, epoch=epoch)
    (on_code,) = scene.transactions.waiting
    on_code(0)
    assert scene.answers(4) == [told]
    assert scene.fetch() == [(-1, "", 0)]


def test_two_commits_waiting_for_same_answer_are_appended(scene: Scene) -> None:
    scene.transactions.code = None
    scene.send(5)
    scene.send(6)
    assert scene.answers() == []
    for on_code in scene.transactions.waiting:
        on_code(0)
        scene.rig.settle()
    assert scene.answers() == [0, 0]
    scene.end()
    assert scene.fetch() == [(6, "m", 0)]


def test_a_late_answer_is_not_one_to_the_next_transaction(scene: Scene) -> None:
    scene.transactions.code = None
    scene.send(5, version=4)
    scene.answers(4)
    scene.end(is_commit=False)
    scene.transactions.code = 0
    assert scene.commit(6, version=4) == 0  # Producers of before transaction.version 2 keep their epoch.
    (on_code,) = scene.transactions.waiting
    on_code(0)
    assert scene.answers(4) == [ErrorCode.INVALID_TXN_STATE]
    scene.end()
    assert scene.fetch() == [(6, "m", 0)]


def test_end_of_last_transaction_does_not_block_next_one(scene: Scene) -> None:
    """Its marker has raised the epoch to that of the next one, whose offsets wait for it."""
    assert scene.commit(5) == 0
    scene.transactions.code = None
    scene.send(6, producer_epoch=1)
    assert scene.answers() == []
    scene.end(epoch=1)
    (on_code,) = scene.transactions.waiting
    on_code(0)
    assert scene.answers() == [0]
    scene.end(epoch=2)
    assert scene.fetch() == [(6, "m", 0)]


@pytest.mark.parametrize("counts", [[1], [1, 2]], ids=["away", "away and back"])
def test_group_that_moves_during_verification_is_found_again(
    scene: Scene, counts: list[int]
) -> None:
    scene.transactions.code = None
    scene.send(5)
    assert scene.answers() == []
    for count in counts:
        scene.rig.set_handler_count(count)
    for on_code in scene.transactions.waiting:
        on_code(0)
    assert scene.answers() == [ErrorCode.NOT_COORDINATOR]
    assert scene.fetch() == [(-1, "", 0)]


def test_successor_has_transactions_of_dead_coordinator(scene: Scene) -> None:
    def die() -> None:
        scene.rig.kill(1)
        scene.rig.start_handler(1, is_restart=True)

    scene.commit(5)
    die()
    assert (scene.fetch(), scene.fetch(is_stable=False)) == (UNSTABLE, [(-1, "", 0)])
    assert scene.commit(6) == 0
    assert len(scene.transactions.asked) == 1, "the log knows that the transaction has begun"
    scene.end()
    die()
    assert scene.fetch() == [(6, "m", 0)]


def test_without_verification_only_the_newest_version_asks(
    start: Start, transactions: ScriptedTransactions
) -> None:
    rig = start(handlers=2, settings={**FEW, "transaction.partition.verification.enable": False})
    scene = Scene(rig, transactions)
    assert scene.commit(5, version=4) == 0
    assert transactions.asked == []
    scene.end()
    assert scene.commit(6, version=5) == 0
    assert len(transactions.asked) == 1


@pytest.mark.parametrize("version", [5, NEWEST])
def test_txn_offset_commit_reports_errors_by_partition(scene: Scene, version: int) -> None:
    def topic(name: str, *indexes: int, metadata: str | None = None) -> dict[str, Any]:
        parts = [
            {"partition_index": index, "committed_offset": 5, "committed_metadata": metadata}
            for index in indexes
        ]
        return {"name": name, "topic_id": scene.topic_id if name == "t" else b"a" * 16, "partitions": parts}

    too_large = topic("t", 0, metadata="m" * 5_000)
    scene.send(5, topics=[topic("t", 0, 1), topic("absent", 0), too_large], version=version)
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    unknown_topic = ErrorCode.UNKNOWN_TOPIC_ID if version == NEWEST else unknown
    assert scene.answers(version) == [0, unknown, unknown_topic, ErrorCode.OFFSET_METADATA_TOO_LARGE]
    scene.transactions.asked.clear()
    assert scene.commit(5, topics=[topic("absent", 0)], group_id="", version=version) == unknown_topic
    assert scene.commit(5, group_id="") == ErrorCode.INVALID_GROUP_ID
    assert scene.transactions.asked == []


def test_the_members_generation_is_checked(scene: Scene) -> None:
    assert scene.commit(5, version=3, member_id="m", generation_id=1) == ErrorCode.ILLEGAL_GENERATION
    assert scene.commit(5, version=3, member_id="m", generation_id=-1) == 0


def test_generation_of_unknown_group_is_rejected(scene: Scene) -> None:
    """KIP-1319: a group that does not exist has an error of its own from version 6 on."""
    generation = {"generation_id": 1, "generation_id_or_member_epoch": 1}
    assert scene.commit(5, version=5, member_id="m", **generation) == ErrorCode.ILLEGAL_GENERATION
    assert scene.commit(5, version=6, member_id="m", **generation) == ErrorCode.GROUP_ID_NOT_FOUND


def test_stale_epoch_of_consumer_group_member_is_rejected(scene: Scene) -> None:
    """KIP-1319: clients before version 6 know no STALE_MEMBER_EPOCH."""
    member_id = "member-of-consumer-group"
    fields = {
        "group_id": scene.group,
        "member_id": member_id,
        "member_epoch": 0,
        "rebalance_timeout": 60_000,
        "subscribed_topic_names": ["t"],
        "topic_partitions": [],
    }
    joined = scene.rig.processors[0].ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, fields)
    assert joined["error_code"] == 0, joined
    for epoch, old, new in (
        (joined["member_epoch"], 0, 0),
        (joined["member_epoch"] + 1, ErrorCode.ILLEGAL_GENERATION, ErrorCode.STALE_MEMBER_EPOCH),
    ):
        sent = {"member_id": member_id, "generation_id": epoch, "generation_id_or_member_epoch": epoch}
        assert scene.commit(5, version=5, **sent) == old
        assert scene.commit(5, version=6, **sent) == new
