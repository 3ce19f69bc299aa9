"""CreatePartitions in every version: new partitions are usable."""

from __future__ import annotations

import pytest

from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.raw import RawClient, batch, values_of
from tests.support.topics import fresh_name
from tests.support.wait import wait_until


def grow(client: RawClient, name: str, count: int, *, version: int = 3, validate_only: bool = False) -> int:
    fields = {
        "topics": [{"name": name, "count": count, "assignments": None}],
        "timeout": 10_000,
        "validate_only": validate_only,
    }
    return int(client.call(ApiKey.CREATE_PARTITIONS, version, fields)["results"][0]["error_code"])


@pytest.mark.parametrize("version", range(4))
def test_create_partitions_adds_usable_partitions(client: RawClient, version: int) -> None:
    name = fresh_name()
    client.create_topic(name)
    client.produce(name, batch(b"kept"))
    assert grow(client, name, 5, version=version) == ErrorCode.NONE
    wait_until(
        lambda: client.produce(name, batch(b"x"), partition=4)["error_code"] == ErrorCode.NONE, what="usable"
    )
    assert values_of(client.fetch(name, 0)["records"]) == [(0, b"kept")]
