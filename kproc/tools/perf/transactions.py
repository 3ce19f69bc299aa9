"""Transactions of a load: each connection commits its records in transactions of a fixed size, one after the other.

It uses the first version of the transaction protocol (AddPartitionsToTxn, Produce, EndTxn), which brokers from Kafka
0.11 on support.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from struct import Struct
from typing import Any, Final

from kproc.client import ApiError, Client, ClientError, error_text
from kproc.common.errors import ErrorCode
from kproc.tools.perf.load import ConnectTo, LoadTotals, Pace, RecordShape, connect_all
from kproc.tools.perf.round_trip import base_offset, produce_request
from kproc.wire.batch_header import ATTRIBUTES_AT, CRC_AT, CRC_FROM
from kproc.wire.header import ApiKey
from kproc.wire.record_batch import TRANSACTIONAL, crc_of

_TIMEOUT_MS: Final = 60_000  # Kafka's default of transaction.timeout.ms.
_RETRY_S: Final = 0.005
_RETRY_TIMEOUT_S: Final = 30.0
_SEQUENCE_MASK: Final = 0x7FFF_FFFF
_CRC: Final = Struct(">I")
_PRODUCER: Final = Struct(">qhi")  # Producer id, epoch and sequence in the header of a batch.
_PRODUCER_AT: Final = 43
_ALL: Final = -1
# Retriable errors: the coordinator is being created or loaded, or still writes the markers of the last transaction.
_RETRIABLE: Final = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)


def find_coordinator(client: Client, transactional_id: str) -> tuple[str, int]:
    """Return the address of a transactional id's coordinator. Wait until it exists. Raises ClientError."""
    fields = {"key": transactional_id, "key_type": 1}
    answer = _request(client, ApiKey.FIND_COORDINATOR, fields, lambda answer: answer["error_code"])
    return answer["host"], answer["port"]


def _request(
    client: Client, api_key: ApiKey, fields: Mapping[str, Any], code_of: Callable[[dict[str, Any]], int]
) -> dict[str, Any]:
    """Send a request in version 3 or lower and return the response. Retry it for up to 30 s. Raises ClientError."""
    end_s = time.monotonic() + _RETRY_TIMEOUT_S
    while True:
        answer = client.call_latest(api_key, fields, newest=3)
        code = code_of(answer)
        if not code:
            return answer
        if code not in _RETRIABLE or time.monotonic() > end_s:
            raise ApiError(code, f"{api_key.name}: {error_text(code)}")
        threading.Event().wait(_RETRY_S)


class TransactionSeries:
    """The transactions of one transactional id, of which at most one is open."""

    def __init__(self, coordinator: Client, transactional_id: str) -> None:
        self.transactional_id = transactional_id
        self._coordinator = coordinator
        fields = {"transactional_id": transactional_id, "transaction_timeout": _TIMEOUT_MS}
        answer = _request(coordinator, ApiKey.INIT_PRODUCER_ID, fields, lambda answer: answer["error_code"])
        self._producer_id, self._epoch = answer["producer_id"], answer["producer_epoch"]
        self._partitions: set[int] = set()
        self._sequences: dict[int, int] = {}

    @property
    def is_open(self) -> bool:
        return bool(self._partitions)

    def add(self, topic: str, partition: int) -> None:
        """Add a partition to the transaction if the transaction lacks it. The first partition opens the transaction."""
        if partition in self._partitions:
            return
        fields = {
            "v3_and_below_transactional_id": self.transactional_id,
            "v3_and_below_producer_id": self._producer_id,
            "v3_and_below_producer_epoch": self._epoch,
            "v3_and_below_topics": [{"name": topic, "partitions": [partition]}],
        }
        _request(self._coordinator, ApiKey.ADD_PARTITIONS_TO_TXN, fields, _code_of_partition)
        self._partitions.add(partition)

    def stamp(self, batch: bytearray, partition: int, count: int) -> None:
        """Write producer id, epoch and the partition's next sequence number into a batch of `count` records."""
        sequence = self._sequences.get(partition, 0)
        self._sequences[partition] = (sequence + count) & _SEQUENCE_MASK
        batch[ATTRIBUTES_AT] |= TRANSACTIONAL
        producer = _PRODUCER.pack(self._producer_id, self._epoch, sequence)
        batch[_PRODUCER_AT : _PRODUCER_AT + len(producer)] = producer
        batch[CRC_AT:CRC_FROM] = _CRC.pack(crc_of(batch))

    def finish(self, *, commit: bool) -> None:
        """Commit or abort the open transaction. Raises ClientError."""
        fields = {
            "transactional_id": self.transactional_id,
            "producer_id": self._producer_id,
            "producer_epoch": self._epoch,
            "committed": commit,
        }
        self._partitions.clear()
        _request(self._coordinator, ApiKey.END_TXN, fields, lambda answer: answer["error_code"])

    def close(self) -> None:
        """Abort an open transaction, so that no read_committed consumer waits for its timeout. Close the connection."""
        if self.is_open:
            with suppress(ClientError):
                self.finish(commit=False)
        self._coordinator.close()


