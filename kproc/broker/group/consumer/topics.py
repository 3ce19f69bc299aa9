"""ConsumerCluster: the parts of the cluster's metadata that consumer groups use, and the hash of topics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from struct import Struct
from typing import TYPE_CHECKING, Final

import msgspec
from xxhash import xxh3_64_intdigest

from kproc.broker.coordinator.member_memory import MemberMemory
from kproc.broker.coordinator.memory_limit import MemoryLimit
from kproc.broker.group.offset_memory import offset_limit
from kproc.broker.share.membership.share_states import NO_SHARE_STATES, ShareStates
from kproc.wire.primitives import as_int64

if TYPE_CHECKING:
    from kproc.broker.cluster.image import ClusterImage, TopicImage
    from kproc.broker.security.principal import Identity

_INT32: Final = Struct("<i")
_INT64: Final = Struct("<Q")
_HASH_VERSION: Final = 0


class TopicView:
    """The topics in the current metadata. `image` returns the current image."""

    def __init__(self, image: Callable[[], ClusterImage]) -> None:
        self._image = image
        # Topic id -> (number of partitions, hash), because most heartbeats meet topics that have not changed.
        self._hashes: dict[bytes, tuple[int, bytes]] = {}

    @property
    def version(self) -> int:
        """The version of the metadata. It rises with every change of a topic."""
        return self._image().version

    def id_of(self, name: str) -> bytes | None:
        """Return the id of a topic, or None if it does not exist."""
        topic = self._image().topic(name)
        return None if topic is None else topic.topic_id

    def name_of(self, topic_id: bytes) -> str | None:
        """Return the name of a topic, or None if it does not exist."""
        topic = self._image().topic_by_id(topic_id)
        return None if topic is None else topic.name

    def partition_count(self, topic_id: bytes) -> int:
        """Return the number of partitions of a topic. Raises KeyError if it does not exist."""
        return len(self._image().topics_by_id[topic_id].partitions)

    def count_of(self, name: str) -> int | None:
        """Return the number of partitions of a topic, or None if it does not exist."""
        topic = self._image().topic(name)
        return None if topic is None else len(topic.partitions)

    def by_id(self, partitions: Mapping[str, frozenset[int]]) -> dict[bytes, frozenset[int]]:
        """Return partitions of named topics by the topics' ids, without topics that do not exist."""
        ids = ((self.id_of(name), numbers) for name, numbers in partitions.items())
        return {topic_id: numbers for topic_id, numbers in ids if topic_id is not None}

    def by_name(self, partitions: Mapping[bytes, frozenset[int]]) -> dict[str, frozenset[int]]:
        """Return partitions by the topics' names, without topics that do not exist."""
        names = ((self.name_of(topic_id), numbers) for topic_id, numbers in partitions.items())
        return {name: numbers for name, numbers in names if name is not None}

    def metadata_hash(self, names: Iterable[str]) -> int:
        """Return the hash of the named topics that exist, as Kafka's Utils.computeGroupHash; 0 if none exists.

        A group's epoch rises when the hash changes: when a topic is created, deleted, or gets more partitions.
        """
        image = self._image()
        topics = [topic for topic in map(image.topic, sorted(names)) if topic is not None]
        if not topics:
            return 0
        return as_int64(xxh3_64_intdigest(b"".join(self._topic_hash(topic, image) for topic in topics)))

    def _topic_hash(self, topic: TopicImage, image: ClusterImage) -> bytes:
        count = len(topic.partitions)
        known = self._hashes.get(topic.topic_id)
        if known is not None and known[0] == count:
            return known[1]
        # Kafka also hashes the sorted racks of a partition's replicas. kproc has none, because it ignores broker.rack.
        name = topic.name.encode("utf-16-le")
        # Kafka's hash4j writes numbers in little-endian order, and the length of a string in UTF-16 units after it.
        parts = bytearray([_HASH_VERSION])
        parts += topic.topic_id[7::-1] + topic.topic_id[:7:-1]
        parts += name + _INT32.pack(len(name) // 2)
        parts += _INT32.pack(count)
        parts += b"".join(map(_INT32.pack, range(count)))
        found = _INT64.pack(xxh3_64_intdigest(bytes(parts)))
        existing = image.topics_by_id
        # A topic that is created again has a new id. Discard the hashes of deleted topics when they are the majority.
        # Each new topic then costs little.
        if len(self._hashes) > 2 * len(existing):
            self._hashes = {key: known for key, known in self._hashes.items() if key in existing}
        self._hashes[topic.topic_id] = count, found
        return found


class SubscribedTopics:
    """The ids of those topics of a subscription that exist. A look-up takes the same time for any number of topics."""

    __slots__ = ("_names", "_topics")

    def __init__(self, names: frozenset[str], topics: TopicView) -> None:
        self._names = names
        self._topics = topics

    def __contains__(self, topic_id: object) -> bool:
        return isinstance(topic_id, bytes) and self._topics.name_of(topic_id) in self._names


class ConsumerCluster(msgspec.Struct, frozen=True):
    """The topics, group configs and functions of the cluster that the groups of a coordinator use."""

    topics: TopicView
    group_configs: Callable[[str], Mapping[str, str]]  # The configs of a group, by name.
    # (expression, client) -> the names of the topics that match and that the client may describe, or None if the
    # Handler has no time to match now. Raises KafkaError with INVALID_REGULAR_EXPRESSION.
    match_topics: Callable[[str, Identity], frozenset[str] | None]
    share_states: ShareStates = NO_SHARE_STATES
    # One of each for all group coordinators of a Handler.
    member_memory: MemberMemory = msgspec.field(default_factory=MemberMemory)
    offset_memory: MemoryLimit = msgspec.field(default_factory=offset_limit)

    def config_number(self, group_id: str, name: str, default: int) -> int:
        """Return a config of a group that is a number. `default`: the broker's static setting."""
        own = self.group_configs(group_id).get(name)
        return default if own is None else int(own)
