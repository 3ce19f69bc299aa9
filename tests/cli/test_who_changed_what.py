"""The question "who deleted the topic?", answered by the command in OPERATING.md on the log of a real broker."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from confluent_kafka import Producer

from kproc.cli.connection import connect
from kproc.wire.header import ApiKey
from tests.support.broker import ServedBroker
from tests.support.command_line import call_kproc, told
from tests.support.documents import code_to_run
from tests.support.groups import Member, find_coordinator, settle
from tests.support.raw import CLIENT_ID

pytestmark = [pytest.mark.long, pytest.mark.transports("process")]


def test_grep_of_the_guide_finds_who_deleted_a_topic(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [search] = code_to_run("kproc/OPERATING.md", "sh")
    with ServedBroker(tmp_path / "data", settings={"num.io.threads": 2}) as broker:
        for command in (
            "create orders orders-2 payments",
            "delete payments orders --yes",
            "delete orders-2 --yes",
        ):
            told(call_kproc(capsys, "topic", *command.split(), "-b", broker.bootstrap))
        told(call_kproc(capsys, "scale", "--handlers", "1", "-b", broker.bootstrap))
        log = broker.log()
    (tmp_path / "kproc.log").write_text(log)
    answer = subprocess.run(search, shell=True, cwd=tmp_path, capture_output=True, text=True, check=True)
    [line] = answer.stdout.splitlines()
    assert line.endswith("User:ANONYMOUS from 127.0.0.1 deleted topics (2): payments, orders")
    assert "User:ANONYMOUS from 127.0.0.1 changed the number of processes (1): handlers=1\n" in log


def test_removed_member_and_aborted_transaction_leave_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A member that leaves by its own connection, and a producer without an open transaction, leave none."""
    with ServedBroker(tmp_path / "data") as broker:
        with connect(broker.bootstrap) as admin, Member(broker.bootstrap, "g") as removed:
            find_coordinator(removed.client, "g")
            settle([removed])
            leaving = [{"member_id": removed.member_id, "group_instance_id": None, "reason": None}]
            left = admin.call(ApiKey.LEAVE_GROUP, 5, {"group_id": "g", "members": leaving})
            assert left["members"][0]["error_code"] == 0
        with Member(broker.bootstrap, "h") as own:
            settle([own])
            own.leave()
        told(call_kproc(capsys, "topic", "create", "t", "-b", broker.bootstrap))
        producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "tx"})
        producer.init_transactions(20)
        producer.begin_transaction()
        producer.produce("t", b"v")
        assert producer.flush(20) == 0
        told(call_kproc(capsys, "txn", "abort", "tx", "--yes", "-b", broker.bootstrap))
        log = broker.log()
    lines = [line.partition("change_log: ")[2] for line in log.splitlines() if "change_log: " in line]
    assert [line for line in lines if "created" not in line] == [
        f"User:ANONYMOUS from 127.0.0.1 removed members of group g (1): {removed.member_id} "
        f"(client {CLIENT_ID}, 127.0.0.1)",
        "User:ANONYMOUS from 127.0.0.1 aborted open transactions of transactional ids (1): tx",
    ]
