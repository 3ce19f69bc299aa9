"""Groups of the consumer protocol (KIP-848). Members k0 to k2 are in ~c0, k3 in ~c1, each with its own connection."""

from __future__ import annotations

from typing import Any

from tests.differential.scene import Scene
from tests.differential.symbols import Ref, Subscription
from tests.differential.themes.group_members import JOINS, LEAVES, LEAVES_FOR_A_TIME, Member, Members

_INVALID_EXPRESSION = "~("


def _send(scene: Scene, member: Member, epoch: int | None) -> None:
    usually = member.usually
    topics = scene.random.sample(list(scene.topics), scene.pick((1, 1, min(2, len(scene.topics)))))
    owned = Ref("owned", member.number, [])
    is_full = epoch == JOINS or scene.chance(0.7)
    partial = {"subscribed_topic_names": None, "rebalance_timeout": -1}
    body = {
        "group_id": member.group_id,
        "member_id": member.member_id,
        "member_epoch": member.epoch() if epoch is None else epoch,
        "instance_id": member.instance_id,
        "rack_id": usually([None], "", "r1"),
        "rebalance_timeout": usually([60_000], -1, 0, 1),
        "subscribed_topic_names": usually(
            [topics, list(scene.topics)], [], None, ["~none"], ["~none", *topics]
        ),
        "subscribed_topic_regex": usually([None], _INVALID_EXPRESSION, ""),
        "server_assignor": usually([None, scene.assignor], "nope", ""),
        "topic_partitions": usually([owned], None, [], [{"topic_id": b"\xee" * 16, "partitions": [0, -1]}]),
        **({} if is_full else partial),
    }
    learning = (
        {}
        if epoch in (LEAVES, LEAVES_FOR_A_TIME)
        else {
            ("epoch", member.number): "member_epoch",
            ("owned", member.number): "assignment",
        }
    )
    scene.add("consumer_group_heartbeat", body, connection=member.number, learning=learning)


_MEMBERS = Members("k", "~c", _send)
heartbeat, join, leave, cycle = _MEMBERS.heartbeat, _MEMBERS.join, _MEMBERS.leave, _MEMBERS.cycle


def describe(scene: Scene) -> None:
    names = scene.random.choices(["~c0", "~c0", "~c1", "~c2", "~none", ""], k=scene.pick((1, 1, 2, 3)))
    body = {"group_ids": names, "include_authorized_operations": scene.chance(0.3)}
    scene.add("consumer_group_describe", body)


def describe_groups(scene: Scene) -> None:
    names = scene.random.choices(["~c0", "~c0", "~c1", "~c2", "~none", ""], k=scene.pick((1, 1, 2)))
    scene.add("describe_groups", {"groups": names, "include_authorized_operations": scene.chance(0.3)})


def delete_groups(scene: Scene) -> None:
    names = scene.random.choices(["~c0", "~c1", "~c2", "~none"], k=scene.pick((1, 1, 2)))
    scene.add("delete_groups", {"groups_names": names})


def offset_commit(scene: Scene) -> None:
    commit(scene, _MEMBERS.member(scene))


def commit(scene: Scene, member: Any) -> None:
    """An OffsetCommit, mostly of a member."""
    is_member = scene.chance(0.7)
    rows = scene.topic_rows(
        "partitions",
        lambda _, index: {
            "partition_index": index,
            "committed_offset": scene.usually([0, 1, 5], -1),
            "committed_leader_epoch": -1,
            "committed_metadata": "",
        },
    )
    body = {
        "group_id": member.group_id,
        "member_id": member.member_id if is_member else "",
        "generation_id_or_member_epoch": member.epoch() if is_member else -1,
        "group_instance_id": member.instance_id if is_member else None,
        "retention_time": -1,
        "topics": rows,
    }
    scene.add("offset_commit", body, connection=member.number)


def offset_fetch(scene: Scene) -> None:
    fetch(scene, _MEMBERS.member(scene))


def fetch(scene: Scene, member: Any) -> None:
    """An OffsetFetch, of a member or of an admin client."""
    version = scene.version("offset_fetch")
    rows = scene.topic_rows("partition_indexes", lambda _, index: index)
    by_member = {"member_id": member.member_id, "member_epoch": member.epoch()}
    group = {
        "group_id": member.group_id,
        "topics": rows if scene.chance(0.6) or version < 2 else None,
        **scene.pick(({}, by_member, by_member)),
    }
    body = {**group, "groups": [group], "require_stable": scene.chance(0.3)}
    scene.add("offset_fetch", body, version=version, connection=member.number)


def offset_delete(scene: Scene) -> None:
    rows = scene.topic_rows("partitions", lambda _, index: {"partition_index": index})
    scene.add("offset_delete", {"group_id": scene.pick(("~c0", "~c1", "~c2")), "topics": rows})


def join_classic(scene: Scene) -> None:
    """A JoinGroup of a member of the classic protocol to a group of this one."""
    topics = scene.random.sample(list(scene.topics), 1)
    # A static member can replace one of the consumer protocol.
    instance_id = scene.pick((None, None, *scene.instances.values()))
    body = {
        "group_id": scene.usually(["~c0", "~c1", "~c2"], "~none"),
        "member_id": scene.usually([Ref("mid", 4)] if instance_id is None else [""], "nope", "k0"),
        "group_instance_id": instance_id,
        "session_timeout": scene.usually([30_000], 5_999),
        "rebalance_timeout": 60_000,
        "protocol_type": scene.usually(["consumer"], "connect"),
        "reason": None,
        "protocols": [{"name": "range", "metadata": Subscription(1, tuple(topics))}],
    }
    learning = {("mid", 4): "member_id", ("gen", 4): "generation_id"}
    scene.add("join_group", body, connection=4, may_wait=True, learning=learning)


def _classic(scene: Scene) -> dict[str, Any]:
    known = Ref("gen", 4, 1)
    return {
        "group_id": scene.usually(["~c0", "~c1", "~c2"], "~none"),
        "member_id": scene.usually([Ref("mid", 4)], "nope", "k0"),
        "group_instance_id": scene.pick((None, None, None, *scene.instances.values())),
        "generation_id": scene.usually([known], known._replace(add=1), known._replace(add=-1)),
    }


def heartbeat_classic(scene: Scene) -> None:
    scene.add("heartbeat", _classic(scene), connection=4)


def sync_classic(scene: Scene) -> None:
    body = {**_classic(scene), "protocol_type": "consumer", "protocol_name": "range", "assignments": []}
    scene.add("sync_group", body, connection=4, may_wait=True)


def leave_classic(scene: Scene) -> None:
    member = _classic(scene)
    row = {"member_id": member["member_id"], "group_instance_id": None, "reason": None}
    scene.add("leave_group", {**member, "members": [row]}, connection=4)


def list_groups(scene: Scene) -> None:
    states: tuple[list[str], ...] = ([], ["Stable"], ["assigning", "Reconciling"], ["Empty"], ["x"])
    types: tuple[list[str], ...] = ([], ["consumer"], ["Classic", "Consumer"], ["x"])
    scene.add("list_groups", {"states_filter": scene.pick(states), "types_filter": scene.pick(types)})
