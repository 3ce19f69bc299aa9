"""Records of one partition in a share group (KIP-932): acquired, acknowledged, released, renewed and delivered again.

The group has no members. AlterShareGroupOffsets creates the state of the partition, and answers when it exists, so that
the next ShareFetch can acquire records. A model of the share partition makes most requests meaningful. Where it is
wrong, the brokers still have to agree.
"""

from __future__ import annotations

from typing import Any, Final

from tests.differential.scene import KINDS, Scene
from tests.differential.steps import DISCONNECT, PAUSE, Step
from tests.differential.symbols import Batch, Moment, Ref, no_topic_id

GROUP: Final = "~qa"
_PARTITION: Final = 0
_MEMBERS: Final = (0, 1, 2)  # Each is a member, a connection and a share session.
# A ShareFetch that should find records waits for the state to be loaded. Another one waits in vain.
LONG_MS, SHORT_MS = 5_000, 30
_LOCK_MS, _ALL_ENDED_MS = 1_500, 2_200  # A lock, and a time after which a slow broker has ended all of them.
_RELEASED_MS: Final = 30  # Until kproc has released the records of a session that has ended.
_MANY: Final = 500
_PRODUCER: Final = "~qt"
_TRANSACTIONAL: Final = 16
_GAP, _ACCEPT, _RELEASE, _REJECT, _RENEW = range(5)
_GROUP_RESOURCE: Final = 32


class Queue:
    """The share partition as the generator expects it to be."""

    def __init__(self, topic: str, limit: int) -> None:
        self.topic = topic
        self.limit = limit  # Of deliveries.
        self.is_committed = False  # Records of aborted transactions are not delivered.
        self.has_aborted = False  # There are such records.
        self.end = 0
        self.start = 0
        self.counts: dict[int, int] = {}  # Deliveries of records that are not finished.
        self.holders: dict[int, int] = {}  # Offset -> the member that holds the record.
        self.done: set[int] = set()
        self.epochs: dict[int, int] = {}  # The next epoch of each open session.

    def available(self) -> list[int]:
        return [at for at in range(self.start, self.end) if at not in self.done and at not in self.holders]

    def acquire(self, member: int, most: int) -> None:
        for at in self.available()[:most]:
            self.holders[at] = member
            self.counts[at] = self.counts.get(at, 0) + 1

    def held_by(self, member: int) -> list[int]:
        return sorted(at for at, holder in self.holders.items() if holder == member)

    def acknowledge(self, at: int, kind: int) -> None:
        if kind == _RENEW:
            return
        del self.holders[at]
        if kind != _RELEASE or self.counts[at] >= self.limit:
            self.done.add(at)

    def release(self, member: int) -> None:
        """The session of a member has ended, or its locks."""
        for at in self.held_by(member):
            self.acknowledge(at, _RELEASE)

    def most(self, wanted: int) -> int:
        """Return a number of records to acquire, of which kproc finds as many as Kafka.

        kproc looks at no more offsets behind the first record than it may acquire records. In Kafka, records of aborted
        transactions count as acquired ones, although they are not delivered.
        """
        if self.has_aborted:
            return _MANY
        found = self.available()[:wanted]
        return wanted if not found or found[-1] - found[0] < wanted else _MANY

    def reset(self, start: int) -> None:
        self.start = start
        self.counts, self.holders, self.done = {}, {}, set()


def prepare(scene: Scene, *, has_short_locks: bool = False) -> None:
    """A group with a state for one partition, and some records."""
    queue = scene.queue = Queue(scene.pick(list(scene.topics)), scene.pick((2, 3, 5, 5)))
    queue.is_committed = scene.chance(0.5)
    configs = {
        "share.auto.offset.reset": "earliest",
        "share.delivery.count.limit": str(queue.limit),
        "share.renew.acknowledge.enable": scene.pick(("true", "true", "false")),
        "share.isolation.level": "read_committed" if queue.is_committed else "read_uncommitted",
    }
    if has_short_locks:
        configs["share.record.lock.duration.ms"] = str(_LOCK_MS)
    rows = [{"name": name, "config_operation": 0, "value": value} for name, value in configs.items()]
    resource = {"resource_type": _GROUP_RESOURCE, "resource_name": GROUP, "configs": rows}
    scene.add("incremental_alter_configs", {"resources": [resource], "validate_only": False})
    _alter(scene, 0)
    produce(scene)


# -- records, start offsets ------------------------------------------------------------------------------------


