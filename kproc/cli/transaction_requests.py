"""Sends requests about transactions to transaction coordinators and to the leaders of partitions (KIP-664)."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from kproc.cli.failure import Failure, explain, usage_error
from kproc.cli.unserved import Partition, lacks_coordinators

if TYPE_CHECKING:
    from kproc.client import Client

_WAIT_SECONDS: Final = 30.0
"""Time for a coordinator that loads, or that writes the markers of an abort."""
_STEP_SECONDS: Final = 0.1
_ABORT: Final = False
"""The value of transaction_result in WriteTxnMarkers that means an abort."""

Row = dict[str, Any]
T = TypeVar("T")


def request_transactions(
    client: Client,
    *,
    states: list[str] | None = None,
    producer_ids: list[int] | None = None,
    duration_ms: int = -1,
    pattern: str | None = None,
) -> list[Row]:
    """Return the rows of ListTransactions.

    Each argument filters the rows by states, producer ids, least duration in ms or a regular expression for
    transactional ids. None and -1 do not filter.
    """
    from kproc.common.errors import ErrorCode
    from kproc.wire.header import ApiKey

    fields = {
        "state_filters": states or [],
        "producer_id_filters": producer_ids or [],
        "duration_filter": duration_ms,
        "transactional_id_pattern": pattern,
    }

    def request() -> tuple[Row, set[int]]:
        answer = client.call_latest(ApiKey.LIST_TRANSACTIONS, fields)
        return answer, {answer["error_code"]}

    answer = _retry_until_loaded(request)
    if answer["error_code"] == ErrorCode.INVALID_REGULAR_EXPRESSION:
        usage_error(f"--pattern {pattern!r}: no regular expression")
    if answer["error_code"]:
        raise Failure(explain("transactions", answer["error_code"]))
    rows: list[Row] = answer["transaction_states"]
    return rows


def request_states(client: Client, ids: list[str]) -> list[Row]:
    """Return a row of DescribeTransactions for each id. A row can have an error code."""
    from kproc.wire.header import ApiKey

    def request() -> tuple[list[Row], set[int]]:
        answer = client.call_latest(ApiKey.DESCRIBE_TRANSACTIONS, {"transactional_ids": ids})
        rows: list[Row] = answer["transaction_states"]
        return rows, {row["error_code"] for row in rows}

    return _retry_until_loaded(request)


def describe_transactions(client: Client, ids: list[str]) -> list[Row]:
    """Return the rows of DescribeTransactions. Raise a Failure if an id is unknown or has another error."""
    from kproc.broker.cluster.internal_topics import TRANSACTION_STATE_TOPIC
    from kproc.common.errors import ErrorCode

    rows = request_states(client, ids)
    words = {ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: "unknown transactional id"}
    is_homeless = any(row["error_code"] == ErrorCode.NOT_COORDINATOR for row in rows)
    if is_homeless and lacks_coordinators(client, TRANSACTION_STATE_TOPIC):
        words[ErrorCode.NOT_COORDINATOR] = words[ErrorCode.TRANSACTIONAL_ID_NOT_FOUND]
    refusals = [
        explain(row["transactional_id"], row["error_code"], words=words.get(row["error_code"]))
        for row in rows
        if row["error_code"]
    ]
    if refusals:
        raise Failure("; ".join(refusals))
    return rows


def partitions_of_producers(client: Client, producer_ids: list[int]) -> set[tuple[int, str, int]]:
    """Return (producer id, topic, partition) of these producers' transactions that the coordinators know."""
    listed = request_transactions(client, producer_ids=producer_ids)
    if not listed:
        return set()
    return {
        (int(row["producer_id"]), str(each["topic"]), int(number))
        for row in request_states(client, [str(row["transactional_id"]) for row in listed])
        # Skip a transactional id with an error: it has expired since ListTransactions returned it.
        if not row["error_code"]
        for each in row["topics"]
        for number in each["partitions"]
    }


