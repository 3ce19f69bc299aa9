"""`kproc quota` against a running broker: a quota is shown and applied, and errors are reported."""

from __future__ import annotations

import json
import re
import subprocess
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.support.broker import BrokerUnderTest
from tests.support.cases import in_one_test
from tests.support.command_line import Kproc, call_kproc, told
from tests.support.topics import TopicFactory, fresh_name
from tests.support.wait import wait_until

pytestmark = pytest.mark.transports("process")


@pytest.fixture
def kproc(broker: BrokerUnderTest, capsys: pytest.CaptureFixture[str]) -> Kproc:
    def call(command: str) -> subprocess.CompletedProcess[str]:
        return call_kproc(capsys, "quota", *command.split(), "--bootstrap", broker.bootstrap)

    return call


def quotas_of(kproc: Kproc, name: str) -> list[tuple[dict[str, Any], str, float]]:
    answer = kproc("list --format json")
    assert answer.returncode == 0, answer.stderr
    return [
        (row["of"], row["quota"], row["value"])
        for row in json.loads(answer.stdout)
        if name in row["of"].values()
    ]


def test_quotas_are_set_listed_and_deleted(kproc: Kproc) -> None:
    name = fresh_name("alice")
    done = kproc(f"set --user {name} --every-client request_percentage=12.5 producer_byte_rate=1e6")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        f"set request_percentage of user {name}, every client to 12.5",
        f"set producer_byte_rate of user {name}, every client to 1000000",
    ]
    entity = {"user": name, "client-id": None}
    assert sorted(quotas_of(kproc, name), key=str) == [
        (entity, "producer_byte_rate", 1e6), (entity, "request_percentage", 12.5),
    ]  # fmt: skip
    assert any(f"user {name}" in line and "12.5" in line for line in kproc("list").stdout.splitlines())
    whose = f"--user {name} --every-client"
    done = kproc(f"delete {whose} --yes")
    has = "has producer_byte_rate, request_percentage\n"
    assert (done.returncode, done.stderr.partition(f"{name}, every client ")[2]) == (2, has)
    assert kproc(f"delete {whose} request_percentage producer_byte_rate --yes").returncode == 0
    assert quotas_of(kproc, name) == []


def test_client_ids_and_addresses_have_quotas_too(kproc: Kproc) -> None:
    name = fresh_name("app")
    assert kproc(f"set --client {name} controller_mutation_rate=5").returncode == 0
    assert quotas_of(kproc, name) == [({"client-id": name}, "controller_mutation_rate", 5.0)]
    assert kproc("set --address 10.9.8.7 connection_creation_rate=20").returncode == 0
    assert quotas_of(kproc, "10.9.8.7") == [({"ip": "10.9.8.7"}, "connection_creation_rate", 20.0)]
    assert kproc(f"delete --client {name} controller_mutation_rate --yes").returncode == 0
    assert kproc("delete --address 10.9.8.7 connection_creation_rate --yes").returncode == 0


def test_quota_delete_of_missing_quota_fails_and_keeps_others(kproc: Kproc) -> None:
    name = fresh_name("alice")
    nothing = kproc(f"delete --user {name} producer_byte_rate --yes")
    assert (nothing.returncode, nothing.stdout) == (1, "")
    assert nothing.stderr == f"kproc: user {name} has no quota producer_byte_rate\n"
    assert kproc(f"set --user {name} producer_byte_rate=5").returncode == 0
    other = kproc(f"delete --user {name} producer_byte_rate consumer_byte_rate --yes")
    assert other.stderr == f"kproc: user {name} has no quota consumer_byte_rate; it has producer_byte_rate\n"
    assert quotas_of(kproc, name) == [({"user": name}, "producer_byte_rate", 5.0)]
    assert kproc(f"delete --user {name} producer_byte_rate producer_byte_rate --yes").returncode == 0


@in_one_test(
    ("command", "code", "told"),
    [
        ("set producer_byte_rate=1", 2, "name the owner of the quota"),
        ("set --user a --every-user producer_byte_rate=1", 2, "exclude each other"),
        ("delete --user a --yes", 2, "name the quotas to delete, such as producer_byte_rate; user a has no quota"),
        ("set --user a producer_byte_rate", 2, "expected QUOTA=NUMBER"),
        ("set --user a producer_byte_rate=fast", 2, "expected QUOTA=NUMBER"),
        ("set --user a producer_byte_rate=1 producer_byte_rate=2", 2, "producer_byte_rate is given twice"),
        (
            "set --user a speed=1",
            1,
            "Invalid configuration key speed (there are producer_byte_rate, consumer_",
        ),
        ("set --user a producer_byte_rate=0", 1, "must be greater than 0"),
        ("set --user a --address 10.0.0.1 producer_byte_rate=1", 1, "entity"),
    ],
)
def test_quota_commands_reject_invalid_arguments(kproc: Kproc, command: str, code: int, told: str) -> None:
    answer = kproc(command)
    assert answer.returncode == code, answer.stderr
    assert told in answer.stderr


def test_clients_name_the_throttled_one_and_its_quota(
    broker: BrokerUnderTest, topic: TopicFactory, capsys: pytest.CaptureFixture[str], kproc: Kproc
) -> None:
    name, target = fresh_name("greedy"), topic()
    told(kproc(f"set --client {name} producer_byte_rate=1000"))
    producer = Producer({"bootstrap.servers": broker.bootstrap, "client.id": name})
    producer.produce(target, bytes(60_000))
    assert producer.flush(10) == 0

    def line() -> str | None:
        shown = told(call_kproc(capsys, "clients", "--bootstrap", broker.bootstrap))
        return next((each for each in shown.splitlines() if f": {name} (" in each), None)

    found = wait_until(line, what="the throttled client is named")
    assert re.fullmatch(
        rf"throttled \d+ % of the time: {name} \(User:ANONYMOUS, 127\.0\.0\.1:\d+\)"
        rf" by producer_byte_rate=1000 of client {name}",
        found,
    )
    told(kproc(f"delete --client {name} producer_byte_rate --yes"))
