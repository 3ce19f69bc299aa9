"""Brokers that are forked by the fork server are like those that are started by exec."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest

from tests.support.broker import ServedBroker
from tests.support.broker_starts import real_starts
from tests.support.proc import descriptor_kinds

pytestmark = [pytest.mark.own_broker, pytest.mark.transports("process")]


def is_forked(broker: ServedBroker) -> bool:
    return "tests.support.fork_server" in psutil.Process(broker.pid).cmdline()


def test_forked_broker_is_a_child_with_our_environment(
    tmp_path: Path, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The variable is set after the start of the fork server, and the broker complains of its value."""
    monkeypatch.setenv("NOTIFY_SOCKET", f"{tmp_path}/no-such-socket")
    with ServedBroker(tmp_path / "data", transport=transport, new_session=True) as broker:
        assert is_forked(broker)
        assert psutil.Process(broker.pid).ppid() == os.getpid()
        assert os.getsid(broker.pid) == broker.pid
    assert "cannot notify the service manager" in broker.last_log


def test_forked_broker_has_no_more_descriptors(tmp_path: Path, transport: str) -> None:
    with ServedBroker(tmp_path / "forked", transport=transport) as broker:
        forked = descriptor_kinds(broker.pid)
    with real_starts(), ServedBroker(tmp_path / "started", transport=transport) as broker:
        assert not is_forked(broker)
        assert descriptor_kinds(broker.pid).total() == forked.total()


def test_exit_status_of_forked_broker_is_known(tmp_path: Path, transport: str) -> None:
    broker = ServedBroker(tmp_path / "data", transport=transport).start()
    assert broker.stop(signal.SIGKILL) == -signal.SIGKILL
    with pytest.raises(RuntimeError, match=r"ended with 2: .*no-such-setting"):
        ServedBroker(tmp_path / "data", transport=transport, settings={"no-such-setting": 1}).start()


def test_changed_variable_of_interpreter_starts_by_exec(
    tmp_path: Path, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "1")
    with ServedBroker(tmp_path / "data", transport=transport) as broker:
        assert not is_forked(broker)
