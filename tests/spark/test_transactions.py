"""Requests of transactions: which are retried, at which broker, and the meaning of each error code for the commit
protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

pytest.importorskip("pyarrow")

from kproc.client import ApiError, ClientError
from kproc.common.errors import ErrorCode
from kproc.spark.brokers import Cluster, Connecting, Unreachable
from kproc.spark.exactly_once import Mark, Unsettled
from kproc.spark.lane import ProduceFailed, ProducerIdentity
from kproc.spark.offsets import TopicPartition
from kproc.spark.transactions import OpenTransaction, Transactions
from kproc.wire.header import ApiKey

ME = ProducerIdentity(7, 3, "write-0")
PLACES = [TopicPartition("t", 0), TopicPartition("t", 2), TopicPartition("u", 1)]
Answer = Callable[[Mapping[str, Any]], dict[str, Any]]


class Scripted(Cluster):
    """A cluster whose coordinators answer one request after the other as they are told."""

    def __init__(self, answers: Iterator[tuple[ApiKey, dict[str, Any] | Exception]]) -> None:
        super().__init__("127.0.0.1:1", Connecting(backoff_ms=1, backoff_ms_max=1, retry_ms=60_000))
        self.answers = answers
        self.asked: list[tuple[ApiKey, Mapping[str, Any], int | None]] = []
        self.looked_up: list[tuple[str, bool]] = []

    def coordinator(self, key: str, *, of_transactions: bool = False, limit_ms: int | None = None) -> int:
        self.looked_up.append((key, of_transactions))
        return len(self.looked_up)

    def nodes(self) -> list[int]:
        return [1, 2]

    def call(
        self,
        api_key: ApiKey,
        fields: Mapping[str, Any],
        *,
        node: int | None = None,
        newest: int | None = None,
        limit_ms: int | None = None,
    ) -> dict[str, Any]:
        self.asked.append((api_key, fields, node))
        wanted, answer = next(self.answers)
        assert wanted == api_key
        if isinstance(answer, Exception):
            raise answer
        return answer


def scripted(*answers: tuple[ApiKey, dict[str, Any] | Exception]) -> tuple[Transactions, Scripted]:
    cluster = Scripted(iter(answers))
    return Transactions(cluster, timeout_ms=60_000, limit_ms=60_000), cluster


def ended(code: int) -> tuple[ApiKey, dict[str, Any]]:
    return ApiKey.END_TXN, {"error_code": code}


def added(*codes: int) -> tuple[ApiKey, dict[str, Any]]:
    rows = [{"partition_index": 0, "partition_error_code": code} for code in codes]
    topics = [{"name": "t", "results_by_partition": rows}]
    return ApiKey.ADD_PARTITIONS_TO_TXN, {"results_by_topic_v3_and_below": topics}


def fetched(*rows: tuple[int, int, str, int], code: int = 0) -> tuple[ApiKey, dict[str, Any]]:
    partitions = [
        {"partition_index": partition, "committed_offset": offset, "metadata": text, "error_code": error}
        for partition, offset, text, error in rows
    ]
    topics = [{"name": "__consumer_offsets", "partitions": partitions}]
    return ApiKey.OFFSET_FETCH, {"groups": [{"group_id": "g", "topics": topics, "error_code": code}]}


@pytest.mark.parametrize("code", [ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE])
def test_moved_transaction_coordinator_is_looked_up_again(code: ErrorCode) -> None:
    transactions, cluster = scripted(ended(code), ended(0), ended(0))
    assert transactions.finish(ME, commit=True)
    assert cluster.looked_up == [("write-0", True), ("write-0", True)]
    assert transactions.finish(ME, commit=True)
    assert [node for _, _, node in cluster.asked] == [1, 2, 2]


def test_lost_transaction_coordinator_is_looked_up_again() -> None:
    transactions, cluster = scripted((ApiKey.END_TXN, Unreachable("gone")), ended(0))
    assert transactions.finish(ME, commit=True)
    assert [node for _, _, node in cluster.asked] == [1, 2]


@pytest.mark.parametrize("code", [ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS])
def test_retriable_error_repeats_request_to_same_coordinator(code: ErrorCode) -> None:
    transactions, cluster = scripted(ended(code), ended(code), ended(0))
    assert transactions.finish(ME, commit=False)
    assert [node for _, _, node in cluster.asked] == [1, 1, 1]


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.TRANSACTION_ABORTABLE,
    ],
)
def test_ended_transaction_is_told_from_unreachable_one(
    code: ErrorCode,
) -> None:
    transactions, _ = scripted(ended(code), added(0, code), added(code))
    assert not transactions.finish(ME, commit=True)
    assert not transactions.is_open(ME, PLACES[0])
    with pytest.raises(ProduceFailed, match="write-0 is not open any more"):
        transactions.add(ME, PLACES)
    transactions, _ = scripted(ended(ErrorCode.CLUSTER_AUTHORIZATION_FAILED))
    with pytest.raises(ApiError, match=r"EndTxn of write-0: .*\(CLUSTER_AUTHORIZATION_FAILED\)"):
        transactions.finish(ME, commit=True)


def test_partitions_are_added_once_and_all_or_none() -> None:
    transactions, cluster = scripted(
        added(0, 0),
        added(0),
        added(ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.TOPIC_AUTHORIZATION_FAILED),
    )
    transaction = OpenTransaction(transactions, ME)
    transaction.add(PLACES[:2])
    transaction.add(PLACES[:2])
    transaction.add(PLACES)
    assert list(transaction.places) == PLACES
    assert [fields["v3_and_below_topics"] for _, fields, _ in cluster.asked] == [
        [{"name": "t", "partitions": [0, 2]}],
        [{"name": "u", "partitions": [1]}],
    ]
    with pytest.raises(ApiError, match="TOPIC_AUTHORIZATION_FAILED"):
        transactions.add(ME, PLACES)


def test_mark_is_a_transactional_offset_commit() -> None:
    committed = {"topics": [{"name": "x", "partitions": [{"partition_index": 0, "error_code": 0}]}]}
    transactions, cluster = scripted(
        (ApiKey.ADD_OFFSETS_TO_TXN, {"error_code": 0}), (ApiKey.TXN_OFFSET_COMMIT, committed)
    )
    transactions.mark(ME, {0: Mark(18, "one"), 1: Mark(18, "two")})
    (_, fields, _) = cluster.asked[-1]
    rows = fields["topics"][0]["partitions"]
    assert fields["group_id"] == fields["transactional_id"] == "write-0"
    assert [(row["partition_index"], row["committed_offset"], row["committed_metadata"]) for row in rows] == [
        (0, 18, "one"),
        (1, 18, "two"),
    ]
    assert cluster.looked_up == [("write-0", True), ("write-0", False)]


def test_mark_of_open_transaction_is_unsettled() -> None:
    unstable = ErrorCode.UNSTABLE_OFFSET_COMMIT
    transactions, cluster = scripted(
        fetched((0, -1, "", unstable)),
        fetched(code=ErrorCode.NOT_COORDINATOR),
        fetched((0, 5, "text", 0), (1, -1, "", 0)),
        (ApiKey.OFFSET_FETCH, {"topics": [], "error_code": 0}),
    )
    with pytest.raises(Unsettled):
        transactions.marks("write-0", [0])
    assert transactions.marks("write-0", [0, 1, 2]) == {0: Mark(5, "text"), 1: Mark(-1, ""), 2: Mark(-1, "")}
    assert cluster.asked[0][1]["require_stable"]
    with pytest.raises(ClientError, match=r"too old for delivery=exactly-once: Kafka 3\.0 is needed"):
        transactions.marks("write-0", [0])


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "delivery=at-least-once needs none"),
        (ErrorCode.INVALID_TRANSACTION_TIMEOUT, r"above the broker's transaction\.max\.timeout\.ms"),
    ],
)
def test_transaction_errors_name_the_remedy(code: ErrorCode, words: str) -> None:
    transactions, _ = scripted((ApiKey.INIT_PRODUCER_ID, {"error_code": code}))
    with pytest.raises(ApiError, match=words):
        transactions.init("write-0")


def test_open_transactions_are_requested_from_every_broker() -> None:
    def listed(*ids: str) -> tuple[ApiKey, dict[str, Any]]:
        rows = [{"transactional_id": each, "producer_id": 1, "transaction_state": "Ongoing"} for each in ids]
        return ApiKey.LIST_TRANSACTIONS, {"error_code": 0, "transaction_states": rows}

    transactions, _ = scripted(listed("write-1", "other"), listed("write-0"))
    assert transactions.open_ids("write-") == ["write-0", "write-1"]
