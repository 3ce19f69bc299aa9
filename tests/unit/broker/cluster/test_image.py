from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kproc.broker.cluster import image as image_module
from kproc.broker.cluster import records as r
from kproc.broker.cluster.image import ClusterImage
from kproc.common.errors import FatalError
from tests.support.in_memory_controller import InMemoryController, changes, delete_wish, topic


def test_a_topic_is_found_by_name_by_id_and_by_partition():
    cluster = InMemoryController(handlers=3)
    cluster.create(topic("t", 4))
    image = cluster.image
    found = image.topic("t")
    assert found is not None
    assert image.topic_by_id(found.topic_id) is found
    assert [partition.index for partition in found.partitions] == [0, 1, 2, 3]
    assert image.partition("t", 3) is found.partitions[3]
    assert image.partition("t", 4) is None
    assert image.partition("t", -1) is None
    assert image.partition("nope", 0) is None
    assert image.partition_count == 4


def test_added_partitions_do_not_count_as_created():
    cluster = InMemoryController(handlers=3)
    cluster.create(topic("t", 4))
    found = cluster.image.topic("t")
    assert found is not None
    assert found.created_count == 4
    for count in (6, 9):
        wish = {"name": "t", "count": count, "assignments": None}
        cluster.do("create_partitions", topics=[wish], validate_only=False)
        assert (len(found.partitions), found.created_count) == (count, 4)


def test_clean_stop_finishes_deletions():
    """A directory of a topic whose deletion is finished was restored by somebody, and is kept."""
    cluster = InMemoryController()
    image = cluster.image
    for name, is_clean, unfinished in (("a", False, {"a"}), ("b", False, {"a", "b"}), ("c", True, set())):
        cluster.create(topic(name))
        cluster.do("delete_topics", topics=[delete_wish(name)])
        cluster.do("start_broker", was_clean=is_clean)
        again = ClusterImage.from_snapshot(image.snapshot())
        for each in (image, again):
            assert {image.deleted_topics[topic_id] for topic_id in each.unfinished_deletions} == unfinished
        assert list(again.deleted_topics) == list(image.deleted_topics)
        assert again.broker_epoch == image.broker_epoch


def test_a_delta_out_of_order_is_fatal():
    cluster = InMemoryController()
    cluster.create(topic("a"))
    cluster.create(topic("b"))
    follower = ClusterImage()
    follower.apply(cluster.deltas[0])
    with pytest.raises(FatalError, match="follows version 8, this image is at 7"):
        follower.apply(cluster.deltas[-2])
    with pytest.raises(FatalError, match="follows version 0, this image is at 7"):
        follower.apply(cluster.deltas[0])


NOT_UTF8 = b"\x93\x00\x01\x91\x94\x08\xa1\xff\xa1n\xa1v"  # A BrokerConfigSet of the node "\xff".


@pytest.mark.parametrize("data", [b"", b"\xff", b"\x93\x00\x01", b"\x93\x00\x01\x91\x91\x63", NOT_UTF8])
def test_bytes_that_are_no_delta_are_fatal(data):
    with pytest.raises(FatalError, match="metadata delta"):
        ClusterImage().apply(data)


def test_a_change_tells_the_role_what_to_act_on():
    cluster = InMemoryController(handlers=2)
    follower = ClusterImage.from_snapshot(cluster.image.snapshot())

    def last_change():
        return follower.apply(cluster.deltas[-1])

    cluster.create(topic("t", 2, configs={"retention.ms": "5"}))
    change = last_change()
    assert [found.name for found in change.created] == ["t"]
    assert change.created[0].configs == {"retention.ms": "5"}
    assert not change.grown
    cluster.do(
        "create_partitions", topics=[{"name": "t", "count": 3, "assignments": None}], validate_only=False
    )
    assert [found.name for found in last_change().grown] == ["t"]
    cluster.alter(changes(2, "t", ("retention.ms", 0, "6"), ("flush.ms", 0, "6")))
    assert [found.name for found in last_change().configured] == ["t"]
    cluster.alter(changes(4, "", ("log.retention.ms", 0, "6")))
    assert last_change().broker_configs_changed
    cluster.do("start_broker")
    assert last_change().epochs_raised
    cluster.do("set_handler_count", count=5)
    change = last_change()
    assert change.moved
    for moved in change.moved:
        assert moved.partition.owner != moved.owner_before
    cluster.do("delete_topics", topics=[delete_wish("t")])
    deleted = last_change().deleted
    assert [len(found.partitions) for found in deleted] == [3]
    assert follower.topic("t") is None


def test_each_start_raises_every_leader_epoch():
    cluster = InMemoryController()
    cluster.create(topic("old"))
    cluster.do("start_broker")
    cluster.create(topic("new"))
    assert cluster.image.partition("old", 0).leader_epoch == 1
    assert cluster.image.partition("new", 0).leader_epoch == 0
    assert cluster.image.broker_epoch == 1


def test_slot_reuse_raises_generation_and_takes_longest_idle():
    cluster = InMemoryController()
    cluster.create(topic("a", 2), topic("b", 2))
    assert [partition.slot for partition in cluster.image.topic("b").partitions] == [2, 3]
    cluster.do("delete_topics", topics=[delete_wish("b")])
    cluster.do("delete_topics", topics=[delete_wish("a")])
    assert cluster.image.partition_count == 0
    cluster.create(topic("c", 3), topic("d", 2))
    places = [
        (partition.slot, partition.slot_generation)
        for name in "cd"
        for partition in cluster.image.topic(name).partitions
    ]
    assert places == [(2, 2), (3, 2), (0, 2), (1, 2), (4, 1)]


