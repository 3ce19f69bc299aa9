"""Every command at a broker whose clients chose control sequences as names: none reaches the terminal.

Names of topics follow Kafka's rules, and all the others do not: groups, members, assignors, client ids, transactional
ids, principals of rules, users and client ids of quotas, values of settings, records, headers and error texts.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from kproc.broker.security.acl import Operation, ResourceType
from kproc.cli.commands import app
from kproc.wire.header import ApiKey
from kproc.wire.record_batch import encode_batch
from kproc.wire.records import Record
from tests.support.acls import acl_fields
from tests.support.broker import ServedBroker
from tests.support.command_line import call_kproc, commands
from tests.support.groups import commit, find_coordinator
from tests.support.quotas import alter_quotas
from tests.support.raw import RawClient
from tests.support.wait import wait_until

pytestmark = [pytest.mark.long, pytest.mark.transports("process"), pytest.mark.own_broker]

NAME = "x\x1b]0;owned\x07\x1b[31m\n2026-11-25 level=ERROR forged\r\x9b2J\x7f\u202e[red]y[/red]"
# Commands that show nothing of a broker's, and others, with the test that runs them.
ELSEWHERE = {
    "serve": "a broker's own settings", "dev": "the same", "stop": "a pid", "version": "no broker", "api": "no broker",
    "scale": "numbers", "rebalance": "numbers", "ping": "an address", "tune": "numbers", "tune list": "this host",
    "pipeline run": "tests/spark", "pipeline check": "a file of the user's", "pipeline status": "the same",
    "pipeline reset": "the same",
    "bench compare": "a checkout", "bench report": "a checkout", "bench simulate": "a checkout",
    "bench sweep": "a checkout", "topic create": "the user's own arguments", "import-log": "no broker",
    "convert-log": "no broker",
    "profile add": "the user's own arguments", "profile list": "a file of the user's",
    "profile use": "the same", "profile show": "the same", "profile remove": "the same",
}  # fmt: skip


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[ServedBroker]:
    """A broker with hostile names wherever a client may choose one."""
    settings = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    with ServedBroker(tmp_path / "data", settings=settings) as broker, RawClient(broker.bootstrap) as client:
        client.create_topic("t")
        client.produce("t", encode_batch([Record(NAME.encode(), f"value {NAME}".encode(), 1)]))
        wait_until(lambda: find_coordinator(client, NAME)["error_code"] == 0, what="a coordinator")
        wait_until(lambda: commit(client, NAME, "t", {0: 1}, metadata=NAME)[0] == 0, what="committed offsets")
        join(client)
        rules = [
            acl_fields(kind, name, Operation.READ, principal=f"User:{NAME}", host=NAME)
            for kind, name in ((ResourceType.TOPIC, "t"), (ResourceType.GROUP, NAME))
        ]
        client.call(ApiKey.CREATE_ACLS, 3, {"creations": rules})
        assert alter_quotas(client, {"user": NAME, "client-id": NAME}, producer_byte_rate=1000.0) == 0
        begin_transaction(client)
        yield broker


def join(client: RawClient) -> None:
    """A member whose assignor is hostile."""
    fields: dict[str, Any] = {
        "group_id": "members", "session_timeout": 30_000, "rebalance_timeout": 30_000, "member_id": "",
        "group_instance_id": NAME, "protocol_type": "consumer", "reason": NAME,
        "protocols": [{"name": NAME, "metadata": b""}],
    }  # fmt: skip
    find_coordinator(client, "members")
    joined = client.call(ApiKey.JOIN_GROUP, 9, fields)
    if joined["error_code"]:
        joined = client.call(ApiKey.JOIN_GROUP, 9, {**fields, "member_id": joined["member_id"]})
    member = joined["member_id"]
    client.call(
        ApiKey.SYNC_GROUP, 5,
        {
            "group_id": "members", "generation_id": joined["generation_id"], "member_id": member,
            "group_instance_id": NAME, "protocol_type": "consumer", "protocol_name": NAME,
            "assignments": [{"member_id": member, "assignment": b""}],
        },
    )  # fmt: skip


def begin_transaction(client: RawClient) -> None:
    """An open transaction of a hostile id."""
    fields = {
        "transactional_id": NAME, "transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1,
    }  # fmt: skip

    def started() -> dict[str, Any] | None:
        client.call(ApiKey.FIND_COORDINATOR, 4, {"key_type": 1, "coordinator_keys": [NAME]})
        answer = client.call(ApiKey.INIT_PRODUCER_ID, 4, fields)
        return answer if answer["error_code"] == 0 else None

    producer = wait_until(started, what="a producer id")
    added = client.call(
        ApiKey.ADD_PARTITIONS_TO_TXN, 3,
        {
            "v3_and_below_transactional_id": NAME, "v3_and_below_producer_id": producer["producer_id"],
            "v3_and_below_producer_epoch": producer["producer_epoch"],
            "v3_and_below_topics": [{"name": "t", "partitions": [0]}],
        },
    )  # fmt: skip
    assert (
        added["results_by_topic_v3_and_below"][0]["results_by_partition"][0]["partition_error_code"] == 0
    ), added


def command_lines(data: Path) -> dict[str, list[list[str]]]:
    """Arguments of each command, with hostile names where one is taken."""
    log = str(data / "t-0" / "00000000000000000000.log")
    return {
        "status": [[], ["--apis"]],
        "top": [
            ["--once", "--interval", "0.2", "--page", page]
            for page in ("processes", "topics", "groups", "connections", "requests")
        ],
        "clients": [[]],
        "monitor": [["--seconds", "0.2", "--topic", NAME], ["--seconds", "0.2"], ["--api", NAME]],
        "latency": [["--produce", NAME], ["--end-to-end", "t", "--count", "2"]],
        "perf produce": [[NAME], ["t", "--records", "2"]],
        "perf consume": [[NAME], ["t", "--once"]],
        "kill-client": [[NAME]],
        "doctor": [["--output", str(data.parent / "a.tar.gz")]],
        "dump-log": [[log], [log, "--records"], ["--verify", str(data)], [NAME]],
        "produce": [[NAME]],
        "consume": [["t"], ["t", "--format", "json"], [NAME], ["t", "--group", NAME, "--from", "begin"]],
        "topic list": [[], [NAME]],
        "topic describe": [["t"], [NAME]],
        "topic alter": [[NAME, "--partitions", "4"], ["t", "--config", f"{NAME}=1"]],
        "topic verify": [["t"], [NAME]],
        "topic trim": [[NAME, "--before", "1", "--yes"]],
        "topic delete": [[NAME, "--yes"]],
        "group list": [[]],
        "group describe": [["members"], [NAME]],
        "group seek": [[NAME, "--to", "begin"], [NAME, "--to", "begin", "--execute"]],
        "group delete": [["members", "--yes"], [NAME, "--yes"]],
        "txn list": [[]],
        "txn describe": [[NAME]],
        "txn find-hanging": [[], ["--max-age", "0s"]],
        "txn abort": [[NAME, "--yes"]],
        "config get": [["--topic", NAME], ["--group", NAME], [NAME], ["--loggers"]],
        "config explain": [[NAME]],
        "config set": [[f"{NAME}=1"], ["--group", NAME, "consumer.session.timeout.ms=x"]],
        "acl list": [[], ["--topic", NAME]],
        "acl add": [[NAME, "read", "--topic", NAME]],
        "acl check": [[NAME, "read", "--topic", NAME]],
        "acl delete": [[NAME, "read", "--topic", NAME, "--yes"]],
        "user list": [[]],
        "user add": [[NAME, "--password-file", "/dev/null"]],
        "user delete": [[NAME, "--yes"]],
        "fault add": [["delay", "--topic", NAME, "--client", NAME]],
        "fault list": [[]],
        "fault remove": [["999"]],
        "time show": [[]],
        "time advance": [[NAME]],
        "time freeze": [[]],
        "time unfreeze": [[]],
        "quota list": [[]],
        "quota set": [["--user", NAME, "producer_byte_rate=1"]],
        "quota delete": [["--user", NAME, "producer_byte_rate", "--yes"], ["--user", NAME]],
    }


def test_every_command_is_covered_or_excluded_with_reason(tmp_path: Path) -> None:
    known = {path for path, _ in commands(typer.main.get_command(app))}
    tried = command_lines(tmp_path).keys()
    assert known - tried == ELSEWHERE.keys() & known
    assert not tried - known


def unprintable(done: subprocess.CompletedProcess[str]) -> set[str]:
    """Characters of the output that a terminal would act on, and `forged` if a line begins with a name's."""
    text = done.stdout + done.stderr
    found = {each for each in text if not each.isprintable()} - {"\n"}
    return found | {"forged" for line in text.split("\n") if line.startswith("2026-11-25 level")}


