"""ApiVersions: the one request whose version a client may guess."""

from __future__ import annotations

import struct

import pytest

from kproc.common.errors import ErrorCode
from kproc.wire import codec
from kproc.wire.header import ApiKey
from tests.support.broker import BrokerUnderTest
from tests.support.raw import RawClient
from tests.support.status import connect
from tests.support.wait import wait_until

SOFTWARE = {"client_software_name": "raw-test", "client_software_version": "1.0"}


@pytest.mark.parametrize("version", range(6))
def test_api_versions_lists_served_apis_in_every_version(client: RawClient, version: int) -> None:
    answer = client.call(ApiKey.API_VERSIONS, version, SOFTWARE)
    assert answer["error_code"] == ErrorCode.NONE
    ranges = {row["api_key"]: (row["min_version"], row["max_version"]) for row in answer["api_keys"]}
    # Produce 0-2 are advertised for librdkafka's sake (KAFKA-18659) and refused.
    assert ranges[ApiKey.PRODUCE] == (0, 13)
    assert ranges[ApiKey.FETCH] == (4, 18)
    assert ranges[ApiKey.LIST_OFFSETS] == (1, 11)
    assert ranges[ApiKey.METADATA] == (0, 13)
    assert ranges[ApiKey.API_VERSIONS] == (0, 5)
    assert ranges[ApiKey.CREATE_TOPICS] == (2, 7)
    assert ranges[ApiKey.INIT_PRODUCER_ID][0] == 0


@pytest.mark.parametrize("version", [6, 99, 32_767, -1])
def test_api_versions_of_unsupported_version_answers_version_0(
    client: RawClient, version: int
) -> None:
    header = struct.pack(">hhih", ApiKey.API_VERSIONS, version, 77, 3) + b"abc\x00"
    body = b"\x00\x00\x00"
    client.send_bytes(struct.pack(">i", len(header) + len(body)) + header + body)
    correlation_id, answer = codec.decode_response(ApiKey.API_VERSIONS, 0, client.receive_frame())
    assert correlation_id == 77
    assert answer["error_code"] == ErrorCode.UNSUPPORTED_VERSION
    own = [row for row in answer["api_keys"] if row["api_key"] == ApiKey.API_VERSIONS]
    assert [(row["min_version"], row["max_version"]) for row in own] == [(0, 5)]
    assert client.call(ApiKey.API_VERSIONS, 4, SOFTWARE)["error_code"] == ErrorCode.NONE


@pytest.mark.parametrize("name", ["", "-starts-with-a-dash", "white space", "ümlaut", "ends-with-dot."])
def test_api_versions_with_invalid_software_name_is_rejected(client: RawClient, name: str) -> None:
    answer = client.call(ApiKey.API_VERSIONS, 3, {**SOFTWARE, "client_software_name": name})
    assert answer["error_code"] == ErrorCode.INVALID_REQUEST
    assert client.call(ApiKey.API_VERSIONS, 3, SOFTWARE)["error_code"] == ErrorCode.NONE


def test_api_versions_for_another_broker_requires_rebootstrap(client: RawClient) -> None:
    """KIP-1242: a client that reconnects to another broker at the same address finds out."""
    cluster = client.call(ApiKey.DESCRIBE_CLUSTER, 0, {})
    cluster_id, node_id = cluster["cluster_id"], cluster["controller_id"]

    def code(**meant: object) -> int:
        answer = client.call(ApiKey.API_VERSIONS, 5, {**SOFTWARE, **meant})
        assert bool(answer["api_keys"]) == (answer["error_code"] != ErrorCode.REBOOTSTRAP_REQUIRED)
        return answer["error_code"]

    assert code() == ErrorCode.NONE
    assert code(cluster_id=cluster_id, node_id=node_id) == ErrorCode.NONE
    assert code(cluster_id="another", node_id=node_id) == ErrorCode.REBOOTSTRAP_REQUIRED
    assert code(cluster_id=cluster_id, node_id=node_id + 1) == ErrorCode.REBOOTSTRAP_REQUIRED
    assert code(cluster_id=cluster_id) == ErrorCode.INVALID_REQUEST
    assert code(node_id=node_id) == ErrorCode.INVALID_REQUEST


def test_null_client_id_is_accepted(client: RawClient) -> None:
    header = struct.pack(">hhih", ApiKey.API_VERSIONS, 0, 5, -1)
    client.send_bytes(struct.pack(">i", len(header)) + header)
    correlation_id, answer = codec.decode_response(ApiKey.API_VERSIONS, 0, client.receive_frame())
    assert (correlation_id, answer["error_code"]) == (5, ErrorCode.NONE)


@pytest.mark.own_broker
@pytest.mark.parametrize(
    ("version", "shown"),
    [
        (0, ("unknown", "unknown")),
        (2, ("unknown", "unknown")),
        (3, ("raw-test", "1.0")),
        (5, ("raw-test", "1.0")),
    ],
)
def test_client_software_is_taken_from_first_api_versions(
    broker: BrokerUnderTest, client: RawClient, version: int, shown: tuple[str, str]
) -> None:
    """Kafka's testClientInformationWithLatestApiVersionsRequest and ...WithOldestApiVersionsRequest."""
    port = client.socket.getsockname()[1]
    client.call(ApiKey.METADATA, 9, {"topics": []})

    def software() -> tuple[str, str]:
        with connect(broker.bootstrap) as operator:
            rows = operator.operate("clients")["clients"]
        (row,) = [each for each in rows if each["port"] == port]
        return row["software_name"], row["software_version"]

    assert software() == ("unknown", "unknown")
    client.call(ApiKey.API_VERSIONS, version, SOFTWARE)
    client.call(ApiKey.METADATA, 9, {"topics": []})
    wait_until(lambda: software() == shown, what=f"{shown}")



@pytest.mark.parametrize("key", [52, 7, 58, 1000], ids=["Vote", "ControlledShutdown", "Envelope", "unknown"])
def test_disabled_api_closes_connection_without_response(
    broker: BrokerUnderTest, client: RawClient, key: int
) -> None:
    """Kafka's testDisabledRequestIsRejected."""
    header = struct.pack(">hhih", key, 0, 5, -1)
    client.send_bytes(struct.pack(">i", len(header)) + header)
    assert client.is_closed_by_broker()
    with RawClient(broker.bootstrap) as other:
        assert other.call(ApiKey.API_VERSIONS, 0, {})["error_code"] == ErrorCode.NONE
