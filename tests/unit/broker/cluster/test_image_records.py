"""The records of a snapshot: deleted topics are in them, and an older kproc can read them."""

from __future__ import annotations

from kproc.broker.cluster import image as image_module
from kproc.broker.cluster import records as r
from kproc.broker.cluster.image import ClusterImage
from kproc.broker.cluster.image_records import snapshot_records
from tests.support.in_memory_controller import InMemoryController, delete_wish, topic

# Tags of metadata records that every version of kproc reads.
FIRST_TAGS = {*range(1, 13), *range(14, 18), *range(20, 23), 24, 25}


def test_deleted_topics_are_bounded_and_in_the_snapshot(monkeypatch):
    """Leftover directories and offsets of these, and of no others, may be removed."""
    monkeypatch.setattr(image_module, "DELETED_TOPICS_MAX", 2)
    image = ClusterImage()
    for number in range(3):
        topic_id = number.to_bytes(16, "big")
        image.apply_records(
            [r.TopicCreated(f"t{number}", topic_id), r.TopicDeleted(topic_id)], 2 * number + 2
        )
    expected = {(1).to_bytes(16, "big"): "t1", (2).to_bytes(16, "big"): "t2"}
    assert image.deleted_topics == expected
    again = ClusterImage.from_snapshot(image.snapshot())
    assert list(again.deleted_topics.items()) == list(expected.items())


def test_snapshot_after_deletions_is_readable_by_older_versions():
    """A downgrade needs no step: the snapshot has only kinds of records that the first versions know, too.

    The name of a deleted topic may be used again.
    """
    cluster = InMemoryController()
    for _ in range(3):
        cluster.create(topic("t", 2), topic("a.b"))
        cluster.do("delete_topics", topics=[delete_wish("t"), delete_wish("a.b")])
    cluster.create(topic("t", 1), topic("a_b"))
    records = list(snapshot_records(cluster.image))
    assert {r.encode_record(record)[1] for record in records} <= FIRST_TAGS
    again = ClusterImage.from_snapshot(cluster.image.snapshot())
    assert contents(again) == contents(cluster.image)
    assert list(again.deleted_topics.values()) == ["t", "a.b"] * 3


def contents(image: ClusterImage) -> dict[str, object]:
    return {name: getattr(image, name) for name in ClusterImage.__slots__}
