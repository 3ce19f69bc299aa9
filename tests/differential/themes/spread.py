"""Records of several partitions in one share group (KIP-932): sessions over all of them, mixed acknowledgements.

As in queues.py the group has no members, and AlterShareGroupOffsets creates the states. The first ShareFetch finds
empty logs, so that the brokers load all states before the first record is there. A ShareFetch has room for all records,
because the brokers visit the partitions in orders of their own.
"""

from __future__ import annotations

from typing import Any, Final

from tests.differential.scene import Scene
from tests.differential.steps import DISCONNECT, Step
from tests.differential.symbols import Batch, Moment, Ref, no_topic_id
from tests.differential.themes.queues import LONG_MS, SHORT_MS, Queue, batches, choose_kinds

GROUP: Final = "~qs"
_MEMBERS: Final = (0, 1, 2)
_PARTITIONS: Final = 3
_MANY: Final = 500
_LOADED_MS: Final = 600  # Until the brokers have loaded the states.
_GROUP_RESOURCE: Final = 32


def prepare(scene: Scene) -> None:
    """A topic of several partitions, whose states are loaded."""
    topic = "~spread"
    scene.topics[topic] = _PARTITIONS
    row = {"name": topic, "num_partitions": _PARTITIONS, "replication_factor": 1, "configs": []}
    scene.add("create_topics", {"topics": [row]})
    scene.spread = [Queue(topic, scene.pick((2, 3, 5))) for _ in range(_PARTITIONS)]
    for queue in scene.spread:
        queue.limit = scene.spread[0].limit
    configs = {"share.auto.offset.reset": "earliest", "share.delivery.count.limit": str(scene.spread[0].limit)}
    rows = [{"name": name, "config_operation": 0, "value": value} for name, value in configs.items()]
    resource = {"resource_type": _GROUP_RESOURCE, "resource_name": GROUP, "configs": rows}
    scene.add("incremental_alter_configs", {"resources": [resource], "validate_only": False})
    offsets = [{"partition_index": index, "start_offset": 0} for index in range(_PARTITIONS)]
    body = {"group_id": GROUP, "topics": [{"topic_name": topic, "partitions": offsets}]}
    scene.add("alter_share_group_offsets", body)
    _fetch(scene, 0, _LOADED_MS, {})
    produce(scene)


def produce(scene: Scene) -> None:
    for _ in range(scene.pick((1, 2, 3))):
        index = scene.random.randrange(_PARTITIONS)
        queue = scene.spread[index]
        count = scene.pick((1, 1, 2, 5))
        batch = Batch(records=[(f"k{at}", "v", 0, []) for at in range(count)], time=Moment(1_000))
        queue.end += count
        topic = {
            "name": queue.topic,
            "topic_id": _topic_id(scene),
            "partition_data": [{"partition_index": index, "index": index, "records": [batch]}],
        }
        body = {"transactional_id": None, "acks": -1, "topic_data": [topic]}
        scene.add("produce", body, version=scene.versions["produce"][-1])


def share_fetch(scene: Scene) -> None:
    """Acquire records of all partitions. With others to acquire, acknowledge some."""
    member = scene.pick(_MEMBERS)
    has_records = any(queue.available() for queue in scene.spread)
    kinds: dict[int, dict[int, int]] = {}
    if has_records and member in scene.spread_epochs and scene.chance(0.4):
        kinds = _choose(scene, member)
    _fetch(scene, member, LONG_MS if has_records else SHORT_MS, kinds)


def share_acknowledge(scene: Scene) -> None:
    member = scene.pick(_MEMBERS)
    if member in scene.spread_epochs:
        _acknowledge(scene, member, _next_epoch(scene, member), _choose(scene, member))


def end_session(scene: Scene) -> None:
    """End a session. The others get the records that it still holds.

    The first member's session goes on, because kproc drops the states with the last session, and loads them again.
    """
    if ended := sorted(scene.spread_epochs.keys() - {_MEMBERS[0]}):
        member = scene.pick(ended)
        _acknowledge(scene, member, -1, _choose(scene, member) if scene.chance(0.4) else {})
        del scene.spread_epochs[member]
        for queue in scene.spread:
            queue.release(member)
        # The releases of the partitions take effect one after the other, behind the answer.
        scene.steps.append(Step(member, DISCONNECT, 0, {}))


def describe_offsets(scene: Scene) -> None:
    topic = {"topic_name": scene.spread[0].topic, "partitions": list(range(_PARTITIONS))}
    scene.add("describe_share_group_offsets", {"groups": [{"group_id": GROUP, "topics": [topic]}]})


def _fetch(scene: Scene, member: int, wait_ms: int, kinds: dict[int, dict[int, int]]) -> None:
    is_new = member not in scene.spread_epochs
    rows = [_row(scene, index, kinds.get(index, {})) for index in (range(_PARTITIONS) if is_new else kinds)]
    body = {
        **_who(member),
        "share_session_epoch": _next_epoch(scene, member),
        "max_wait": wait_ms,
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "max_records": _MANY,
        "batch_size": scene.pick((1, 4, 500)),
        "share_acquire_mode": 0,
        "is_renew_ack": False,
        "topics": _topics(scene, rows),
        "forgotten_topics_data": [],
    }
    for index, some in kinds.items():
        for at, kind in some.items():
            scene.spread[index].acknowledge(at, kind)
    scene.add("share_fetch", body, version=2, connection=member)
    for queue in scene.spread:
        queue.acquire(member, _MANY)


def _acknowledge(scene: Scene, member: int, epoch: int, kinds: dict[int, dict[int, int]]) -> None:
    rows = [_row(scene, index, some) for index, some in kinds.items()]
    body = {"share_session_epoch": epoch, "is_renew_ack": False, "topics": _topics(scene, rows)}
    scene.add("share_acknowledge", {**_who(member), **body}, version=2, connection=member)
    for index, some in kinds.items():
        for at, kind in some.items():
            scene.spread[index].acknowledge(at, kind)


def _choose(scene: Scene, member: int) -> dict[int, dict[int, int]]:
    """Types for some records that a member holds, by partition."""
    chosen = {
        index: choose_kinds(scene, queue, member) for index, queue in enumerate(scene.spread) if scene.chance(0.7)
    }
    return {index: some for index, some in chosen.items() if some}


def _row(scene: Scene, index: int, kinds: dict[int, int]) -> dict[str, Any]:
    return {"partition_index": index, "acknowledgement_batches": batches(scene, kinds)}


def _topics(scene: Scene, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"topic_id": _topic_id(scene), "partitions": rows}] if rows else []


def _topic_id(scene: Scene) -> Ref:
    topic = scene.spread[0].topic
    return Ref("id", topic, no_topic_id(topic))


def _who(member: int) -> dict[str, Any]:
    return {"group_id": GROUP, "member_id": f"m{member}"}


def _next_epoch(scene: Scene, member: int) -> int:
    epoch: int = scene.spread_epochs.get(member, 0)
    scene.spread_epochs[member] = epoch + 1
    return epoch
