"""Reads the topics from a consumer's metadata, to find out what a group subscribes to.

    | version i16 | topic count i32 | (length i16, name)... | user data, owned partitions... of later versions

Only the first part is read, which all versions share (ConsumerProtocolSubscription version 0), so that later versions
are understood, too. The rest concerns the members only.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import error as StructError
from typing import Final

from kproc.common.errors import ProtocolError
from kproc.wire.primitives import INT16, INT32, read_string

CONSUMER_PROTOCOL_TYPE: Final = "consumer"
# Limit of the distinct metadata of a group's members together. All of it is read in the step that ends a join phase,
# and a megabyte with the shortest names takes 150 ms.
SUBSCRIPTIONS_BYTES_MAX: Final = 256 << 10


def subscribed_topics(metadata: bytes) -> list[str]:
    """Return the topics in the metadata of one member. Raises ProtocolError if the metadata are no subscription."""
    try:
        (version,) = INT16.unpack_from(metadata)
        (count,) = INT32.unpack_from(metadata, INT16.size)
        if version < 0 or count < 0:
            raise ProtocolError(f"a subscription has a negative version ({version}) or topic count ({count})")
        topics = []
        position = INT16.size + INT32.size
        # A count that is too large cannot loop for long: each name takes at least 2 bytes, and their end is an error.
        for _ in range(count):
            topic, position = read_string(metadata, position)
            if topic is None:
                raise ProtocolError("a topic name in a subscription is null")
            topics.append(topic)
    except (StructError, UnicodeDecodeError) as error:
        raise ProtocolError(f"a subscription is too short or not UTF-8: {error}") from error
    return topics


def topics_of_all(metadatas: Iterable[bytes]) -> frozenset[str] | None:
    """Return the topics that the members subscribe to.

    None if one of the subscriptions cannot be read, or if they are too large. The group may then read any topic.
    """
    topics: set[str] = set()
    # Parse equal bytes once, because the members of a large group usually send the same.
    distinct = set(metadatas)
    if sum(map(len, distinct)) > SUBSCRIPTIONS_BYTES_MAX:
        return None
    try:
        for metadata in distinct:
            topics.update(subscribed_topics(metadata))
    except ProtocolError:
        return None
    return frozenset(topics)
