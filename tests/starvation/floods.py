"""Floods: many small or odd requests, which cost a broker far more than their bytes, by one client without restraint.

Each flood prepares its topics or groups and then sends. Others must be served meanwhile, as with a large request.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from kproc.broker.share.session.share_requests import PARTITIONS_MAX
from kproc.wire import codec
from kproc.wire.compression import compress
from kproc.wire.header import ApiKey
from kproc.wire.primitives import encode_varint
from tests.support import hostile
from tests.support.groups import find_coordinator, join_fields
from tests.support.raw import NO_TOPIC_ID, Fields, RawClient, batch, fetch_fields, produce_fields
from tests.support.share_requests import GROUP, MEMBER, share_fetch
from tests.support.wait import wait_until

_IN_FLIGHT: Final = 60  # Of one connection.
_ZSTD: Final = 4
_DAY_MS: Final = 86_400_000
_PARTITIONS: Final = 60
_SEGMENTS: Final = 2_000
_WIDE: Final = 4_900  # Just below the most partitions of a Fetch.
_GROUPS: Final = 20

# A request: API, version, fields.
_Request = tuple[ApiKey, int, Fields]


@dataclass(frozen=True)
class Flood:
    """The requests of one client. `prepare` runs before the measurement."""

    name: str
    send: Callable[[str], None]
    prepare: Callable[[RawClient], None] = lambda _client: None


def _send_all(bootstrap: str, requests: list[list[_Request]]) -> None:
    """Send the requests of each connection, the last byte of all of them at once. Wait for all answers."""
    clients = [RawClient(bootstrap, timeout=300) for _ in requests]
    try:
        for client, own in zip(clients, requests, strict=True):
            frames = (
                codec.encode_request(key, version, at, "flood", fields)
                for at, (key, version, fields) in enumerate(own)
            )
            client.send_bytes(b"".join(frames)[:-1])
        for client, own in zip(clients, requests, strict=True):
            key, version, fields = own[-1]
            client.send_bytes(codec.encode_request(key, version, 0, "flood", fields)[-1:])
        for client, own in zip(clients, requests, strict=True):
            for _ in own:
                client.receive_frame()
    finally:
        for client in clients:
            client.close()


def _produce(topic: str, *parts: tuple[int, bytes]) -> _Request:
    return ApiKey.PRODUCE, 9, produce_fields([(topic, NO_TOPIC_ID, parts)], acks=1)


def _keyed_batch(count: int) -> bytes:
    """The smallest records with a key, which become next to nothing."""
    payload = b"".join(hostile.record(b"\0\0" + encode_varint(at) + b"\2k\1\0") for at in range(count))
    now_ms = int(time.time() * 1000)
    return bytes(hostile.sealed(compress(_ZSTD, payload), count=count, codec=_ZSTD, now_ms=now_ms))


def _checked_batches(bootstrap: str) -> None:
    """One Produce of 60 batches of 25,000 records, to a topic that checks each of them."""
    made = _keyed_batch(25_000)
    _send_all(bootstrap, [[_produce("flood-compacted", *((at, made) for at in range(_PARTITIONS)))]])


def _create_compacted(client: RawClient) -> None:
    client.create_topic("flood-compacted", partitions=_PARTITIONS, configs={"cleanup.policy": "compact"})


def _rolling(topic: str, count: int, first: int = 0) -> list[_Request]:
    """Batches whose timestamps are 8 days apart, so that each needs a new segment."""
    return [
        _produce(topic, (0, batch(b"x", timestamp_ms=1 + (first + at) * 8 * _DAY_MS))) for at in range(count)
    ]


def _create_rolling(client: RawClient) -> None:
    client.create_topic("flood-rolls")


def _rolling_batches(bootstrap: str) -> None:
    _send_all(bootstrap, [_rolling("flood-rolls", _IN_FLIGHT, at * _IN_FLIGHT) for at in range(30)])


def _create_segments(client: RawClient) -> None:
    client.create_topic("flood-segments")
    for first in range(0, _SEGMENTS, _IN_FLIGHT):
        sent = [client.send(*each) for each in _rolling("flood-segments", _IN_FLIGHT, first)]
        for _ in sent:
            client.receive(ApiKey.PRODUCE, 9)


def _delete_segments(bootstrap: str) -> None:
    with RawClient(bootstrap, timeout=300) as client:
        client.delete_records("flood-segments", _SEGMENTS - 10)


def _long_joins(bootstrap: str) -> None:
    """600 groups of one member with 1 MB of metadata, of which nothing is in a log yet."""
    protocols = [{"name": "range", "metadata": bytes(1_000_000)}]
    for first in range(0, 600, 50):
        joins = [
            (ApiKey.JOIN_GROUP, 3, join_fields(f"f{at}", protocols=protocols))
            for at in range(first, first + 50)
        ]
        _send_all(bootstrap, [[each] for each in joins])


def _long_subscriptions(bootstrap: str, key: ApiKey, more: Fields) -> None:
    """400 groups of one member that subscribes to 9,000 topics of its own, which do not exist."""
    for first in range(0, 400, 20):
        requests: list[list[_Request]] = []
        for at in range(first, first + 20):
            names = [f"{at}-{each}-".ljust(100, "n") for each in range(9_000)]
            group = {"group_id": f"{key.name}-{at}", "member_id": "m", "member_epoch": 0, "rack_id": None}
            requests.append([(key, 1, {**group, "subscribed_topic_names": names, **more})])
        _send_all(bootstrap, requests)


def _consumer_subscriptions(bootstrap: str) -> None:
    more = {
        "instance_id": None,
        "rebalance_timeout": 60_000,
        "subscribed_topic_regex": None,
        "server_assignor": None,
        "topic_partitions": [],
    }
    _long_subscriptions(bootstrap, ApiKey.CONSUMER_GROUP_HEARTBEAT, more)


def _share_subscriptions(bootstrap: str) -> None:
    _long_subscriptions(bootstrap, ApiKey.SHARE_GROUP_HEARTBEAT, {})


def _create_wide(client: RawClient) -> None:
    """The topic of several floods. With one each, open partitions would use up the descriptors of a usual host."""
    if client.describe_topic("flood-wide")["error_code"]:
        client.create_topic("flood-wide", partitions=_WIDE)


def _wide_fetches(bootstrap: str) -> None:
    """50 connections whose Fetch of 4,900 partitions waits for records, and a record of one of these partitions."""
    wanted = [("flood-wide", NO_TOPIC_ID, [(at, 0) for at in range(_WIDE)])]
    fields = fetch_fields(wanted, max_wait_ms=20_000)
    _wait_for_record(bootstrap, [(ApiKey.FETCH, 12, fields)] * 50, "flood-wide", 0)


def _wait_for_record(bootstrap: str, requests: list[_Request], topic: str, partition: int) -> None:
    """Let each request wait on a connection of its own, produce a record, and close all when they are answered."""
    clients = [RawClient(bootstrap, timeout=300) for _ in requests]
    try:
        for client, request in zip(clients, requests, strict=True):
            client.send(*request)
        with RawClient(bootstrap, timeout=300) as producer:
            producer.produce(topic, batch(b"x"), acks=1, partition=partition)
        for client in clients:
            client.receive_frame()
    finally:
        for client in clients:
            client.close()


def _create_shared(client: RawClient) -> None:
    """A share group with a member that has 2,000 partitions."""
    client.create_topic("flood-shared", partitions=PARTITIONS_MAX)
    find_coordinator(client, GROUP)
    fields = {"group_id": GROUP, "member_id": MEMBER, "rack_id": None, "member_epoch": 0}
    fields["subscribed_topic_names"] = ["flood-shared"]

    def is_assigned() -> bool:
        answer = client.call(ApiKey.SHARE_GROUP_HEARTBEAT, 1, fields)
        fields["member_epoch"] = answer["member_epoch"]
        rows = (answer["assignment"] or {"topic_partitions": []})["topic_partitions"]
        return sum(len(row["partitions"]) for row in rows) == PARTITIONS_MAX

    wait_until(is_assigned, what="an assignment")


def _wide_share_fetches(bootstrap: str) -> None:
    """100 connections whose ShareFetch of 2,000 partitions waits for 1 MB, a record of one of them, and their ends."""
    with RawClient(bootstrap, timeout=300) as client:
        topic_id = client.topic_id("flood-shared")
    requests: list[_Request] = []
    for at in range(100):
        fields = share_fetch(topic_id, range(PARTITIONS_MAX), member_id=f"m{at}", max_wait=10_000)
        requests.append((ApiKey.SHARE_FETCH, 1, {**fields, "min_bytes": 1_000_000}))
    _wait_for_record(bootstrap, requests, "flood-shared", PARTITIONS_MAX - 1)


def _create_wide_shared(client: RawClient) -> None:
    _create_wide(client)
    for at in range(_GROUPS):
        find_coordinator(client, f"wide-{at}")


def _wide_share_groups(bootstrap: str) -> None:
    """20 share groups whose first member subscribes to 4,900 partitions, until each of them has its partitions."""
    with RawClient(bootstrap, timeout=300) as client:
        epochs = dict.fromkeys(range(_GROUPS), 0)
        while epochs:
            for at, epoch in list(epochs.items()):
                fields: Fields = {"group_id": f"wide-{at}", "member_id": MEMBER, "rack_id": None}
                fields |= {"member_epoch": epoch, "subscribed_topic_names": ["flood-wide"]}
                answer = client.call(ApiKey.SHARE_GROUP_HEARTBEAT, 1, fields)
                epochs[at] = answer["member_epoch"]
                if answer["assignment"] and answer["assignment"]["topic_partitions"]:
                    del epochs[at]


def _alter_share_offsets(bootstrap: str) -> None:
    """20 connections that set the start offsets of 4,900 partitions of the same group, and a deletion of them."""
    rows = [{"partition_index": at, "start_offset": 0} for at in range(_WIDE)]
    fields = {"group_id": "altered", "topics": [{"topic_name": "flood-wide", "partitions": rows}]}
    _send_all(bootstrap, [[(ApiKey.ALTER_SHARE_GROUP_OFFSETS, 0, fields)] for _ in range(_GROUPS)])
    fields = {"group_id": "altered", "topics": [{"topic_name": "flood-wide"}]}
    _send_all(bootstrap, [[(ApiKey.DELETE_SHARE_GROUP_OFFSETS, 0, fields)]])


def _create_altered(client: RawClient) -> None:
    _create_wide(client)
    find_coordinator(client, "altered")


def _create_to_delete(client: RawClient) -> None:
    client.create_topic("flood-delete", partitions=_WIDE)
    for first in range(0, _WIDE, 700):
        parts = [(at, batch(b"x")) for at in range(first, first + 700)]
        client.call(*_produce("flood-delete", *parts))


def _delete_topic(bootstrap: str) -> None:
    """Delete a topic whose 4,900 logs are open."""
    with RawClient(bootstrap, timeout=300) as client:
        client.delete_topic("flood-delete")


FLOODS: Final = (
    Flood("checked batches in one Produce", _checked_batches, _create_compacted),
    Flood("batches that roll", _rolling_batches, _create_rolling),
    Flood("DeleteRecords of segments", _delete_segments, _create_segments),
    Flood("joins with long metadata", _long_joins),
    Flood("consumer groups of many names", _consumer_subscriptions),
    Flood("share groups of many names", _share_subscriptions),
    Flood("waiting Fetch of many partitions", _wide_fetches, _create_wide),
    Flood("waiting ShareFetch of many partitions", _wide_share_fetches, _create_shared),
    Flood("share groups of many partitions", _wide_share_groups, _create_wide_shared),
    Flood("AlterShareGroupOffsets of many partitions", _alter_share_offsets, _create_altered),
    Flood("deletion of many open partitions", _delete_topic, _create_to_delete),
)
