"""No way around the rights of a client: fast paths, fetch sessions, owners, topic ids, kproc's own operations.

Handlers in one process with the authorizer and its rules in their metadata; principals that no SASL has to prove.
"""

from __future__ import annotations

import itertools
import random
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import orjson
import pytest

from kproc.broker.cluster import controller
from kproc.broker.cluster.internal_topics import GROUP_METADATA_TOPIC
from kproc.broker.processor.slow_frames import LARGE_FRAME_BYTES
from kproc.broker.request import registry
from kproc.broker.request.own_requests import PRIVATE_API_KEY
from kproc.broker.security.principal import Principal
from kproc.broker.transport.envelope import CLOSE, FLAG_LOOPBACK, FLAG_PROBE, HEAD, REQUEST, SEND, SEND_PARTS
from kproc.common.errors import ErrorCode
from kproc.wire import codec
from kproc.wire.header import ApiKey
from tests.support.acls import acl_fields
from tests.support.groups import commit_fields
from tests.support.handler_rig import HandlerRig
from tests.support.in_memory_controller import topic
from tests.support.raw import NO_TOPIC_ID, batch, fetch_fields, produce_fields
from tests.support.well_formed import WellFormed

Fields = dict[str, Any]
Start = Callable[..., HandlerRig]
TOPIC, TXN, GROUP = "kept", "theirs", "theirs"
SETTINGS: dict[str, object] = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:admin",
    "offsets.topic.num.partitions": 2,
    "transaction.state.log.num.partitions": 2,
}
DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
ALICE, BOB, ADMIN = 1, 2, 3  # Connections.
ALLOW, DENY = 3, 2
ALL, READ, CREATE, ALTER, DESCRIBE = 2, 3, 5, 7, 8
OF_TOPIC, OF_GROUP, OF_CLUSTER = 2, 3, 4


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Handlers with one topic; alice may do everything with it, bob nothing."""
    with ExitStack() as stack:

        def make(handlers: int = 1) -> HandlerRig:
            rig = stack.enter_context(HandlerRig(tmp_path, handlers=handlers, settings=SETTINGS))
            rig.controller_serves = {"auto_create_topics", "raise_leader_epochs", "allocate_producer_ids"}
            rig.cluster.create(topic(TOPIC, handlers))
            rig.tell()
            for processor in rig.processors:
                for connection, name in ((ALICE, "alice"), (BOB, "bob"), (ADMIN, "admin")):
                    processor.introduce("127.0.0.1", connection=connection, principal=Principal("User", name))
            change(rig, OF_TOPIC, TOPIC, ALL)
            return rig

        yield make


def add_rule(
    rig: HandlerRig, kind: int, name: str, operation: int, permission: int = ALLOW, who: str = "alice"
) -> None:
    """A new rule, which no Handler has heard of yet."""
    rule = acl_fields(kind, name, operation, principal=f"User:{who}", allows=permission == ALLOW)
    assert not rig.cluster.do("create_acls", creations=[rule])["results"][0]["error_code"]


def change(
    rig: HandlerRig, kind: int, name: str, operation: int, permission: int = ALLOW, who: str = "alice"
) -> None:
    """A new rule, known to every Handler."""
    add_rule(rig, kind, name, operation, permission, who)
    rig.tell()


def revoke(rig: HandlerRig) -> None:
    """Alice may do nothing any more."""
    change(rig, OF_TOPIC, TOPIC, ALL, DENY)


def produce(
    rig: HandlerRig, connection: int = ALICE, *, at: int = 0, partition: int = 0, size: int = 1
) -> int:
    """The code of a Produce of one partition; always the same bytes but for the records."""
    fields = produce_fields([(TOPIC, NO_TOPIC_ID, [(partition, batch(b"x" * size))])], acks=1)
    answer = rig.processors[at].ask(ApiKey.PRODUCE, 9, fields, connection=connection)
    return int(answer["responses"][0]["partition_responses"][0]["error_code"])


def fetch(rig: HandlerRig, connection: int = ALICE, *, at: int = 0, **more: Any) -> Fields:
    """The partition's row of a Fetch."""
    fields = fetch_fields([(TOPIC, NO_TOPIC_ID, [(0, 0)])], **more)
    answer = rig.processors[at].ask(ApiKey.FETCH, 12, fields, connection=connection)
    return dict(answer["responses"][0]["partitions"][0])