def test_a_broker_without_free_slots_says_so(monkeypatch):
    monkeypatch.setattr(image_module, "SLOT_COUNT", 3)
    cluster = InMemoryController()
    rows = cluster.create(topic("a", 2), topic("b", 2), topic("c", 1))
    assert [row["error_code"] for row in rows] == [0, 37, 0]
    assert "2 more do not fit" in rows[1]["error_message"]


def test_internal_topics_are_known_by_name():
    cluster = InMemoryController()
    cluster.create(topic("__consumer_offsets"), topic("__mine"))
    assert cluster.image.topic("__consumer_offsets").is_internal
    assert not cluster.image.topic("__mine").is_internal


def test_the_record_layout_does_not_change_by_accident():
    # These bytes stand in metadata logs on disk.
    id_ = bytes(range(16))
    assert r.encode_record(r.TopicCreated("t", id_)).hex() == "9304a174c410" + id_.hex()
    assert r.encode_record(r.PartitionsAdded(id_, 1, (7,), (2,), (0,))).hex() == (
        "9605c410" + id_.hex() + "0191079102" + "9100"
    )
    assert r.encode_record(r.BrokerConfigSet("", "n", None)).hex() == "9408a0a16ec0"
    assert r.encode_record(r.AclAdded(id_, 2, "t", 3, "User:a", "*", 4, 3)).hex() == (
        "9910c410" + id_.hex() + "02a17403a6557365723a61a12a0403"
    )
    assert r.encode_record(r.AclRemoved(id_)).hex() == "9211c410" + id_.hex()


# -- property: a newcomer with a snapshot, a follower of every delta, and a replay are the same

NAMES = ("a", "b.c", "b_c", "d", "__consumer_offsets")
OPERATIONS = st.one_of(
    st.tuples(st.just("create"), st.sampled_from(NAMES), st.integers(1, 5)),
    st.tuples(st.just("delete"), st.sampled_from(NAMES), st.just(0)),
    st.tuples(st.just("grow"), st.sampled_from(NAMES), st.integers(1, 9)),
    st.tuples(st.just("config"), st.sampled_from(NAMES), st.integers(0, 3)),
    st.tuples(st.just("broker"), st.sampled_from(["", "1"]), st.integers(0, 3)),
    st.tuples(st.just("handlers"), st.just(""), st.integers(1, 5)),
    st.tuples(st.just("start"), st.just(""), st.integers(0, 1)),
    st.tuples(st.just("ids"), st.just(""), st.just(0)),
    st.tuples(st.just("allow"), st.sampled_from(NAMES), st.integers(3, 5)),
    st.tuples(st.just("disallow"), st.sampled_from([*NAMES, None]), st.integers(3, 4)),
    st.tuples(st.just("truncated"), st.sampled_from(NAMES), st.integers(0, 4)),
)


def run(cluster: InMemoryController, operation: tuple[str, str, int]) -> None:
    kind, name, number = operation
    if kind == "create":
        cluster.create(topic(name, number, configs={"retention.ms": str(number)}))
    elif kind == "delete":
        cluster.do("delete_topics", topics=[delete_wish(name)])
    elif kind == "grow":
        wish = {"name": name, "count": number, "assignments": None}
        cluster.do("create_partitions", topics=[wish], validate_only=False)
    elif kind == "config":
        cluster.alter(changes(2, name, ("flush.ms", 1 if number == 0 else 0, str(number))))
    elif kind == "broker":
        cluster.alter(changes(4, name, ("log.flush.interval.ms", 1 if number == 0 else 0, str(number))))
    elif kind == "handlers":
        cluster.do("set_handler_count", count=number)
    elif kind == "start":
        cluster.do("start_broker", was_clean=number == 0)
    elif kind == "ids":
        cluster.do("allocate_producer_ids")
    elif kind == "allow":
        rule = {"resource_type": 2, "resource_name": name, "resource_pattern_type": 3, "principal": "User:a"}
        cluster.do("create_acls", creations=[rule | {"host": "*", "operation": number, "permission_type": 3}])
    elif kind == "disallow":
        wanted = {"resource_type_filter": 1, "resource_name_filter": name, "pattern_type_filter": 1}
        wanted |= {"principal_filter": None, "host_filter": None, "operation": number, "permission_type": 1}
        cluster.do("delete_acls", filters=[wanted])
    elif kind == "truncated":
        found = cluster.image.topic(name)
        topic_id = found.topic_id if found is not None else bytes(16)
        cluster.do("raise_leader_epochs", topic_id=topic_id, partitions=[number])


def contents(image: ClusterImage) -> dict[str, object]:
    return {name: getattr(image, name) for name in ClusterImage.__slots__}


@settings(deadline=None)
@given(st.lists(OPERATIONS, max_size=30), st.data())
def test_snapshot_and_later_deltas_equal_the_replayed_state(operations, data):
    cluster = InMemoryController(handlers=2)
    cut = data.draw(st.integers(0, len(operations)))
    for operation in operations[:cut]:
        run(cluster, operation)
    newcomer = ClusterImage.from_snapshot(cluster.image.snapshot())
    seen = len(cluster.deltas)
    for operation in operations[cut:]:
        run(cluster, operation)
    for delta in cluster.deltas[seen:]:
        newcomer.apply(delta)
    follower = ClusterImage()
    for delta in cluster.deltas:
        follower.apply(delta)
    assert contents(newcomer) == contents(follower) == contents(cluster.image)
    slots = [partition.slot for found in follower.topics_by_name.values() for partition in found.partitions]
    assert len(set(slots)) == len(slots) == follower.partition_count
    for found in follower.topics_by_name.values():
        assert [partition.index for partition in found.partitions] == list(range(len(found.partitions)))
        assert all(0 <= partition.owner < follower.handler_count for partition in found.partitions)
