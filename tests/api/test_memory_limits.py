"""Limits of memory of a real broker's coordinators: members, committed offsets and transactional ids."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.broker import BrokerUnderTest
from tests.support.groups import commit, find_coordinator, join_fields
from tests.support.raw import RawClient
from tests.support.topics import TopicFactory
from tests.support.wait import wait_until

pytestmark = [pytest.mark.long, pytest.mark.own_broker, pytest.mark.transports("process")]
MIB = 1 << 20


def join(client: RawClient, group_id: str, metadata: bytes) -> int:
    fields = join_fields(group_id, protocols=[{"name": "range", "metadata": metadata}])
    return int(client.call(ApiKey.JOIN_GROUP, 3, fields)["error_code"])


def init_producer(client: RawClient, name: str) -> int:
    fields = {
        "transactional_id": name, "transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1,
    }  # fmt: skip
    return int(client.call(ApiKey.INIT_PRODUCER_ID, 4, fields)["error_code"])


def test_limits_of_memory_reject_what_is_new(start_broker: Callable[..., BrokerUnderTest]) -> None:
    states = ("group.members", "group.offsets", "transactional.ids")
    broker = start_broker(settings={f"kproc.{each}.max.bytes": str(MIB) for each in states})
    topic = TopicFactory(broker.bootstrap)()
    with RawClient(broker.bootstrap) as client:
        find_coordinator(client, "g")
        joined = [join(client, f"g{number}", bytes([number]) * 200_000) for number in range(8)]
        assert joined == [0] * 5 + [ErrorCode.GROUP_MAX_SIZE_REACHED] * 3
        text = "m" * 4_000
        codes = [commit(client, f"o{number}", topic, {0: 1}, metadata=text)[0] for number in range(200)]
        stored = codes.index(ErrorCode.INVALID_COMMIT_OFFSET_SIZE)
        assert 100 < stored < 140
        assert set(codes[stored:]) == {ErrorCode.INVALID_COMMIT_OFFSET_SIZE}
        assert commit(client, "o0", topic, {0: 2}, metadata=text) == {0: ErrorCode.NONE}
        names = [f"{number}-{'x' * 30_000}" for number in range(60)]
        fields = {"key_type": 1, "coordinator_keys": names[:1]}
        wait_until(
            lambda: client.call(ApiKey.FIND_COORDINATOR, 4, fields)["coordinators"][0]["error_code"] == 0,
            what="a transaction coordinator",
        )
        wait_until(lambda: init_producer(client, names[0]) == 0, what="the coordinator has loaded")
        codes = [init_producer(client, name) for name in names]
        assert (codes[0], codes[-1]) == (0, ErrorCode.POLICY_VIOLATION)
        assert init_producer(client, names[0]) == 0
