"""Share groups with all of their parts: sessions, owners of partitions and share coordinators in three Handlers."""

from __future__ import annotations

from typing import Any

import pytest

from kproc.broker.calls.controller_calls import OwnAnswer
from kproc.broker.calls.own_operations import CountShareRecords
from kproc.broker.peers.coordinator_call import Item
from kproc.broker.peers.share_call import DELETE_STATE, READ_SUMMARY, initialize_states
from kproc.broker.share.partition.delivery_counts import count_share_records
from kproc.broker.share.state.messages import (
    DeleteState,
    InitializeState,
    PersistedState,
    ReadSummary,
    state_key,
)
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.handler_rig import HandlerRig, parts_of
from tests.support.logs import batch
from tests.support.several_handlers import Start
from tests.support.share_requests import (
    ACCEPT,
    GROUP,
    REJECT,
    RELEASE,
    offsets_of,
    rows_of,
    share_acknowledge,
    share_fetch,
)

Fields = dict[str, Any]
PARTITIONS = 6
LOCK_MS = 30_000


class Scene:
    """Three Handlers, a topic with two partitions at each, and a share group whose states are initialized."""

    def __init__(self, rig: HandlerRig) -> None:
        self.rig = rig
        rig.controller_serves = {"auto_create_topics"}
        self.topic_id = rig.create_topic("t", partitions=PARTITIONS)
        reset = {"name": "share.auto.offset.reset", "config_operation": 0, "value": "earliest"}
        rig.cluster.alter({"resource_type": 32, "resource_name": GROUP, "configs": [reset]})
        rig.tell()
        for handler in rig.handlers:
            assert handler is not None
            parts_of(handler).services.image.feature_levels["share.version"] = 2
        self.names = [state_key(GROUP, self.topic_id, index) for index in range(PARTITIONS)]
        codes: list[int] = []
        items = [Item(name, InitializeState(0)) for name in self.names]
        initialize_states(parts_of(rig.handler(0)).services, items, codes.extend)
        rig.settle()
        assert codes == [0] * PARTITIONS

    def produce(self, *values: bytes) -> None:
        """Append these values, one batch each, to every partition."""
        for index in range(PARTITIONS):
            owned = self.rig.open("t", index)
            owned.log.append([batch(value) for value in values])
            owned.after_append()
        self.rig.settle()

    def fetch(self, home: int = 0, *, connection: int = 1, **more: Any) -> dict[int, list[int]]:
        """ShareFetch of all partitions until nothing comes any more. Returns the acquired offsets by partition."""
        found: dict[int, list[int]] = {}
        epoch = more.pop("epoch", 0)
        for _ in range(10):
            partitions = range(PARTITIONS) if not epoch else ()
            fields = share_fetch(self.topic_id, partitions, epoch=epoch, max_wait=100, **more)
            self.rig.processors[home].send(ApiKey.SHARE_FETCH, 2, fields, connection=connection)
            self.rig.settle()
            self.rig.advance_ms(101)
            (answer,) = self.rig.processors[home].answers()
            rows = rows_of(answer.fields(ApiKey.SHARE_FETCH, 2))
            epoch += 1
            for index, row in rows.items():
                assert row["error_code"] == 0, row
                found.setdefault(index, []).extend(offsets_of(row))
            if epoch > 1 and not any(offsets_of(row) for row in rows.values()):
                break
        self.epoch = epoch
        return {index: sorted(offsets) for index, offsets in found.items() if offsets}

    def acknowledge(self, batches: Any, home: int = 0, *, connection: int = 1) -> Fields:
        fields = share_acknowledge(self.topic_id, batches, epoch=self.epoch)
        answer: Fields = self.rig.processors[home].ask(
            ApiKey.SHARE_ACKNOWLEDGE, 2, fields, connection=connection
        )
        self.epoch += 1
        return answer

    def starts(self) -> list[int]:
        """The persisted start offsets."""
        states: list[PersistedState | int] = []
        items = [Item(name, ReadSummary()) for name in self.names]
        READ_SUMMARY.send_for_handler(parts_of(self.rig.handler(0)).services, items, states.extend)
        self.rig.settle()
        return [state if isinstance(state, int) else state.start_offset for state in states]

    def counts(self, home: int = 0) -> dict[int, tuple[int, int, list[list[int]]]]:
        """The counts of `share-records` by partition: in flight, acquired, and by delivery count."""
        answers: list[OwnAnswer] = []
        request = CountShareRecords(GROUP, [("t", index) for index in (*range(PARTITIONS), 99)] + [("u", 0)])
        count_share_records(parts_of(self.rig.handler(home)).services, request, answers.append)
        self.rig.settle()
        (answer,) = answers
        assert answer.error is None
        rows = (answer.result or {})["partitions"]
        return {row["partition"]: (row["in_flight"], row["acquired"], row["deliveries"]) for row in rows}


