"""AlterReplicaLogDirs: a replica may be moved to the one directory."""

from __future__ import annotations

import pytest

from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.raw import RawClient


@pytest.mark.parametrize("version", [1, 2])
def test_alter_replica_log_dirs_to_current_directory_succeeds(
    client: RawClient, three: str, version: int
) -> None:
    path = client.call(ApiKey.DESCRIBE_LOG_DIRS, 2, {"topics": []})["results"][0]["log_dir"]

    def move(to: str) -> dict[tuple[str, int], int]:
        topics = [{"name": three, "partitions": [0, 9]}, {"name": "absent", "partitions": [0]}]
        answer = client.call(
            ApiKey.ALTER_REPLICA_LOG_DIRS, version, {"dirs": [{"path": to, "topics": topics}]}
        )
        return {
            (row["topic_name"], part["partition_index"]): part["error_code"]
            for row in answer["results"]
            for part in row["partitions"]
        }

    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    directories = {"path": "/elsewhere", "topics": [{"name": "x" * 213, "partitions": [0, 10]}]}
    answer = client.call(ApiKey.ALTER_REPLICA_LOG_DIRS, version, {"dirs": [directories]})
    codes = [part["error_code"] for part in answer["results"][0]["partitions"]]
    assert codes == [ErrorCode.LOG_DIR_NOT_FOUND, ErrorCode.INVALID_TOPIC_EXCEPTION], (
        "too long while it moves"
    )
    assert move(path) == {(three, 0): 0, (three, 9): unknown, ("absent", 0): unknown}
    assert set(move("/elsewhere").values()) == {ErrorCode.LOG_DIR_NOT_FOUND}
