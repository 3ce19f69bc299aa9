"""Transactions of a load, against a coordinator with scripted answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from kproc.client import ApiError, ClientError
from kproc.common.errors import ErrorCode
from kproc.tools.perf.load import RecordShape
from kproc.tools.perf.round_trip import equal_records
from kproc.tools.perf.transactions import TransactionConnection, TransactionSeries
from kproc.wire.compression import Compression
from kproc.wire.header import ApiKey
from kproc.wire.record_batch import check_batch


class Coordinator:
    """Answers with the codes of a list in turn, and then with success."""

    def __init__(self, *codes: ErrorCode) -> None:
        self.codes = list(codes)
        self.requests: list[tuple[ApiKey, Mapping[str, Any]]] = []
        self.is_closed = False

    def call_latest(self, api_key: ApiKey, fields: Mapping[str, Any], *, newest: int) -> dict[str, Any]:
        assert newest == 3, "the first version of the protocol"
        self.requests.append((api_key, fields))
        code = self.codes.pop(0) if self.codes else 0
        row = {"partition_index": 0, "partition_error_code": code}
        return {
            "error_code": code,
            "producer_id": 7,
            "producer_epoch": 2,
            "results_by_topic_v3_and_below": [{"name": "t", "results_by_partition": [row]}],
        }

    def close(self) -> None:
        self.is_closed = True

    def keys(self) -> list[ApiKey]:
        return [key for key, _ in self.requests]


def start(coordinator: Any) -> TransactionSeries:
    return TransactionSeries(coordinator, "id")


def test_coordinator_is_closed_when_a_leader_is_down() -> None:
    def connect(_partition: int) -> Any:
        raise ClientError("it is down")

    coordinator = Coordinator()
    with pytest.raises(ClientError, match="it is down"):
        TransactionConnection(
            connect,
            start(coordinator),
            ("t", [0]),
            shape=RecordShape(1, 0, Compression.NONE),
            batch_records=1,
            records=1,
        )
    assert coordinator.is_closed


def test_partition_is_added_once_to_each_transaction() -> None:
    coordinator = Coordinator()
    transaction = start(coordinator)
    for _ in range(2):
        transaction.add("t", 0)
        transaction.add("t", 0)
        assert transaction.is_open
        transaction.finish(commit=True)
    add, end = ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.END_TXN
    assert coordinator.keys() == [ApiKey.INIT_PRODUCER_ID, add, end, add, end]
    assert coordinator.requests[-1][1]["committed"]


def test_request_is_retried_while_markers_are_written() -> None:
    coordinator = Coordinator(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    transaction = start(coordinator)
    coordinator.codes += [ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.CONCURRENT_TRANSACTIONS]
    transaction.add("t", 0)
    assert len(coordinator.requests) == 2 + 3


def test_error_of_the_coordinator_names_the_request() -> None:
    transaction = start(coordinator := Coordinator())
    coordinator.codes.append(ErrorCode.PRODUCER_FENCED)
    with pytest.raises(ApiError, match=r"^ADD_PARTITIONS_TO_TXN: "):
        transaction.add("t", 0)


def test_stamped_batches_have_rising_sequences_and_a_valid_crc() -> None:
    transaction = start(Coordinator())
    batch = bytearray(equal_records(5, b"v"))
    for sequence in (0, 5, 10):
        transaction.stamp(batch, 0, 5)
        header = check_batch(batch)
        assert header.is_transactional
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 2, sequence)
    transaction.stamp(batch, 1, 5)
    assert check_batch(batch).base_sequence == 0


def test_close_aborts_only_an_open_transaction() -> None:
    for is_open in (True, False):
        transaction = start(coordinator := Coordinator())
        if is_open:
            transaction.add("t", 0)
        transaction.close()
        ends = [fields["committed"] for key, fields in coordinator.requests if key is ApiKey.END_TXN]
        assert ends == [False] * is_open
        assert coordinator.is_closed
