"""Records: Produce, Fetch, and what is asked about logs."""

from __future__ import annotations

from typing import Any

from tests.differential.scene import Scene
from tests.differential.symbols import NO_TOPIC_ID, Batch, Moment, Ref

_LARGEST = 2**63 - 1
_SEQUENCES = 2**31
_SESSIONS_SINCE = 7
_ODD_BATCHES: tuple[dict[str, int], ...] = (
    {"attributes": 32}, {"attributes": 16}, {"magic": 1}, {"crc": 1}, {"base": 5},
    {"attributes": 64},
)  # fmt: skip
_PRODUCER_WAYS = [
    *["next"] * 6,
    *["dup"] * 3,
    "old",
    "gap",
    "older",
    "newer",
    "newgap",
    "none",
    "wrap",
    "part",
]


def add_producers(scene: Scene) -> None:
    """Two producer ids: p0, p1."""
    for number in (0, 1):
        body = {"transactional_id": None, "transaction_timeout": 60000}
        scene.add("init_producer_id", body, learning={("pid", f"p{number}"): "producer_id"})


def a_batch(scene: Scene, topic: str, partition: int, *, numbers: bool = True) -> Batch:
    """One of a few records; with `numbers` now and then an idempotent producer's."""
    needs_keys = "compact" in topic or "both" in topic
    keys = ["k0", "k1", "k2", "k3" if needs_keys and not scene.chance(0.08) else None]
    records = [
        (
            scene.pick(keys),
            scene.usually(["a", "bb", 10, 50, 100, 0], None, 400),
            scene.usually([0, number * 10, number * 1000], -500),
            [("h", "x")] if scene.chance(0.1) else [],
        )
        for number in range(scene.pick((1, 1, 1, 2, 3, 6)))
    ]
    time = Moment(scene.pick((0, 1000, 50000, scene.random.randint(0, 100000))))
    if "bound" in topic:
        time = Moment(scene.usually([1_790_000], 0, 1_900_000))
    batch = Batch(records=records, time=time)
    if scene.chance(0.05):
        batch["time"] = scene.pick((-1, Moment(9_000_000), Moment(-(10**10)), 0, _LARGEST - 10**6))
    if numbers and scene.chance(0.55):
        _number(scene, batch, topic, partition)
    if scene.chance(0.2):
        batch["codec"] = scene.pick((1, 1, 2, 3, 4))
    if scene.chance(0.02):
        batch.update(scene.pick(_ODD_BATCHES))
    return batch


def _number(scene: Scene, batch: Batch, topic: str, partition: int) -> None:
    """Make it an idempotent producer's: the next one, a repetition, or out of order in some way."""
    producer = scene.pick(("p0", "p0", "p1"))
    epoch, due = scene.sequences.get((producer, topic, partition), (0, 0))
    count = len(batch["records"])
    way = scene.pick(_PRODUCER_WAYS)
    batch.update(pid=Ref("pid", producer, 4242), epoch=epoch, sequence=due)
    if way == "newer":
        batch.update(epoch=epoch + 1, sequence=0)
    elif way == "wrap" and not due:
        batch["sequence"] = _SEQUENCES - 2
    if way in ("next", "newer", "wrap"):
        due = (batch["sequence"] + count) % _SEQUENCES
        scene.sequences[producer, topic, partition] = batch["epoch"], due
        return
    none = {
        "pid": scene.pick((99_999_999, Ref("pid", producer, 4242))),
        "sequence": scene.pick((0, 7, -1)),
    }
    changes: dict[str, dict[str, Any]] = {
        "dup": {"sequence": max(0, due - count * scene.pick((1, 1, 1, 2, 5, 6)))},
        "old": {"sequence": max(0, due - 20)},
        "gap": {"sequence": due + scene.pick((1, 5))},
        "older": {"epoch": epoch - 1},
        "newgap": {"epoch": epoch + 1, "sequence": 3},
        "none": none,
        "part": {"sequence": max(0, due - 1)},
    }
    batch.update(changes[way])


def _records(scene: Scene, topic: str, partition: int) -> Any:
    if not scene.chance(0.02):
        return [a_batch(scene, topic, partition)]
    return scene.pick(
        (
            b"",
            [a_batch(scene, topic, partition), a_batch(scene, topic, partition)],
            [Batch(records=[], time=Moment(0))],
            [Batch(records=[("k", 1_100_000, 0, [])], time=Moment(0))],
        )
    )


def produce(scene: Scene) -> None:
    acks = scene.usually([-1, -1, 1, 1, 0], 2, -2)
    rows = scene.topic_rows(
        "partition_data", lambda topic, index: {"index": index, "records": _records(scene, topic, index)}
    )
    for row in rows:  # Stored twice here, once by Kafka: "what one request names twice".
        row["partition_data"] = list({each["index"]: each for each in row["partition_data"]}.values())
    scene.add("produce", {"acks": acks, "topic_data": rows}, is_unanswered=acks == 0)


