"""The data directory that is damaged, and everything a client was promised of it."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from kproc.broker.share.state.messages import state_key
from kproc.broker.storage.checkpoints import RECOVERY_POINT_FILE
from kproc.broker.storage.offset_checkpoints import BY_ID_SUFFIX
from kproc.wire.header import ApiKey
from kproc.wire.record_batch import TRANSACTIONAL
from tests.damage.warm_broker import WarmBroker
from tests.support.groups import commit, find_coordinator, streams_join
from tests.support.raw import RawClient, batch, produce_fields
from tests.support.wait import wait_until

Partition = tuple[str, int]
GROUP: Final = "group"
SHARE_GROUP: Final = "share-group"
STREAMS_GROUP: Final = "streams-group"
PRODUCER_TOPIC: Final = "idempotent"
_LARGE: Final = 90_000  # Bytes of a value: a segment of 1 MiB, the smallest, holds eleven.
_SMALL_SEGMENTS: Final = {"segment.bytes": "1048576"}
_COMPACTED: Final = {
    **_SMALL_SEGMENTS,
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "max.compaction.lag.ms": "1000",
}


@dataclass
class Promises:
    """Acknowledged records by partition."""

    records: dict[Partition, dict[int, bytes]] = field(default_factory=dict)
    starts: dict[Partition, int] = field(default_factory=dict)
    ends: dict[Partition, int] = field(default_factory=dict)
    # Offsets that a read_committed consumer must not see.
    aborted: dict[Partition, set[int]] = field(default_factory=dict)
    compacted: set[Partition] = field(default_factory=set)
    offsets: dict[Partition, int] = field(default_factory=dict)  # That the group committed.
    share_starts: dict[int, int] = field(default_factory=dict)  # By partition of "plain": where the share group is.
    streams_epoch: int = 0  # That the member of the streams group has learnt.
    last_batch: tuple[bytes, int] = (b"", -1)  # Of the idempotent producer, and its offset.


def build(directory: Path, *, is_clean: bool) -> Promises:
    """Fill a new data directory by a broker that stops in order or is killed; return what it has promised."""
    promises = Promises()
    broker = WarmBroker(directory)
    with broker, RawClient(broker.bootstrap) as client:
        _plain(client, promises)
        _compacted(client, promises, directory)
        _idempotent(client, promises)
        _transactions(client, promises)
        committed = {0: 3, 1: 5}
        find_coordinator(client, GROUP)
        assert set(commit(client, GROUP, "plain", committed).values()) == {0}
        promises.offsets = {("plain", index): at for index, at in committed.items()}
        _share_states(client, promises)
        _streams_group(client, promises)
        if not is_clean:
            _await_checkpoint(directory)
            _await_checkpoint(directory)
            broker.kill()
    return promises


def _streams_group(client: RawClient, promises: Promises) -> None:
    """A streams group with a member and a topology: records of the types 17 to 23."""
    find_coordinator(client, STREAMS_GROUP)
    for _ in range(2):  # The second join raises the epoch once more.
        join = streams_join(STREAMS_GROUP, ["plain"], rack_id=f"rack-{promises.streams_epoch}")
        answer = client.call(ApiKey.STREAMS_GROUP_HEARTBEAT, 1, join)
        assert answer["error_code"] == 0, answer
        promises.streams_epoch = answer["member_epoch"]


def _share_states(client: RawClient, promises: Promises) -> None:
    """States of share partitions, each a snapshot and updates that build on it."""
    topic_id = client.topic_id("plain")
    keys = [state_key(SHARE_GROUP, topic_id, index) for index in range(2)]

    def is_found() -> bool:
        fields = {"key_type": 2, "coordinator_keys": keys}
        rows = client.call(ApiKey.FIND_COORDINATOR, 6, fields)["coordinators"]
        return not any(row["error_code"] for row in rows)

    wait_until(is_found, seconds=20, what="a share coordinator")
    for index in range(2):
        row: dict[str, Any] = {"partition": index, "state_epoch": 0, "start_offset": 0}
        _change_state(client, ApiKey.INITIALIZE_SHARE_GROUP_STATE, topic_id, row)
        for start in range(6 + index):
            batches = [
                {"first_offset": start, "last_offset": start, "delivery_state": 2, "delivery_count": 1}
            ]
            row = {**row, "leader_epoch": 0, "start_offset": start, "state_batches": batches}
            _change_state(client, ApiKey.WRITE_SHARE_GROUP_STATE, topic_id, row)
            promises.share_starts[index] = start


def _change_state(client: RawClient, key: ApiKey, topic_id: bytes, row: dict[str, Any]) -> None:
    fields = {"group_id": SHARE_GROUP, "topics": [{"topic_id": topic_id, "partitions": [row]}]}
    (result,) = client.call(key, 0, fields)["results"]
    assert result["partitions"][0]["error_code"] == 0, result


def copy_of(source: Path, target: Path) -> None:
    """Copy a data directory with the marks that the files carry."""
    shutil.copytree(source, target)


def _produce(client: RawClient, promises: Promises, key: Partition, values: Sequence[bytes], **more: Any) -> int:
    row = client.produce(key[0], batch(*values, **more), partition=key[1], acks=-1)
    assert row["error_code"] == 0, row
    base = int(row["base_offset"])
    promises.records.setdefault(key, {}).update({base + n: value for n, value in enumerate(values)})
    promises.ends[key] = base + len(values)
    return base


def _plain(client: RawClient, promises: Promises) -> None:
    """Two partitions of several segments. The second one's log start lies inside a segment."""
    client.create_topic("plain", partitions=2, configs=_SMALL_SEGMENTS)
    for number in range(25):
        for index in range(2):
            value = b"%d-%d." % (index, number)
            _produce(client, promises, ("plain", index), [value + bytes(_LARGE), value, value + b"x"])
    client.delete_records("plain", 7, partition=1)
    promises.starts["plain", 1] = 7


