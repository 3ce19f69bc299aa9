"""Apache Kafka's own clients and tools in transactions: those with an epoch for each transaction (KIP-890)."""

from __future__ import annotations

from typing import Any

import pytest

from kproc.wire.header import ApiKey
from tests.support.broker import BrokerUnderTest
from tests.support.java_tools import PRODUCER_PERFORMANCE, TOOLS, run_process, run_tool, said, tool
from tests.support.kafka_jars import missing_reason
from tests.support.raw import RawClient, batch
from tests.support.topics import fresh_name

pytest.importorskip("confluent_kafka", reason="confluent is not installed: it reads what Java writes")

from tests.support.adapters.transactional import Confluent, committed_offset, read_all

pytestmark = [
    pytest.mark.java,
    pytest.mark.usefixtures("java_tools"),
    pytest.mark.transports("process"),
    pytest.mark.skipif(missing_reason() is not None, reason=missing_reason() or ""),
]

RECORDS, COPIED = 600, 100
COMMAND = "TransactionsCommand"


def state_of(bootstrap: str, name: str) -> dict[str, Any]:
    with RawClient(bootstrap) as client:
        answer = client.call(ApiKey.DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": [name]})
    (state,) = answer["transaction_states"]
    return dict(state)


def test_a_producer_with_an_epoch_for_each_transaction(broker: BrokerUnderTest) -> None:
    name, tx = fresh_name("copied"), fresh_name("tx")
    with RawClient(broker.bootstrap) as client:
        client.create_topic(name, partitions=3)
    run_tool(
        PRODUCER_PERFORMANCE,
        *("--topic", name, "--num-records", str(RECORDS), "--record-size", "50", "--throughput", "2000"),
        # A transaction ends with the first record after 1 ms. With 20 ms a busy machine sent all records in three.
        *("--transactional-id", tx, "--transaction-duration-ms", "1"),
        *("--bootstrap-server", broker.bootstrap),
    )
    assert len(read_all(broker.bootstrap, name, 3, isolation="read_committed")) == RECORDS
    state = state_of(broker.bootstrap, tx)
    assert state["transaction_state"] == "CompleteCommit"
    assert state["producer_epoch"] > 3, "each transaction has raised it"


def test_transactional_copy_loop_is_exactly_once(
    broker: BrokerUnderTest,
) -> None:
    """With aborts in between, and the group's offsets in each transaction."""
    source, copy, group = fresh_name("source"), fresh_name("copy"), fresh_name("group")
    with RawClient(broker.bootstrap) as client:
        for name in (source, copy):
            client.create_topic(name)
        for number in range(COPIED):
            assert client.produce(source, batch(b"%d" % number))["error_code"] == 0
    run_process(
        f"{TOOLS}.TransactionalMessageCopier",
        *("--input-topic", source, "--input-partition", "0", "--output-topic", copy),
        *(
            "--broker-list",
            broker.bootstrap,
            "--consumer-group",
            group,
            "--transactional-id",
            fresh_name("tx"),
        ),
        *("--transaction-size", "10", "--max-messages", str(COPIED)),
        *("--enable-random-aborts", "--group-mode", "--use-group-metadata"),
    )
    copied = read_all(broker.bootstrap, copy, 1, isolation="read_committed")
    assert sorted(copied) == sorted(b"%d" % number for number in range(COPIED))
    assert committed_offset(broker.bootstrap, group, source, 0) == COPIED


def test_kafka_transactions_tool(broker: BrokerUnderTest) -> None:
    name, tx = fresh_name("hanging"), fresh_name("tx")
    with RawClient(broker.bootstrap) as client:
        client.create_topic(name)
    with Confluent(broker.bootstrap, tx) as producer:
        producer.begin()
        producer.send(name, 0, b"x")
        producer.flush()
        listed = tool(COMMAND, broker.bootstrap, "list").stdout
        assert any(tx in line and "Ongoing" in line for line in listed.splitlines()), listed
        shown = said(tool(COMMAND, broker.bootstrap, "describe", "--transactional-id", tx))
        assert "Ongoing" in shown
        assert f"{name}-0" in shown
        where = ("--topic", name, "--partition", "0")
        producers = tool(COMMAND, broker.bootstrap, "describe-producers", *where).stdout
        assert "CurrentTransactionStartOffset" in producers
        hanging = tool(COMMAND, broker.bootstrap, "find-hanging", "--broker-id", "1")
        assert not [line for line in hanging.lines if name in line]
        tool(COMMAND, broker.bootstrap, "abort", *where, "--start-offset", "0")
        assert read_all(broker.bootstrap, name, 1, isolation="read_committed") == []
        producer.abort()
    assert state_of(broker.bootstrap, tx)["transaction_state"] in ("PrepareAbort", "CompleteAbort")