def produce(scene: Scene) -> None:
    for _ in range(scene.pick((1, 1, 2, 3))):
        _append(scene, _batch(scene, scene.pick((1, 1, 2, 3, 6, 12))))


def _batch(scene: Scene, count: int) -> Batch:
    time = Moment(1_790_000 if "bound" in scene.queue.topic else 1_000)
    return Batch(records=[(f"k{at}", "v", 0, []) for at in range(count)], time=time)


def _append(scene: Scene, batch: Batch, transactional_id: str | None = None) -> None:
    queue = scene.queue
    queue.end += len(batch["records"])
    topic = {
        "name": queue.topic,
        "topic_id": Ref("id", queue.topic, no_topic_id(queue.topic)),
        "partition_data": [{"partition_index": _PARTITION, "index": _PARTITION, "records": [batch]}],
    }
    body = {"transactional_id": transactional_id, "acks": -1, "topic_data": [topic]}
    scene.add("produce", body, version=scene.versions["produce"][-1])


def transaction(scene: Scene) -> None:
    """Records of a transaction, and its marker, which takes an offset, too.

    In a topic with short segments the marker begins a segment. Kafka's ShareFetch ends there, and kproc's goes on.
    """
    queue = scene.queue
    if "segment.ms" in KINDS[queue.topic[1:]]:
        return
    learning = {("pid", _PRODUCER): "producer_id", ("epoch", _PRODUCER): "producer_epoch"}
    body = {"transactional_id": _PRODUCER, "transaction_timeout": 60000, "producer_id": -1, "producer_epoch": -1}
    scene.add("init_producer_id", body, version=scene.versions["init_producer_id"][-1], learning=learning)
    who = {"producer_id": Ref("pid", _PRODUCER, 4242), "producer_epoch": Ref("epoch", _PRODUCER, 0)}
    first, sequence = queue.end, 0
    for _ in range(scene.pick((1, 2))):
        batch = _batch(scene, scene.pick((1, 2, 4)))
        batch.update(pid=who["producer_id"], epoch=who["producer_epoch"], sequence=sequence, attributes=_TRANSACTIONAL)
        sequence += len(batch["records"])
        _append(scene, batch, transactional_id=_PRODUCER)
    is_commit = scene.chance(0.5)
    body = {"transactional_id": _PRODUCER, **who, "committed": is_commit}
    scene.add("end_txn", body, version=scene.versions["end_txn"][-1], learning=learning)
    if queue.is_committed and not is_commit:
        queue.done |= set(range(first, queue.end))
        queue.has_aborted = True
    queue.end += 1


def delete_records(scene: Scene) -> None:
    """Records of the window leave the log."""
    queue = scene.queue
    offset = scene.random.randint(queue.start, queue.end)
    rows = [{"partition_index": _PARTITION, "offset": offset}]
    scene.add("delete_records", {"topics": [{"name": queue.topic, "partitions": rows}]})
    queue.done |= set(range(offset))


def alter_offsets(scene: Scene) -> None:
    """Begin anew at another offset. Most often, no session has the old state any more."""
    _end_all(scene)
    _alter(scene, scene.random.randint(0, scene.queue.end))


def _alter(scene: Scene, start: int) -> None:
    rows = [{"partition_index": _PARTITION, "start_offset": start}]
    topic = {"topic_name": scene.queue.topic, "partitions": rows}
    scene.add("alter_share_group_offsets", {"group_id": GROUP, "topics": [topic]})
    scene.queue.reset(start)


def delete_offsets(scene: Scene) -> None:
    """Delete the state, and create it again after a while."""
    _end_all(scene)
    scene.add("delete_share_group_offsets", {"group_id": GROUP, "topics": [{"topic_name": scene.queue.topic}]})
    if scene.chance(0.5):
        share_fetch(scene)
        _end_all(scene)
    _alter(scene, scene.random.randint(0, scene.queue.end))


def describe_offsets(scene: Scene) -> None:
    topic = {"topic_name": scene.queue.topic, "partitions": [_PARTITION]}
    scene.add("describe_share_group_offsets", {"groups": [{"group_id": GROUP, "topics": [topic]}]})


# -- sessions --------------------------------------------------------------------------------------------------


