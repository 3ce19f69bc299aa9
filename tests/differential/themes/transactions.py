"""Transactions. Producer ~t0 begins as a client of transaction.version 2, ~t1 as an older one; any may write as ~t2."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.differential.scene import Scene
from tests.differential.symbols import Batch, Ref
from tests.differential.themes import records

_TRANSACTIONAL = 16
# The versions from which on a client of transaction.version 2 sends these.
_SINCE = {"produce": 12, "end_txn": 5, "txn_offset_commit": 5}
_PATTERNS = [None, None, "~t.*", "~t0", ".*", "", "~t[01]", "^~t0$", "~none"]
_STATES: tuple[list[str], ...] = (
    [], [], ["Ongoing"], ["CompleteCommit", "CompleteAbort"], ["Empty"], ["x"], ["Dead", "Ongoing"],
)  # fmt: skip


@dataclass
class _Producer:
    """What a transactional id's client knows."""

    name: str
    is_new: bool
    dues: dict[tuple[str, int], int] = field(default_factory=dict)  # Next sequence numbers, by partition.

    def known(self, kind: str, other: int, add: int = 0) -> Ref:
        return Ref(kind, self.name, other, add)

    def version(self, scene: Scene, api: str) -> int:
        """One that such a client sends, as a rule."""
        since = _SINCE[api]
        fitting = [each for each in scene.versions[api] if (each >= since) == self.is_new]
        # Whoever writes both ways loses more here, see "transactions" in COMPATIBILITY.md.
        return scene.version(api) if api != "produce" and scene.chance(0.05) else scene.pick(fitting)

    def named(self, scene: Scene) -> dict[str, Any]:
        """Who asks, mostly with the id and the epoch that it has."""
        pid, epoch = self.known("pid", 4242), self.known("epoch", 0)
        return {
            "transactional_id": scene.usually([self.name] * 3, "~tx", ""),
            "producer_id": scene.usually([pid] * 3, 99_999_999, -1),
            "producer_epoch": scene.usually(
                [epoch] * 3, self.known("epoch", 0, 1), self.known("epoch", 0, -1), -1, 32767
            ),
        }

    @property
    def learning(self) -> dict[tuple[str, Any], str]:
        return {("pid", self.name): "producer_id", ("epoch", self.name): "producer_epoch"}


def _producer(scene: Scene) -> _Producer:
    name = scene.pick(("~t0", "~t0", "~t0", "~t1", "~t1", "~t2"))
    if name not in scene.transactional:
        scene.transactional[name] = _Producer(name, name == "~t0" or (name != "~t1" and scene.chance(0.5)))
    found = scene.transactional[name]
    assert isinstance(found, _Producer)
    return found


def _batch(scene: Scene, topic: str, index: int) -> Batch:
    """One that is not damaged: such batches are refused here before their transaction's coordinator is asked."""
    batch = records.a_batch(scene, topic, index, numbers=False)
    batch.pop("crc", None)
    return batch


def add_producers(scene: Scene) -> None:
    """Mostly with their ids."""
    while len(scene.transactional) < 2:
        _producer(scene)
    for producer in scene.transactional.values():
        if scene.chance(0.9):
            _init(scene, producer)


def _init(scene: Scene, producer: _Producer, **odd: Any) -> None:
    body = {
        "transactional_id": producer.name,
        "transaction_timeout": 60000,
        "producer_id": -1,
        "producer_epoch": -1,
        **odd,
    }
    scene.add("init_producer_id", body, learning=producer.learning)
    producer.dues.clear()


def init_producer_id(scene: Scene) -> None:
    producer = _producer(scene)
    own = scene.chance(0.4)
    odd = {
        "transaction_timeout": scene.usually([60000, 60000, 120_000], 0, -1, 900_001),
        "producer_id": producer.known("pid", 4242) if own else scene.usually([-1], 5),
        "producer_epoch": scene.usually([producer.known("epoch", 0) if own else -1], 0, -1, 3),
    }
    _init(scene, producer, **odd)


def produce(scene: Scene) -> None:
    producer = _producer(scene)
    who = producer.named(scene)

    def one(topic: str, index: int) -> dict[str, Any]:
        batch = _batch(scene, topic, index)
        due = producer.dues.get((topic, index), 0)
        batch.update(
            pid=who["producer_id"], epoch=who["producer_epoch"], sequence=scene.usually([due] * 2, due + 1, 0)
        )
        if not scene.chance(0.03):
            batch["attributes"] = batch.get("attributes", 0) | _TRANSACTIONAL
        producer.dues[topic, index] = batch["sequence"] + len(batch["records"])
        return {"index": index, "records": [batch]}

    rows = scene.topic_rows("partition_data", one)
    for row in rows:
        row["partition_data"] = list({each["index"]: each for each in row["partition_data"]}.values())
    body = {
        "acks": scene.usually([-1, -1, -1], 1),
        "topic_data": rows,
        "transactional_id": scene.usually([producer.name] * 3, None, "~tx", ""),
    }
    scene.add("produce", body, version=producer.version(scene, "produce"))


def add_partitions_to_txn(scene: Scene) -> None:
    producer = _producer(scene)
    who = producer.named(scene)
    rows = scene.topic_rows("partitions", lambda _, index: index)
    one = who | {"verify_only": scene.chance(0.3), "topics": rows}
    body = {f"v3_and_below_{key}": value for key, value in (who | {"topics": rows}).items()}
    scene.add("add_partitions_to_txn", body | {"transactions": [one]})


