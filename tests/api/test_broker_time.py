"""kproc.Broker.time: what expires when a broker's time is advanced, and what does not while it is frozen."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta

import pytest

from kproc.client import Client
from kproc.client.errors import ClientError
from kproc.client.security.settings import parse_client_security
from kproc.common.errors import ErrorCode
from kproc.embedded import Broker
from kproc.wire.header import ApiKey
from kproc.wire.record_batch import TRANSACTIONAL
from tests.support.broker import forked_broker
from tests.support.groups import Member, commit, find_coordinator, offsets_of
from tests.support.idempotence import Producer
from tests.support.quotas import alter_quotas
from tests.support.raw import (
    NO_TOPIC_ID,
    Closed,
    Fields,
    RawClient,
    RawConnection,
    batch,
    fetch_fields,
    produce_fields,
    values_of,
)
from tests.support.token_logins import log_in_by
from tests.support.topics import fresh_name
from tests.support.wait import pause, wait_until

EARLIEST = -2
HOUR_MS = 3_600_000
pytestmark = pytest.mark.own_broker


@pytest.fixture(scope="module")
def moved(fork_server: None) -> Iterator[Broker]:
    """A broker of this file with two Handlers. It looks for timed out transactions only when time was moved."""
    never = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": 500 * HOUR_MS}
    with forked_broker()({"num.io.threads": 2, "num.network.threads": 1, **never}) as running:
        yield running


@pytest.fixture
def client(moved: Broker) -> Iterator[RawClient]:
    with RawClient(moved.bootstrap) as opened:
        yield opened


def create_dated(broker: Broker, **configs: object) -> str:
    """Create a topic whose records get the broker's date."""
    name = fresh_name("dated")
    named = {key.replace("_", "."): value for key, value in configs.items()}
    broker.create_topic(name, partitions=1, configs={"message.timestamp.type": "LogAppendTime", **named})
    return name


def end_long_poll(broker: Broker, client: RawClient, topic: str, offset: int, *, max_wait_ms: int) -> None:
    """Send a Fetch that finds nothing, and advance time until it is answered.

    Once is not enough if the Fetch arrives behind the move, which comes over another connection.
    """
    client.send(ApiKey.FETCH, 12, fetch_fields([(topic, NO_TOPIC_ID, [(0, offset)])], max_wait_ms=max_wait_ms))
    wait_until(lambda: broker.time.advance(ms=max_wait_ms) and select.select([client.socket], [], [], 0)[0])
    assert client.receive(ApiKey.FETCH, 12)[1]["error_code"] == 0


@pytest.mark.every_transport
def test_time_moves_in_every_role(transport: str) -> None:
    """The answer to advance() comes after retention, sessions and long polls, so nothing here waits."""
    with forked_broker()(transport=transport) as broker, RawClient(broker.bootstrap) as client:
        topic = create_dated(broker, retention_ms=7 * 24 * HOUR_MS)
        find_coordinator(client, "group")
        with Member(broker.bootstrap, "group") as member:
            member.join()
            member.sync({member.member_id: b""})
            before_ms = broker.time.now_ms
            assert client.produce(topic, batch(b"old"))["log_append_time"] >= before_ms
            end_long_poll(broker, client, topic, 1, max_wait_ms=HOUR_MS)
            assert member.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID
        assert client.list_offset(topic, EARLIEST)["offset"] == 0
        broker.time.advance(timedelta(days=7))
        assert client.list_offset(topic, EARLIEST)["offset"] == 1
        with broker.time.freeze() as time:
            assert time.is_frozen
            frozen_ms = time.now_ms
            rows = [client.produce(topic, batch(b"new")) for _ in range(2)]
            assert [row["log_append_time"] for row in rows] == [frozen_ms] * 2
            assert time.advance(ms=5).now_ms == frozen_ms + 5
        assert not broker.time.is_frozen
        assert client.produce(topic, batch(b"new"))["log_append_time"] >= frozen_ms + 5


def join_consumer_group(client: RawClient, group: str, epoch: int) -> Fields:
    fields = {
        "group_id": group, "member_id": "m", "member_epoch": epoch, "rebalance_timeout": 60_000,
        "subscribed_topic_names": [], "topic_partitions": [],
    }  # fmt: skip
    return client.call(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, fields)


def join_share_group(client: RawClient, group: str, epoch: int) -> Fields:
    fields = {
        "group_id": group, "member_id": "m", "member_epoch": epoch, "rack_id": None, "subscribed_topic_names": ["t"],
    }  # fmt: skip
    return client.call(ApiKey.SHARE_GROUP_HEARTBEAT, 1, fields)


