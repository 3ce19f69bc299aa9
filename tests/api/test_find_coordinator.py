"""FindCoordinator in every version."""

from __future__ import annotations

import pytest

from kproc.wire.header import ApiKey
from tests.support.raw import RawClient


@pytest.mark.parametrize("version", range(7))
def test_find_coordinator_in_every_version(client: RawClient, group: str, version: int) -> None:
    fields = {"key": group, "key_type": 0, "coordinator_keys": [group, "another"]}
    answer = client.call(ApiKey.FIND_COORDINATOR, version, fields)
    rows = answer["coordinators"] if version >= 4 else [answer]
    host, port = client.socket.getpeername()[:2]
    assert [(row["error_code"], row["host"], row["port"]) for row in rows] == [(0, host, port)] * len(rows)
    if version >= 4:
        assert [row["key"] for row in rows] == [group, "another"]