# -- shapes that were learned


def test_produce_fast_path_stops_when_right_is_revoked(start: Start) -> None:
    rig = start()
    assert [produce(rig) for _ in range(4)] == [0] * 4
    assert rig.taken() > 0
    revoke(rig)
    assert not rig.fast_paths()
    assert [produce(rig) for _ in range(4)] == [DENIED] * 4
    assert not rig.fast_paths()


def test_fetch_fast_path_stops_when_right_is_revoked(start: Start) -> None:
    rig = start()
    produce(rig)
    assert [fetch(rig)["error_code"] for _ in range(4)] == [0] * 4
    assert rig.taken() > 0
    revoke(rig)
    for _ in range(6):
        row = fetch(rig)
        assert (row["error_code"], row["records"]) == (DENIED, b"")
    assert not rig.fast_paths()


def test_denied_fetch_is_not_remembered_by_fast_path(start: Start) -> None:
    rig = start()
    produce(rig)
    rig.forget_fast_paths()
    assert [fetch(rig, BOB)["error_code"] for _ in range(10)] == [DENIED] * 10
    assert not rig.fast_paths()


def test_fast_path_is_per_connection(start: Start) -> None:
    rig = start()
    for _ in range(4):
        assert (produce(rig), fetch(rig)["error_code"]) == (0, 0)
        assert (produce(rig, BOB), fetch(rig, BOB)["error_code"]) == (DENIED, DENIED)


def test_fast_path_ends_with_its_connection(start: Start) -> None:
    rig = start()
    assert [produce(rig) for _ in range(3)] == [0] * 3
    rig.processors[0].disconnect(ALICE)
    rig.settle()
    rig.processors[0].introduce("127.0.0.1", connection=ALICE, principal=Principal("User", "bob"))
    assert produce(rig) == DENIED


def test_denied_large_produce_before_and_after_fast_path(start: Start) -> None:
    rig = start()
    large = LARGE_FRAME_BYTES + 1000
    assert produce(rig, BOB, size=large) == DENIED
    assert [produce(rig, size=large), produce(rig), produce(rig, size=large)] == [0, 0, 0]
    revoke(rig)
    assert [produce(rig, size=large), produce(rig)] == [DENIED, DENIED]


# -- owners


def test_denied_produce_is_not_forwarded(start: Start) -> None:
    rig = start(2)
    owners = [each.owner for each in rig.cluster.image.topics_by_name[TOPIC].partitions]
    for partition, owner in enumerate(owners):
        for at in (0, 1):
            assert produce(rig, BOB, at=at, partition=partition) == DENIED
        assert not rig.processors[1 - owner].hints
        assert produce(rig, at=1 - owner, partition=partition) == 0
        ends = rig.handler(owner)._partitions.find((TOPIC, partition))
        assert ends is not None
        assert ends.log.state.end_offset == 1
        # By the way that the hint shows.
        assert produce(rig, BOB, at=owner, partition=partition) == DENIED
        assert ends.log.state.end_offset == 1


def test_denied_fetch_is_rejected_at_home_handler(start: Start) -> None:
    rig = start(2)
    for at in (0, 1):
        assert fetch(rig, BOB, at=at)["error_code"] == DENIED


# -- sessions


def test_fetch_session_checks_rights_in_every_request(start: Start) -> None:
    rig = start()
    produce(rig)
    whole = fetch_fields([(TOPIC, NO_TOPIC_ID, [(0, 0)])], session=(0, 0))
    session = rig.processors[0].ask(ApiKey.FETCH, 12, whole)["session_id"]
    assert session
    revoke(rig)
    answers = [
        rig.processors[0].ask(ApiKey.FETCH, 12, fetch_fields([], session=(session, epoch)))
        for epoch in (1, 2)
    ]
    codes = [answer["responses"][0]["partitions"][0]["error_code"] for answer in answers]
    assert codes == [DENIED, DENIED]


