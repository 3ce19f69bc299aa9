"""Apache Kafka's own DumpLogSegments reads our files and has nothing to complain of."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kproc.broker.storage.log import Log, LogConfig
from kproc.broker.storage.validate import COORDINATOR
from kproc.wire.record_batch import TRANSACTIONAL
from kproc.wire.transaction_marker import ControlType, encode_end_transaction
from tests.support.java_tools import DUMP_LOG_SEGMENTS, run_tool
from tests.support.kafka_jars import missing_reason
from tests.support.logs import NOW_MS, LogRig, append_one, batch, sequenced

pytestmark = [
    pytest.mark.java,
    pytest.mark.usefixtures("java_tools"),
    pytest.mark.skipif(missing_reason() is not None, reason=missing_reason() or ""),
]

CODECS = {0: "none", 1: "gzip", 2: "snappy", 3: "lz4", 4: "zstd"}


@pytest.fixture(params=["stopped", "killed and recovered"])
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> LogRig:
    """A log of several segments with every codec, producers, and transactions."""
    config = LogConfig(segment_bytes=20_000, index_interval_bytes=700)
    rig = LogRig(tmp_path / "t-0", config=config)
    log = rig.open(leader_epoch=5)
    fill(log)
    if request.param == "stopped":
        log.close()
    else:
        log.close(clean=False)
        for name in rig.files:
            if name.endswith("index"):
                (rig.directory / name).unlink()
        rig.open(leader_epoch=6).close()
    return rig


def fill(log: Log) -> None:
    for number in range(300):
        at = NOW_MS + 7 * number - (number % 5) * 20
        codec = number % 5
        views = [
            batch(b"k" * (number % 90), "b", "c", timestamp=at, step_ms=3, codec=codec),
            sequenced(77, 2 * number, count=2, timestamp=at),
            sequenced(78, number, epoch=3, flags=TRANSACTIONAL, timestamp=at),
        ]
        assert [result.error_code for result in log.append(views)] == [0, 0, 0]
        if number % 50 == 49:
            outcome = ControlType.ABORT if number % 100 == 99 else ControlType.COMMIT
            marker = encode_end_transaction(
                outcome, timestamp_ms=at, producer_id=78, producer_epoch=3, coordinator_epoch=2
            )
            assert append_one(log, memoryview(marker), origin=COORDINATOR).error_code == 0


def dump(rig: LogRig, suffix: str, *options: str) -> list[str]:
    """The tool's lines over all files of a kind, complaints last: it exits with 0 in spite of them."""
    paths = sorted(rig.directory.glob(f"*.{suffix}"))
    assert paths, suffix
    result = run_tool(DUMP_LOG_SEGMENTS, *options, "--files", ",".join(map(str, paths)))
    return [*result.lines, *result.stderr.splitlines()]


def test_every_record_is_there(rig: LogRig) -> None:
    lines = dump(rig, "log", "--deep-iteration", "--print-data-log")
    assert sum(line.startswith("Dumping") for line in lines) > 3
    batches = [line for line in lines if line.startswith("baseOffset")]
    assert all("isvalid: true" in line for line in batches)
    # The tool of 4.3 finds fault with the first record of every segment that begins above 0, Kafka's too.
    complaints = [line.split() for line in lines if "is followed by" in line]
    bases = sorted(int(path.stem) for path in rig.directory.glob("*.log"))
    found = sorted((first, int(base)) for first, *_, base in complaints)
    assert found == [("-1", base) for base in bases[1:]]
    assert {re.search(r"compresscodec: (\w+)", line).group(1) for line in batches} == set(CODECS.values())  # type: ignore[union-attr]
    records = [line for line in lines if line.startswith("| offset")]
    offsets = [int(line.split()[2]) for line in records]
    assert offsets == list(range(300 * 6 + 6))
    assert sum("endTxnMarker: ABORT" in line for line in records) == 3
    assert "partitionLeaderEpoch: 5" in batches[0]


@pytest.mark.parametrize("suffix", ["index", "timeindex"])
def test_indexes_agree_with_the_log(rig: LogRig, suffix: str) -> None:
    sane = dump(rig, suffix, "--index-sanity-check")
    assert all("passed sanity check" in line or "Dumping" in line for line in sane)
    entries = [line for line in dump(rig, suffix) if not line.startswith("Dumping")]
    assert len(entries) > 20
    assert all(line.startswith(("offset:", "timestamp:")) for line in entries)
    assert not [line for line in dump(rig, suffix, "--verify-index-only") if not line.startswith("Dumping")]


def test_producer_snapshots(rig: LogRig) -> None:
    lines = dump(rig, "snapshot")
    of_77 = [line for line in lines if line.startswith("producerId: 77 ")]
    assert "producerEpoch: 0" in of_77[-1]
    assert "firstSequence: 598 lastSequence: 599" in of_77[-1]
    of_78 = [line for line in lines if line.startswith("producerId: 78 ")]
    assert "producerEpoch: 3 coordinatorEpoch: 2 currentTxnFirstOffset: OptionalLong.empty" in of_78[-1]


def test_aborted_transactions(rig: LogRig) -> None:
    lines = [line for line in dump(rig, "txnindex") if line.startswith("version: 0 producerId: 78")]
    assert len(lines) == 3
