"""Kafka's own tools on share groups: the same command lines say the same of kproc and of Kafka."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("confluent_kafka")

from tests.support.configs import set_config
from tests.support.either_broker import either_broker
from tests.support.java_tools import run_process, run_tool
from tests.support.kafka_jars import missing_reason
from tests.support.raw import RawClient, batch
from tests.support.share_scene import GROUP_RESOURCE, SHARE_SETTINGS, ShareScene

pytestmark = [
    pytest.mark.java,
    pytest.mark.slow,
    pytest.mark.own_broker,
    pytest.mark.usefixtures("java_tools"),
    pytest.mark.transports("process"),
    pytest.mark.skipif(missing_reason() is not None, reason=missing_reason() or ""),
]

GROUP_COMMAND = "org.apache.kafka.tools.consumer.group.ShareGroupCommand"
CONSOLE = "org.apache.kafka.tools.consumer.ConsoleShareConsumer"
VERIFIABLE = "org.apache.kafka.tools.VerifiableShareConsumer"
TOPIC, OTHER, GROUP, CONSUMERS = "jobs", "other", "workers", "consumers"
# Nobody says in which order a share group reads partitions.
SINGLE = "single"
PARTITIONS, RECORDS = 3, 30
# An assignment that Kafka computes aside comes after the next heartbeat, which raises the group's epoch once more.
SETTINGS = {**SHARE_SETTINGS, "group.share.assignor.offload.enable": False}
RESET = ("--reset-offsets", "--group", GROUP, "--topic", TOPIC)
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
    ("--describe", "--all-groups", "--state"),
    ("--describe", "--group", "unknown"),
    ("--delete", "--group", GROUP),
    (*RESET, "--to-earliest", "--execute"),
    ("--delete-offsets", "--group", GROUP, "--topic", TOPIC),
)
WITHOUT_MEMBERS = (
    ("--list", "--state"),
    ("--describe", "--group", GROUP),
    ("--describe", "--group", GROUP, "--members", "--verbose"),
    ("--describe", "--group", GROUP, "--state", "--verbose"),
    (*RESET, "--to-earliest", "--dry-run"),
    (*RESET, "--to-earliest", "--execute"),
    ("--describe", "--group", GROUP),
    (*RESET, "--to-latest", "--execute"),
    (*RESET, "--to-datetime", "2020-01-01T00:00:00.000", "--execute"),
    ("--reset-offsets", "--group", GROUP, "--topic", f"{TOPIC}:1", "--to-offset", "2", "--execute"),
    ("--reset-offsets", "--group", GROUP, "--all-topics", "--to-current", "--dry-run"),
    ("--reset-offsets", "--group", GROUP, "--topic", OTHER, "--to-earliest", "--execute"),
    ("--reset-offsets", "--group", GROUP, "--topic", "unknown", "--to-earliest", "--execute"),
    ("--describe", "--group", GROUP, "--offsets", "--verbose"),
    ("--delete-offsets", "--group", GROUP, "--topic", TOPIC),
    ("--delete-offsets", "--group", GROUP, "--topic", "unknown"),
    ("--describe", "--group", GROUP),
    ("--delete", "--group", GROUP),
    ("--describe", "--group", GROUP, "--state"),
    ("--delete", "--group", GROUP),
    ("--delete", "--group", CONSUMERS),
    ("--list",),
)
# Ids of members and topics have 22 digits of base 64. Names of exceptions follow a dot.
UNIQUE_ID = re.compile(r"(?<![\w./+-])[\w/+-]{22}(?![\w/+-])")
# When all records are done, kproc has the start offset behind them at once, and Kafka with the next acknowledgement.
START_OFFSET = re.compile(r" \d+(?= 0$)")
CONSOLE_FORMAT = [
    text
    for name in ("print.partition", "print.offset", "print.delivery", "print.key")
    for text in ("--formatter-property", f"{name}=true")
]

Said = list[tuple[str, list[str]]]


def command_transcript(bootstrap: str, commands: tuple[tuple[str, ...], ...]) -> Said:
    """Return the lines that ShareGroupCommand printed, without what differs by chance."""

    def said(arguments: tuple[str, ...]) -> tuple[str, list[str]]:
        result = run_tool(GROUP_COMMAND, "--bootstrap-server", bootstrap, *arguments, check=False)
        text = f"{result.stdout}\n{result.stderr}".replace(bootstrap, "BROKER")
        # Only the first line of a stack: the tool prints where it was, and lines of its own libraries.
        lines = [line for line in text.splitlines() if not line.startswith(("\tat ", "\t... "))]
        lines = [" ".join(UNIQUE_ID.sub("ID", line).split()) for line in lines]
        if arguments[0] == "--describe" and not {"--state", "--members"} & set(arguments):
            lines = [START_OFFSET.sub(" START", line) for line in lines]
        return " ".join(arguments), [f"exit {result.returncode}", *sorted(filter(None, lines))]

    return [said(arguments) for arguments in commands]


def prepare(bootstrap: str) -> None:
    """Create three topics with records in two of them."""
    with RawClient(bootstrap) as client:
        for name in (TOPIC, OTHER):
            client.create_topic(name, partitions=PARTITIONS)
        client.create_topic(SINGLE)
        client.produce(SINGLE, batch(*(b"a %d" % number for number in range(RECORDS))))
        for number in range(RECORDS):
            client.produce(TOPIC, batch(b"a %d" % number), partition=number % PARTITIONS)
        for group in (GROUP, "console", "verifiable"):
            assert set_config(
                client, "share.auto.offset.reset", "earliest", kind=GROUP_RESOURCE, resource=group
            ) == (0, None)


def group_transcript(make: str, directory: Path) -> Said:
    """Return what the tool said of a group with one member, and without it."""
    with either_broker(make, directory, SETTINGS) as broker:
        prepare(broker.bootstrap)
        with ShareScene(broker, directory, TOPIC, GROUP) as scene:
            (member,) = scene.start(client_id="a-worker")
            scene.wait_until_each_has_more(RECORDS)
            found = command_transcript(broker.bootstrap, WHILE_IT_HAS_MEMBERS)
            scene.close(member)
        return found + command_transcript(broker.bootstrap, WITHOUT_MEMBERS)


def console_transcript(make: str, directory: Path) -> Said:
    """Return what the console and the verifiable share consumers printed, one after the other in one group each."""
    with either_broker(make, directory, SETTINGS) as broker:
        prepare(broker.bootstrap)
        found: Said = []
        for options in (("--release",), (), ("--reject",)):
            result = run_process(
                CONSOLE,
                *("--bootstrap-server", broker.bootstrap, "--topic", SINGLE, "--group", "console"),
                *("--max-messages", "7", *CONSOLE_FORMAT, *options),
            )
            found.append((f"console {options}", sorted(result.lines)))
        for options in (
            ("--acknowledgement-mode", "sync"),
            ("--acknowledgement-mode", "sync", "--ack-pattern", "release,accept,renew,reject"),
        ):
            group = f"verifiable{len(found)}"
            result = run_process(
                VERIFIABLE,
                *("--bootstrap-server", broker.bootstrap, "--topic", SINGLE, "--group-id", group),
                *(
                    "--offset-reset-strategy",
                    "earliest",
                    "--max-messages",
                    str(RECORDS),
                    "--verbose",
                    *options,
                ),
            )
            found.append((f"verifiable {options}", summary(result.lines)))
            found += command_transcript(broker.bootstrap, (("--describe", "--group", group),))
        return found


def summary(lines: list[str]) -> list[str]:
    """Return the events of a VerifiableShareConsumer without times, and with records in order."""
    events: list[dict[str, Any]] = [json.loads(line) for line in lines if line.startswith("{")]
    names = sorted({event["name"] for event in events})
    records = sorted(
        (event["partition"], event["offset"], str(event["value"]))
        for event in events
        if event["name"] == "record_data"
    )
    acknowledged = sum(event["count"] for event in events if event["name"] == "offsets_acknowledged")
    return [*names, *map(str, records), f"{acknowledged} acknowledged"]


def differences(ours: Said, theirs: Said) -> list[tuple[str, list[str], list[str]]]:
    assert [command for command, _ in ours] == [command for command, _ in theirs]
    return [
        (command, mine, kafkas)
        for (command, mine), (_, kafkas) in zip(ours, theirs, strict=True)
        if mine != kafkas
    ]


@pytest.mark.parametrize("transcript", [group_transcript, console_transcript])
def test_share_tools_say_the_same_as_of_kafka(tmp_path: Path, transcript: Any) -> None:
    for make in ("kproc", "kafka"):
        (tmp_path / make).mkdir()
    assert not differences(transcript("kproc", tmp_path / "kproc"), transcript("kafka", tmp_path / "kafka"))