def test_fetch_session_of_another_connection_is_unknown(start: Start) -> None:
    rig = start()
    produce(rig)
    whole = fetch_fields([(TOPIC, NO_TOPIC_ID, [(0, 0)])], session=(0, 0))
    session = rig.processors[0].ask(ApiKey.FETCH, 12, whole)["session_id"]
    stolen = fetch_fields([], session=(session, 1))
    answer = rig.processors[0].ask(ApiKey.FETCH, 12, stolen, connection=BOB)
    (row,) = answer["responses"][0]["partitions"]
    assert (row["error_code"], row["records"]) == (DENIED, b"")


def test_denied_fetch_session_by_id_hides_topic_name(start: Start) -> None:
    rig = start()
    topic_id = rig.cluster.image.topics_by_name[TOPIC].topic_id
    whole = fetch_fields([("", topic_id, [(0, 0)])], session=(0, 0))
    first = rig.processors[0].ask(ApiKey.FETCH, 13, whole, connection=BOB)
    assert first["responses"][0]["partitions"][0]["error_code"] == DENIED
    rig.cluster.do("delete_topics", topics=[{"name": TOPIC, "topic_id": NO_TOPIC_ID}])
    rig.tell()
    again = fetch_fields([], session=(first["session_id"], 1))
    answer = rig.processors[0].ask(ApiKey.FETCH, 13, again, connection=BOB)
    assert answer["responses"][0]["partitions"][0]["error_code"] == DENIED
    unknown = fetch_fields([("", topic_id, [(0, 0)])])
    answer = rig.processors[0].ask(ApiKey.FETCH, 13, unknown, connection=BOB)
    assert answer["responses"][0]["partitions"][0]["error_code"] == ErrorCode.UNKNOWN_TOPIC_ID


def test_acl_change_ends_parked_fetch_before_next_append(start: Start) -> None:
    rig = start()
    fields = fetch_fields([(TOPIC, NO_TOPIC_ID, [(0, 0)])], max_wait_ms=10_000)
    for _ in range(3):  # The general way, and by a learned shape.
        rig.processors[0].send(ApiKey.FETCH, 12, fields)
        assert not rig.processors[0].answers()
    revoke(rig)
    answers = rig.processors[0].answers()
    rows = [answer.fields(ApiKey.FETCH, 12)["responses"][0]["partitions"][0] for answer in answers]
    assert [(row["error_code"], row["records"]) for row in rows] == [(0, b"")] * 3
    produce(rig, ADMIN)
    assert fetch(rig)["error_code"] == DENIED


def test_acl_snapshot_of_new_controller_ends_parked_fetch(start: Start) -> None:
    """It was written, and the controller died before it told anybody."""
    rig = start()
    fields = fetch_fields([(TOPIC, NO_TOPIC_ID, [(0, 0)])], max_wait_ms=10_000)
    rig.processors[0].send(ApiKey.FETCH, 12, fields)
    rig.send_snapshot(0)
    assert not rig.processors[0].answers()
    add_rule(rig, OF_TOPIC, TOPIC, ALL, DENY)
    rig.send_snapshot(0)
    (answer,) = rig.processors[0].answers()
    assert not answer.fields(ApiKey.FETCH, 12)["responses"][0]["partitions"][0]["records"]


def test_parked_fetch_waits_for_allowed_beside_denied_partitions(start: Start) -> None:
    rig = start()
    rig.cluster.create(topic("hidden"))
    rig.tell()
    topics = [(TOPIC, NO_TOPIC_ID, [(0, 0)]), ("hidden", NO_TOPIC_ID, [(0, 0)])]
    rig.processors[0].send(ApiKey.FETCH, 12, fetch_fields(topics, max_wait_ms=500))
    assert not rig.processors[0].answers()
    rig.advance_ms(600)
    (answer,) = rig.processors[0].answers()
    rows = answer.fields(ApiKey.FETCH, 12)["responses"]
    assert {row["topic"]: row["partitions"][0]["error_code"] for row in rows} == {TOPIC: 0, "hidden": DENIED}


