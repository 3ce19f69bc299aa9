"""The question "who deleted the topic?", answered by the command in OPERATING.md on the log of a real broker."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.broker import ServedBroker
from tests.support.command_line import call_kproc, told
from tests.support.documents import code_to_run

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
