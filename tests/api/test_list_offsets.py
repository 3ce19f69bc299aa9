"""ListOffsets: the special timestamps and lookups by time, in every version."""

from __future__ import annotations

import pytest

from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.cases import in_one_test
from tests.support.raw import RawClient, batch, list_offsets_fields
from tests.support.topics import fresh_name

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -3, -4, -5
# Version that brought each special timestamp: KIP-734, KIP-405, KIP-1005.
SINCE = {LATEST: 1, EARLIEST: 1, MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9}
T0 = 1_700_000_000_000
VERSIONS = range(1, 12)


@pytest.fixture
def timed(client: RawClient) -> str:
    """A topic of four batches; the newest timestamp is not in the last one.

    offset     0      1      2      3      4      5      6
    time - T0  0      1    1000   1001    500    501    900
    """
    name = fresh_name("timed")
    client.create_topic(name)
    client.produce(name, batch(b"0", b"1", timestamp_ms=T0))
    client.produce(name, batch(b"2", b"3", timestamp_ms=T0 + 1000))
    client.produce(name, batch(b"4", b"5", timestamp_ms=T0 + 500))
    client.produce(name, batch(b"6", timestamp_ms=T0 + 900))
    return name


@in_one_test("version", VERSIONS)
def test_list_offsets_latest_and_earliest_in_every_version(client: RawClient, timed: str, version: int) -> None:
    for timestamp, offset in ((LATEST, 7), (EARLIEST, 0)):
        row = client.list_offset(timed, timestamp, version=version)
        assert (row["error_code"], row["offset"], row["timestamp"]) == (ErrorCode.NONE, offset, -1)


@in_one_test("version", VERSIONS)
@in_one_test(
    ("after_ms", "offset", "found_ms"), [(0, 0, 0), (1, 1, 1), (2, 2, 1000), (1000, 2, 1000), (1001, 3, 1001)]
)
def test_list_offsets_by_timestamp_finds_first_later_record(
    client: RawClient, timed: str, version: int, after_ms: int, offset: int, found_ms: int
) -> None:
    row = client.list_offset(timed, T0 + after_ms, version=version)
    assert (row["error_code"], row["offset"], row["timestamp"]) == (ErrorCode.NONE, offset, T0 + found_ms)
    if version >= 4:
        assert row["leader_epoch"] >= 0


@in_one_test("version", VERSIONS)
def test_list_offsets_by_future_timestamp_finds_nothing(client: RawClient, timed: str, version: int) -> None:
    row = client.list_offset(timed, T0 + 5_000, version=version)
    assert (row["error_code"], row["offset"], row["timestamp"]) == (ErrorCode.NONE, -1, -1)


@in_one_test("version", VERSIONS)
def test_list_offsets_max_timestamp_from_version_7(
    client: RawClient, timed: str, version: int
) -> None:
    row = client.list_offset(timed, MAX_TIMESTAMP, version=version)
    if version < SINCE[MAX_TIMESTAMP]:
        assert row["error_code"] == ErrorCode.UNSUPPORTED_VERSION
    else:
        assert (row["error_code"], row["offset"], row["timestamp"]) == (ErrorCode.NONE, 3, T0 + 1001)


@in_one_test("version", VERSIONS)
def test_list_offsets_earliest_local_is_log_start(client: RawClient, timed: str, version: int) -> None:
    row = client.list_offset(timed, EARLIEST_LOCAL, version=version)
    if version < SINCE[EARLIEST_LOCAL]:
        assert row["error_code"] == ErrorCode.UNSUPPORTED_VERSION
    else:
        assert (row["error_code"], row["offset"]) == (ErrorCode.NONE, 0)


@in_one_test("version", VERSIONS)
def test_list_offsets_latest_tiered_finds_nothing(client: RawClient, timed: str, version: int) -> None:
    row = client.list_offset(timed, LATEST_TIERED, version=version)
    if version < SINCE[LATEST_TIERED]:
        assert row["error_code"] == ErrorCode.UNSUPPORTED_VERSION
    else:
        assert (row["error_code"], row["offset"]) == (ErrorCode.NONE, -1)


def test_list_offsets_of_empty_log(client: RawClient) -> None:
    name = fresh_name()
    client.create_topic(name)
    found = {
        ts: client.list_offset(name, ts)["offset"]
        for ts in (LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, T0)
    }
    assert found == {LATEST: 0, EARLIEST: 0, MAX_TIMESTAMP: -1, EARLIEST_LOCAL: 0, T0: -1}


def test_unknown_topic_and_partition_are_told(client: RawClient, timed: str) -> None:
    assert (
        client.list_offset(fresh_name("absent"), LATEST)["error_code"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    )
    assert (
        client.list_offset(timed, LATEST, partition=3)["error_code"] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    )


def test_list_offsets_of_several_partitions(client: RawClient) -> None:
    name = fresh_name()
    client.create_topic(name, partitions=6)
    for index in range(6):
        for _ in range(index):
            client.produce(name, batch(b"x"), partition=index)
    answer = client.call(
        ApiKey.LIST_OFFSETS, 9, list_offsets_fields(name, [(index, LATEST) for index in range(6)])
    )
    parts = answer["topics"][0]["partitions"]
    assert {part["partition_index"]: part["offset"] for part in parts} == {index: index for index in range(6)}


@pytest.mark.parametrize(("version", "timestamp"), [(6, MAX_TIMESTAMP), (7, EARLIEST_LOCAL), (11, -7)])
def test_list_offsets_unsupported_timestamp_is_checked_first(
    client: RawClient, timed: str, version: int, timestamp: int
) -> None:
    for name, index, epoch in ((fresh_name("none"), 0, -1), (timed, 9, -1), (timed, 0, 5)):
        fields = list_offsets_fields(name, [(index, timestamp)])
        fields["topics"][0]["partitions"][0]["current_leader_epoch"] = epoch
        row = client.call(ApiKey.LIST_OFFSETS, version, fields)["topics"][0]["partitions"][0]
        assert row["error_code"] == ErrorCode.UNSUPPORTED_VERSION, (name, index, epoch)


def test_list_offsets_with_duplicate_partition_is_rejected(client: RawClient, timed: str) -> None:
    answer = client.call(ApiKey.LIST_OFFSETS, 9, list_offsets_fields(timed, [(0, LATEST), (0, EARLIEST)]))
    assert {part["error_code"] for part in answer["topics"][0]["partitions"]} == {ErrorCode.INVALID_REQUEST}


def test_leader_epoch_of_the_client_is_checked(client: RawClient, timed: str) -> None:
    epoch = client.describe_topic(timed)["partitions"][0]["leader_epoch"]
    fields = list_offsets_fields(timed, [(0, LATEST)])
    row = fields["topics"][0]["partitions"][0]
    for asked, code in ((epoch, ErrorCode.NONE), (epoch + 1, ErrorCode.UNKNOWN_LEADER_EPOCH)):
        row["current_leader_epoch"] = asked
        answer = client.call(ApiKey.LIST_OFFSETS, 9, fields)
        assert answer["topics"][0]["partitions"][0]["error_code"] == code
