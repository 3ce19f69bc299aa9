"""Groups of Kafka Streams (KIP-1071). Members t0 to t2 are in ~s0, t3 in ~s1, each with its own connection."""

from __future__ import annotations

from typing import Any

from tests.differential.scene import Scene
from tests.differential.symbols import Ref
from tests.differential.themes import consumers
from tests.differential.themes.group_members import JOINS, LEAVES, LEAVES_FOR_A_TIME, Member, Members

_GROUPS = ("~s0", "~s0", "~s1", "~s2", "~none", "")
_TASKS = [{"subtopology_id": "0", "partitions": [0]}]
_UNKNOWN_TASKS = [{"subtopology_id": "9", "partitions": [0]}]
Fields = dict[str, Any]


def _send(scene: Scene, member: Member, epoch: int | None) -> None:
    usually, number = member.usually, member.number
    topology = usually([_topology(scene)], None, *_odd_topologies(scene))
    leaves = epoch in (LEAVES, LEAVES_FOR_A_TIME)
    if epoch is None:
        topology = Ref("if joining", number, topology)
    elif leaves:
        topology = None
    no_tasks: list[Any] = []
    active = Ref("tasks", number, no_tasks) if epoch is None else no_tasks
    has_tasks = not leaves and (epoch == JOINS or scene.chance(0.8))
    active, others = (active, no_tasks) if has_tasks else (None, None)
    body = {
        "group_id": member.group_id,
        "member_id": member.member_id,
        "member_epoch": member.epoch() if epoch is None else epoch,
        "endpoint_information_epoch": usually([Ref("endpoints", number, 0)], -1, 5),
        "instance_id": member.instance_id,
        "rack_id": usually([None], "", "r1"),
        "rebalance_timeout": usually([60_000], -1),
        "topology": topology,
        "active_tasks": usually([active], None, _TASKS, _UNKNOWN_TASKS),
        "standby_tasks": usually([others], None, _TASKS, no_tasks),
        "warmup_tasks": usually([others], None, no_tasks),
        "process_id": usually([f"p{number}"], "p0", None, ""),
        "user_endpoint": {"host": "h", "port": number} if number < 2 else None,
        "client_tags": usually([no_tasks], None, [{"key": "a", "value": "1"}]),
        "task_offsets": usually([None, None, _offsets(1)], _offsets(1) * 2),
        "task_end_offsets": usually([None, None, _offsets(5)], no_tasks),
        "shutdown_application": usually([False], scene.chance(0.3)),
    }
    learning = {
        ("epoch", number): "member_epoch",
        ("tasks", number): "active_tasks",
        ("endpoints", number): "endpoint_information_epoch",
    }
    scene.add("streams_group_heartbeat", body, connection=number, learning={} if leaves else learning)


_MEMBERS = Members("t", "~s", _send)
heartbeat, join, leave, cycle = _MEMBERS.heartbeat, _MEMBERS.join, _MEMBERS.leave, _MEMBERS.cycle


def _offsets(offset: int) -> list[Fields]:
    return [{"subtopology_id": "0", "partition": 0, "offset": offset}]


def _topic(name: str, partitions: int = 0) -> Fields:
    configs = [{"key": "cleanup.policy", "value": "compact"}]
    return {"name": name, "partitions": partitions, "replication_factor": 0, "topic_configs": configs}


def _topology(scene: Scene) -> Fields:
    """The one of all members of a sequence: without a state, with one, or with a topic between two subtopologies."""
    names = list(scene.topics)
    first = {
        "subtopology_id": "0", "source_topics": names[:2], "source_topic_regex": [], "state_changelog_topics": [],
        "repartition_sink_topics": [], "repartition_source_topics": [], "copartition_groups": [],
    }  # fmt: skip
    shape = sum(scene.topics.values()) % 3
    if shape == 0:
        return {"epoch": 1, "subtopologies": [first]}
    if shape == 1:
        return {"epoch": 1, "subtopologies": [{**first, "state_changelog_topics": [_topic("~s-changelog")]}]}
    between = _topic("~s-repartition")
    second = {**first, "subtopology_id": "1", "source_topics": [], "repartition_source_topics": [between]}
    second["state_changelog_topics"] = [_topic("~s-changelog")]
    return {"epoch": 1, "subtopologies": [{**first, "repartition_sink_topics": [between["name"]]}, second]}


def _odd_topologies(scene: Scene) -> list[Fields]:
    usual = _topology(scene)
    (first, *others) = usual["subtopologies"]

    def changed(**changes: Any) -> Fields:
        return {**usual, "subtopologies": [{**first, **changes}, *others]}

    other = changed(source_topics=["~none"])
    return [
        {**usual, "epoch": 0},
        {**usual, "epoch": 2},
        {**usual, "epoch": -1},
        other,
        {**other, "epoch": 0},
        changed(source_topics=[]),
        changed(source_topic_regex=["a.*"]),
        changed(source_topics=["__consumer_offsets"]),
        changed(source_topics=["a b"]),
        changed(state_changelog_topics=[_topic("~s-other-changelog", 2)]),
        changed(repartition_source_topics=[_topic("~s-other-repartition")]),
        changed(repartition_source_topics=[_topic("~s-fixed-repartition", 3)]),
        changed(copartition_groups=[{"source_topics": [0, 1]}]),
        {"epoch": 1, "subtopologies": []},
    ]  # fmt: skip


def describe(scene: Scene) -> None:
    names = scene.random.choices(_GROUPS, k=scene.pick((1, 1, 2, 3)))
    body = {
        "group_ids": names,
        "include_authorized_operations": scene.chance(0.3),
        "include_topology_description": scene.chance(0.3),
    }
    scene.add("streams_group_describe", body)


def describe_groups(scene: Scene) -> None:
    names = scene.random.choices(_GROUPS, k=scene.pick((1, 1, 2)))
    scene.add("describe_groups", {"groups": names, "include_authorized_operations": scene.chance(0.3)})


def delete_groups(scene: Scene) -> None:
    names = scene.random.choices(["~s0", "~s1", "~s2", "~none"], k=scene.pick((1, 1, 2)))
    scene.add("delete_groups", {"groups_names": names})


def offset_commit(scene: Scene) -> None:
    consumers.commit(scene, _MEMBERS.member(scene))


def offset_fetch(scene: Scene) -> None:
    consumers.fetch(scene, _MEMBERS.member(scene))


def offset_delete(scene: Scene) -> None:
    rows = scene.topic_rows("partitions", lambda _, index: {"partition_index": index})
    scene.add("offset_delete", {"group_id": scene.pick(("~s0", "~s1", "~s2")), "topics": rows})


def list_groups(scene: Scene) -> None:
    states: tuple[list[str], ...] = ([], ["Stable"], ["assigning", "Reconciling"], ["NotReady"], ["Empty"])
    types: tuple[list[str], ...] = ([], ["streams"], ["Classic", "Streams"])
    scene.add("list_groups", {"states_filter": scene.pick(states), "types_filter": scene.pick(types)})
