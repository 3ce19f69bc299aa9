"""The consumer protocol inside the classic one: subscriptions of every version, assignments, damage."""

from __future__ import annotations

import pytest

from kproc.broker.group.consumer.embedded import (
    EmbeddedSubscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    subscription_version,
)
from kproc.common.errors import ProtocolError

TOPICS = b"\0\0\0\2\0\1b\0\1a"
NO_DATA = b"\xff\xff\xff\xff"
OWNED = b"\0\0\0\1\0\1a\0\0\0\2\0\0\0\1\0\0\0\3"
GENERATION = b"\0\0\0\7"


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        (b"\0\0" + TOPICS + NO_DATA, EmbeddedSubscription(0, ("b", "a"), None, None)),
        (
            b"\0\1" + TOPICS + NO_DATA + OWNED,
            EmbeddedSubscription(1, ("b", "a"), {"a": frozenset({1, 3})}, None),
        ),
        (
            b"\0\3" + TOPICS + NO_DATA + OWNED + GENERATION + b"\0\2r1",
            EmbeddedSubscription(3, ("b", "a"), {"a": frozenset({1, 3})}, "r1"),
        ),
        (
            b"\0\1" + TOPICS + NO_DATA + b"\0\0\0\2" + OWNED[4:] + b"\0\1a\0\0\0\1\0\0\0\2",
            EmbeddedSubscription(1, ("b", "a"), {"a": frozenset({1, 2, 3})}, None),
        ),
        # A later version has the fields of version 3, and more behind them.
        (
            b"\0\x09" + TOPICS + NO_DATA + OWNED + GENERATION + b"\xff\xff" + b"more",
            EmbeddedSubscription(3, ("b", "a"), {"a": frozenset({1, 3})}, None),
        ),
    ],
)
def test_subscriptions_of_every_version_are_read(metadata: bytes, expected: EmbeddedSubscription) -> None:
    assert decode_subscription(metadata) == expected


def test_assignment_reads_as_written() -> None:
    partitions = {"b": frozenset({2, 0}), "a": frozenset({1})}
    assert decode_assignment(encode_assignment(1, partitions)).partitions == partitions
    assert encode_assignment(1, {"a": frozenset({1})}) == b"\0\1\0\0\0\1\0\1a\0\0\0\1\0\0\0\1\xff\xff\xff\xff"
    assert decode_assignment(b"") == ({}, b"")


@pytest.mark.parametrize("damaged", [b"", b"\0", b"\xff\xff", b"\0\0\0\0\0\2\0\1b", b"\0\0\x7f\xff\xff\xff"])
def test_damaged_bytes_are_rejected(damaged: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_subscription(damaged)


@pytest.mark.parametrize(
    ("metadata", "version"),
    [(b"", 0), (b"\0", 0), (b"\xff\xff", 0), (b"\0\1", 1), (b"\0\3" + TOPICS, 3), (b"\0\x09", 3)],
)
def test_version_of_damaged_subscription_is_known(metadata: bytes, version: int) -> None:
    assert subscription_version(metadata) == version
