"""Kafka's own tools on groups of the consumer protocol: the same command lines say the same of kproc and of Kafka."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

confluent_kafka = pytest.importorskip("confluent_kafka")

from bench.peers.kafka import KafkaPeer  # noqa: E402
from tests.support.broker import BrokerUnderTest  # noqa: E402
from tests.support.group_scene import CONSUMER_PROTOCOL_SETTINGS  # noqa: E402
from tests.support.groups import find_coordinator  # noqa: E402
from tests.support.java_tools import JVM, run_tool  # noqa: E402
from tests.support.kafka_jars import KAFKA_VERSION, missing_reason  # noqa: E402
from tests.support.raw import RawClient, batch  # noqa: E402
from tests.support.wait import wait_until  # noqa: E402

pytestmark = [
    pytest.mark.java,
    pytest.mark.own_broker,
    pytest.mark.usefixtures("java_tools"),
    pytest.mark.transports("process"),
    pytest.mark.skipif(missing_reason() is not None, reason=missing_reason() or ""),
]

GROUP_COMMAND = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
TOPIC, GROUP, CLASSIC = "orders", "readers", "old"
PARTITIONS = 4
RESET = ("--reset-offsets", "--group", GROUP, "--topic", TOPIC)
WHILE_IT_HAS_MEMBERS = (
    ("--list",),
    ("--list", "--type"),
    ("--list", "--type", "consumer"),
    ("--list", "--type", "classic"),
    ("--list", "--state", "--type"),
    ("--list", "--state", "Stable", "--type", "consumer"),
    ("--describe", "--group", GROUP),
    ("--describe", "--group", GROUP, "--offsets", "--verbose"),
    ("--describe", "--group", GROUP, "--members"),
    ("--describe", "--group", GROUP, "--members", "--verbose"),
    ("--describe", "--group", GROUP, "--state"),
    ("--describe", "--group", GROUP, "--state", "--verbose"),
    ("--describe", "--group", CLASSIC, "--members", "--verbose"),
    ("--describe", "--all-groups", "--state"),
    ("--delete", "--group", GROUP),
    (*RESET, "--to-earliest", "--execute"),
    ("--delete-offsets", "--group", GROUP, "--topic", TOPIC),
)
# Since 4.4 a group that becomes empty gets a new target assignment at once, which is the epoch that is shown.
EPOCHS_OF_EMPTY_GROUP = (
    () if KAFKA_VERSION.startswith("4.3.") else (("--describe", "--group", GROUP, "--state", "--verbose"),)
)
WITHOUT_MEMBERS = (
    ("--list", "--state", "--type"),
    ("--describe", "--group", GROUP),
    ("--describe", "--group", GROUP, "--members", "--verbose"),
    *EPOCHS_OF_EMPTY_GROUP,
    (*RESET, "--to-earliest", "--dry-run"),
    (*RESET, "--shift-by", "-1", "--execute"),
    (*RESET, "--to-offset", "1", "--execute"),
    ("--describe", "--group", GROUP),
    ("--delete-offsets", "--group", GROUP, "--topic", f"{TOPIC}:1"),
    ("--delete", "--group", GROUP),
    ("--describe", "--group", GROUP, "--state"),
    ("--delete", "--group", GROUP),
)
# Ids of members: 22 digits of base 64 or more.
MEMBER_ID = re.compile(r"[\w/+-]{22,}(?=\s|$)")


def consumer(bootstrap: str, group: str, **more: object) -> confluent_kafka.Consumer:
    settings = {"bootstrap.servers": bootstrap, "group.id": group, "client.id": f"one-of-{group}"}
    return confluent_kafka.Consumer({**settings, "enable.auto.commit": False, **more})


def transcript(bootstrap: str) -> list[tuple[str, list[str]]]:
    """Return what the tool said of a group with one member, and of the same group without it."""

    def said(arguments: tuple[str, ...]) -> tuple[str, list[str]]:
        result = run_tool(GROUP_COMMAND, "--bootstrap-server", bootstrap, *arguments, check=False)
        text = f"{result.stdout}\n{result.stderr}".replace(bootstrap, "BROKER")
        # Kafka's tool names this host's address by whatever it found first.
        lines = [" ".join(MEMBER_ID.sub("MEMBER", line).split()) for line in text.splitlines()]
        return " ".join(arguments), [f"exit {result.returncode}", *sorted(filter(None, lines))]

    with RawClient(bootstrap) as client:
        client.create_topic(TOPIC, partitions=PARTITIONS)
        for number in range(10):
            client.produce(TOPIC, batch(b"%d" % number), partition=number % PARTITIONS)
        find_coordinator(client, GROUP)
    mine = consumer(bootstrap, GROUP, **{"group.protocol": "consumer", "group.remote.assignor": "range"})
    old = consumer(bootstrap, CLASSIC)
    try:
        for each in (mine, old):
            each.subscribe([TOPIC])
            wait_until(
                lambda: each.poll(0.05) is None and len(each.assignment()) == PARTITIONS,  # noqa: B023
                seconds=60,
                what="all partitions",
            )
        offsets = [confluent_kafka.TopicPartition(TOPIC, index, index) for index in range(PARTITIONS - 1)]
        mine.commit(offsets=offsets, asynchronous=False)
        found = [said(arguments) for arguments in WHILE_IT_HAS_MEMBERS]
    finally:
        mine.close()
        old.close()
    return found + [said(arguments) for arguments in WITHOUT_MEMBERS]


@pytest.mark.slow
def test_consumer_groups_command_says_the_same_as_of_kafka(
    start_broker: Callable[..., BrokerUnderTest],
) -> None:
    ours = transcript(start_broker(settings=CONSUMER_PROTOCOL_SETTINGS).bootstrap)
    settings = {"group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "3"}
    with KafkaPeer(settings=settings, jvm=JVM) as kafka:
        theirs = transcript(kafka.bootstrap)
    differences = [
        (command, mine, kafkas)
        for (command, mine), (_, kafkas) in zip(ours, theirs, strict=True)
        if mine != kafkas
    ]
    assert not differences
