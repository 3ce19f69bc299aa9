""""""

from __future__ import annotations

import base64

import pytest

from kproc.broker.cluster import features
from kproc.broker.cluster import records as r
from kproc.broker.cluster.controller import ControllerState, failure_of, random_topic_id
from kproc.broker.cluster.describe import describe_cluster_default, describe_topic
from kproc.broker.cluster.features import level_of
from kproc.broker.cluster.image import ClusterImage
from kproc.broker.config import Config
from kproc.common.clock import ManualClock
from kproc.common.errors import ErrorCode, FatalError
from tests.support.in_memory_controller import InMemoryController, changes, topic


def test_topic_ids_look_like_kafkas():
    for topic_id in (random_topic_id() for _ in range(500)):
        assert len(topic_id) == 16
        assert topic_id[6] >> 4 == 4
        assert topic_id[8] >> 6 == 0b10
        assert not base64.urlsafe_b64encode(topic_id).startswith(b"-")


def test_an_id_that_is_taken_or_zero_is_not_given_out_again():
    ids = iter([b"a" * 16, bytes(16), b"a" * 16, b"b" * 16])
    image = ClusterImage()
    state = ControllerState(Config.build(), image, ManualClock(), random_id=lambda: next(ids))
    for name, expected in (("one", b"a" * 16), ("two", b"b" * 16)):
        reply, records = state.handle("create_topics", {"topics": [topic(name)], "validate_only": False})
        image.apply_records(records, image.version + len(records))
        assert reply["topics"][0]["topic_id"] == expected


@pytest.mark.parametrize("before", [0, 5000, 2**41])
def test_producer_ids_differ_between_controllers(before):
    """Kafka's begin at 0. Files that move take their producers' sequences along, and restored metadata are older."""
    firsts = set()
    for _ in range(20):
        cluster = InMemoryController()
        if before:
            cluster.image.apply_records([r.ProducerIdsTaken(before)], cluster.image.version)
        firsts.add(cluster.do("allocate_producer_ids")["first_producer_id"])
    assert len(firsts) == 20
    assert min(firsts) >= 2**40
    assert max(firsts) < 2**53 - 10**6


def test_producer_ids_after_restored_metadata_are_new():
    """The partitions remember producers that the copy of the metadata does not know."""
    cluster = InMemoryController()
    cluster.do("allocate_producer_ids")
    restored = ClusterImage.from_snapshot(cluster.image.snapshot())
    used = cluster.do("allocate_producer_ids")["first_producer_id"]
    controller = ControllerState(Config.build(), restored, ManualClock())
    reply, _records = controller.handle("allocate_producer_ids", {})
    assert reply["first_producer_id"] != used


def test_leader_epoch_is_raised_to_at_least_the_one_of_a_log():
    cluster = InMemoryController()
    cluster.create(topic("t", 3))
    topic_id = cluster.image.topics_by_name["t"].topic_id
    reply = cluster.do("raise_leader_epochs", topic_id=topic_id, partitions=[0, 1, 2], at_least=[7, 0, 2**31 - 1])
    assert reply == {"leader_epochs": [7, 1, 2**31 - 1]}
    cluster.do("raise_leader_epochs", topic_id=topic_id, partitions=[2], at_least=[2**31])
    cluster.do("start_broker")
    epochs = [partition.leader_epoch for partition in cluster.image.topics_by_name["t"].partitions]
    assert epochs == [8, 2, 2**31 - 1], "a 32-bit number on the wire"


def test_blocks_of_producer_ids_never_overlap():
    cluster = InMemoryController()
    firsts = [cluster.do("allocate_producer_ids")["first_producer_id"] for _ in range(3)]
    assert firsts == [firsts[0], firsts[0] + 1000, firsts[0] + 2000]
    # A block that was written down is gone, even if the Handler died before it used any of it.
    assert ClusterImage.from_snapshot(cluster.image.snapshot()).next_producer_id == firsts[0] + 3000


def test_the_leader_epoch_grows_when_a_log_was_truncated():
    cluster = InMemoryController()
    cluster.create(topic("t", 2))
    topic_id = cluster.image.topic("t").topic_id
    assert cluster.do("raise_leader_epochs", topic_id=topic_id, partitions=[1]) == {"leader_epochs": [1]}
    assert [partition.leader_epoch for partition in cluster.image.topic("t").partitions] == [0, 1]
    reply = cluster.do("raise_leader_epochs", topic_id=topic_id, partitions=[0, 2])
    assert failure_of(reply).code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_an_unchanged_handler_count_writes_nothing():
    cluster = InMemoryController(handlers=2)
    version = cluster.image.version
    cluster.do("set_handler_count", count=2)
    assert cluster.image.version == version
    cluster.do("set_handler_count", count=3)
    assert cluster.image.version == version + 1


def test_a_metadata_log_of_another_cluster_is_fatal():
    cluster = InMemoryController()
    cluster.do("register_cluster", cluster_id="test-cluster")
    with pytest.raises(FatalError, match=r"of cluster test-cluster, but meta.properties is of other"):
        cluster.do("register_cluster", cluster_id="other")


def test_new_cluster_has_kafkas_dynamic_default_and_levels() -> None:
    """An older cluster does not get it, nor a higher metadata.version, because somebody may have removed it."""
    cluster = InMemoryController({"min.insync.replicas": "2"})
    (row,) = describe_cluster_default(cluster.image)
    assert (row["name"], row["value"], row["config_source"]) == ("min.insync.replicas", "2", 3)
    assert level_of(cluster.image, features._BY_NAME["metadata.version"]) == 33
    cluster.create(topic("t"))
    (row,) = describe_topic({}, cluster.image, cluster.config, ["min.insync.replicas"])
    assert (row["value"], row["config_source"]) == ("2", 3)
    cluster.alter(changes(4, "", ("min.insync.replicas", 1, None)))
    cluster.do("register_cluster", cluster_id="test-cluster")
    assert describe_cluster_default(cluster.image) == []
    assert level_of(ClusterImage(), features._BY_NAME["metadata.version"]) == 30


@pytest.mark.parametrize(("op", "body"), [("drop_everything", {}), ("set_handler_count", {"count": 0})])
def test_our_own_mistakes_are_fatal(op, body):
    with pytest.raises(FatalError):
        InMemoryController().do(op, **body)