def test_sessions_of_consumer_and_share_groups_expire(moved: Broker, client: RawClient) -> None:
    for join in (join_consumer_group, join_share_group):
        group = fresh_name("group")
        find_coordinator(client, group)
        epoch = join(client, group, 0)["member_epoch"]
        moved.time.advance(seconds=40)
        assert join(client, group, epoch)["error_code"] == 0
        moved.time.advance(seconds=40)
        assert join(client, group, epoch)["error_code"] == 0
        moved.time.advance(seconds=46)
        # A consumer group without members and offsets does not exist any more.
        gone = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND)
        assert join(client, group, epoch)["error_code"] in gone


def test_transaction_is_aborted_at_its_timeout(moved: Broker, client: RawClient) -> None:
    topic, name = fresh_name("txn"), fresh_name("id")
    moved.create_topic(topic)
    wanted = {"transactional_id": name, "transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1}

    def begun() -> Fields | None:
        answer = client.call(ApiKey.INIT_PRODUCER_ID, 4, wanted)
        return None if answer["error_code"] else answer

    wait_until(lambda: not client.call(ApiKey.FIND_COORDINATOR, 4, {"key_type": 1, "coordinator_keys": [name]})[
        "coordinators"
    ][0]["error_code"])  # fmt: skip
    ids = wait_until(begun)
    producer = {"producer_id": ids["producer_id"], "producer_epoch": ids["producer_epoch"]}
    added = {
        "v3_and_below_transactional_id": name,
        "v3_and_below_producer_id": ids["producer_id"],
        "v3_and_below_producer_epoch": ids["producer_epoch"],
        "v3_and_below_topics": [{"name": topic, "partitions": [0]}],
    }
    client.call(ApiKey.ADD_PARTITIONS_TO_TXN, 3, added)
    records = batch(b"open", **producer, base_sequence=0, flags=TRANSACTIONAL)
    fields = produce_fields([(topic, NO_TOPIC_ID, [(0, records)])]) | {"transactional_id": name}
    client.call(ApiKey.PRODUCE, 9, fields)

    def state() -> str:
        answer = client.call(ApiKey.DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": [name]})
        return str(answer["transaction_states"][0]["transaction_state"])

    moved.time.advance(seconds=58)
    assert state() == "Ongoing"
    moved.time.advance(seconds=3)
    wait_until(lambda: state() == "CompleteAbort")


def test_producer_id_expires_after_a_day(moved: Broker, client: RawClient) -> None:
    topic = create_dated(moved)
    producer = Producer(client, topic)
    assert producer.send(0)[0] == 0
    described = {"topics": [{"name": topic, "partition_indexes": [0]}]}

    def producers() -> int:
        answer = client.call(ApiKey.DESCRIBE_PRODUCERS, 0, described)
        return len(answer["topics"][0]["partitions"][0]["active_producers"])

    moved.time.advance(hours=23)
    assert producers() == 1
    moved.time.advance(hours=2)
    assert producers() == 0


def test_committed_offsets_expire_after_a_week(moved: Broker, client: RawClient) -> None:
    """The sweep of the coordinator runs at once, not after offsets.retention.check.interval.ms."""
    topic, group = create_dated(moved), fresh_name("group")
    find_coordinator(client, group)
    assert commit(client, group, topic, {0: 0}) == {0: 0}
    moved.time.advance(days=6)
    assert offsets_of(client, group) == {(topic, 0): 0}
    moved.time.advance(days=1, seconds=1)
    assert offsets_of(client, group) == {}


def test_compaction_is_done_when_advance_returns(moved: Broker, client: RawClient) -> None:
    """It needs the sync of the segment before, which the Handlers do first."""
    lag = {"min_compaction_lag_ms": HOUR_MS, "segment_ms": HOUR_MS, "min_cleanable_dirty_ratio": 0.01}
    topic = create_dated(moved, cleanup_policy="compact", **lag)
    for _ in range(3):
        client.produce(topic, batch(b"old"))
    moved.time.advance(minutes=90)
    client.produce(topic, batch(b"new"))  # Begins a segment.
    moved.time.advance(minutes=90)
    assert [offset for offset, _ in values_of(client.fetch(topic, 0)["records"])] == [2, 3]


def test_throttle_of_a_quota_ends_in_moved_time(moved: Broker, client: RawClient) -> None:
    """The connection is not read until the throttle is over. Both the rate and the throttle follow the time."""
    topic = create_dated(moved)
    with RawClient(moved.bootstrap) as admin:
        assert alter_quotas(admin, {"client-id": None}, producer_byte_rate=1000.0) == 0
    fields = produce_fields([(topic, NO_TOPIC_ID, [(0, batch(bytes(30_000)))])])
    assert client.call(ApiKey.PRODUCE, 9, fields)["throttle_time"] > 5000
    fields = produce_fields([(topic, NO_TOPIC_ID, [(0, batch(b"small"))])])

    def is_unthrottled() -> bool:
        # The other Handler may hear of the large request after the first move, and then counts it again from there.
        moved.time.advance(minutes=2)
        return bool(client.call(ApiKey.PRODUCE, 9, fields)["throttle_time"] == 0)

    wait_until(is_unthrottled)
    with RawClient(moved.bootstrap) as admin:
        assert alter_quotas(admin, {"client-id": None}, producer_byte_rate=None) == 0


def test_frozen_long_poll_waits_for_moved_time(moved: Broker, client: RawClient) -> None:
    topic = create_dated(moved)
    with moved.time.freeze() as time:
        frozen_ms = time.now_ms
        end_long_poll(moved, client, topic, 0, max_wait_ms=50)
        assert time.now_ms >= frozen_ms + 50


def test_wrong_moves_of_time_are_rejected(moved: Broker) -> None:
    with pytest.raises(ValueError, match="never runs backwards"):
        moved.time.advance(hours=-1)
    with pytest.raises(ClientError, match="100 years"):
        moved.time.advance(days=40_000)
    with forked_broker()({"kproc.time.movable": False}) as plain, pytest.raises(ClientError, match="movable=true"):
        plain.time.freeze()


@pytest.mark.long
def test_delegation_token_expires_in_moved_time(fork_server: None) -> None:
    settings = {
        "delegation.token.secret.key": "a secret of this test",
        "listener.name.sasl_plaintext.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
    }
    with Broker(settings, users=["alice"]) as broker:
        security = parse_client_security(broker.client_config("java", user="alice"))
        described = {"owners": None}
        with Client.connect(broker.host, broker.port, security=security) as alice:
            created = {"renewers": [], "max_lifetime": -1, "owner_principal_type": None, "owner_principal_name": None}
            token = alice.call(ApiKey.CREATE_DELEGATION_TOKEN, 3, created)
            assert (token["error_code"], token["expiry_timestamp"] - broker.time.now_ms > 23 * HOUR_MS) == (0, True)
            broker.time.advance(hours=23)
            assert len(alice.call(ApiKey.DESCRIBE_DELEGATION_TOKEN, 3, described)["tokens"]) == 1
            with RawConnection(broker.bootstrap) as connection:
                assert log_in_by(connection, token)["error_code"] == 0
            broker.time.advance(hours=2)
            with RawConnection(broker.bootstrap) as connection:
                assert log_in_by(connection, token)["error_code"] == ErrorCode.SASL_AUTHENTICATION_FAILED
            wait_until(lambda: not alice.call(ApiKey.DESCRIBE_DELEGATION_TOKEN, 3, described)["tokens"])


@pytest.mark.every_transport
def test_roles_of_a_frozen_broker_send_heartbeats(transport: str) -> None:
    """Heartbeats follow the host's time. A role that is restarted has the frozen time."""
    with Broker(transport=transport) as broker, broker.time.freeze() as time:
        frozen_ms = time.advance(days=1).now_ms
        topic = create_dated(broker)
        pause(1.0)
        with Client.connect(broker.host, broker.port) as client:

            def rows() -> list[Fields]:
                found = [row for row in client.operate("status")["processes"] if row["role"] != "supervisor"]
                assert all(row["heartbeat_age_ms"] < 900 for row in found), found
                return found

            roles = wait_until(rows)
        if transport == "process":
            [handler] = (row["pid"] for row in roles if row["role"] == "handler")
            os.kill(handler, signal.SIGKILL)
        row = wait_until(lambda: produced(broker, topic))
        assert row["log_append_time"] == frozen_ms


def produced(broker: Broker, topic: str) -> Fields | None:
    """Produce a record. The death of a Handler closes connections."""
    with suppress(Closed), RawClient(broker.bootstrap) as client:
        row = client.produce(topic, batch(b"frozen"))
        return None if row["error_code"] else row
    return None
