"""ClusterImage: one process's copy of the cluster's metadata.

Every Handler, the controller and the cleaner hold one. It changes only by `apply`, with deltas in exactly the order in
which the controller numbered them. A gap means that this process missed a change; answers from such an image would be
wrong, so it is a FatalError. An image does no I/O and is never shared between processes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from kproc.broker.cluster import records as r
from kproc.broker.cluster.acls import acl_in
from kproc.broker.cluster.broker_config import problem_with
from kproc.broker.cluster.client_quotas import ClientQuotas
from kproc.broker.cluster.image_records import snapshot_records
from kproc.broker.cluster.internal_topics import INTERNAL_TOPICS
from kproc.broker.cluster.placement import owners_of_block
from kproc.broker.cluster.scram_users import ScramUsers
from kproc.broker.cluster.topic_names import collision_key
from kproc.broker.security.acl_table import AclTable
from kproc.broker.security.sasl.scram import ScramCredential
from kproc.common.errors import FatalError

# Rows of the shared partition table. Kafka recommends at most 4,000 partitions a broker; this is far above (8 MiB of
# sparse rows of 64 bytes), so that no single host needs more.
SLOT_COUNT: Final = 131_072
# Leader epochs are signed 32-bit numbers. Raising one must stop here, because files of another broker can contain any
# of them.
LEADER_EPOCH_MAX: Final = 2**31 - 1
# Limit of deleted topics that an image remembers, because every snapshot contains them. Directories of older ones are
# set aside instead of deleted.
DELETED_TOPICS_MAX: Final = 10_000


class PartitionImage(msgspec.Struct, gc=False):
    """A partition: its index, its row (slot) in the shared partition table, its owner (a Handler), its leader epoch."""

    index: int
    slot: int
    slot_generation: int
    owner: int
    leader_epoch: int


class TopicImage(msgspec.Struct):
    """One topic with its partitions and configs. Partitions are dense: `partitions[n].index == n`."""

    name: str
    topic_id: bytes
    partitions: list[PartitionImage]
    configs: dict[str, str]
    # First partition of each block (see placement.py). Owners are computed per block, so a snapshot must keep the
    # blocks.
    block_starts: list[int]

    @property
    def is_internal(self) -> bool:
        """True if only the broker writes this topic. Clients may read it."""
        return self.name in INTERNAL_TOPICS

    @property
    def created_count(self) -> int:
        """The number of partitions that the topic was created with."""
        starts = self.block_starts
        return starts[1] if len(starts) > 1 else len(self.partitions)

    def blocks(self) -> Iterator[tuple[int, int]]:
        """Return (first index, count) of each block of partitions.

        A block was added by one CreateTopics or CreatePartitions. Owners are chosen by block (placement.py).
        """
        ends = [*self.block_starts[1:], len(self.partitions)]
        return ((start, end - start) for start, end in zip(self.block_starts, ends, strict=True))


class MovedPartition(msgspec.Struct, frozen=True):
    """A partition that got another owner because the count of Handlers changed. `partition.owner` is the new one."""

    topic: TopicImage
    partition: PartitionImage
    owner_before: int


class ImageChange(msgspec.Struct):
    """The changes of an applied delta, so that a role can act: open, rename or transfer logs, read configs."""

    created: list[TopicImage] = []
    deleted: list[TopicImage] = []
    grown: list[TopicImage] = []
    configured: list[TopicImage] = []
    moved: list[MovedPartition] = []
    epochs_raised: bool = False
    broker_configs_changed: bool = False
    client_quotas_changed: bool = False
    acls_changed: bool = False


class ClusterImage:
    """The metadata at one version.

    Readers use its dicts directly: `topics_by_name`, `topics_by_id`, `broker_configs`. Only `apply` and `apply_records`
    change them.
    """

    __slots__ = (
        "acls",
        "broker_configs",
        "broker_epoch",
        "client_quotas",
        "cluster_id",
        "delegation_tokens",
        "deleted_topics",
        "feature_levels",
        "handler_count",
        "names_by_collision_key",
        "next_producer_id",
        "resource_configs",
        "retired_slots",
        "scram_users",
        "slots_used",
        "topics_by_id",
        "topics_by_name",
        "unfinished_deletions",
        "unusable_configs",
        "version",
    )

    def __init__(self) -> None:
        self.version = 0
        self.cluster_id = ""
        # -1 means that no start was recorded. The first start then has the epoch 0.
        self.broker_epoch = -1
        self.handler_count = 1
        self.next_producer_id = 0
        self.topics_by_name: dict[str, TopicImage] = {}
        self.topics_by_id: dict[bytes, TopicImage] = {}
        # Id to name of the topics that were deleted last, the oldest first. Only directories and committed offsets of
        # these topics may be deleted as leftovers of a deletion.
        self.deleted_topics: dict[bytes, str] = {}
        # Deleted topics whose directories can still exist after a crash, because no clean stop has followed. The
        # directory of any other deleted topic was restored from a copy.
        self.unfinished_deletions: set[bytes] = set()
        # Collision key (topic_names.py) -> topic name. A new topic's name must not collide with one of these.
        self.names_by_collision_key: dict[str, str] = {}
        # Node id as text, or CLUSTER_DEFAULT_NODE (records.py) -> its overrides.
        self.broker_configs: dict[str, dict[str, str]] = {}
        # Stored settings that this version cannot use (broker_config.problem_with). No role acts on them, and they
        # stay stored until they are changed or removed.
        self.unusable_configs: dict[str, dict[str, str]] = {}
        self.client_quotas = ClientQuotas()
        self.acls = AclTable()
        self.delegation_tokens: dict[str, r.DelegationTokenSet] = {}  # By id.
        self.scram_users = ScramUsers()
        # (resource type, name) of groups and client-metrics subscriptions -> their configs.
        self.resource_configs: dict[tuple[int, str], dict[str, str]] = {}
        # Levels from UpdateFeatures or from the cluster's creation. Any other feature has its `initial` level
        # (features.py).
        self.feature_levels: dict[str, int] = {}
        # Slots 0..slots_used-1 were assigned at least once. `retired_slots` has the free ones among them, the oldest
        # first, as (slot, last generation).
        self.slots_used = 0
        self.retired_slots: deque[tuple[int, int]] = deque()

    @classmethod
    def from_snapshot(cls, data: bytes | memoryview) -> ClusterImage:
        """Return the image that `snapshot()` has encoded."""
        image = cls()
        image.apply(data)
        return image

    def topic(self, name: str) -> TopicImage | None:
        """Return the topic called `name`, or None if it does not exist in this version of the metadata."""
        return self.topics_by_name.get(name)

    def topic_by_id(self, topic_id: bytes) -> TopicImage | None:
        """Return the topic with that id, or None if it does not exist in this version of the metadata."""
        return self.topics_by_id.get(topic_id)

    def partition(self, name: str, index: int) -> PartitionImage | None:
        """Return a partition by topic name, or None if the topic or the partition does not exist."""
        topic = self.topics_by_name.get(name)
        # Check both limits of the index, because a client can send any int32, and Python takes a negative index from
        # the end of the list.
        if topic is None or not 0 <= index < len(topic.partitions):
            return None
        return topic.partitions[index]

    @property
    def partition_count(self) -> int:
        """Number of partitions of all topics."""
        return self.slots_used - len(self.retired_slots)

    @property
    def free_slot_count(self) -> int:
        """The number of partitions that may still be created."""
        return SLOT_COUNT - self.partition_count

    def apply(self, delta: bytes | memoryview) -> ImageChange:
        """Apply the next delta. Raises FatalError if it is not the next one, or not a delta."""
        try:
            decoded = r.decode_delta(delta)
        except msgspec.MsgspecError as error:
            raise FatalError(
                f"cannot decode a metadata delta of {len(delta)} bytes after version {self.version}: {error}"
            ) from error
        # End the role, because this image would be wrong for ever without the missing delta. The successor gets a
        # snapshot.
        if decoded.base_version != self.version:
            raise FatalError(
                f"metadata delta follows version {decoded.base_version}, this image is at {self.version}"
            )
        return self.apply_records(decoded.records, decoded.version)

    def apply_records(self, records: Sequence[r.Record], version: int) -> ImageChange:
        """Apply decoded records. Replay uses this, and the controller for its own image."""
        change = ImageChange()
        for record in records:
            self._apply_one(record, change)
        self.version = version
        return change

    def snapshot(self) -> bytes:
        """Encode the whole image for a process that starts. Later deltas continue from `version`."""
        return r.encode_snapshot(self.version, list(snapshot_records(self)))

    def _set_broker_config(self, node: str, name: str, value: str | None) -> None:
        # Another version of kproc may have stored the setting. An unusable value must not keep the broker from
        # starting.
        is_usable = value is None or problem_with(name, node, value) is None
        for stored, kept in ((self.broker_configs, is_usable), (self.unusable_configs, not is_usable)):
            _set_or_remove(stored.setdefault(node, {}), name, value if kept else None)
            if not stored[node]:
                del stored[node]

    def _set_resource_config(self, record: r.ResourceConfigSet) -> None:
        key = (record.resource_type, record.resource_name)
        _set_or_remove(self.resource_configs.setdefault(key, {}), record.name, record.value)
        if not self.resource_configs[key]:
            del self.resource_configs[key]

    def _apply_one(self, record: r.Record, change: ImageChange) -> None:
        match record:
            case r.TopicCreated():
                self._create_topic(record, change)
            case r.PartitionsAdded():
                self._add_partitions(record, change)
            case r.TopicDeleted():
                self._delete_topic(record, change)
            case r.TopicConfigSet():
                topic = self.topics_by_id[record.topic_id]
                _set_or_remove(topic.configs, record.name, record.value)
                _add_once(change.configured, topic)
            case r.BrokerConfigSet():
                self._set_broker_config(record.node, record.name, record.value)
                change.broker_configs_changed = True
            case r.ResourceConfigSet():
                self._set_resource_config(record)
            case r.FeatureLevelSet():
                self.feature_levels[record.name] = record.level
            case r.ClientQuotaSet():
                self.client_quotas.set(record.entity, record.key, record.value)
                change.client_quotas_changed = True
            case r.ProducerIdsTaken():
                self.next_producer_id = record.next_producer_id
            case r.LeaderEpochRaised():
                partition = self.topics_by_id[record.topic_id].partitions[record.partition]
                partition.leader_epoch = record.leader_epoch
                change.epochs_raised = True
            case r.BrokerStarted():
                self._start_broker(record, change)
            case r.HandlersCounted():
                self._count_handlers(record, change)
            case r.TopicsDeletedBefore():
                self.deleted_topics.update(zip(record.topic_ids, record.names, strict=True))
            case r.SlotsRetired():
                self._retire(zip(record.slots, record.slot_generations, strict=True))
            case r.ClusterRegistered():
                self.cluster_id = record.cluster_id
            case _:
                self._apply_security(record, change)

    def _apply_security(self, record: r.SecurityRecord, change: ImageChange) -> None:
        """Apply a record about an ACL rule, a delegation token or a SCRAM credential."""
        match record:
            case r.AclAdded():
                self.acls.add(record.acl_id, acl_in(record))
                change.acls_changed = True
            case r.AclRemoved():
                self.acls.remove(record.acl_id)
                change.acls_changed = True
            case r.DelegationTokenSet():
                self.delegation_tokens[record.token_id] = record
            case r.DelegationTokenRemoved():
                self.delegation_tokens.pop(record.token_id, None)
            case r.ScramSecretMade():
                self.scram_users.secret = record.secret
            case r.ScramCredentialSet():
                credential = ScramCredential(
                    record.salt, record.stored_key, record.server_key, record.iterations
                )
                self.scram_users.set(record.name, record.mechanism, credential)
            case r.ScramCredentialRemoved():
                self.scram_users.set(record.name, record.mechanism, None)

    def _create_topic(self, record: r.TopicCreated, change: ImageChange) -> None:
        topic = TopicImage(record.name, record.topic_id, [], {}, [])
        self.topics_by_name[record.name] = topic
        self.topics_by_id[record.topic_id] = topic
        self.names_by_collision_key[collision_key(record.name)] = record.name
        change.created.append(topic)

    def _add_partitions(self, record: r.PartitionsAdded, change: ImageChange) -> None:
        topic = self.topics_by_id[record.topic_id]
        owners = owners_of_block(
            record.topic_id,
            first_index=record.first_index,
            count=len(record.slots),
            handler_count=self.handler_count,
        )
        places = zip(record.slots, record.slot_generations, owners, record.leader_epochs, strict=True)
        # CreatePartitions adds a block. Its owners are computed by block, so that the owners of older partitions do not
        # change.
        topic.block_starts.append(record.first_index)
        topic.partitions += [PartitionImage(n, *place) for n, place in enumerate(places, record.first_index)]
        self._use_slots(record.slots)
        # Do not report the first block as growth, because it belongs to the creation, which `created` reports.
        if record.first_index:
            _add_once(change.grown, topic)

    def _use_slots(self, slots: tuple[int, ...]) -> None:
        """Mark slots (rows of the partition table) of `next_slots` as used: the oldest retired ones, then new ones."""
        taken = set(slots)
        while self.retired_slots and self.retired_slots[0][0] in taken:
            taken.remove(self.retired_slots.popleft()[0])
        if taken:
            self.slots_used = max(self.slots_used, max(taken) + 1)

    def _delete_topic(self, record: r.TopicDeleted, change: ImageChange) -> None:
        topic = self.topics_by_id.pop(record.topic_id)
        del self.topics_by_name[topic.name]
        del self.names_by_collision_key[collision_key(topic.name)]
        self._retire((partition.slot, partition.slot_generation) for partition in topic.partitions)
        self.deleted_topics[topic.topic_id] = topic.name
        self.unfinished_deletions.add(topic.topic_id)
        # Discard the oldest. Otherwise the image and every snapshot would grow without limit.
        if len(self.deleted_topics) > DELETED_TOPICS_MAX:
            oldest = next(iter(self.deleted_topics))
            del self.deleted_topics[oldest]
            self.unfinished_deletions.discard(oldest)
        change.deleted.append(topic)

    def _retire(self, places: Iterator[tuple[int, int]]) -> None:
        for slot, generation in places:
            self.retired_slots.append((slot, generation))
            # Count the retired slots here, because no partition of a snapshot uses them. SlotsRetired comes before all
            # topics.
            self.slots_used = max(self.slots_used, slot + 1)

    def _start_broker(self, record: r.BrokerStarted, change: ImageChange) -> None:
        self.broker_epoch = record.broker_epoch
        # A clean stop finishes every deletion, so a directory that appears later was restored from a copy.
        if record.was_clean:
            self.unfinished_deletions.clear()
        for topic in self.topics_by_name.values():
            for partition in topic.partitions:
                # KIP-101, KIP-320: a higher epoch at each start lets a client detect that a power loss has truncated
                # records that it had read.
                partition.leader_epoch = min(partition.leader_epoch + 1, LEADER_EPOCH_MAX)
        change.epochs_raised = True

    def _count_handlers(self, record: r.HandlersCounted, change: ImageChange) -> None:
        self.handler_count = record.count
        for topic in self.topics_by_name.values():
            for start, count in topic.blocks():
                owners = owners_of_block(
                    topic.topic_id, first_index=start, count=count, handler_count=record.count
                )
                for partition, owner in zip(topic.partitions[start : start + count], owners, strict=True):
                    if partition.owner != owner:
                        change.moved.append(MovedPartition(topic, partition, partition.owner))
                        partition.owner = owner

    def next_slots(self, count: int, *, skip: int = 0) -> list[tuple[int, int]]:
        """Return (slot, generation) of the next `count` partitions. The same request has used `skip` slots before them.

        Slots of deleted partitions come first, beginning with the one that is unused for longest: the longer a slot is
        unused, the less likely a process still refers to its former partition. Only the controller calls this.
        """
        places: list[tuple[int, int]] = []
        for n in range(skip, skip + count):
            # Use a slot again only with a higher generation, because a process may still hold a row of the deleted
            # partition.
            if n < len(self.retired_slots):
                slot, generation = self.retired_slots[n]
                places.append((slot, generation + 1))
            else:
                places.append((self.slots_used + n - len(self.retired_slots), 1))
        return places


def _set_or_remove(configs: dict[str, str], name: str, value: str | None) -> None:
    if value is None:
        configs.pop(name, None)
    else:
        configs[name] = value


def _add_once(topics: list[TopicImage], topic: TopicImage) -> None:
    """Append `topic` to `topics` unless it is the last entry. Records of one topic follow each other."""
    if not topics or topics[-1] is not topic:
        topics.append(topic)
