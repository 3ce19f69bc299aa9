"""Transactional producers at Handlers that share coordinators and partitions, and the markers in their logs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kproc.broker.cluster.internal_topics import TRANSACTION_STATE_TOPIC
from kproc.broker.coordinator.topic_coordinators import partition_for
from kproc.common.errors import ErrorCode
from kproc.wire.batch_header import HEADER_BYTES
from kproc.wire.header import ApiKey
from kproc.wire.record_batch import decode_records, parse_header
from tests.support.handler_rig import HandlerRig
from tests.support.logs import read_all

Start = Callable[..., HandlerRig]
Fields = dict[str, Any]
TOPIC = "orders"
PARTITIONS = 4
SETTINGS = {"transaction.state.log.num.partitions": "4", "offsets.topic.num.partitions": "2"}


class Producer:
    """A transactional producer's requests, at one Handler."""

    def __init__(self, rig: HandlerRig, name: str = "payments", *, at: int = 0) -> None:
        self.rig = rig
        self.name = name
        self.at = at
        self.producer_id = self.epoch = -1

    def ask(self, key: ApiKey, version: int, **fields: Any) -> Fields:
        return self.rig.processors[self.at].ask(key, version, fields)

    def find(self) -> Fields:
        (row,) = self.ask(ApiKey.FIND_COORDINATOR, 4, key_type=1, coordinator_keys=[self.name])[
            "coordinators"
        ]
        return dict(row)

    def init(self, *, version: int = 5, timeout_ms: int = 60_000) -> int:
        """Begin; the code. COORDINATOR_LOAD_IN_PROGRESS is asked again, as clients do."""
        for _ in range(3):
            answer = self.ask(
                ApiKey.INIT_PRODUCER_ID,
                version,
                transactional_id=self.name,
                transaction_timeout=timeout_ms,
                producer_id=-1,
                producer_epoch=-1,
            )
            if answer["error_code"] != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                break
        if not answer["error_code"]:
            self.producer_id, self.epoch = answer["producer_id"], answer["producer_epoch"]
        return int(answer["error_code"])

    def add(self, *indexes: int, version: int = 3, topic: str = TOPIC) -> list[int]:
        """AddPartitionsToTxn; the partitions' codes."""
        answer = self.ask(
            ApiKey.ADD_PARTITIONS_TO_TXN,
            version,
            v3_and_below_transactional_id=self.name,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[{"name": topic, "partitions": list(indexes)}],
        )
        (row,) = answer["results_by_topic_v3_and_below"]
        return [each["partition_error_code"] for each in row["results_by_partition"]]

    def end(self, *, commits: bool = True, version: int = 5) -> int:
        answer = self.ask(
            ApiKey.END_TXN,
            version,
            transactional_id=self.name,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=commits,
        )
        if not answer["error_code"] and version >= 5:
            self.producer_id, self.epoch = answer["producer_id"], answer["producer_epoch"]
        return int(answer["error_code"])

    def describe(self) -> Fields:
        (row,) = self.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, transactional_ids=[self.name])[
            "transaction_states"
        ]
        return dict(row)


def cluster(start: Start, *, handlers: int = 2, **settings: str) -> HandlerRig:
    rig = start(handlers=handlers, settings={**SETTINGS, **settings})
    rig.controller_serves |= {"raise_leader_epochs", "allocate_producer_ids", "auto_create_topics"}
    rig.create_topic(TOPIC, partitions=PARTITIONS)
    return rig


def begun(rig: HandlerRig, name: str = "payments", *, at: int = 0) -> Producer:
    producer = Producer(rig, name, at=at)
    assert producer.find()["error_code"] == ErrorCode.NONE
    assert producer.init() == ErrorCode.NONE
    return producer


def settled(rig: HandlerRig) -> None:
    """Long enough for every marker, sent again if need be."""
    for _ in range(4):
        rig.advance_ms(100)


def home_of(rig: HandlerRig, name: str = "payments") -> int:
    """The Handler that coordinates it."""
    Producer(rig, name).find()
    return rig.owner(TRANSACTION_STATE_TOPIC, partition_for(name, 4))


def written(rig: HandlerRig, index: int) -> list[tuple[bytes | None, bytes | None]]:
    """Keys and values of all records of a partition."""
    log = rig.open("t", index).log
    return (
        [(row.key, row.value) for row in decode_records(log.reader.read_bytes(0, 1000))]
        if read_all(log)
        else []
    )


def markers_of(rig: HandlerRig, index: int, topic: str = TOPIC) -> list[tuple[int, bool, int]]:
    """(producer's epoch, is commit, coordinator's epoch) of each in a partition's log."""
    log = rig.open(topic, index).log
    found = []
    data = log.reader.read_bytes(0, 1 << 20) if log.state.end_offset else b""
    position = 0
    while position + HEADER_BYTES <= len(data):
        header = parse_header(memoryview(data), position)
        batch = memoryview(data)[position : position + header.total_bytes]
        position += header.total_bytes
        if header.is_control:
            (record,) = decode_records(batch)
            assert record.key is not None
            assert record.value is not None
            found.append(
                (header.producer_epoch, record.key[3] == 1, int.from_bytes(record.value[2:6], "big"))
            )
    return found
