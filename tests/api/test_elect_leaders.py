"""ElectLeaders: no election is needed."""

from __future__ import annotations

import pytest

from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.raw import Fields, RawClient

# -- elections and reassignments ---------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(3))
def test_elect_leaders_answers_election_not_needed(client: RawClient, three: str, version: int) -> None:
    def elect(topics: list[Fields] | None, kind: int = 0) -> Fields:
        fields = {"election_type": kind, "topic_partitions": topics, "timeout": 1_000}
        return client.call(ApiKey.ELECT_LEADERS, version, fields)

    wanted = [{"topic": three, "partitions": [0, 9]}, {"topic": "absent", "partitions": [0]}]
    rows = elect(wanted)["replica_election_results"]
    assert [[part["error_code"] for part in row["partition_result"]] for row in rows] == [
        [ErrorCode.ELECTION_NOT_NEEDED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
        [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
    ]
    assert all(not row["partition_result"] for row in elect(None)["replica_election_results"])
    if version:
        assert elect(wanted, 1)["error_code"] == 0
        assert elect(wanted, 7)["error_code"] == ErrorCode.INVALID_REQUEST