# -- transactions, groups, creation


def test_internal_topic_cannot_join_a_transaction(start: Start) -> None:
    rig = start()
    find = {"key_type": 0, "coordinator_keys": [GROUP]}
    rig.processors[0].ask(ApiKey.FIND_COORDINATOR, 4, find, connection=ADMIN)
    for name, code in ((GROUP_METADATA_TOPIC, DENIED), (TOPIC, ErrorCode.OPERATION_NOT_ATTEMPTED)):
        fields = {
            "v3_and_below_transactional_id": TXN,
            "v3_and_below_producer_id": 7,
            "v3_and_below_producer_epoch": 0,
            "v3_and_below_topics": [
                {"name": each, "partitions": [0]} for each in (GROUP_METADATA_TOPIC, TOPIC)
            ],
        }
        answer = rig.processors[0].ask(ApiKey.ADD_PARTITIONS_TO_TXN, 3, fields, connection=ADMIN)
        codes = {
            row["name"]: row["results_by_partition"][0]["partition_error_code"]
            for row in answer["results_by_topic_v3_and_below"]
        }
        assert codes[name] == code


def test_denied_metadata_creates_no_topic(start: Start) -> None:
    rig = start()
    change(rig, OF_TOPIC, "new", DESCRIBE)
    rig.controller_calls.clear()
    fields = {"topics": [{"name": "new", "topic_id": NO_TOPIC_ID}], "allow_auto_topic_creation": True}
    answer = rig.processors[0].ask(ApiKey.METADATA, 12, fields)
    assert answer["topics"][0]["error_code"] == DENIED
    assert rig.cluster.image.topic("new") is None
    change(rig, OF_TOPIC, "new", CREATE)
    answer = rig.processors[0].ask(ApiKey.METADATA, 12, fields)
    assert answer["topics"][0]["error_code"] == 0


def test_denied_find_coordinator_creates_no_internal_topic(start: Start) -> None:
    rig = start()
    find = {"key_type": 0, "coordinator_keys": [GROUP]}
    answer = rig.processors[0].ask(ApiKey.FIND_COORDINATOR, 4, find, connection=BOB)
    assert answer["coordinators"][0]["error_code"] == ErrorCode.GROUP_AUTHORIZATION_FAILED
    assert rig.cluster.image.topic(GROUP_METADATA_TOPIC) is None