@pytest.fixture
def scene(start: Start) -> Scene:
    return Scene(start(handlers=3))


def test_member_acquires_and_accepts_records_of_all_owners(scene: Scene) -> None:
    scene.produce(b"a", b"b", b"c")
    assert scene.fetch() == {index: [0, 1, 2] for index in range(PARTITIONS)}
    answer = scene.acknowledge({index: [(0, 2, [ACCEPT])] for index in range(PARTITIONS)})
    assert {row["error_code"] for row in rows_of(answer).values()} == {0}
    assert scene.starts() == [3] * PARTITIONS


def test_stop_answers_acknowledgements(scene: Scene) -> None:
    """Their share coordinators stop, too, so the responses do not wait for them."""
    scene.produce(b"a")
    scene.fetch()
    for index in range(3):
        scene.rig.handler(index).drain()
    answer = scene.acknowledge({index: [(0, 0, [ACCEPT])] for index in range(PARTITIONS)})
    codes = {row["error_code"] for row in rows_of(answer).values()}
    assert codes == {ErrorCode.COORDINATOR_NOT_AVAILABLE}
    assert all(scene.rig.handler(index).is_drained() for index in range(3))


def test_accepted_records_stay_accepted_after_deaths(scene: Scene) -> None:
    scene.produce(b"a", b"b", b"c")
    scene.fetch()
    scene.acknowledge({index: [(0, 2, [ACCEPT, RELEASE, ACCEPT])] for index in range(PARTITIONS)})
    for index in (1, 2):
        scene.rig.kill(index)
        scene.rig.start_handler(index, is_restart=True)
    # The home is alive, but members meet the new owners with a new session here.
    assert scene.fetch(connection=2, member_id="other") == {index: [1] for index in range(PARTITIONS)}


def test_records_of_a_dead_home_are_delivered_to_others(scene: Scene) -> None:
    scene.produce(b"a", b"b")
    here = [index for index in range(PARTITIONS) if scene.rig.owner("t", index) != 1]
    assert len(scene.fetch(1)) == PARTITIONS
    scene.rig.kill(1)
    scene.rig.start_handler(1, is_restart=True)
    found = scene.fetch(0, connection=2, member_id="other")
    assert {index: found[index] for index in here} == {index: [0, 1] for index in here}


def test_share_partitions_follow_their_partitions(scene: Scene) -> None:
    scene.produce(b"a", b"b", b"c")
    scene.fetch()
    scene.acknowledge({index: [(0, 0, [ACCEPT])] for index in range(PARTITIONS)})
    scene.rig.set_handler_count(2)
    scene.rig.advance_ms(LOCK_MS + 1_000)
    assert scene.fetch(connection=2, member_id="other") == {index: [1, 2] for index in range(PARTITIONS)}
    scene.rig.set_handler_count(3)
    scene.rig.advance_ms(LOCK_MS + 1_000)
    found = scene.fetch(connection=3, member_id="third")
    assert found == {index: [1, 2] for index in range(PARTITIONS)}