def _compacted(client: RawClient, promises: Promises, directory: Path) -> None:
    client.create_topic("compacted", configs=_COMPACTED)
    for number in range(26):
        _produce(client, promises, ("compacted", 0), [b"c%d." % number + bytes(_LARGE), b"c%d" % number])
    promises.compacted.add(("compacted", 0))
    wait_until((directory / "cleaner-offset-checkpoint").exists, seconds=20, what="a compaction")


def _idempotent(client: RawClient, promises: Promises) -> None:
    client.create_topic(PRODUCER_TOPIC)
    fields = {"transactional_id": None, "transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1}
    made = client.call(ApiKey.INIT_PRODUCER_ID, 4, fields)
    for number in range(6):
        more = {
            "producer_id": made["producer_id"],
            "producer_epoch": made["producer_epoch"],
            "base_sequence": number,
        }
        value = b"i%d" % number
        base = _produce(client, promises, (PRODUCER_TOPIC, 0), [value], **more)
        promises.last_batch = batch(value, **more), base


def _transactions(client: RawClient, promises: Promises) -> None:
    """Every second transaction is aborted."""
    key = ("transactional", 0)
    client.create_topic(key[0], configs=_SMALL_SEGMENTS)
    for number in range(8):
        made = _init_transactional(client)
        producer = {"producer_id": made["producer_id"], "producer_epoch": made["producer_epoch"]}
        fields = {
            "v3_and_below_transactional_id": "txn",
            "v3_and_below_producer_id": producer["producer_id"],
            "v3_and_below_producer_epoch": producer["producer_epoch"],
            "v3_and_below_topics": [{"name": key[0], "partitions": [0]}],
        }
        _until(lambda fields=fields: client.call(ApiKey.ADD_PARTITIONS_TO_TXN, 3, fields)["results_by_topic_v3_and_below"][0]["results_by_partition"][0]["partition_error_code"])  # type: ignore[misc]  # noqa: E501
        value = b"t%d." % number + bytes(_LARGE if number % 3 == 0 else 10)
        records = batch(value, value[:5], **producer, base_sequence=0, flags=TRANSACTIONAL)
        request = produce_fields([(key[0], bytes(16), [(0, records)])], acks=-1)
        request["transactional_id"] = "txn"
        row = client.call(ApiKey.PRODUCE, 9, request)["responses"][0]["partition_responses"][0]
        assert row["error_code"] == 0, row
        base = int(row["base_offset"])
        promises.records.setdefault(key, {}).update({base: value, base + 1: value[:5]})
        is_aborted = number % 2 == 1
        if is_aborted:
            promises.aborted.setdefault(key, set()).update({base, base + 1})
        end = {**producer, "transactional_id": "txn", "committed": not is_aborted}
        _until(lambda end=end: client.call(ApiKey.END_TXN, 3, end)["error_code"])  # type: ignore[misc]
        promises.ends[key] = base + 3


def _init_transactional(client: RawClient) -> dict[str, Any]:
    fields = {"transactional_id": "txn", "transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1}
    made: dict[str, Any] = {}
    wanted = {"key_type": 1, "coordinator_keys": ["txn"]}
    _until(lambda: client.call(ApiKey.FIND_COORDINATOR, 4, wanted)["coordinators"][0]["error_code"])

    def code() -> int:
        made.update(client.call(ApiKey.INIT_PRODUCER_ID, 4, fields))
        return int(made["error_code"])

    _until(code)
    return made


def _await_checkpoint(directory: Path) -> None:
    """The recovery points are written once more."""
    path = directory / f"{RECOVERY_POINT_FILE}{BY_ID_SUFFIX}"
    before = path.stat().st_mtime_ns if path.exists() else 0
    _until(lambda: not path.exists() or path.stat().st_mtime_ns == before)


def _until(code: Any) -> None:
    """Call until the error code is 0."""
    wait_until(lambda: not code(), seconds=20, what="an answer without an error")
