"""A full disk refuses what it cannot hold, serves what it has, and recovers by itself once there is room."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kproc.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.broker import ServedBroker
from tests.support.raw import RawClient, batch, values_of
from tests.support.wait import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.own_broker, pytest.mark.transports("process", "thread")]

DISK_BYTES = 24 << 20
SETTINGS = {
    "log.index.size.max.bytes": 65_536,
    "log.segment.bytes": 4_194_304,
    "log.segment.delete.delay.ms": 100,
}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "kproc-test", str(disk)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a tmpfs is not allowed here")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_full_disk_refuses_produce_serves_fetch_and_recovers_after_a_delete(
    small_disk: Path, transport: str
) -> None:
    with ServedBroker(small_disk / "data", transport=transport, settings=SETTINGS) as broker:
        with RawClient(broker.bootstrap) as client:
            client.create_topic("ballast")
            client.create_topic("kept", partitions=2)
            for index in range(8):
                assert client.produce("ballast", batch(os.urandom(1_000_000)))["base_offset"] == index
            stored: list[bytes] = []
            code = ErrorCode.NONE
            while code == ErrorCode.NONE:
                value = os.urandom(500_000)
                row = client.produce("kept", batch(value))
                code = row["error_code"]
                if code == ErrorCode.NONE:
                    assert row["base_offset"] == len(stored)
                    stored.append(value)
                assert len(stored) < 100, "the disk never filled"
            assert code == ErrorCode.KAFKA_STORAGE_ERROR
            assert len(stored) > 10
            check(client, stored)

            fields = {"topics": [{"name": "ballast", "topic_id": bytes(16)}], "timeout": 10_000}
            assert (
                client.call(ApiKey.DELETE_TOPICS, 6, fields)["responses"][0]["error_code"] == ErrorCode.NONE
            )
            value = os.urandom(500_000)
            wait_until(lambda: client.produce("kept", batch(value))["error_code"] == 0, what="room again")
            stored.append(value)
            check(client, stored)
            assert (
                client.produce("kept", batch(b"other partition"), partition=1)["error_code"] == ErrorCode.NONE
            )
        assert broker.stop() == 0
        broker.start()
        with RawClient(broker.bootstrap) as client:
            check(client, stored)


def check(client: RawClient, stored: list[bytes]) -> None:
    """Every acknowledged record is there, and nothing of the refused ones."""
    assert client.end_offset("kept") == len(stored)
    for offset, value in enumerate(stored):
        rows = values_of(client.fetch("kept", offset)["records"])
        same = rows[0] == (offset, value)
        assert same, f"offset {offset} differs"
