"""Groups and committed offsets. Members m0 to m2 are in ~g0, m3 in ~g1, each with its own connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.differential.scene import Scene
from tests.differential.symbols import Ref, Subscription

_LARGEST = 2**63 - 1
_ALONE = 3  # The member that is in a group by itself.
_STATES: tuple[list[str], ...] = (
    [], [], ["Stable"], ["empty"], ["PreparingRebalance", "CompletingRebalance"], ["Dead"], ["x"], ["Stable", "Empty"],
)  # fmt: skip
_TYPES: tuple[list[str], ...] = ([], [], ["classic"], ["Consumer"], ["CLASSIC", "consumer"], ["x"])


class _Member:
    """Who asks, mostly as it should."""

    def __init__(self, scene: Scene, number: int | None = None, *, is_plain: bool = False) -> None:
        self.number = scene.pick((0, 0, 1, 1, 2, 3)) if number is None else number
        self.usually: Callable[..., Any] = _as_it_should if is_plain else scene.usually
        other = Ref("mid", (self.number + 1) % 3)
        self.body = {
            "group_id": self.usually(["~g1" if self.number == _ALONE else "~g0"], "", "~none"),
            "member_id": self.usually([Ref("mid", self.number)], "", "nope", other),
            "group_instance_id": self.usually([scene.instances.get(self.number)], None, "i0", "ix"),
        }

    def generation(self, *odd: Any) -> Any:
        known = Ref("gen", self.number, 1)
        return self.usually([known], known._replace(add=1), known._replace(add=-1), -1, *odd)


def _as_it_should(usual: list[Any], *_: Any) -> Any:
    return usual[0]


def join_group(scene: Scene, number: int | None = None) -> None:
    member = _Member(scene, number, is_plain=number is not None)
    usually = member.usually
    topics = scene.random.sample(list(scene.topics), scene.pick((0, 1, 1)))
    subscription = Subscription(scene.pick((0, 1, 1)), tuple(topics))
    odd_names: tuple[list[str], ...] = (["other"], [], ["roundrobin", "range"])
    names = usually([["range"], ["range", "roundrobin"]], *odd_names)
    body = member.body | {
        "session_timeout": usually([30000], 5999, 1_800_001, 0, 6000, 1_800_000),
        "rebalance_timeout": usually([60000], 0, -1, 400),
        "protocol_type": usually(["consumer"], "connect", ""),
        "reason": scene.pick((None, "because")),
        "protocols": [{"name": name, "metadata": subscription} for name in names],
    }
    learning = {("mid", member.number): "member_id", ("gen", member.number): "generation_id"}
    scene.add("join_group", body, connection=member.number, may_wait=True, learning=learning)


def sync_group(scene: Scene, number: int | None = None, leader: int | None = None) -> None:
    member = _Member(scene, number, is_plain=number is not None)
    everybody = [_ALONE] if member.number == _ALONE else range(3)
    assignments = [
        {"member_id": Ref("mid", each, "nope"), "assignment": f"to{each}".encode()} for each in everybody
    ]
    leads = scene.chance(0.5) if number is None else number == leader
    body = member.body | {
        "generation_id": member.generation(),
        "protocol_type": member.usually(["consumer"], None, "x"),
        "protocol_name": member.usually(["range"], None, "x"),
        "assignments": assignments if leads else [],
    }
    scene.add("sync_group", body, connection=member.number, may_wait=True)


def cycle(scene: Scene) -> None:
    """Members join one after the other, all sync: what clients do."""
    coming = scene.pick(([0], [0], [0, 1], [1, 0], [0, 1, 2], [_ALONE]))
    inside: list[int] = []
    for number in coming:
        for _ in range(1 + (number not in scene.members_known and number not in scene.instances)):
            join_group(scene, number)
        for other in inside:
            join_group(scene, other)
        inside.append(number)
        scene.members_known.add(number)
    for number in scene.random.sample(inside, len(inside)):
        sync_group(scene, number, coming[0])


def heartbeat(scene: Scene) -> None:
    member = _Member(scene)
    body = member.body | {"generation_id": member.generation()}
    scene.add("heartbeat", body, connection=member.number)


def leave_group(scene: Scene) -> None:
    member = _Member(scene)
    leaving = [member.body, *(_Member(scene).body for _ in range(scene.pick((0, 0, 1))))]
    rows = [
        {
            "member_id": each["member_id"],
            "group_instance_id": each["group_instance_id"],
            "reason": scene.pick((None, "x")),
        }
        for each in leaving
    ]
    scene.add("leave_group", member.body | {"members": rows}, connection=member.number)


def offset_commit(scene: Scene) -> None:
    member = _Member(scene)
    body = member.body
    if scene.chance(0.35):  # By somebody who is no member.
        group = scene.usually(["~g2", "~g2", "~g0"], "")
        body |= {
            "member_id": "",
            "generation_id_or_member_epoch": -1,
            "group_instance_id": None,
            "group_id": group,
        }
    else:
        body |= {"generation_id_or_member_epoch": member.generation(0)}
    rows = scene.topic_rows(
        "partitions",
        lambda _, index: {
            "partition_index": index,
            "committed_offset": scene.usually([0, 1, 5, 100], -1, -2, _LARGEST),
            "committed_leader_epoch": scene.usually([-1, 0], 3),
            "committed_metadata": scene.usually(["", "m"], None, "m" * 4096, "m" * 4097),
        },
    )
    body |= {"retention_time": scene.usually([-1], 0, 1000), "topics": rows}
    scene.add("offset_commit", body, connection=member.number)


def offset_fetch(scene: Scene) -> None:
    def one() -> dict[str, Any]:
        by_member = {
            "member_id": scene.usually([Ref("mid", 0)], "", "nope"),
            "member_epoch": scene.usually([Ref("gen", 0, 1), -1], 0, 7),
        }
        rows = scene.topic_rows("partition_indexes", lambda _, index: index)
        return {
            "group_id": scene.usually(["~g0", "~g1", "~g2"], "~none", ""),
            "topics": rows if scene.chance(0.6) else None,
            **scene.pick(({}, {}, {}, by_member)),
        }

    version, body = scene.version("offset_fetch"), one()
    body["topics"] = body["topics"] or ([] if version < 2 else None)
    body |= {
        "groups": [one() for _ in range(scene.pick((1, 1, 2, 3)))],
        "require_stable": scene.chance(0.3),
    }
    scene.add("offset_fetch", body, version=version, connection=scene.pick((0, 5)))


def offset_delete(scene: Scene) -> None:
    rows = scene.topic_rows("partitions", lambda _, index: {"partition_index": index})
    group = scene.usually(["~g0", "~g1", "~g2"], "~none", "")
    scene.add("offset_delete", {"group_id": group, "topics": rows})


def describe_groups(scene: Scene) -> None:
    names = scene.random.choices(["~g0", "~g0", "~g1", "~g2", "~none", ""], k=scene.pick((1, 1, 2, 3)))
    scene.add("describe_groups", {"groups": names, "include_authorized_operations": scene.chance(0.3)})


def list_groups(scene: Scene) -> None:
    scene.add("list_groups", {"states_filter": scene.pick(_STATES), "types_filter": scene.pick(_TYPES)})


def delete_groups(scene: Scene) -> None:
    names = scene.random.choices(["~g0", "~g1", "~g2", "~none", ""], k=scene.pick((1, 1, 2, 3)))
    scene.add("delete_groups", {"groups_names": names})