def share_fetch(scene: Scene) -> None:
    """Acquire records, and perhaps acknowledge others."""
    queue, member = scene.queue, scene.pick(_MEMBERS)
    is_new = member not in queue.epochs
    acknowledged = {} if is_new or scene.chance(0.6) else _kinds(scene, member, renews=False)
    for at, kind in acknowledged.items():
        queue.acknowledge(at, kind)
    most = queue.most(scene.pick((_MANY, _MANY, _MANY, 1, 3)))
    has_records = bool(queue.available())
    body = {
        **_who(member),
        "share_session_epoch": _next_epoch(scene, member),
        "max_wait": LONG_MS if has_records else SHORT_MS,
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "max_records": most,
        "batch_size": scene.pick((1, 4, 500)),
        # With a soft limit (0), the brokers end an acquire at different batches.
        "share_acquire_mode": 0 if most == _MANY else 1,
        "is_renew_ack": False,
        "topics": _topics(queue, batches(scene, acknowledged), names=is_new or bool(acknowledged)),
        "forgotten_topics_data": [],
    }
    scene.add("share_fetch", body, version=2, connection=member)
    queue.acquire(member, most)


def share_acknowledge(scene: Scene) -> None:
    """Acknowledge records that a member holds, each in its own way."""
    member = scene.pick(_MEMBERS)
    if member not in scene.queue.epochs:
        share_fetch(scene)
        return
    renews = scene.chance(0.15)
    _acknowledge(scene, member, _kinds(scene, member, renews=renews), renews=renews)


def wrong_acknowledge(scene: Scene) -> None:
    """Acknowledge records that the member does not hold, or in a session that is at another epoch."""
    queue, member = scene.queue, scene.pick(_MEMBERS)
    first = scene.random.randint(0, queue.end)
    kinds = dict.fromkeys(range(first, first + scene.pick((1, 2, 5))), scene.pick((_ACCEPT, _RELEASE, _REJECT)))
    if all(queue.holders.get(at) == member for at in kinds):
        return
    if member in queue.epochs and scene.chance(0.3):
        body = {"share_session_epoch": queue.epochs[member] + scene.pick((1, -1, 7)), "is_renew_ack": False}
        rows = _topics(queue, batches(scene, _kinds(scene, member, renews=False)), names=True)
        scene.add("share_acknowledge", {**_who(member), **body, "topics": rows}, connection=member)
    elif member in queue.epochs:
        body = {"share_session_epoch": _next_epoch(scene, member), "is_renew_ack": False}
        rows = _topics(queue, batches(scene, kinds), names=True)
        scene.add("share_acknowledge", {**_who(member), **body, "topics": rows}, connection=member)


def end_session(scene: Scene) -> None:
    """End a session, perhaps with acknowledgements. Others get the records that it still holds."""
    if scene.queue.epochs:
        _end(scene, scene.pick(sorted(scene.queue.epochs)))


def lock_timeout(scene: Scene) -> None:
    """A member waits until the locks of another one end, and gets its records. The other one acknowledges too late.

    This takes little more time than the locks, because a broker may be slow, and the second locks end, too.
    """
    first, second = scene.random.sample(_MEMBERS, 2)
    queue = scene.queue
    if not queue.available():
        produce(scene)
    _acquire_all(scene, first, LONG_MS)
    wait_ms = 3 * _LOCK_MS
    if _acknowledge_in_time(scene, first):
        # Kafka now ends the lock of each record by itself, and a waiting member would get the first record.
        scene.steps.append(Step(first, PAUSE, 0, {"ms": _ALL_ENDED_MS}))
        wait_ms = LONG_MS
    held = queue.held_by(first)
    queue.release(first)
    _acquire_all(scene, second, wait_ms)
    rows = _topics(queue, batches(scene, dict.fromkeys(held, _ACCEPT)), names=True)
    body = {"share_session_epoch": _next_epoch(scene, first), "is_renew_ack": False, "topics": rows}
    scene.add("share_acknowledge", {**_who(first), **body}, version=2, connection=first)
    _acknowledge(scene, second, dict.fromkeys(queue.held_by(second), scene.pick((_ACCEPT, _REJECT))), renews=False)


def _acknowledge_in_time(scene: Scene, member: int) -> bool:
    """Perhaps renew all locks of a member, or finish some of its records. At least one record stays locked."""
    held = scene.queue.held_by(member)
    if scene.chance(0.2):
        _acknowledge(scene, member, dict.fromkeys(held, _RENEW), renews=True)
    elif len(held) > 1 and scene.chance(0.4):
        some = scene.random.sample(held, scene.random.randrange(1, len(held)))
        kinds = {at: scene.pick((_ACCEPT, _REJECT, _GAP)) for at in sorted(some)}
        _acknowledge(scene, member, kinds, renews=False)
    else:
        return False
    return True


