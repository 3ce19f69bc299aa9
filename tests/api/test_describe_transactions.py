"""DescribeTransactions and ListTransactions without transactions."""

from __future__ import annotations

from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.raw import RawClient


def test_list_transactions_is_empty(client: RawClient) -> None:
    fields = {"state_filters": ["Ongoing", "Bogus"], "producer_id_filters": [], "duration_filter": -1}
    for version in range(3):
        answer = client.call(ApiKey.LIST_TRANSACTIONS, version, fields)
        assert (answer["error_code"], answer["transaction_states"]) == (0, [])
        assert answer["unknown_state_filters"] == ["Bogus"]
    answer = client.call(ApiKey.LIST_TRANSACTIONS, 2, {**fields, "transactional_id_pattern": "(("})
    assert answer["error_code"] == ErrorCode.INVALID_REGULAR_EXPRESSION
    states = client.call(ApiKey.DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": ["a", ""]})
    first, second = (row["error_code"] for row in states["transaction_states"])
    # A Kafka that has had no transaction yet knows no coordinator, either.
    assert first in (ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, ErrorCode.NOT_COORDINATOR)
    assert second == ErrorCode.INVALID_REQUEST