def test_commands_with_hostile_names_print_no_control_character(
    scene: ServedBroker, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    problems, shown = {}, set()
    for command, lines in command_lines(Path(scene.data)).items():
        for arguments in lines:
            whole = [*command.split(), *arguments]
            if "--verify" not in arguments and command != "dump-log":
                whole += ["-b", scene.bootstrap]
            done = call_kproc(capsys, *whole)
            if command == "consume" and done.returncode == 0 and "json" not in arguments:
                continue  # A reader that is no terminal gets the record's bytes.
            if found := unprintable(done):
                problems[" ".join(whole)] = found
            if "\\x1b" in done.stdout or "\\u001b" in done.stdout:
                shown.add(command)
    assert not problems
    expected = {
        "group list",
        "group describe",
        "txn list",
        "txn describe",
        "acl list",
        "quota list",
        "consume",
    }
    assert expected <= shown, "a name that is not shown proves nothing"


def test_commands_with_hostile_names_keep_json_exact(
    scene: ServedBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in ("group list", "txn list", "acl list", "quota list"):
        done = call_kproc(capsys, *command.split(), "--format", "json", "-b", scene.bootstrap)
        assert NAME in texts(json.loads(done.stdout)), command
        assert not unprintable(done), command


def texts(value: object) -> set[str]:
    """Every string in a JSON value, and what stands behind `User:` in one."""
    if isinstance(value, str):
        return {value, value.removeprefix("User:")}
    parts = [*value.keys(), *value.values()] if isinstance(value, dict) else value
    return set().union(*map(texts, parts)) if isinstance(parts, list) else set()


def test_log_with_hostile_names_has_no_forged_line(scene: ServedBroker) -> None:
    log = scene.log()
    assert not {each for each in log if not each.isprintable()} - {"\n"}
    assert not [line for line in log.split("\n") if line.startswith("2026-11-25 level")]
    assert "\\x1b" in log, "a name that is not logged proves nothing"