def _acquire_all(scene: Scene, member: int, wait_ms: int) -> None:
    queue = scene.queue
    body = {
        **_who(member),
        "share_session_epoch": _next_epoch(scene, member),
        "max_wait": wait_ms,
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "max_records": _MANY,
        "batch_size": _MANY,
        "share_acquire_mode": 0,
        "is_renew_ack": False,
        "topics": _topics(queue, [], names=True),
        "forgotten_topics_data": [],
    }
    scene.add("share_fetch", body, version=2, connection=member)
    queue.acquire(member, _MANY)


def _acknowledge(scene: Scene, member: int, kinds: dict[int, int], *, renews: bool) -> None:
    queue = scene.queue
    body = {
        **_who(member),
        "share_session_epoch": _next_epoch(scene, member),
        "is_renew_ack": renews,
        "topics": _topics(queue, batches(scene, kinds), names=True),
    }
    scene.add("share_acknowledge", body, version=2, connection=member)
    for at, kind in kinds.items():
        queue.acknowledge(at, kind)


def _end(scene: Scene, member: int) -> None:
    queue = scene.queue
    kinds = _kinds(scene, member, renews=False) if scene.chance(0.3) else {}
    rows = _topics(queue, batches(scene, kinds), names=bool(kinds))
    body = {"share_session_epoch": -1, "is_renew_ack": False, "topics": rows}
    scene.add("share_acknowledge", {**_who(member), **body}, version=2, connection=member)
    del queue.epochs[member]
    for at, kind in kinds.items():
        queue.acknowledge(at, kind)
    queue.release(member)
    scene.steps.append(Step(member, PAUSE, 0, {"ms": _RELEASED_MS}))


def _end_all(scene: Scene) -> None:
    """End all sessions with their connections. Kafka keeps what it knows of a group until then."""
    for member in sorted(scene.queue.epochs):
        _end(scene, member)
    for member in _MEMBERS:
        scene.steps.append(Step(member, DISCONNECT, 0, {}))


# -- parts of requests -----------------------------------------------------------------------------------------


def _who(member: int) -> dict[str, Any]:
    return {"group_id": GROUP, "member_id": f"m{member}"}


def _next_epoch(scene: Scene, member: int) -> int:
    epochs: dict[int, int] = scene.queue.epochs
    epoch = epochs.get(member, 0)
    epochs[member] = epoch + 1
    return epoch


def _topics(queue: Queue, batches: list[dict[str, Any]], *, names: bool) -> list[dict[str, Any]]:
    if not names:
        return []
    row = {"partition_index": _PARTITION, "acknowledgement_batches": batches}
    return [{"topic_id": Ref("id", queue.topic, no_topic_id(queue.topic)), "partitions": [row]}]


def _kinds(scene: Scene, member: int, *, renews: bool) -> dict[int, int]:
    return choose_kinds(scene, scene.queue, member, renews=renews)


def choose_kinds(scene: Scene, queue: Queue, member: int, *, renews: bool = False) -> dict[int, int]:
    """Types for some of the records that a member holds: one for all, one for each range, or one for each record."""
    held = queue.held_by(member)
    if not held:
        return {}
    low = scene.random.randrange(len(held))
    some = held if scene.chance(0.5) else held[low : low + scene.pick((1, 2, 4))]
    types = [_ACCEPT, _ACCEPT, _RELEASE, _REJECT, _GAP]
    if renews:
        types = [_RENEW, _RENEW, _ACCEPT, _RELEASE]
    one = scene.pick(types)
    return {at: scene.pick(types) if scene.chance(0.4) else one for at in some}


def batches(scene: Scene, kinds: dict[int, int]) -> list[dict[str, Any]]:
    """The acknowledgements in batches of neighbours, some of them cut into two."""
    found: list[dict[str, Any]] = []
    for at in sorted(kinds):
        if found and found[-1]["last_offset"] == at - 1 and not scene.chance(0.1):
            found[-1]["last_offset"] = at
            found[-1]["acknowledge_types"].append(kinds[at])
        else:
            found.append({"first_offset": at, "last_offset": at, "acknowledge_types": [kinds[at]]})
    for batch in found:
        types = batch["acknowledge_types"]
        if len(set(types)) == 1 and scene.chance(0.7):
            batch["acknowledge_types"] = types[:1]
    return found
