"""Apache Kafka's own DumpLogSegments reads a compacted log and finds it sound."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path

import pytest

from kproc.broker.storage.log import Log, LogConfig
from kproc.broker.storage.validate import COORDINATOR
from kproc.wire.record_batch import TRANSACTIONAL, encode_batch
from kproc.wire.records import Record
from kproc.wire.transaction_marker import ControlType, encode_end_transaction
from tests.support.compaction import compact
from tests.support.java_tools import DUMP_LOG_SEGMENTS, run_tool
from tests.support.kafka_jars import missing_reason
from tests.support.logs import NOW_MS, LogRig, append_one, records_in

pytestmark = [
    pytest.mark.java,
    pytest.mark.usefixtures("java_tools"),
    pytest.mark.skipif(missing_reason() is not None, reason=missing_reason() or ""),
]


def fill(log: Log) -> None:
    for number in range(400):
        at = NOW_MS + 7 * number
        records = [
            Record(b"k%d" % (number % 60), b"v" * (number % 90), at),
            Record(b"t%d" % (number % 20), None if number % 3 else b"x", at + 1),
            Record(b"u%d" % number, b"unique", at - 3),
        ]
        fields = {"producer_id": 77, "producer_epoch": 1, "base_sequence": 3 * number}
        assert append_one(log, memoryview(encode_batch(records, codec=number % 5, **fields))).error_code == 0
        if number % 40 == 7:
            fields = {"producer_id": 78, "producer_epoch": 3, "base_sequence": number // 40}
            inside = encode_batch([Record(b"u%d" % number, b"in it", at)], flags=TRANSACTIONAL, **fields)
            assert append_one(log, memoryview(inside)).error_code == 0
            outcome = ControlType.ABORT if number % 80 == 7 else ControlType.COMMIT
            marker = encode_end_transaction(
                outcome, timestamp_ms=at, producer_id=78, producer_epoch=3, coordinator_epoch=2
            )
            assert append_one(log, memoryview(marker), origin=COORDINATOR).error_code == 0


@pytest.mark.parametrize("ending", ["as it was written", "indexes made again"])
def test_a_compacted_log_is_sound(tmp_path: Path, ending: str) -> None:
    config = LogConfig(segment_bytes=12_000, index_interval_bytes=300, cleanup_policy=frozenset({"compact"}))
    rig = LogRig(tmp_path / "t-0", config=config)
    with closing(rig.open()) as log:
        fill(log)
        before = log.state.size_bytes
        done = compact(rig, log)
        again = compact(rig, log, checkpoint=0)  # What is compacted can be compacted again.
        assert again.end_offset == done.end_offset
        assert log.state.segment_count > 2
        assert log.state.size_bytes < 0.8 * before
    if ending == "indexes made again":
        for path in [*rig.directory.glob("*.index"), *rig.directory.glob("*.timeindex")]:
            path.unlink()
        rig.open().close()
    files = {
        suffix: ",".join(map(str, sorted(rig.directory.glob(f"*.{suffix}"))))
        for suffix in ("log", "index", "timeindex", "txnindex", "snapshot")
    }
    lines = run_tool(DUMP_LOG_SEGMENTS, "--deep-iteration", "--files", files["log"]).lines
    batches = [line for line in lines if line.startswith("baseOffset")]
    assert all("isvalid: true" in line for line in batches)
    offsets = [int(match[1]) for line in lines if (match := re.match(r"\| offset: (\d+) ", line))]
    ours = [r.offset for path in sorted(rig.directory.glob("*.log")) for r in records_in(path.read_bytes())]
    assert offsets == ours
    assert len(offsets) < 1000
    horizon = NOW_MS + config.delete_retention_ms
    assert f"deleteHorizonMs: OptionalLong[{horizon}]" in "".join(batches)
    complaints = ("Mismatches in", "Found timestamp mismatch", "Found out of order", "xception", "invalid")
    for suffix in ("index", "timeindex", "txnindex", "snapshot"):
        told = run_tool(DUMP_LOG_SEGMENTS, "--files", files[suffix])
        assert not [words for words in complaints if words in told.stdout + told.stderr], told.stdout[-2000:]
    sane = run_tool(DUMP_LOG_SEGMENTS, "--index-sanity-check", "--files", files["index"]).lines
    assert all("passed sanity check" in line or "Dumping" in line for line in sane)
