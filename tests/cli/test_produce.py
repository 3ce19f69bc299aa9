"""`kproc produce` and `consume` at the wrong port; a broker that refuses them: tests/faults/test_disk_full.py."""

from __future__ import annotations

import re

import pytest

from tests.support.broker import EmbeddedBroker, run_kproc

pytestmark = [pytest.mark.long, pytest.mark.own_broker]


@pytest.mark.parametrize("command", [("produce", "t"), ("consume", "t")], ids=["produce", "consume"])
@pytest.mark.transports("process")
def test_produce_to_control_listener_names_it(transport: str, command: tuple[str, ...]) -> None:
    settings = {"kproc.control.listener": "127.0.0.1:0"}
    with EmbeddedBroker(transport=transport, settings=settings) as broker:
        shown = run_kproc("status", "--bootstrap", broker.bootstrap).stdout
        found = re.search(r"control (\S+)", shown)
        assert found is not None, shown
        done = run_kproc(*command, "--bootstrap", found[1], stdin="one\n", seconds=20)
        assert done.returncode == 1
        assert done.stderr == (
            f"kproc: {found[1]} is a control listener, for status, top, scale, topic and config; "
            f"for records connect to {broker.bootstrap}\n"
        )