def fetch(scene: Scene) -> None:
    version = scene.version("fetch")
    body = {
        "max_wait": scene.pick((0, 0, 20)),
        "min_bytes": scene.pick((0, 1, 1) if scene.is_compressing else (0, 1, 1, 100)),
        "max_bytes": scene.usually([1 << 20, 1 << 30], 0, 1, *_small(scene, 100, 250, 600)),
        "isolation_level": scene.pick((0, 1)),
        "topics": scene.topic_rows("partitions", lambda _, index: _fetched(scene, index)),
    }
    how = "none"
    if version >= _SESSIONS_SINCE:
        how = scene.pick(["none", "new", "new", *["more"] * 5, "wrong", "alien", "close"])
    if how == "none":
        scene.add("fetch", body, version=version)
        return
    learning: dict[tuple[str, Any], str] = {}
    if how == "new" or not scene.sessions:
        session: list[Any] = [f"s{len(scene.sessions)}", 1, scene.pick((0, 0, 1))]
        scene.sessions.append(session)
        body.update(session_id=0, session_epoch=0)
        learning["sess", session[0]] = "session_id"
    else:
        session = scene.pick(scene.sessions[-2:])
        _go_on(scene, body, session, how)
        if how == "close":
            learning["sess", session[0]] = "session_id"
            session[1] = 1
    # Sessions mostly stay on their connections.
    connection = scene.usually([session[2]], 1 - session[2])
    scene.add("fetch", body, version=version, connection=connection, learning=learning)


def _small(scene: Scene, *limits: int) -> tuple[int, ...]:
    return () if scene.is_compressing else limits


def _fetched(scene: Scene, index: int) -> dict[str, int]:
    return {
        "partition": index,
        "fetch_offset": scene.usually([0, 0, 1, 2, 3, 5, 8], -1, 40, _LARGEST),
        "partition_max_bytes": scene.usually([1 << 20, 1 << 20, *_small(scene, 100, 250)], 0, 1),
        "current_leader_epoch": scene.usually([-1, 0], 1, 5),
        "last_fetched_epoch": -1,  # Consumers send no other, see "Fetch" in COMPATIBILITY.md.
        "log_start_offset": -1,
    }


def _go_on(scene: Scene, body: dict[str, Any], session: list[Any], how: str) -> None:
    """Another request of a session, or one that does not fit it."""
    epoch = session[1] + (scene.pick((1, -1, 5)) if how == "wrong" else 0)
    body.update(session_id=Ref("sess", session[0], 77), session_epoch=epoch)
    session[1] += how == "more"
    if scene.chance(0.6):
        body["topics"] = []
    forgets = scene.chance(0.25)
    body["forgotten_topics_data"] = scene.topic_rows("partitions", lambda _, index: index) if forgets else []
    if how == "alien":
        strange = ({"session_id": 123456}, {"session_id": 0, "session_epoch": 3}, {"session_id": -1})
        body.update(scene.pick(strange))
    elif how == "close":
        body["session_epoch"] = scene.pick((-1, 0))


def waiting_fetch(scene: Scene) -> None:
    """One that a later Produce ends."""
    topic = scene.topic(0)
    wanted = {
        "partition": scene.random.randrange(scene.topics[topic]),
        "fetch_offset": scene.pick((0, 1, 2)),
        "partition_max_bytes": 1 << 20,
    }
    row = {"topic": topic, "topic_id": Ref("id", topic, NO_TOPIC_ID), "partitions": [wanted]}
    body = {"max_wait": 3000, "min_bytes": scene.pick((1, *_small(scene, 200))), "topics": [row]}
    scene.add("fetch", body, connection=5, may_wait=True)
    produce(scene)
    produce(scene)


def init_producer_id(scene: Scene) -> None:
    body = {
        "transactional_id": scene.usually([None], "~t", ""),
        "transaction_timeout": scene.usually([60000], 0, -1),
        "producer_id": scene.usually([-1], Ref("pid", "p0", 5), 5),
        "producer_epoch": scene.usually([-1], 0, 3),
    }
    scene.add("init_producer_id", body, learning={("pid", scene.pick(("p1", "p2"))): "producer_id"})


def _time_asked(scene: Scene) -> Any:
    since = scene.pick((-5, 0, 1, 999, 1000, 1001, 50000, 60000, 200_000, 1_790_000, 3_000_000))
    odd = scene.usually([0, _LARGEST], -6, -7)
    return scene.pick((-1, -2, -3, -4, -5, Moment(since), odd))


def list_offsets(scene: Scene) -> None:
    rows = scene.topic_rows(
        "partitions",
        lambda _, index: {
            "partition_index": index,
            "current_leader_epoch": scene.usually([-1, 0], 1),
            "timestamp": _time_asked(scene),
        },
    )
    scene.add("list_offsets", {"replica_id": -1, "isolation_level": scene.pick((0, 0, 1)), "topics": rows})


def offset_for_leader_epoch(scene: Scene) -> None:
    rows = scene.topic_rows(
        "partitions",
        lambda _, index: {
            "partition": index,
            "leader_epoch": scene.pick((-1, 0, 0, 1, 5)),
            "current_leader_epoch": scene.usually([-1, 0], 1),
        },
    )
    scene.add("offset_for_leader_epoch", {"replica_id": scene.pick((-1, -2)), "topics": rows})


def delete_records(scene: Scene) -> None:
    rows = scene.topic_rows(
        "partitions",
        lambda _, index: {"partition_index": index, "offset": scene.usually([0, 1, 1, 2, 4], -1, -2, 100)},
    )
    scene.add("delete_records", {"topics": rows})


def describe_producers(scene: Scene) -> None:
    scene.add("describe_producers", {"topics": scene.topic_rows("partition_indexes", lambda _, index: index)})
