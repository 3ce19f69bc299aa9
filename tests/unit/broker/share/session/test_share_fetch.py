"""ShareFetch and ShareAcknowledge at the home, with owners that tests/support/share_owner.py plays."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from kproc.broker.share.session import acknowledge, acquire, sessions, share_requests
from kproc.broker.share.session.share_fetch import ShareFetch
from kproc.broker.transport.envelope import FLAG_NEW_HOME
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.handler_rig import Answer, HandlerRig, parts_of
from tests.support.raw import batch, produce_fields
from tests.support.several_handlers import Start
from tests.support.share_owner import LOCK_MS, FakeOwners
from tests.support.share_requests import (
    ACCEPT,
    RELEASE,
    RENEW,
    offsets_of,
    rows_of,
    share_acknowledge,
    share_fetch,
    values_in,
)

FETCH, ACKNOWLEDGE = ApiKey.SHARE_FETCH, ApiKey.SHARE_ACKNOWLEDGE
NO_TOPIC = b"?" * 16
PRODUCER = 99
Fields = dict[str, Any]


class Scene:
    """Three Handlers, a topic with a partition at each, and owners that a test sees into."""

    def __init__(self, rig: HandlerRig, owners: FakeOwners) -> None:
        self.rig, self.owners = rig, owners
        self._answers: list[Answer] = []
        self.topic_id = rig.create_topic("t", partitions=3)
        for handler in rig.handlers:
            assert handler is not None
            parts_of(handler).services.image.feature_levels["share.version"] = 1
        # The partition of each Handler.
        self.at = {rig.owner("t", index): index for index in range(3)}
        assert sorted(self.at) == [0, 1, 2]

    def fetch(self, *partitions: int, version: int = 2, connection: int = 1, **more: Any) -> Fields:
        """The answer to a ShareFetch at Handler 0."""
        fields = share_fetch(self.topic_id, partitions, **more)
        return self.ask(FETCH, version, fields, connection)

    def send(self, *partitions: int, connection: int = 1, **more: Any) -> None:
        fields = share_fetch(self.topic_id, partitions, **more)
        self.rig.processors[0].send(FETCH, 2, fields, connection=connection)
        self.rig.settle()

    def acknowledge(self, batches: Any, *, epoch: int, version: int = 2, **more: Any) -> Fields:
        fields = share_acknowledge(self.topic_id, batches, epoch=epoch, **more)
        return self.ask(ACKNOWLEDGE, version, fields, 1)

    def ask(self, key: ApiKey, version: int, fields: Fields, connection: int) -> Fields:
        sequence = self.rig.processors[0].send(key, version, fields, connection=connection)
        self._collect()
        found = [
            each for each in self._answers if (each.connection_id, each.sequence) == (connection, sequence)
        ]
        assert len(found) == 1, "not answered"
        self._answers.remove(found[0])
        return found[0].fields(key, version)

    def _collect(self) -> None:
        """Keep the answers to everything but a Produce."""
        answers = self.rig.processors[0].answers()
        self._answers += [each for each in answers if each.connection_id != PRODUCER]

    def produce(self, index: int, *values: bytes) -> None:
        for value in values:
            fields = produce_fields([("t", bytes(16), [(index, batch(value))])], acks=1)
            owner = self.rig.owner("t", index)
            self.rig.processors[owner].send(ApiKey.PRODUCE, 9, fields, connection=PRODUCER)
            self.rig.settle()

    def later(self) -> list[Fields]:
        """The answers that have come meanwhile at Handler 0 to ShareFetches."""
        self._collect()
        answers, self._answers = self._answers, []
        return [each.fields(FETCH, 2) for each in answers]


@pytest.fixture
def scene(start: Start, monkeypatch: pytest.MonkeyPatch) -> Scene:
    owners = FakeOwners(monkeypatch)
    return Scene(start(handlers=3), owners)


def test_records_of_our_partition_leave_as_file_ranges(scene: Scene) -> None:
    here = scene.at[0]
    scene.produce(here, b"one", b"two")
    scene.rig.processors[0].send(FETCH, 2, share_fetch(scene.topic_id, [here]))
    answer = scene.rig.processors[0].answers()[-1]
    assert any(not isinstance(part, bytes) for part in answer.parts)
    fields = answer.fields(FETCH, 2)
    assert fields["acquisition_lock_timeout"] == LOCK_MS
    row = rows_of(fields)[here]
    assert values_in(row) == [b"one", b"two"]
    assert offsets_of(row) == [0, 1]


def test_records_come_from_all_owners_within_the_limit(scene: Scene) -> None:
    for index in range(3):
        scene.produce(index, b"a", b"b")
    rows = rows_of(scene.fetch(0, 1, 2, max_records=5))
    assert sorted(len(offsets_of(row)) for row in rows.values()) == [1, 2, 2]
    # The next request begins with another partition, and the rest is left.
    rows = rows_of(scene.fetch(epoch=1))
    assert [offsets_of(row) for row in rows.values()] == [[1]]


def test_later_responses_have_only_partitions_with_news(scene: Scene) -> None:
    assert sorted(rows_of(scene.fetch(0, 1))) == [0, 1]
    assert rows_of(scene.fetch(epoch=1)) == {}
    assert list(rows_of(scene.fetch(2, epoch=2))) == [2]
    assert rows_of(scene.fetch(epoch=3)) == {}
    scene.produce(1, b"v")
    assert list(rows_of(scene.fetch(epoch=4))) == [1]


def test_forgotten_partition_is_not_acquired_from(scene: Scene) -> None:
    scene.fetch(0, 1)
    scene.produce(0, b"v")
    assert rows_of(scene.fetch(epoch=1, forget=[0])) == {}
    assert list(rows_of(scene.fetch(0, epoch=2))) == [0]


@pytest.mark.parametrize("owner", [0, 1, 2])
def test_append_wakes_a_waiting_request_and_nothing_waits_then(scene: Scene, owner: int) -> None:
    scene.send(0, 1, 2, max_wait=500)
    assert scene.later() == []
    scene.produce(scene.at[owner], b"awaited")
    (answer,) = scene.later()
    assert values_in(rows_of(answer)[scene.at[owner]]) == [b"awaited"]
    assert_nothing_waits(scene.rig)


def test_waiting_request_keeps_no_rows(scene: Scene) -> None:
    """The rows of 100 requests with 2,000 partitions took 60 MB while they waited."""
    scene.send(0, 1, 2, max_wait=500)
    (fetch,) = [each for each in gc.get_objects() if type(each) is ShareFetch]
    assert fetch._request["topics"] == []


def test_request_without_records_ends_at_its_deadline(scene: Scene) -> None:
    scene.send(0, 1, 2, max_wait=500)
    scene.rig.advance_ms(499)
    assert scene.later() == []
    scene.rig.advance_ms(2)
    (answer,) = scene.later()
    assert answer["error_code"] == 0
    assert_nothing_waits(scene.rig)


@pytest.mark.parametrize("step", ["start_now", "on_expire"])
def test_requests_of_many_partitions_run_one_by_one(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """A request acquires from all of its partitions, which takes 10 ms for 2,000 of them, and at its deadline again."""
    monkeypatch.setattr(acquire, "SLOW_PARTS", 0)
    done: list[acquire.Acquisition] = []
    run = getattr(acquire.Acquisition, step)
    monkeypatch.setattr(acquire.Acquisition, step, lambda each: (done.append(each), run(each)))
    settle = scene.rig.settle

    def run_cycles() -> None:
        while True:
            before = len(done)
            scene.rig.run_cycle(scene.rig.handler(0))
            assert len(done) - before <= 1
            if len(done) == before:
                break

    monkeypatch.setattr(scene.rig, "settle", lambda: None)
    for connection, member in enumerate(("one", "two", "three"), 1):
        scene.send(0, member_id=member, connection=connection, max_wait=500)
    run_cycles()
    settle()
    assert scene.later() == []
    scene.rig.clock.advance_ms(501)
    run_cycles()
    settle()
    assert len(scene.later()) == len(done) == 3


def test_released_record_wakes_another_member(scene: Scene) -> None:
    scene.produce(0, b"v")
    scene.fetch(0, member_id="one")
    scene.send(0, member_id="two", connection=2, max_wait=500)
    assert scene.later() == []
    scene.acknowledge({0: [(0, 0, [RELEASE])]}, epoch=1, member_id="one")
    (answer,) = scene.later()
    assert offsets_of(rows_of(answer)[0]) == [0]


def test_faster_member_leaves_the_other_one_waiting(scene: Scene) -> None:
    scene.send(0, member_id="one", connection=1, max_wait=500)
    scene.send(0, member_id="two", connection=2, max_wait=500)
    scene.produce(0, b"v")
    assert len(scene.later()) == 1
    scene.rig.advance_ms(501)
    assert len(scene.later()) == 1
    assert scene.owners.held() == 1


def test_disconnect_releases_at_every_owner(scene: Scene) -> None:
    for index in range(3):
        scene.produce(index, b"v")
    scene.fetch(0, 1, 2)
    assert scene.owners.held() == 3
    scene.owners.names()
    scene.rig.processors[0].disconnect()
    scene.rig.settle()
    assert scene.owners.held() == 0
    assert sorted(scene.owners.names()) == [(0, "release"), (1, "release"), (2, "release")]


def test_session_ends_when_its_connection_gets_another_home(scene: Scene) -> None:
    """The connection lives on, and this Handler may get its requests for single partitions: it keeps the identity."""
    scene.rig.processors[0].introduce("10.0.0.7")
    scene.produce(1, b"v")
    scene.fetch(0, 1, 2)
    assert scene.owners.held() == 1
    scene.rig.processors[0].disconnect(flags=FLAG_NEW_HOME)
    scene.rig.settle()
    assert scene.owners.held() == 0
    (client,) = scene.rig.handler(0)._clients.values()
    assert 1 in client.requests.identities
    assert scene.fetch(epoch=1)["error_code"] == ErrorCode.SHARE_SESSION_NOT_FOUND
    assert offsets_of(rows_of(scene.fetch(0, 1, 2))[1]) == [0]


def test_disconnect_while_waiting_leaves_nothing_behind(scene: Scene) -> None:
    scene.send(0, 1, 2, max_wait=60_000)
    scene.rig.processors[0].disconnect()
    scene.rig.settle()
    for index in range(3):
        scene.produce(index, b"v")
    assert scene.owners.held() == 0
    assert_nothing_waits(scene.rig)


def test_records_acquired_after_the_disconnect_are_released(scene: Scene) -> None:
    """The owner's answer crosses with the end of the session."""
    there = scene.at[1]
    scene.produce(there, b"v")
    scene.rig.processors[0].send(FETCH, 2, share_fetch(scene.topic_id, [there]))
    scene.rig.handler(0).do_work(0)
    scene.rig.handler(1).do_work(0)
    assert scene.owners.held() == 1
    scene.rig.processors[0].disconnect()
    scene.rig.settle()
    assert scene.owners.held() == 0


