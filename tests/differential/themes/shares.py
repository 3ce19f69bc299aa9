"""Share sessions (KIP-932) of groups that nobody has joined. Members s0 and s1 are in ~q0, s2 in ~q1.

A member has a connection of its own, because kproc ends a session with its connection. No records are acquired: Kafka
prepares the state of a share partition some time after a member has joined.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.differential.scene import Scene
from tests.differential.symbols import Ref, no_topic_id

_OTHER = 2  # The member that is in a group by itself.
_OPENS, _ENDS = 0, -1
_WAIT_MS = 400
_ACCEPT, _REJECT, _RENEW = 1, 3, 4


def _members(scene: Scene) -> int:
    return scene.pick((0, 0, 1, 2))


def _who(scene: Scene, number: int) -> dict[str, Any]:
    return {
        "group_id": scene.usually(["~q1" if number == _OTHER else "~q0"], "~none", None),
        "member_id": scene.usually([f"s{number}"], "", None, "x" * 37, "s9"),
    }


def _is_usual(who: dict[str, Any], number: int) -> bool:
    return who == {"group_id": "~q1" if number == _OTHER else "~q0", "member_id": f"s{number}"}


def _epoch(scene: Scene, number: int, body: dict[str, Any]) -> tuple[int, bool]:
    """The epoch of a request of an open session, and whether the session goes on with it."""
    known = scene.share_epochs.get(number)
    if known is None:
        return scene.pick((1, 5, _ENDS)), False
    epoch = scene.usually([known], known + 1, known - 1, 2**31 - 1)
    return epoch, epoch == known and _is_usual(body, number)


def share_fetch(scene: Scene) -> None:
    """A ShareFetch that opens, continues or ends a session."""
    number = _members(scene)
    body = {
        **_who(scene, number),
        "max_wait": _WAIT_MS,
        "min_bytes": scene.pick((0, 1)),
        "max_bytes": 1 << 20,
        "max_records": scene.usually([500, 1], 0),
        "batch_size": scene.pick((1, 500)),
        "share_acquire_mode": scene.pick((0, 1)),
        "is_renew_ack": scene.chance(0.05),
        "topics": _topics(scene, _batches if scene.chance(0.3) else lambda _: []),
        "forgotten_topics_data": _forgotten(scene) if scene.chance(0.2) else [],
    }
    has_batches = any(row["acknowledgement_batches"] for topic in body["topics"] for row in topic["partitions"])
    kind = scene.pick(("open", "go on", "go on", "go on", "end"))
    if kind == "open" or number not in scene.share_epochs:
        epoch = _OPENS
        if _is_usual(body, number) and not has_batches and not body["is_renew_ack"]:
            scene.share_epochs[number] = 1
    elif kind == "end":
        epoch = _ENDS
        if _is_usual(body, number) and not body["is_renew_ack"]:
            scene.share_epochs.pop(number)
    else:
        epoch, goes_on = _epoch(scene, number, {name: body[name] for name in ("group_id", "member_id")})
        if goes_on and not body["is_renew_ack"]:
            scene.share_epochs[number] += 1
    scene.add("share_fetch", {**body, "share_session_epoch": epoch}, connection=number)


def renewal(scene: Scene) -> None:
    """A ShareFetch that renews locks and fetches nothing."""
    number = _members(scene)
    who = _who(scene, number)
    epoch, goes_on = _epoch(scene, number, who)
    body = {
        **who,
        **dict.fromkeys(("max_wait", "min_bytes", "max_bytes", "max_records", "batch_size"), 0),
        "share_session_epoch": epoch,
        "is_renew_ack": True,
        "topics": _topics(scene, _batches),
        "forgotten_topics_data": [],
    }
    if goes_on:
        scene.share_epochs[number] += 1
    scene.add("share_fetch", body, version=2, connection=number)


def share_acknowledge(scene: Scene) -> None:
    number = _members(scene)
    who = _who(scene, number)
    epoch, goes_on = _epoch(scene, number, who)
    if scene.chance(0.1):
        epoch, goes_on = scene.pick((_OPENS, _ENDS)), False
    if epoch == _ENDS and _is_usual(who, number):
        scene.share_epochs.pop(number, None)
    if goes_on:
        scene.share_epochs[number] += 1
    body = {
        **who,
        "share_session_epoch": epoch,
        "is_renew_ack": scene.chance(0.2),
        "topics": _topics(scene, _batches),
    }
    scene.add("share_acknowledge", body, connection=number)


def _topics(scene: Scene, batches: Callable[[Scene], list[Any]]) -> list[dict[str, Any]]:
    names = scene.random.sample(list(scene.topics), scene.pick((0, 1, 1, min(2, len(scene.topics)))))
    if scene.chance(0.1):
        names.append("~none")
    rows = []
    for name in names:
        count = scene.topics.get(name, 1)
        indexes = scene.random.sample(range(count), scene.random.randint(1, count))
        if scene.chance(0.08):
            indexes.append(scene.pick((7, -1)))
        partitions = [{"partition_index": at, "acknowledgement_batches": batches(scene)} for at in indexes]
        rows.append({"topic_id": Ref("id", name, no_topic_id(name)), "partitions": partitions})
    return rows


def _forgotten(scene: Scene) -> list[dict[str, Any]]:
    return [
        {"topic_id": row["topic_id"], "partitions": [each["partition_index"] for each in row["partitions"]]}
        for row in _topics(scene, lambda _: [])
    ]


def _batches(scene: Scene) -> list[dict[str, Any]]:
    """Acknowledgements, some of them malformed."""
    first = scene.pick((0, 0, 3))
    count = scene.pick((1, 1, 2, 5))
    one = {
        "first_offset": first,
        "last_offset": scene.usually([first + count - 1], first - 1),
        "acknowledge_types": scene.usually(
            [[_ACCEPT], [0] if count == 1 else [_ACCEPT] * count],
            [],
            [5],
            [-1],
            [_RENEW],
            [_ACCEPT] * (count + 1),
        ),
    }
    other = {**one, "first_offset": first + 10, "last_offset": first + 10, "acknowledge_types": [_REJECT]}
    return scene.usually([[one], [one], [], [one, other]], [other, one])