def add_offsets_to_txn(scene: Scene) -> None:
    body = _producer(scene).named(scene)
    scene.add("add_offsets_to_txn", body | {"group_id": scene.usually(["~g0", "~g0", "~g2"], "")})


def txn_offset_commit(scene: Scene) -> None:
    producer = _producer(scene)
    rows = scene.topic_rows(
        "partitions",
        lambda _, index: {
            "partition_index": index,
            "committed_offset": scene.usually([0, 1, 5, 100], -1),
            "committed_leader_epoch": scene.usually([-1, 0], 3),
            "committed_metadata": scene.usually(["", "m"], None, "m" * 4097),
        },
    )
    body = producer.named(scene) | {
        "group_id": scene.usually(["~g0", "~g0", "~g2"], ""),
        "generation_id": (generation := scene.usually([-1, -1], 0, 1)),
        "generation_id_or_member_epoch": generation,  # Its name since version 6.
        "member_id": scene.usually([""] * 2, "nope"),
        "group_instance_id": scene.usually([None] * 2, "ix"),
        "topics": rows,
    }
    scene.add("txn_offset_commit", body, version=producer.version(scene, "txn_offset_commit"))


def end_txn(scene: Scene) -> None:
    producer = _producer(scene)
    version = producer.version(scene, "end_txn")
    body = producer.named(scene) | {"committed": scene.chance(0.6)}
    scene.add("end_txn", body, version=version, learning=producer.learning)
    if version >= _SINCE["end_txn"]:  # The next transaction has an epoch of its own.
        producer.dues.clear()


def whole_transaction(scene: Scene) -> None:
    """What clients do: write, commit offsets, end."""
    producer = _producer(scene)
    who: dict[str, Any] = {
        "transactional_id": producer.name,
        "producer_id": producer.known("pid", 4242),
        "producer_epoch": producer.known("epoch", 0),
    }
    topic = scene.topic(0)
    index = scene.random.randrange(scene.topics[topic])
    row = {"name": topic, "topic": topic, "topic_id": Ref("id", topic, b"\xee" * 16)}
    if not producer.is_new:
        old = {**who, "topics": [row | {"partitions": [index]}]}
        body = {f"v3_and_below_{key}": value for key, value in old.items()} | {"transactions": []}
        fitting = [each for each in scene.versions["add_partitions_to_txn"] if each <= 3]
        scene.add("add_partitions_to_txn", body, version=scene.pick(fitting))
    version = producer.version(scene, "produce")
    for _ in range(scene.pick((1, 1, 2))):
        batch = _batch(scene, topic, index)
        due = producer.dues.get((topic, index), 0)
        batch.update(pid=who["producer_id"], epoch=who["producer_epoch"], sequence=due)
        batch["attributes"] = batch.get("attributes", 0) | _TRANSACTIONAL
        producer.dues[topic, index] = due + len(batch["records"])
        rows = [row | {"partition_data": [{"index": index, "records": [batch]}]}]
        body = {"acks": -1, "topic_data": rows, "transactional_id": producer.name}
        scene.add("produce", body, version=version)
    if scene.chance(0.4):
        _commit_offset(scene, producer, who, row, index)
    if scene.chance(0.8):
        version = producer.version(scene, "end_txn")
        ending = who | {"committed": scene.chance(0.6)}
        scene.add("end_txn", ending, version=version, learning=producer.learning)
        if version >= _SINCE["end_txn"]:
            producer.dues.clear()


def _commit_offset(
    scene: Scene, producer: _Producer, who: dict[str, Any], row: dict[str, Any], index: int
) -> None:
    if not producer.is_new:
        scene.add("add_offsets_to_txn", who | {"group_id": "~g0"})
    offset = {
        "partition_index": index,
        "committed_offset": scene.pick((1, 7)),
        "committed_leader_epoch": -1,
        "committed_metadata": "",
    }
    member = {"group_id": "~g0", "generation_id": -1, "member_id": "", "group_instance_id": None}
    body = who | member | {"topics": [row | {"partitions": [offset]}]}
    scene.add("txn_offset_commit", body, version=producer.version(scene, "txn_offset_commit"))


def describe_transactions(scene: Scene) -> None:
    names = scene.random.sample(["~t0", "~t1", "~t2", "~none", ""], scene.pick((1, 1, 2, 3)))
    scene.add("describe_transactions", {"transactional_ids": names})


def list_transactions(scene: Scene) -> None:
    producer = _producer(scene)
    body = {
        "state_filters": scene.pick(_STATES),
        "producer_id_filters": scene.pick(([], [], [producer.known("pid", 4242)], [77])),
        "duration_filter": scene.usually([-1], 0, 10**9),
        "transactional_id_pattern": scene.usually(_PATTERNS, "(", "["),
    }
    scene.add("list_transactions", body)


def write_txn_markers(scene: Scene) -> None:
    producer = _producer(scene)
    marker = {
        "producer_id": scene.usually([producer.known("pid", 4242)] * 2, 77),
        "producer_epoch": scene.usually(
            [producer.known("epoch", 0)] * 2, producer.known("epoch", 0, 1), producer.known("epoch", 0, -1)
        ),
        "transaction_result": scene.chance(0.3),
        "topics": scene.topic_rows("partition_indexes", lambda _, index: index),
        "coordinator_epoch": -1,
        "transaction_version": scene.usually([0, 1, 2], 3),
    }
    scene.add("write_txn_markers", {"markers": [marker]})


def find_coordinator(scene: Scene) -> None:
    body = {"key": scene.usually(["~t0"], ""), "key_type": 1, "coordinator_keys": ["~t0", "~t1"]}
    scene.add("find_coordinator", body)
