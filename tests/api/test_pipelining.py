"""Several requests of one connection at once: answered each, and in order, whoever has the work."""

from __future__ import annotations

import random

import pytest

from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.broker import BrokerUnderTest
from tests.support.raw import (
    RawClient,
    batch,
    create_topics_fields,
    fetch_fields,
    list_offsets_fields,
    produce_fields,
)
from tests.support.topics import fresh_name

pytestmark = pytest.mark.every_transport


def test_responses_of_pipelined_apis_are_in_request_order(client: RawClient) -> None:
    name = fresh_name()
    client.create_topic(name, partitions=8)
    source = random.Random(5)
    sent: list[tuple[int, ApiKey, int]] = []
    for number in range(200):
        partition = source.randrange(8)
        kind = source.randrange(5)
        if kind <= 1:
            key, version = ApiKey.PRODUCE, 9
            fields = produce_fields(
                [(name, b"", [(partition, batch(b"%d" % number))])], acks=source.choice((1, -1))
            )
        elif kind == 2:
            key, version, fields = (
                ApiKey.FETCH,
                12,
                fetch_fields([(name, b"", [(partition, 0)])], max_wait_ms=5),
            )
        elif kind == 3:
            key, version, fields = ApiKey.METADATA, 9, {"topics": [{"name": name}]}
        else:
            key, version, fields = ApiKey.LIST_OFFSETS, 7, list_offsets_fields(name, [(partition, -1)])
        sent.append((client.send(key, version, fields), key, version))
    for correlation_id, key, version in sent:
        got, _ = client.receive(key, version)
        assert got == correlation_id


def test_parked_fetch_delays_responses_behind_it(client: RawClient, log: tuple[str, bytes]) -> None:
    first = client.send(ApiKey.FETCH, 12, fetch_fields([(log[0], b"", [(0, 0)])], max_wait_ms=300))
    second = client.send(
        ApiKey.API_VERSIONS, 3, {"client_software_name": "t", "client_software_version": "1"}
    )
    assert client.receive(ApiKey.FETCH, 12)[0] == first
    assert client.receive(ApiKey.API_VERSIONS, 3)[0] == second


def test_produce_behind_create_topics_keeps_response_order(client: RawClient) -> None:
    name = fresh_name()
    ids = [client.send(ApiKey.CREATE_TOPICS, 7, create_topics_fields(name))]
    ids.append(client.send(ApiKey.METADATA, 9, {"topics": []}))
    assert client.receive(ApiKey.CREATE_TOPICS, 7)[0] == ids[0]
    assert client.receive(ApiKey.METADATA, 9)[0] == ids[1]


@pytest.mark.parametrize("step", [1, 3, 7, 1000])
def test_frames_arrive_in_pieces_of_any_size(
    client: RawClient, log: tuple[str, bytes], step: int
) -> None:
    from kproc.wire import codec

    frames = b"".join(
        codec.encode_request(
            ApiKey.PRODUCE, 9, number, "pieces", produce_fields([(log[0], b"", [(0, batch(b"x" * 50))])])
        )
        for number in range(5)
    )
    for position in range(0, len(frames), step):
        client.send_bytes(frames[position : position + step])
    for number in range(5):
        got, answer = client.receive(ApiKey.PRODUCE, 9)
        assert (got, answer["responses"][0]["partition_responses"][0]["base_offset"]) == (number, number)


def test_thousand_produces_in_flight_keep_their_order(client: RawClient, log: tuple[str, bytes]) -> None:
    for number in range(1000):
        client.send(ApiKey.PRODUCE, 9, produce_fields([(log[0], b"", [(0, batch(b"%d" % number))])], acks=1))
    for number in range(1000):
        _, answer = client.receive(ApiKey.PRODUCE, 9)
        row = answer["responses"][0]["partition_responses"][0]
        assert (row["error_code"], row["base_offset"]) == (ErrorCode.NONE, number)


def test_concurrent_connections_get_their_own_responses(
    broker: BrokerUnderTest, client: RawClient
) -> None:
    name = fresh_name()
    client.create_topic(name, partitions=4)
    clients = [RawClient(broker.bootstrap) for _ in range(50)]
    try:
        for round_number in range(5):
            for number, one in enumerate(clients):
                one.send(
                    ApiKey.PRODUCE,
                    9,
                    produce_fields([(name, b"", [(number % 4, batch(b"%d" % number))])], acks=1),
                )
            for one in clients:
                correlation_id, answer = one.receive(ApiKey.PRODUCE, 9)
                assert correlation_id == round_number + 1
                assert answer["responses"][0]["partition_responses"][0]["error_code"] == ErrorCode.NONE
    finally:
        for one in clients:
            one.close()
    assert sum(client.end_offset(name, partition=index) for index in range(4)) == 250
