"""Apache Kafka's own DumpLogSegments decodes our `__transaction_state`."""

from __future__ import annotations

from pathlib import Path

import pytest

from kproc.broker.storage.validate import COORDINATOR
from kproc.broker.transaction.records import FLEXIBLE, PLAIN, encode_key, encode_value
from kproc.broker.transaction.state import State, Transaction
from kproc.wire.record_batch import encode_batch
from kproc.wire.records import Record
from tests.support.java_tools import DUMP_LOG_SEGMENTS, run_tool
from tests.support.kafka_jars import KAFKA_VERSION, missing_reason
from tests.support.logs import NOW_MS, LogRig, append_one

pytestmark = [
    pytest.mark.java,
    pytest.mark.usefixtures("java_tools"),
    pytest.mark.skipif(missing_reason() is not None, reason=missing_reason() or ""),
]


def test_every_state_in_both_versions_is_decoded(tmp_path: Path) -> None:
    rig = LogRig(tmp_path / "__transaction_state-0")
    log = rig.open()
    states = [State.EMPTY, State.ONGOING, State.PREPARE_COMMIT, State.COMPLETE_ABORT]
    for version in (PLAIN, FLEXIBLE):
        for state in states:
            has_partitions = state in (State.ONGOING, State.PREPARE_COMMIT)
            transaction = Transaction(
                producer_id=77,
                epoch=3,
                timeout_ms=60_000,
                updated_ms=5,
                started_ms=4,
                state=state,
                partitions=frozenset({("orders", 0), ("orders", 2)} if has_partitions else ()),
                previous_producer_id=11,
                next_producer_id=12,
                client_version=2,
            )
            record = Record(encode_key(f"{state.word}-{version}"), encode_value(transaction, version), NOW_MS)
            assert append_one(log, memoryview(encode_batch([record])), origin=COORDINATOR).error_code == 0
    gone = Record(encode_key("gone"), None, NOW_MS)
    assert append_one(log, memoryview(encode_batch([gone])), origin=COORDINATOR).error_code == 0
    log.close()
    (path,) = rig.directory.glob("*.log")
    lines = run_tool(DUMP_LOG_SEGMENTS, "--transaction-log-decoder", "--files", str(path)).lines
    payloads = [line.partition("payload: ")[2] for line in lines if line.startswith("| offset")]
    assert len(payloads) == 2 * len(states) + 1
    for version, payload in zip([PLAIN] * 4 + [FLEXIBLE] * 4, payloads, strict=False):
        assert f'"version":"{version}"' in payload
        assert '"producerId":77' in payload
        assert '"producerEpoch":3' in payload
        assert ('"previousProducerId":11' in payload) == (version == FLEXIBLE)
        assert ('"nextProducerId":12' in payload) == (version == FLEXIBLE)
    with_partitions = [payload for payload in payloads if '"topic":"orders"' in payload]
    assert len(with_partitions) == 4
    assert all('"partitionIds":[0,2]' in payload for payload in with_partitions)
    for state, payload in zip(states * 2, payloads, strict=False):
        # Since 4.4 the tool prints the state's name.
        shown = int(state) if KAFKA_VERSION.startswith("4.3.") else f'"{state.word}"'
        assert f'"transactionStatus":{shown}' in payload
    assert payloads[-1].endswith("<DELETE>"), payloads[-1]
