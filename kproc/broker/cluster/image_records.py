"""The records of a snapshot: the fewest that rebuild an image of the metadata, in an order that can be applied.

`ClusterImage.apply_records` applies them. The metadata log's snapshots and the snapshot for a new role have them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kproc.broker.cluster import records as r
from kproc.broker.cluster.acls import acl_records

if TYPE_CHECKING:
    from kproc.broker.cluster.image import ClusterImage, TopicImage


def snapshot_records(image: ClusterImage) -> Iterator[r.Record]:
    """Yield the records that rebuild this image."""
    if image.cluster_id:
        yield r.ClusterRegistered(image.cluster_id)
    # Deletions come before existing topics, because an existing topic can have the name of a deleted one. Their records
    # are of kinds that an older kproc knows, for a downgrade. BrokerStarted separates the finished deletions from the
    # unfinished ones.
    for topic_id, name in image.deleted_topics.items():
        if topic_id not in image.unfinished_deletions:
            yield from _deletion_records(topic_id, name)
    if image.broker_epoch >= 0:
        yield r.BrokerStarted(image.broker_epoch, was_clean=True)
    for topic_id, name in image.deleted_topics.items():
        if topic_id in image.unfinished_deletions:
            yield from _deletion_records(topic_id, name)
    yield r.HandlersCounted(image.handler_count)
    if image.next_producer_id:
        yield r.ProducerIdsTaken(image.next_producer_id)
    # Keep stored settings that this version cannot use. They are in force again after a return to a version that can.
    for stored in (image.broker_configs, image.unusable_configs):
        for node, configs in stored.items():
            for name, value in configs.items():
                yield r.BrokerConfigSet(node, name, value)
    for (kind, resource), configs in image.resource_configs.items():
        for name, value in configs.items():
            yield r.ResourceConfigSet(kind, resource, name, value)
    for feature, level in image.feature_levels.items():
        yield r.FeatureLevelSet(feature, level)
    yield from image.client_quotas.records()
    yield from acl_records(image.acls)
    yield from image.delegation_tokens.values()
    yield from image.scram_users.records()
    if image.retired_slots:
        slots, generations = zip(*image.retired_slots, strict=True)
        yield r.SlotsRetired(slots, generations)
    for topic in image.topics_by_name.values():
        yield from _topic_records(topic)


def _deletion_records(topic_id: bytes, name: str) -> Iterator[r.Record]:
    yield r.TopicCreated(name, topic_id)
    yield r.TopicDeleted(topic_id)


def _topic_records(topic: TopicImage) -> Iterator[r.Record]:
    yield r.TopicCreated(topic.name, topic.topic_id)
    for start, count in topic.blocks():
        block = topic.partitions[start : start + count]
        yield r.PartitionsAdded(
            topic.topic_id,
            start,
            tuple(partition.slot for partition in block),
            tuple(partition.slot_generation for partition in block),
            tuple(partition.leader_epoch for partition in block),
        )
    for name, value in topic.configs.items():
        yield r.TopicConfigSet(topic.topic_id, name, value)