def _code_of_partition(answer: dict[str, Any]) -> int:
    (topic,) = answer["results_by_topic_v3_and_below"]
    code: int = topic["results_by_partition"][0]["partition_error_code"]
    return code


class TransactionConnection:
    """Produces transactions of `records` records in batches to its partitions in turn. Totals count committed records.

    records_left: number of records to produce, or None for no limit. pace: times at which transactions are due, or None
    to start the next one as soon as the last one is committed.
    """

    def __init__(
        self,
        connect: ConnectTo,
        transaction: TransactionSeries,
        place: tuple[str, Sequence[int]],
        *,
        shape: RecordShape,
        batch_records: int,
        records: int,
        records_left: int | None = None,
        pace: Pace | None = None,
    ) -> None:
        self.totals = LoadTotals()
        self._transaction = transaction
        self._topic, self._partitions = place
        self._shape = shape
        self._batch_records = batch_records
        self._records = records
        self._left = records_left
        self._pace = pace
        try:
            self._clients = connect_all(connect, self._partitions)
        except BaseException:
            transaction.close()
            raise
        self._batches: dict[int, bytearray] = {}  # By number of records.
        self._turn = 0

    def close(self) -> None:
        self._transaction.close()
        for client in self._clients.values():
            client.close()

    def step(self, stop: threading.Event) -> bool:
        """Produce and commit one transaction. A stop in the middle aborts it."""
        wanted = self._records if self._left is None else min(self._records, self._left)
        if wanted == 0:
            return False
        begin_ns: int | None = time.perf_counter_ns()
        if self._pace is not None and (begin_ns := self._pace.wait(stop)) is None:
            return False
        assert begin_ns is not None
        done = size = requests = 0
        while done < wanted:
            if stop.is_set():
                return False
            count = min(self._batch_records, wanted - done)
            size += self._produce(count)
            done += count
            requests += 1
        commit_ns = time.perf_counter_ns()
        self._transaction.finish(commit=True)
        end_ns = time.perf_counter_ns()
        totals = self.totals
        totals.commit_times.add(end_ns - commit_ns)
        totals.transaction_times.add(end_ns - begin_ns)
        totals.requests += requests
        totals.records += wanted
        totals.size += size
        if self._left is not None:
            self._left -= wanted
        return True

    def _produce(self, count: int) -> int:
        """Produce a batch of `count` records to the next partition. Return its size in bytes."""
        partition = self._partitions[self._turn]
        self._turn = (self._turn + 1) % len(self._partitions)
        client = self._clients[partition]
        client.log_in_if_due()
        transaction = self._transaction
        transaction.add(self._topic, partition)
        batch = self._batches.get(count)
        if batch is None:
            batch = self._batches[count] = bytearray(self._shape.make_batch(count))
        transaction.stamp(batch, partition, count)
        request = produce_request(
            client, self._topic, partition, bytes(batch), _ALL, transaction.transactional_id
        )
        begin_ns = time.perf_counter_ns()
        request.send()
        frame = request.receive()
        self.totals.times.add(time.perf_counter_ns() - begin_ns)
        answer = request.decode(frame)
        base_offset(answer)
        self.totals.throttled_ms += answer["throttle_time"]
        return len(batch)
