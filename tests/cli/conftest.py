"""The fixture that runs commands on the shared broker."""

from __future__ import annotations

import subprocess

import pytest

from tests.support.broker import BrokerUnderTest
from tests.support.command_line import Kproc, call_kproc


@pytest.fixture
def kproc(broker: BrokerUnderTest, capsys: pytest.CaptureFixture[str]) -> Kproc:
    """`kproc("topic list", stdin="...")` on the shared broker: what it wrote, and its exit code."""

    def call(command: str, *more: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return call_kproc(capsys, *command.split(), *more, "--bootstrap", broker.bootstrap, stdin=stdin)

    return call