def test_acknowledgement_of_moved_records_is_rejected(scene: Scene) -> None:
    scene.produce(b"a")
    scene.fetch()
    moved = next(index for index in range(PARTITIONS) if scene.rig.owner("t", index) == 2)
    scene.rig.set_handler_count(2)
    answer = scene.acknowledge({moved: [(0, 0, [ACCEPT])]})
    # As in Kafka, the new owner does not know the share partition before somebody fetches from it.
    assert rows_of(answer)[moved]["error_code"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_lost_states_are_restored_at_the_next_fetch(scene: Scene) -> None:
    """A power loss with kproc.flush=none can take states although the group has them as initialized."""
    rows = [{"partition_index": index, "start_offset": 1} for index in range(PARTITIONS)]
    topics = [{"topic_name": "t", "partitions": rows}]
    scene.rig.create_topic("__consumer_offsets", partitions=2)
    scene.rig.processors[0].ask(ApiKey.ALTER_SHARE_GROUP_OFFSETS, 0, {"group_id": GROUP, "topics": topics})
    services = parts_of(scene.rig.handler(0)).services
    DELETE_STATE.send_for_handler(services, [Item(name, DeleteState()) for name in scene.names], lambda _codes: None)
    scene.rig.settle()
    scene.produce(b"a", b"b")
    assert scene.fetch() == {index: [0, 1] for index in range(PARTITIONS)}
    assert scene.starts() == [0] * PARTITIONS


def test_state_that_the_group_does_not_have_is_not_restored(scene: Scene) -> None:
    scene.rig.create_topic("__consumer_offsets", partitions=2)
    services = parts_of(scene.rig.handler(0)).services
    DELETE_STATE.send_for_handler(services, [Item(scene.names[0], DeleteState())], lambda _codes: None)
    scene.rig.settle()
    errors = []
    for epoch in (0, 1):
        fields = share_fetch(scene.topic_id, [0], epoch=epoch)
        answer = scene.rig.processors[0].ask(ApiKey.SHARE_FETCH, 2, fields)
        errors.append(rows_of(answer)[0]["error_code"])
    assert errors == [0, ErrorCode.UNKNOWN_SERVER_ERROR]


def test_sessions_and_acknowledged_records_are_counted(scene: Scene) -> None:
    scene.produce(b"a", b"b", b"c")
    scene.fetch()
    scene.acknowledge({0: [(0, 2, [ACCEPT])], 1: [(0, 1, [ACCEPT, RELEASE])], 2: [(2, 2, [REJECT])]})
    scene.rig.advance_ms(1_100)

    def total(name: str) -> int:
        return sum(scene.rig.slab.read(index)[name] for index in range(3))

    assert (total("share_sessions"), total("share_session_partitions")) == (1, PARTITIONS)
    assert total("share_partitions") == PARTITIONS
    names = ("accepted", "released", "rejected")
    assert [total(f"share_records_{name}") for name in names] == [4, 1, 1]
    assert total("share_ranges_in_flight") > 0
    assert total("share_locks_expired") == 0
    scene.rig.advance_ms(LOCK_MS + 1_100)
    # The released record is available, and three records of each of the other partitions were held.
    assert total("share_locks_expired") == 3 * (PARTITIONS - 3) + 1 + 2


def test_records_in_flight_are_counted_at_all_owners(scene: Scene) -> None:
    """Partitions and topics that do not exist have no row, and counting loads no share partition."""
    assert scene.counts() == {index: (0, 0, []) for index in range(PARTITIONS)}
    assert not any(len(parts_of(scene.rig.handler(index)).services.owner.shares) for index in range(3))
    scene.produce(b"a", b"b", b"c")
    scene.fetch()
    assert scene.counts(1) == {index: (3, 3, [[1, 3]]) for index in range(PARTITIONS)}
    scene.acknowledge({index: [(0, 2, [ACCEPT, RELEASE, REJECT])] for index in range(PARTITIONS)})
    assert scene.counts(2) == {index: (1, 0, [[1, 1]]) for index in range(PARTITIONS)}
    scene.fetch(epoch=scene.epoch)
    assert scene.counts() == {index: (1, 1, [[2, 1]]) for index in range(PARTITIONS)}


def test_count_of_no_known_partition_is_answered(scene: Scene) -> None:
    answers: list[OwnAnswer] = []
    for partitions in ([], [("u", 0)]):
        request = CountShareRecords(GROUP, partitions)
        count_share_records(parts_of(scene.rig.handler(0)).services, request, answers.append)
    scene.rig.settle()
    assert answers == [OwnAnswer(result={"partitions": []})] * 2


def test_records_in_flight_are_counted_after_deaths(scene: Scene) -> None:
    """The new owners have nothing in memory, so the counts come from the stored states."""
    scene.produce(b"a", b"b", b"c")
    scene.fetch()
    scene.acknowledge({index: [(0, 1, [RELEASE])] for index in range(PARTITIONS)})
    for index in (1, 2):
        scene.rig.kill(index)
        scene.rig.start_handler(index, is_restart=True)
    found = scene.counts()
    lost = [index for index in range(PARTITIONS) if scene.rig.owner("t", index)]
    assert {index: found[index] for index in lost} == {index: (2, 0, [[1, 2]]) for index in lost}
    # Counting fences no owner: the one that is still alive goes on.
    alive = next(index for index in range(PARTITIONS) if index not in lost)
    answer = scene.acknowledge({alive: [(2, 2, [ACCEPT])]})
    assert rows_of(answer)[alive]["error_code"] == 0


def test_window_with_many_states_is_counted_later(scene: Scene) -> None:
    """Its count takes some ms, so it has a duty cycle of its own."""
    scene.produce(*[b"v"] * 300)
    scene.fetch()
    scene.acknowledge({0: [(0, 299, [ACCEPT, RELEASE] * 150)]})
    assert scene.counts()[0] == (150, 0, [[1, 150]])
