"""Records of `__consumer_offsets`: round trips, the versions that old brokers wrote, and damage."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kproc.broker.group.records import (
    CommittedOffset,
    GroupSnapshot,
    MemberSnapshot,
    OffsetKey,
    UnknownGroupRecord,
    decode_record,
    encode_group_key,
    encode_group_value,
    encode_offset_key,
    encode_offset_value,
)
from kproc.common.errors import Corrupt

TEXT = st.text(max_size=40)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
KEYS = st.builds(OffsetKey, TEXT, TEXT, INT32)
OFFSETS = st.builds(
    CommittedOffset,
    offset=INT64,
    leader_epoch=INT32,
    metadata=TEXT,
    commit_timestamp_ms=INT64,
    topic_id=st.binary(min_size=16, max_size=16),
)
MEMBERS = st.builds(
    MemberSnapshot,
    member_id=TEXT,
    group_instance_id=st.none() | TEXT,
    client_id=TEXT,
    client_host=TEXT,
    rebalance_timeout_ms=INT32,
    session_timeout_ms=INT32,
    subscription=st.binary(max_size=50),
    assignment=st.binary(max_size=50),
)
GROUPS = st.builds(
    GroupSnapshot,
    group_id=TEXT,
    protocol_type=TEXT,
    generation=INT32,
    protocol_name=st.none() | TEXT,
    leader=st.none() | TEXT,
    current_state_timestamp_ms=INT64,
    members=st.lists(MEMBERS, max_size=4).map(tuple),
)


@given(KEYS, OFFSETS)
def test_offsets_come_back(key: OffsetKey, value: CommittedOffset) -> None:
    assert decode_record(encode_offset_key(key), encode_offset_value(value)) == (key, value)
    assert decode_record(encode_offset_key(key), None) == (key, None)


@pytest.mark.long
@given(GROUPS)
def test_groups_come_back(group: GroupSnapshot) -> None:
    key = encode_group_key(group.group_id)
    assert decode_record(key, encode_group_value(group)) == (group.group_id, group)
    assert decode_record(key, None) == (group.group_id, None)


@given(st.binary(max_size=60), st.none() | st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(key: bytes, value: bytes | None) -> None:
    with contextlib.suppress(Corrupt):
        decode_record(key, value)


@given(GROUPS, st.data())
def test_a_group_that_was_cut_is_refused(group: GroupSnapshot, data: st.DataObject) -> None:
    value = encode_group_value(group)
    cut = data.draw(st.integers(0, len(value) - 1))
    with pytest.raises(Corrupt):
        decode_record(encode_group_key(group.group_id), value[:cut])


def text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


KEY = OffsetKey("g", "t", 3)


def test_the_bytes_are_kafkas() -> None:
    assert encode_offset_key(KEY) == b"\0\1\0\1g\0\1t\0\0\0\3"
    assert encode_group_key("g") == b"\0\2\0\1g"
    value = CommittedOffset(
        offset=5, leader_epoch=2, metadata="m", commit_timestamp_ms=7, topic_id=bytes(range(16))
    )
    head = b"\0\4" + struct.pack(">qi", 5, 2) + b"\2m" + struct.pack(">q", 7)
    assert encode_offset_value(value) == head + b"\1\0\x10" + bytes(range(16))


@pytest.mark.parametrize(
    ("body", "epoch", "expires"),
    [
        (b"\0\0" + struct.pack(">q", 9) + text("m") + struct.pack(">q", 4), -1, -1),
        (b"\0\1" + struct.pack(">q", 9) + text("m") + struct.pack(">qq", 4, 6), -1, 6),
        (b"\0\2" + struct.pack(">q", 9) + text("m") + struct.pack(">q", 4), -1, -1),
        (b"\0\3" + struct.pack(">qi", 9, 8) + text("m") + struct.pack(">q", 4), 8, -1),
    ],
)
def test_offsets_of_older_brokers_are_read(body: bytes, epoch: int, expires: int) -> None:
    wanted = CommittedOffset(
        offset=9, leader_epoch=epoch, metadata="m", commit_timestamp_ms=4, expire_timestamp_ms=expires
    )
    for key_type in (0, 1):
        key = struct.pack(">h", key_type) + encode_offset_key(KEY)[2:]
        assert decode_record(key, body) == (KEY, wanted)


def test_an_expiry_of_the_client_is_kept_in_version_1() -> None:
    value = CommittedOffset(offset=1, metadata="", commit_timestamp_ms=2, expire_timestamp_ms=3)
    assert encode_offset_value(value)[:2] == b"\0\1"
    assert decode_record(encode_offset_key(KEY), encode_offset_value(value)) == (KEY, value)


def test_groups_of_other_versions_are_read() -> None:
    member_v0 = text("m") + text("c") + text("/h") + struct.pack(">i", 10) + struct.pack(">i", 1) + b"s"
    member_v0 += struct.pack(">i", 2) + b"aa"
    body = b"\0\0" + text("consumer") + struct.pack(">i", 4) + text("range") + text("m")
    body += struct.pack(">i", 1) + member_v0
    decoded = decode_record(encode_group_key("g"), body)
    assert isinstance(decoded, tuple)
    group = decoded[1]
    assert isinstance(group, GroupSnapshot)
    (member,) = group.members
    assert (group.current_state_timestamp_ms, member.group_instance_id) == (-1, None)
    assert (member.session_timeout_ms, member.rebalance_timeout_ms) == (10, 10)
    assert (member.subscription, member.assignment) == (b"s", b"aa")


def test_a_flexible_group_is_read_with_fields_of_tomorrow() -> None:
    tags = b"\1\7\2xx"
    member = b"\2m\0\2c\3/h" + struct.pack(">ii", 20, 10) + b"\2s\3aa" + tags
    body = b"\0\4\x09consumer" + struct.pack(">i", 4) + b"\6range\2m" + struct.pack(">q", 55)
    decoded = decode_record(encode_group_key("g"), body + b"\2" + member + tags)
    assert isinstance(decoded, tuple)
    group = decoded[1]
    assert isinstance(group, GroupSnapshot)
    assert (group.protocol_name, group.current_state_timestamp_ms) == ("range", 55)
    assert group.members[0].rebalance_timeout_ms == 20


def test_other_key_types_are_left_to_others() -> None:
    assert decode_record(b"\0\3\0\1g", b"\0\0") == UnknownGroupRecord(3)


@pytest.mark.parametrize("value", [b"", b"\0\5" + bytes(40), b"\xff\xff" + bytes(40)])
def test_a_value_of_no_known_version_is_refused(value: bytes) -> None:
    with pytest.raises(Corrupt):
        decode_record(encode_offset_key(KEY), value)