def test_denied_request_does_not_reach_controller(start: Start) -> None:
    rig = start()
    rig.controller_calls.clear()
    row = {"name": "x", "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    create = {"topics": [row], "timeout": 1000, "validate_only": False}
    answer = rig.processors[0].ask(ApiKey.CREATE_TOPICS, 7, create, connection=BOB)
    assert answer["topics"][0]["error_code"] == DENIED
    delete = {"topics": [{"name": TOPIC, "topic_id": NO_TOPIC_ID}], "timeout": 1000}
    answer = rig.processors[0].ask(ApiKey.DELETE_TOPICS, 6, delete, connection=BOB)
    assert answer["responses"][0]["error_code"] == DENIED
    assert not rig.controller_calls


# -- authorized operations


def test_authorized_operations_depend_on_principal(start: Start) -> None:
    rig = start()
    change(rig, OF_TOPIC, TOPIC, READ, who="bob")
    change(rig, OF_GROUP, GROUP, DESCRIBE, who="bob")
    fields = {
        "topics": [{"name": TOPIC, "topic_id": NO_TOPIC_ID}],
        "include_topic_authorized_operations": True,
        "include_cluster_authorized_operations": True,
    }
    told = {}
    for connection in (ALICE, BOB, ADMIN):
        answer = rig.processors[0].ask(ApiKey.METADATA, 10, fields, connection=connection)
        told[connection] = (
            answer["topics"][0]["topic_authorized_operations"],
            answer["cluster_authorized_operations"],
        )
    every = sum(1 << bit for bit in (3, 4, 5, 6, 7, 8, 10, 11))
    on_cluster = sum(1 << bit for bit in (5, 7, 8, 9, 10, 11, 12))
    assert told == {ALICE: (every, 0), BOB: (1 << READ | 1 << DESCRIBE, 0), ADMIN: (every, on_cluster)}
    change(rig, OF_CLUSTER, "kafka-cluster", DESCRIBE, who="bob")
    cluster = {"include_cluster_authorized_operations": True, "endpoint_type": 1}
    answer = rig.processors[0].ask(ApiKey.DESCRIBE_CLUSTER, 1, cluster, connection=BOB)
    assert answer["cluster_authorized_operations"] == 1 << DESCRIBE


# -- the broker's own operations and requests


def private(rig: HandlerRig, connection: int, op: str, **fields: Any) -> Fields | None:
    """What kproc's own operation is answered; None if nobody answers for the controller."""
    body = orjson.dumps({"op": op, **fields})
    head = PRIVATE_API_KEY.to_bytes(2, "big") + bytes(2) + (7).to_bytes(4, "big") + b"\xff\xff"
    frame = (len(head) + len(body)).to_bytes(4, "big") + head + body
    processor = rig.processors[0]
    sequence = next(processor._sequences.setdefault(connection, itertools.count()))
    processor.outbox.push(REQUEST, HEAD.pack(connection, sequence, 0, FLAG_LOOPBACK), frame)
    processor.outbox.flush()
    answers = processor.answers()
    assert all(answer.kind != CLOSE for answer in answers)
    return dict(orjson.loads(answers[0].frame[8:])) if answers else None


def test_kproc_operations_need_describe_or_alter_on_cluster(start: Start) -> None:
    rig = start()
    fields: Fields
    for op, right, fields in (
        ("status", "DESCRIBE", {}),
        ("clients", "DESCRIBE", {}),
        ("topics", "DESCRIBE", {}),
        ("logs", "DESCRIBE", {}),
        ("scale", "ALTER", {}),
        ("rebalance", "ALTER", {}),
        ("plan-rebalance", "DESCRIBE", {}),
        ("kill-client", "ALTER", {"id": "127.0.0.1:1-127.0.0.1:2-0-0"}),
    ):
        refused = private(rig, BOB, op, **fields)
        words = f"User:bob may not do that: it needs the right {right} on the cluster"
        assert refused == {"error": words, "result": None, "is_retriable": False}
        assert private(rig, ADMIN, op, **fields) is None
    assert private(rig, BOB, "monitor", watch="w") == {
        "error": "User:bob may not do that: it needs the right ALTER on the cluster",
        "result": None,
        "is_retriable": False,
    }
    done = {"error": None, "is_retriable": False}
    assert private(rig, ADMIN, "monitor", watch="w") == {**done, "result": {"lines": [], "lost": 0}}
    assert private(rig, BOB, "ping") == {**done, "result": {}}
    change(rig, OF_CLUSTER, "kafka-cluster", DESCRIBE, who="bob")
    assert private(rig, BOB, "status") is None
    assert private(rig, BOB, "scale") is not None
    change(rig, OF_CLUSTER, "kafka-cluster", ALTER, who="bob")
    assert private(rig, BOB, "scale") is None


def test_internal_requests_need_no_rights(start: Start) -> None:
    rig = start()
    frame = codec.encode_request(
        ApiKey.METADATA, 12, 7, "probe", {"topics": [{"name": TOPIC, "topic_id": NO_TOPIC_ID}]}
    )
    processor = rig.processors[0]
    for flags, code in ((0, DENIED), (FLAG_PROBE, 0)):
        processor.outbox.push(REQUEST, HEAD.pack(77, flags, 0, flags), frame)
        processor.outbox.flush()
        (answer,) = processor.answers()
        assert answer.fields(ApiKey.METADATA, 12)["topics"][0]["error_code"] == code


# -- whatever is asked

# Their answers hold numbers that are drawn anew, or count changes of all metadata, as in Kafka.
_UNLIKE = {ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, ApiKey.API_VERSIONS}
_STEPS = 700


def whatever_is_asked(rig: HandlerRig, seed: int) -> list[tuple[str, int, int, Any]]:
    """What a client is answered who may do everything with one topic, and knows the names of more."""
    source = random.Random(seed)
    known = {TOPIC: rig.cluster.image.topics_by_name[TOPIC].topic_id, "hidden": bytes(16)}
    made = WellFormed(source, known, ["hidden", "hidden-group"])
    keys = sorted(registry.APIS.keys() - _UNLIKE)
    answered = []
    for number in range(_STEPS):
        key = ApiKey(source.choice(keys))
        version = source.randint(registry.APIS[key].lo, registry.APIS[key].hi)
        connection = 100 + number  # Errors may end it.
        rig.processors[0].introduce("127.0.0.1", connection=connection, principal=Principal("User", "alice"))
        with suppress(
            ValueError, struct.error, OverflowError, TypeError, UnicodeError
        ):  # No client can say that.
            rig.processors[0].send(key, version, made.request(key, version), connection=connection)
        for answer in rig.processors[0].answers():
            told: Any = answer.frame
            if (
                key == ApiKey.FETCH
                and answer.kind in (SEND, SEND_PARTS)
                and answer.connection_id == connection
            ):
                told = {**answer.fields(key, version), "session_id": 0}
            answered.append((key.name, answer.connection_id, answer.kind, told))
    return answered


def test_no_api_reveals_existence_of_denied_resources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same requests where they exist and where they do not: no answer differs in one byte."""
    # The ids of both clusters' producers begin at the same number, which is random otherwise.
    monkeypatch.setattr(controller, "random_producer_id", lambda: controller.PRODUCER_ID_MIN)
    answers = []
    for exist in (False, True):
        directory = tmp_path / str(exist)
        directory.mkdir()
        with HandlerRig(
            tmp_path / str(exist), settings={**SETTINGS, "auto.create.topics.enable": "false"}
        ) as rig:
            rig.cluster.create(topic(TOPIC, 2))
            change(rig, OF_TOPIC, TOPIC, ALL)
            if exist:
                hide(rig)
            # Whether there was ever a group or a transaction is no secret.
            for key_type in (0, 1):
                rig.controller_serves = {"auto_create_topics", "raise_leader_epochs", "allocate_producer_ids"}
                find = {"key_type": key_type, "coordinator_keys": ["x"]}
                rig.processors[0].introduce(
                    "127.0.0.1", connection=ADMIN, principal=Principal("User", "admin")
                )
                rig.processors[0].ask(ApiKey.FIND_COORDINATOR, 4, find, connection=ADMIN)
            if not exist:
                begin_producer(rig, None)  # Nor is how many producers there were.
            answers.append(whatever_is_asked(rig, 11))
    without, with_them = answers
    assert len(without) > _STEPS // 2
    assert without == with_them


def hide(rig: HandlerRig) -> None:
    """A topic with a record, a group with an offset, a transactional id: nobody's but the administrator's."""
    rig.controller_serves = {"auto_create_topics", "raise_leader_epochs", "allocate_producer_ids"}
    ask = rig.processors[0].ask
    rig.processors[0].introduce("127.0.0.1", connection=ADMIN, principal=Principal("User", "admin"))
    rig.cluster.create(topic("hidden"))
    rig.tell()
    for key_type, name in ((0, "hidden-group"), (1, "hidden")):
        find = {"key_type": key_type, "coordinator_keys": [name]}
        ask(ApiKey.FIND_COORDINATOR, 4, find, connection=ADMIN)
    ask(ApiKey.OFFSET_COMMIT, 9, commit_fields("hidden-group", "hidden", {0: 0}), connection=ADMIN)
    begin_producer(rig, "hidden")
    records = produce_fields([("hidden", NO_TOPIC_ID, [(0, batch(b"x"))])])
    ask(ApiKey.PRODUCE, 9, records, connection=ADMIN)


def begin_producer(rig: HandlerRig, name: str | None) -> None:
    init = {"transactional_id": name, "transaction_timeout": 1000, "producer_id": -1, "producer_epoch": -1}
    assert rig.processors[0].ask(ApiKey.INIT_PRODUCER_ID, 4, init, connection=ADMIN)["error_code"] == 0
