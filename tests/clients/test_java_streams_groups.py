"""kafka-streams-groups on a Kafka Streams application: the same command lines say the same of kproc and of Kafka."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("confluent_kafka")

from tests.support.either_broker import either_broker
from tests.support.java_tools import run_tool
from tests.support.kafka_jars import streams_missing_reason
from tests.support.raw import RawClient
from tests.support.streams_application import (
    COUNTS,
    ORDERS,
    PAYMENTS,
    STREAMS_SETTINGS,
    PaidOrders,
    StreamsApplication,
    committed_counts,
)
from tests.support.wait import wait_until

pytestmark = [
    pytest.mark.java,
    pytest.mark.slow,
    pytest.mark.own_broker,
    pytest.mark.usefixtures("java_tools"),
    pytest.mark.transports("process"),
    pytest.mark.skipif(streams_missing_reason() is not None, reason=streams_missing_reason() or ""),
]

GROUP_COMMAND = "org.apache.kafka.tools.streams.StreamsGroupCommand"
GROUP = "join-streams"
PARTITIONS = 2
RESET = ("--reset-offsets", "--group", GROUP, "--input-topic", ORDERS)
WHILE_IT_HAS_MEMBERS = (
    ("--list",),
    ("--list", "--state"),
    ("--list", "--state", "Stable"),
    ("--list", "--state", "Empty"),
    ("--describe", "--group", GROUP),
    ("--describe", "--group", GROUP, "--offsets", "--verbose"),
    ("--describe", "--group", GROUP, "--members"),
    ("--describe", "--group", GROUP, "--members", "--verbose"),
    ("--describe", "--group", GROUP, "--state"),
    ("--describe", "--group", GROUP, "--state", "--verbose"),
    ("--describe", "--group", GROUP, "--topology"),
    ("--describe", "--all-groups", "--state"),
    ("--describe", "--group", "unknown"),
    ("--delete", "--group", GROUP),
    (*RESET, "--to-earliest", "--execute"),
    ("--delete-offsets", "--group", GROUP, "--input-topic", ORDERS),
)
WITHOUT_MEMBERS = (
    ("--list", "--state"),
    ("--describe", "--group", GROUP),
    ("--describe", "--group", GROUP, "--members", "--verbose"),
    ("--describe", "--group", GROUP, "--state", "--verbose"),
    (*RESET, "--to-earliest", "--dry-run"),
    (*RESET, "--to-offset", "1", "--execute"),
    ("--reset-offsets", "--group", GROUP, "--all-input-topics", "--to-current", "--dry-run"),
    ("--describe", "--group", GROUP, "--offsets", "--verbose"),
    ("--delete-offsets", "--group", GROUP, "--input-topic", PAYMENTS),
    ("--describe", "--group", GROUP),
    ("--delete", "--group", GROUP, "--delete-all-internal-topics"),
    ("--describe", "--group", GROUP, "--state"),
    ("--delete", "--group", GROUP),
    ("--list",),
)
# Members and processes have UUIDs. Offsets of the repartition topic include markers of transactions, one a commit.
UNIQUE_ID = re.compile(
    r"[0-9a-f]{8}-[0-9a-f-]{27}(-StreamThread-\d+\S*)?|(?<![\w./+-])[\w/+-]{22}(?![\w/+-])"
)
CHANCE = re.compile(r"(by-region-repartition \d+) .*")

Said = list[tuple[str, list[str]]]


def command_transcript(bootstrap: str, commands: tuple[tuple[str, ...], ...]) -> Said:
    """Return the lines that StreamsGroupCommand printed, without what differs by chance."""

    def said(arguments: tuple[str, ...]) -> tuple[str, list[str]]:
        result = run_tool(GROUP_COMMAND, "--bootstrap-server", bootstrap, *arguments, check=False)
        text = f"{result.stdout}\n{result.stderr}".replace(bootstrap, "BROKER")
        lines = [line for line in text.splitlines() if not line.startswith(("\tat ", "\t... "))]
        lines = [CHANCE.sub(r"\1", UNIQUE_ID.sub("ID", " ".join(line.split()))) for line in lines]
        return " ".join(arguments), [f"exit {result.returncode}", *sorted(filter(None, lines))]

    return [said(arguments) for arguments in commands]


def group_transcript(make: str, directory: Path) -> Said:
    """Return what the tool said of an application with one instance, and without it."""
    with either_broker(make, directory, STREAMS_SETTINGS) as broker:
        with RawClient(broker.bootstrap) as client:
            for name in (ORDERS, PAYMENTS, COUNTS):
                client.create_topic(name, partitions=PARTITIONS)
        load = PaidOrders(broker.bootstrap, 1, orders=60)
        load.start()
        load.stop()
        total = sum(map(len, load.counts().values()))
        with StreamsApplication(broker.bootstrap, directory, "streams") as application:
            application.start(0, client_id="an-instance")
            application.wait_settled(2 * PARTITIONS)
            wait_until(
                lambda: sum(map(len, committed_counts(broker.bootstrap, PARTITIONS).values())) == total,
                seconds=60,
                what=f"{total} results",
            )
            found = command_transcript(broker.bootstrap, WHILE_IT_HAS_MEMBERS)
            application.close()
        return found + command_transcript(broker.bootstrap, WITHOUT_MEMBERS)


def test_streams_groups_command_says_the_same_as_of_kafka(tmp_path: Path) -> None:
    for make in ("kproc", "kafka"):
        (tmp_path / make).mkdir()
    ours, theirs = (group_transcript(make, tmp_path / make) for make in ("kproc", "kafka"))
    assert [command for command, _ in ours] == [command for command, _ in theirs]
    assert not [
        (command, mine, kafkas)
        for (command, mine), (_, kafkas) in zip(ours, theirs, strict=True)
        if mine != kafkas
    ]
