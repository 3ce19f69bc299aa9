"""Imports a `__transaction_state` of an older Kafka, whose records have version 0, and lets kproc continue from it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kproc.broker.transaction.records import PLAIN, encode_key, encode_value
from kproc.broker.transaction.state import State, Transaction
from kproc.wire.header import ApiKey
from kproc.wire.record_batch import encode_batch
from kproc.wire.records import Record
from tests.support.broker import ServedBroker
from tests.support.raw import RawClient
from tests.support.wait import wait_until

LONG_AGO_MS = 1_500_000_000_000
SETTINGS = {"num.io.threads": 1, "num.network.threads": 1, "transactional.id.expiration.ms": 2_147_483_647}
# By transactional id: state in Kafka's files, partitions, state after the start.
IDS: dict[str, tuple[State, tuple[tuple[str, int], ...], str]] = {
    "empty": (State.EMPTY, (), "Empty"),
    "done": (State.COMPLETE_COMMIT, (), "CompleteCommit"),
    "committing": (State.PREPARE_COMMIT, (("t", 0),), "CompleteCommit"),
    "aborting": (State.PREPARE_ABORT, (("t", 0), ("deleted", 0)), "CompleteAbort"),
}


def write_log(directory: Path) -> None:
    """Write the records as Kafka 0.11 to 3.7 did, and a tombstone behind them."""
    records = [Record(encode_key("gone"), None, LONG_AGO_MS)]
    for number, (name, (state, partitions, _)) in enumerate(IDS.items()):
        transaction = Transaction(
            producer_id=1_000 + number,
            epoch=3,
            timeout_ms=60_000,
            state=state,
            partitions=frozenset(partitions),
            updated_ms=LONG_AGO_MS,
            started_ms=LONG_AGO_MS,
        )
        records.append(Record(encode_key(name), encode_value(transaction, PLAIN), LONG_AGO_MS))
    content = bytearray()
    for offset, record in enumerate(records):
        batch = bytearray(encode_batch([record]))
        batch[:8] = offset.to_bytes(8, "big")
        batch[12:16] = bytes(4)  # The leader epoch, which the checksum does not cover.
        content += batch
    directory.mkdir(parents=True)
    (directory / "00000000000000000000.log").write_bytes(content)


def init(client: RawClient, name: str | None) -> dict[str, Any]:
    fields = {
        "transactional_id": name,
        "transaction_timeout": 60_000,
        "producer_id": -1,
        "producer_epoch": -1,
    }
    return client.call(ApiKey.INIT_PRODUCER_ID, 3, fields)


@pytest.mark.long
def test_transactions_of_an_older_kafka_continue(tmp_path: Path) -> None:
    """Unfinished ones are finished, epochs grow, and new producers get other ids."""
    data, source = tmp_path / "data", tmp_path / "kafka" / "__transaction_state-0"
    write_log(source)
    with ServedBroker(data, settings=SETTINGS) as broker, RawClient(broker.bootstrap) as client:
        client.create_topic("t", partitions=1)
    command = [sys.executable, "-m", "kproc", "import-log", str(source), "--data", str(data)]
    subprocess.run(command, check=True, capture_output=True)
    with ServedBroker(data, settings=SETTINGS) as broker, RawClient(broker.bootstrap) as client:

        def states() -> dict[str, str]:
            answer = client.call(
                ApiKey.LIST_TRANSACTIONS, 0, {"state_filters": [], "producer_id_filters": []}
            )
            return {row["transactional_id"]: row["transaction_state"] for row in answer["transaction_states"]}

        expected = {name: after for name, (_, _, after) in IDS.items()}
        wait_until(lambda: states() == expected, what="the transactions are finished")
        for number, name in enumerate(IDS):
            answer = init(client, name)
            found = answer["error_code"], answer["producer_id"], answer["producer_epoch"]
            assert found == (0, 1_000 + number, 4)
        assert init(client, None)["producer_id"] >= 1_000 + len(IDS)