def test_death_of_an_owner_gives_the_leader_again(scene: Scene) -> None:
    there = scene.at[1]
    scene.rig.processors[0].send(FETCH, 2, share_fetch(scene.topic_id, [there]))
    scene.rig.handler(0).do_work(0)
    scene.rig.kill(1)
    (answer,) = scene.later()
    row = rows_of(answer)[there]
    assert row["error_code"] == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert row["current_leader"] == {"leader_id": 1, "leader_epoch": 0}
    assert answer["node_endpoints"][0]["node_id"] == 1


def test_owner_dies_while_its_successor_acquires(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reply of the successor has no result for the partition that it has got during the call."""
    first, second = scene.at[1], scene.at[2]
    scene.send(first, second, max_wait=500)
    produce = produce_fields([("t", bytes(16), [(first, batch(b"v"))])], acks=1)
    scene.rig.processors[1].send(ApiKey.PRODUCE, 9, produce, connection=PRODUCER)
    scene.owners.names()
    scene.rig.handler(1).do_work(0)
    scene.rig.handler(0).do_work(0)
    find_partition = acquire.find_partition
    successor = find_partition(parts_of(scene.rig.handler(0)).services, (scene.topic_id, first))
    monkeypatch.setattr(acquire, "find_partition", lambda *_: successor)
    scene.owners.errors[scene.topic_id, second] = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    scene.rig.kill(2)
    scene.rig.handler(0).do_work(0)
    assert scene.owners.names() == []
    scene.rig.settle()
    (answer,) = scene.later()
    assert values_in(rows_of(answer)[first]) == [b"v"]


def test_piggybacked_acknowledgements_come_before_the_records(scene: Scene) -> None:
    scene.produce(0, b"a", b"b")
    scene.fetch(0, max_records=1)
    row = rows_of(scene.fetch(epoch=1, acknowledge={0: [(0, 0, [ACCEPT])]}))[0]
    assert offsets_of(row) == [1]
    assert (row["error_code"], row["acknowledge_error_code"]) == (0, 0)
    assert scene.owners.accepted() == 1
    # Not held any more, and no records: the row has the error of the acknowledgement alone.
    scene.owners.ack_errors[scene.topic_id, 0] = int(ErrorCode.INVALID_RECORD_STATE), "why"
    row = rows_of(scene.fetch(epoch=2, acknowledge={0: [(0, 0, [ACCEPT])]}))[0]
    assert (row["error_code"], row["records"], row["acquired_records"]) == (0, b"", [])
    assert row["acknowledge_error_code"] == ErrorCode.INVALID_RECORD_STATE
    assert row["acknowledge_error_message"] == "why"


def test_acknowledgements_reach_all_owners(scene: Scene) -> None:
    for index in range(3):
        scene.produce(index, b"v")
    scene.fetch(0, 1, 2)
    answer = scene.acknowledge({index: [(0, 0, [ACCEPT])] for index in range(3)}, epoch=1)
    assert {index: row["error_code"] for index, row in rows_of(answer).items()} == {0: 0, 1: 0, 2: 0}
    assert answer["acquisition_lock_timeout"] == LOCK_MS
    assert scene.owners.accepted() == 3


@pytest.mark.parametrize(
    ("batches", "version", "renews"),
    [
        ([(1, 0, [ACCEPT])], 2, False),
        ([(5, 6, [ACCEPT]), (4, 4, [ACCEPT])], 2, False),
        ([(0, 0, [])], 2, False),
        ([(0, 2, [ACCEPT, ACCEPT])], 2, False),
        ([(0, 0, [-1])], 2, False),
        ([(0, 0, [5])], 2, False),
        ([(0, 0, [RENEW])], 2, False),
        ([(0, 0, [RENEW])], 1, False),
    ],
)
def test_malformed_acknowledgements_are_rejected(
    scene: Scene, batches: Any, version: int, renews: bool
) -> None:
    scene.fetch(0)
    answer = scene.acknowledge({0: batches}, epoch=1, version=version)
    assert rows_of(answer)[0]["error_code"] == ErrorCode.INVALID_REQUEST


def test_renewal_needs_its_flag_and_fetches_nothing(scene: Scene) -> None:
    scene.produce(0, b"a", b"b")
    scene.fetch(0, max_records=1)
    answer = scene.acknowledge({0: [(0, 0, [RENEW])]}, epoch=1, is_renew_ack=True)
    assert rows_of(answer)[0]["error_code"] == 0
    zero = {"max_bytes": 0, "min_bytes": 0, "max_records": 0, "max_wait": 0}
    renewal = {"acknowledge": {0: [(0, 0, [RENEW])]}, "is_renew_ack": True}
    assert scene.fetch(epoch=2, **renewal, **zero)["error_code"] == 0
    for field in zero:
        answer = scene.fetch(epoch=3, **renewal, **{**zero, field: 1})
        assert answer["error_code"] == ErrorCode.INVALID_REQUEST, field
    assert scene.owners.held() == 1


def test_final_epoch_releases_and_ends_the_session(scene: Scene) -> None:
    scene.produce(0, b"a", b"b")
    scene.fetch(0)
    answer = scene.fetch(epoch=-1, acknowledge={0: [(0, 0, [ACCEPT])]})
    assert rows_of(answer)[0]["acknowledge_error_code"] == 0
    assert (scene.owners.accepted(), scene.owners.held()) == (1, 0)
    assert scene.fetch(epoch=1)["error_code"] == ErrorCode.SHARE_SESSION_NOT_FOUND
    assert scene.fetch(epoch=-1)["error_code"] == ErrorCode.SHARE_SESSION_NOT_FOUND
    scene.fetch(0)
    assert scene.acknowledge({}, epoch=-1)["error_code"] == 0
    assert scene.owners.held() == 0


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"epoch": 1}, ErrorCode.SHARE_SESSION_NOT_FOUND),
        ({"group_id": None}, ErrorCode.INVALID_REQUEST),
        ({"member_id": None}, ErrorCode.INVALID_REQUEST),
        ({"member_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"member_id": "m" * 37}, ErrorCode.INVALID_REQUEST),
        ({"acknowledge": {0: [(0, 0, [ACCEPT])]}}, ErrorCode.INVALID_REQUEST),
        ({"share_acquire_mode": 2}, ErrorCode.INVALID_REQUEST),
    ],
)
def test_invalid_requests_get_kafkas_errors(scene: Scene, more: Fields, code: ErrorCode) -> None:
    answer = scene.fetch(0, **more)
    assert answer["error_code"] == code
    assert answer["acquisition_lock_timeout"] == 0


def test_request_of_too_many_partitions_is_rejected(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The session expects the same epoch again."""
    monkeypatch.setattr(share_requests, "SESSION_PARTITIONS_MAX", 2)
    assert scene.fetch(0, 1, 2)["error_code"] == ErrorCode.INVALID_REQUEST
    assert scene.fetch(0, 1)["error_code"] == 0
    batches = {index: [(0, 0, [ACCEPT])] for index in range(3)}
    assert scene.acknowledge(batches, epoch=1)["error_code"] == ErrorCode.INVALID_REQUEST
    assert scene.fetch(epoch=1, acknowledge=batches)["error_code"] == ErrorCode.INVALID_REQUEST
    assert scene.fetch(epoch=1)["error_code"] == 0


def test_many_acknowledgements_reach_an_owner_in_several_calls(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One call may have 60 types and batches, where a batch or a partition counts as 10 types."""
    monkeypatch.setattr(acknowledge, "_COST_AT_ONCE", 60)
    scene.topic_id = wide = scene.rig.create_topic("wide", partitions=12)
    at_zero = [index for index in range(12) if scene.rig.owner("wide", index) == 0]
    assert len(at_zero) == 4
    scene.fetch(*range(12))
    # The first partition is too large for any call, and goes alone.
    batches = {index: [(0, 0, [ACCEPT])] for index in range(12)} | {at_zero[0]: [(0, 99, [ACCEPT, RELEASE] * 50)]}
    scene.owners.ack_errors = {(wide, index): (0, "") for index in range(12)}
    scene.owners.names()
    rows = rows_of(scene.acknowledge(batches, epoch=1))
    assert {index: row["error_code"] for index, row in rows.items()} == dict.fromkeys(range(12), 0)
    sent = [body.parts for handler, _, body in scene.owners.calls if handler == 0]
    assert [part.key[1] for parts in sent for part in parts] == at_zero
    assert [len(parts) for parts in sent] == [1, 2, 1]


@pytest.mark.parametrize("event", ["disconnect", "leave"])
def test_session_that_ends_sends_all_acknowledgements_first(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, event: str
) -> None:
    """The owner would reject acknowledgements of released records."""
    monkeypatch.setattr(acknowledge, "_COST_AT_ONCE", 20)
    scene.topic_id = scene.rig.create_topic("wide", partitions=12)
    at_zero = [index for index in range(12) if scene.rig.owner("wide", index) == 0]
    scene.fetch(*at_zero)
    scene.owners.ack_errors = {(scene.topic_id, index): (0, "") for index in at_zero}
    scene.owners.names()
    batches = {index: [(0, 0, [ACCEPT])] for index in at_zero}
    request = share_acknowledge(scene.topic_id, batches, epoch=1)
    scene.rig.processors[0].send(ACKNOWLEDGE, 2, request, connection=1)
    if event == "disconnect":
        scene.rig.processors[0].disconnect(1)
    else:
        scene.rig.run_cycle(scene.rig.handler(0))
        scene.rig.handler(0).begin_leave()
    scene.rig.settle()
    assert [name for _, name in scene.owners.names()] == ["acknowledge"] * len(at_zero) + ["release"]


def test_partition_with_too_many_ranges_is_rejected_alone(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Adjacent batches are one range, also if each has a type of its own."""
    monkeypatch.setattr(acknowledge, "RANGES_MAX", 2)
    for index in (0, 1):
        scene.produce(index, b"a")
        scene.produce(index, b"b")
        scene.produce(index, b"c")
    scene.fetch(0, 1)
    batches = {0: [(at, at, [ACCEPT]) for at in (0, 2, 4)], 1: [(at, at, [ACCEPT]) for at in range(3)]}
    rows = rows_of(scene.acknowledge(batches, epoch=1))
    assert {index: row["error_code"] for index, row in rows.items()} == {0: ErrorCode.INVALID_REQUEST, 1: 0}
    assert scene.owners.accepted() == 3


def test_partitions_without_batches_are_reported_beside_others(scene: Scene) -> None:
    scene.produce(0, b"v")
    scene.fetch(0)
    assert rows_of(scene.acknowledge({0: [], 1: []}, epoch=1)) == {}
    rows = rows_of(scene.acknowledge({0: [(0, 0, [ACCEPT])], 1: []}, epoch=2))
    assert {index: row["error_code"] for index, row in rows.items()} == {0: 0, 1: 0}


def test_acknowledge_epochs(scene: Scene) -> None:
    scene.fetch(0)
    assert scene.acknowledge({}, epoch=0)["error_code"] == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert scene.acknowledge({}, epoch=2)["error_code"] == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert scene.acknowledge({}, epoch=1)["error_code"] == 0
    assert scene.fetch(epoch=2)["error_code"] == 0
    answer = scene.acknowledge({}, epoch=1, member_id="other")
    assert answer["error_code"] == ErrorCode.SHARE_SESSION_NOT_FOUND


def test_unknown_partitions_do_not_end_the_wait_for_others(scene: Scene) -> None:
    topics = [
        {"topic_id": NO_TOPIC, "partitions": [{"partition_index": 0, "acknowledgement_batches": []}]},
        {
            "topic_id": scene.topic_id,
            "partitions": [{"partition_index": at, "acknowledgement_batches": []} for at in (0, 7)],
        },
    ]
    scene.send(topics=topics, max_wait=500)
    assert scene.later() == []
    scene.produce(0, b"v")
    (answer,) = scene.later()
    codes = {
        (topic["topic_id"], row["partition_index"]): row["error_code"]
        for topic in answer["responses"]
        for row in topic["partitions"]
    }
    assert codes == {
        (scene.topic_id, 0): 0,
        (scene.topic_id, 7): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        (NO_TOPIC, 0): ErrorCode.UNKNOWN_TOPIC_ID,
    }


def test_deleted_topic_is_unknown_by_its_name(scene: Scene) -> None:
    scene.fetch(0)
    scene.rig.delete_topic("t")
    for handler in scene.rig.handlers:
        assert handler is not None
        parts_of(handler).services.image.feature_levels["share.version"] = 1
    row = rows_of(scene.fetch(epoch=1))[0]
    assert row["error_code"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_session_limit_is_answered_after_the_wait(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    owners = FakeOwners(monkeypatch)
    scene = Scene(start(handlers=3, settings={"group.share.max.share.sessions": 1}), owners)
    scene.fetch(0, member_id="one")
    scene.send(0, member_id="two", connection=2, max_wait=500)
    assert scene.later() == []
    scene.rig.advance_ms(501)
    (answer,) = scene.later()
    assert answer["error_code"] == ErrorCode.SHARE_SESSION_LIMIT_REACHED
    scene.rig.processors[0].disconnect(1)
    assert scene.fetch(0, member_id="two", connection=2)["error_code"] == 0


def test_other_group_gets_a_session_of_the_largest_one(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    owners = FakeOwners(monkeypatch)
    scene = Scene(start(handlers=3, settings={"group.share.max.share.sessions": 2}), owners)
    scene.produce(0, b"v")
    for member in ("one", "two"):
        scene.fetch(0, member_id=member)
    owners.names()
    # The record that the closed session holds is released first.
    assert scene.fetch(0, group_id="other", member_id="three", connection=2)["error_code"] == 0
    assert owners.names() == [(scene.at[0], "release"), (scene.at[0], "acquire")]
    code = scene.fetch(0, member_id="one", share_session_epoch=1)["error_code"]
    assert code == ErrorCode.SHARE_SESSION_NOT_FOUND


def test_added_partition_closes_a_session_of_the_largest_group(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "PARTITIONS_MAX", 3)
    scene.produce(0, b"v")
    scene.fetch(0, member_id="one")
    scene.fetch(0, 1, member_id="two")
    other = {"group_id": "other", "member_id": "three", "connection": 2}
    assert scene.fetch(**other)["error_code"] == 0
    scene.owners.names()
    assert scene.fetch(0, share_session_epoch=1, **other)["error_code"] == 0
    assert scene.owners.names()[0] == (scene.at[0], "release")
    code = scene.fetch(0, member_id="two", share_session_epoch=1)["error_code"]
    assert code == ErrorCode.SHARE_SESSION_NOT_FOUND
    assert scene.fetch(0, member_id="one", share_session_epoch=1)["error_code"] == 0


def test_errors_of_all_partitions_end_the_wait(scene: Scene) -> None:
    scene.owners.errors[scene.topic_id, 0] = int(ErrorCode.GROUP_ID_NOT_FOUND)
    row = rows_of(scene.fetch(0, max_wait=500))[0]
    assert row["error_code"] == ErrorCode.GROUP_ID_NOT_FOUND
    del scene.owners.errors[scene.topic_id, 0]
    assert rows_of(scene.fetch(epoch=1))[0]["error_code"] == 0


def test_client_above_its_byte_rate_acquires_nothing(scene: Scene) -> None:
    scene.rig.cluster.do(
        "alter_client_quotas",
        entries=[
            {
                "entity": [{"entity_type": "user", "entity_name": None}],
                "ops": [{"key": "consumer_byte_rate", "value": 10.0, "remove": False}],
            }
        ],
        validate_only=False,
    )
    scene.rig.tell()
    for handler in scene.rig.handlers:
        assert handler is not None
        parts_of(handler).services.image.feature_levels["share.version"] = 1
    scene.produce(0, b"a" * 500, b"b" * 500)
    assert len(offsets_of(rows_of(scene.fetch(0, max_records=1))[0])) == 1
    answer = scene.fetch(epoch=1, acknowledge={0: [(0, 0, [ACCEPT])]})
    assert answer["throttle_time"] > 0
    assert scene.rig.processors[0].throttles
    assert (scene.owners.accepted(), scene.owners.held()) == (1, 0)


def test_request_without_share_groups_is_unsupported(scene: Scene) -> None:
    handler = scene.rig.handler(0)
    parts_of(handler).services.image.feature_levels["share.version"] = 0
    assert scene.fetch(0)["error_code"] == ErrorCode.UNSUPPORTED_VERSION
    assert scene.acknowledge({}, epoch=1)["error_code"] == ErrorCode.UNSUPPORTED_VERSION


def test_min_bytes_delay_the_acquisition(scene: Scene) -> None:
    scene.produce(0, b"v")
    scene.send(0, max_wait=500, min_bytes=100_000)
    assert [name for _, name in scene.owners.names()][:1] == ["watch"]


def assert_nothing_waits(rig: HandlerRig) -> None:
    for handler in rig.handlers:
        if handler is not None:
            assert len(parts_of(handler).purgatory) == 0, handler.id
            assert len(parts_of(handler).calls) == 0, handler.id
