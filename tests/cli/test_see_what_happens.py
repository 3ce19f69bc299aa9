"""Commands that show what happens: those of OPERATING.md as typed, and the end of a connection."""

from __future__ import annotations

import re

import pytest

from tests.support.broker import ROOT, BrokerUnderTest
from tests.support.command_line import Kproc, described, told
from tests.support.raw import RawClient
from tests.support.topics import fresh_name

pytestmark = [pytest.mark.long, pytest.mark.transports("process")]


def commands() -> list[str]:
    guide = (ROOT / "kproc/OPERATING.md").read_text()
    section = guide.split("## See what happens\n")[1].split("\n## ")[0]
    return re.findall(r"`kproc ((?:topic|group) [^`]+)`", section)


def test_commands_of_the_guide_answer_as_typed(kproc: Kproc, filled: str, group: str) -> None:
    found = commands()
    assert len(found) >= 6
    for command in found:
        shown = told(kproc(command.replace("TOPIC", filled).replace("GROUP", group)))
        header, *rows = [line.split() for line in shown.splitlines()]
        name = group if command.startswith("group") else filled
        assert any(name in row for row in (header, *rows)), command
    header, *rows = [line.split() for line in told(kproc("group list --sort lag")).splitlines()]
    (row,) = [row for row in rows if row[0] == group]
    assert re.fullmatch(r"\d+s", row[header.index("BEHIND")])


def test_kill_client_accepts_the_address_of_a_client(kproc: Kproc, broker: BrokerUnderTest) -> None:
    with RawClient(broker.bootstrap) as client:
        client.create_topic(fresh_name())
        host, port = client.socket.getsockname()
        (row,) = [each for each in described(kproc("clients -f json")) if each["port"] == port]
        assert told(kproc(f"kill-client {host}:{port} --dry-run")) == f"would close {row['id']}\n"
        assert told(kproc(f"kill-client {host}:{port}")) == f"closed {row['id']}\n"
        assert client.is_closed_by_broker()
