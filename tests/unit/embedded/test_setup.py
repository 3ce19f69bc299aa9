"""The command by which an embedded broker is started."""

from __future__ import annotations

import os
from pathlib import Path

from kproc.embedded.process import READY_FILE
from kproc.embedded.setup import BrokerSetup


def test_settings_become_arguments(tmp_path: Path) -> None:
    setup = BrokerSetup(
        {"num.io.threads": 2, "auto.create.topics.enable": False, "ssl.cipher.suites": ["a", "b"]},
        transport="thread",
        data="here",
        port=0,
        has_tls=False,
        users=(),
        client={},
        emulate=None,
        has_power_loss=False,
    )
    command = setup.start_command(tmp_path)
    assert command[command.index("--data") + 1] == str(Path("here").absolute())
    assert command[command.index("--ready-file") + 1] == str(tmp_path / READY_FILE)
    assert command[command.index("--exit-with-parent") + 1] == str(os.getpid())
    assert {command[index + 1] for index, word in enumerate(command) if word == "--set"} >= {
        "num.io.threads=2",
        "auto.create.topics.enable=false",
        "kproc.transport=thread",
        "ssl.cipher.suites=a,b",
        "listeners=PLAINTEXT://127.0.0.1:0",
        f"kproc.temporary.directory={tmp_path}",
    }
