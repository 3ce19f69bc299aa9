"""DescribeUserScramCredentials without users."""

from __future__ import annotations

from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.raw import RawClient


def test_describe_scram_credentials_without_users(client: RawClient) -> None:
    def describe(users: list[str] | None) -> list[tuple[str, int]]:
        wanted = None if users is None else [{"name": name} for name in users]
        answer = client.call(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, {"users": wanted})
        assert answer["error_code"] == 0
        return sorted((row["user"], row["error_code"]) for row in answer["results"])

    assert describe(None) == []
    assert describe(["a", "b", "b"]) == [
        ("a", ErrorCode.RESOURCE_NOT_FOUND),
        ("b", ErrorCode.DUPLICATE_RESOURCE),
    ]
