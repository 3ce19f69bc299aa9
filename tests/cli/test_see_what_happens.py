"""The commands of OPERATING.md, "See what happens", as typed, with the answers that they promise."""

from __future__ import annotations

import re

import pytest

from tests.support.broker import ROOT
from tests.support.command_line import Kproc, told

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
