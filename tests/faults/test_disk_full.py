"""A full disk: the broker rejects Produce, serves Fetch, and recovers by itself once there is room."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kproc.common.errors import ErrorCode
from tests.support.broker import ROOT, ServedBroker, run_kproc
from tests.support.raw import RawClient, batch, values_of
from tests.support.status import scraped, status
from tests.support.wait import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.own_broker, pytest.mark.transports("process", "thread")]

DISK_BYTES = 24 << 20
LATEST_SECONDS = 10.0  # 2 s on a host with nothing else to do.
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


def test_full_disk_rejects_produce_until_records_are_deleted(
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

            client.delete_topic("ballast")
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


@pytest.mark.transports("process")
def test_full_disk_is_shown_in_log_status_top_and_metrics(
    small_disk: Path, transport: str
) -> None:
    arguments = ["--metrics-listener", "127.0.0.1:0"]
    with ServedBroker(
        small_disk / "data", transport=transport, settings=SETTINGS, arguments=arguments
    ) as broker:
        with RawClient(broker.bootstrap) as client:
            client.create_topic("ballast")
            while client.produce("ballast", batch(os.urandom(500_000)))["error_code"] == 0:
                pass
            wait_until(lambda: status(broker.bootstrap)["problem"], seconds=LATEST_SECONDS, what="a problem in status")
            found = status(broker.bootstrap)
            assert "is full" in found["problem"], found["problem"]
            assert found["disk"]["is_full"]
            assert found["disk"]["free_bytes"] < 600_000 < found["disk"]["used_bytes"]
            assert f"the disk of {broker.data} is full" in run_kproc("status", *at(broker)).stdout
            assert f"the disk of {broker.data} is full" in run_kproc("top", "--once", *at(broker)).stdout
            wait_until(lambda: "kproc_disk_full 1.0" in scraped(found["metrics"]), what="the metrics say so")
            text = scraped(found["metrics"])
            assert 'kproc_writes_without_room_total{index="' in text
            assert float(text.split("\nkproc_disk_free_bytes ")[1].split()[0]) < 600_000
            wait_until(lambda: "level=ERROR" in broker.log(), what="and the log does")
            assert broker.log().count("level=ERROR") == 1, broker.log()

            client.delete_topic("ballast")
            wait_until(lambda: not status(broker.bootstrap)["problem"], what="the problem is over")
        assert not status(broker.bootstrap)["disk"]["is_full"]
        wait_until(lambda: "kproc_disk_full 0.0" in scraped(found["metrics"]), what="and in the metrics")
        wait_until(lambda: "there is room again on the disk of" in broker.log(), what="and in the log")


@pytest.mark.transports("process")
def test_kproc_produce_reports_full_disk_and_continues_later(
    small_disk: Path, transport: str
) -> None:
    with (
        ServedBroker(small_disk / "data", transport=transport, settings=SETTINGS) as broker,
        RawClient(broker.bootstrap) as client,
    ):
        client.create_topic("ballast")
        client.create_topic("kept")
        while client.produce("ballast", batch(os.urandom(500_000)))["error_code"] == 0:
            pass
        ended = run_kproc("produce", "kept", "--timeout", "2", *at(broker), stdin="x" * 900_000)
        assert ended.returncode == 1
        assert ended.stderr.splitlines()[-1] == (
            "kproc: kept: line 1: not delivered in time; the broker's disk is full (0 records were delivered)"
        )
        command = [sys.executable, "-m", "kproc", "produce", "-v", "kept", *at(broker)]
        sender = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        guard = threading.Timer(60, sender.kill)
        guard.start()
        try:
            assert sender.stdin is not None
            assert sender.stderr is not None
            sender.stdin.write("x" * 900_000 + "\n")
            sender.stdin.close()
            told = sender.stderr.readline()
            client.delete_topic("ballast")
            rest = sender.stderr.read()
            code = sender.wait()
        finally:
            guard.cancel()
            sender.kill()
            sender.wait()
            sender.stderr.close()
    assert told == "kproc: kept: the broker's disk is full; trying again, Ctrl-C ends it\n"
    assert (code, rest.splitlines()) == (
        0,
        ["kproc: kept: the broker accepts records again", "kproc: sent 1 record to kept"],
    )


def at(broker: ServedBroker) -> tuple[str, str]:
    return "--bootstrap", broker.bootstrap



def check(client: RawClient, stored: list[bytes]) -> None:
    """Every acknowledged record is there, and nothing of the refused ones."""
    assert client.end_offset("kept") == len(stored)
    for offset, value in enumerate(stored):
        rows = values_of(client.fetch("kept", offset)["records"])
        same = rows[0] == (offset, value)
        assert same, f"offset {offset} differs"
