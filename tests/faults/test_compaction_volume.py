"""A topic is compacted while producers go on: exactly the newest record of each key stays.

`--volume-mb 1000` is the number that a release needs; `-s` shows what it took. The default keeps the test short.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.support.broker import ServedBroker
from tests.support.keyed_load import KeyedProducer, read_keyed, violations
from tests.support.raw import RawClient
from tests.support.status import processes, rows
from tests.support.wait import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.own_broker, pytest.mark.transports("process")]

VALUE_BYTES = 1000
KEYS = 5000
SETTINGS = {"log.cleaner.backoff.ms": 200, "log.segment.delete.delay.ms": 1000, "num.io.threads": 1}


def peak_memory_mb(pid: int) -> float:
    """VmHWM of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024
    raise AssertionError(f"process {pid} shows no VmHWM")


def test_compaction_under_load_keeps_exactly_the_newest_records(
    tmp_path: Path, transport: str, pytestconfig: pytest.Config
) -> None:
    volume = int(pytestconfig.getoption("volume_mb")) * 1_000_000
    # A dozen segments at least, so that compaction runs several times meanwhile.
    segment_bytes = max(1 << 20, volume // 16)
    configs = {
        "cleanup.policy": "compact",
        "segment.bytes": str(segment_bytes),
        "min.cleanable.dirty.ratio": "0.1",
    }
    with ServedBroker(tmp_path / "data", transport=transport, settings=SETTINGS) as broker:
        with RawClient(broker.bootstrap) as client:
            client.create_topic("t", configs=configs)
        each = volume // (VALUE_BYTES * 2)
        producers = [
            KeyedProducer(
                broker.bootstrap, "t", 1, f"p{n}", keys=KEYS, value_bytes=VALUE_BYTES, pause_seconds=0,
                records_max=each,
            )
            for n in range(2)
        ]  # fmt: skip
        started = time.monotonic()
        for one in producers:
            one.start()
        for one in producers:
            one.wait()
        produced_s = time.monotonic() - started
        directory = tmp_path / "data" / "t-0"

        def clean_end() -> int:
            """The checkpoint, once everything but the active segment is clean."""
            active = max(int(path.stem) for path in directory.glob("*.log"))
            checkpoint = tmp_path / "data" / "cleaner-offset-checkpoint"
            at = int(checkpoint.read_text().split()[-1]) if checkpoint.exists() else 0
            assert at == active, f"clean up to {at} of {active}"
            return at

        at = wait_until(clean_end, seconds=240, what="all sealed segments are clean")
        compacted_s = time.monotonic() - started
        wrong, total = violations(broker.bootstrap, "t", 1, producers)
        assert not wrong, "\n".join(wrong[:20])
        clean = [key for offset, key, _ in read_keyed(broker.bootstrap, "t", 0) if offset < at]
        assert len(clean) == len(set(clean)), "a key stands twice in the clean section"
        assert total < sum(one.count for one in producers)
        (row,) = [row for row in rows(broker.bootstrap) if row["role"] == "cleaner"]
        counters = {name: value for name, value in row["counters"].items() if "compact" in name}
        size = sum(path.stat().st_size for path in directory.glob("*.log"))
        memory_mb = peak_memory_mb(processes(broker.bootstrap)["cleaner", 0])
        print(
            f"\n{volume / 1e6:.0f} MB produced in {produced_s:.1f} s, all clean after {compacted_s:.1f} s, "
            f"{total} records, {size / 1e6:.1f} MB left; cleaner's peak {memory_mb:.0f} MB; {counters}"
        )