def abort_by_fencing(client: Client, described: Row) -> None:
    """Abort a transaction by fencing its producer (as Admin.fenceProducers does, KIP-664). Wait until it is aborted."""
    from kproc.common.errors import ErrorCode
    from kproc.wire.header import ApiKey

    transactional_id = described["transactional_id"]
    fields = {
        "transactional_id": transactional_id,
        # InitProducerId also sets the transaction timeout of the id. Send the present timeout, so that it does not
        # change.
        "transaction_timeout": described["transaction_timeout"],
        "producer_id": -1,
        "producer_epoch": -1,
    }

    def request() -> tuple[int, set[int]]:
        code: int = client.call_latest(ApiKey.INIT_PRODUCER_ID, fields)["error_code"]
        return code, {code}

    # KIP-664: an InitProducerId without a producer id fences the present producer. The response is
    # CONCURRENT_TRANSACTIONS until the markers of the abort are written, so repeat the request until then.
    code = _retry_until_loaded(request, also={ErrorCode.CONCURRENT_TRANSACTIONS})
    if code == ErrorCode.CONCURRENT_TRANSACTIONS:
        raise Failure(
            f"transaction of {transactional_id}: still being aborted after {_WAIT_SECONDS:g} s; "
            f"kproc txn describe shows its partitions"
        )
    if code:
        raise Failure(explain(transactional_id, code))


def open_transactions(
    client: Client, partitions: Iterable[Partition], refused: dict[Partition, Row]
) -> dict[Partition, list[Row]]:
    """Return the rows of producers with an open transaction by partition (DescribeProducers), the oldest first.

    Partitions with an error are added to `refused`, with the row that has the error.
    """
    from kproc.client.requests import numbers_by_topic
    from kproc.wire.header import ApiKey

    numbers = numbers_by_topic(partitions).items()
    topics = [{"name": name, "partition_indexes": each} for name, each in numbers]
    found: dict[Partition, list[Row]] = {}
    for topic in client.call_latest(ApiKey.DESCRIBE_PRODUCERS, {"topics": topics})["topics"]:
        for row in topic["partitions"]:
            partition = str(topic["name"]), int(row["partition_index"])
            if row["error_code"]:
                refused[partition] = row
                continue
            opened = (each for each in row["active_producers"] if each["current_txn_start_offset"] >= 0)
            found[partition] = sorted(opened, key=lambda each: int(each["current_txn_start_offset"]))
    return found


def write_abort(client: Client, topic: str, partition: int, producer: Row) -> None:
    """Abort one producer's transaction at one partition by WriteTxnMarkers. Raise a Failure if it is rejected."""
    from kproc.wire.header import ApiKey

    marker = {
        "producer_id": producer["producer_id"],
        "producer_epoch": producer["producer_epoch"],
        "transaction_result": _ABORT,
        "topics": [{"name": topic, "partition_indexes": [partition]}],
        # Send the coordinator epoch of the producer's last marker (-1: no marker, so send 0). The partition rejects a
        # marker with a lower epoch (TRANSACTION_COORDINATOR_FENCED).
        "coordinator_epoch": max(0, producer["coordinator_epoch"]),
    }
    answer = client.call_latest(ApiKey.WRITE_TXN_MARKERS, {"markers": [marker]})
    (result,) = answer["markers"][0]["topics"][0]["partitions"]
    if result["error_code"]:
        raise Failure(explain(f"{topic}-{partition}", result["error_code"]))


def _retry_until_loaded(ask: Callable[[], tuple[T, Collection[int]]], also: Collection[int] = ()) -> T:
    """Repeat a request while a code is COORDINATOR_LOAD_IN_PROGRESS or in `also`. Return the last response.

    Stop after _WAIT_SECONDS. The response can then still have such a code.
    """
    from kproc.common.errors import ErrorCode

    early = {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, *also}
    for _ in range(round(_WAIT_SECONDS / _STEP_SECONDS)):
        answer, codes = ask()
        if not early.intersection(codes):
            break
        time.sleep(_STEP_SECONDS)
    return answer
