"""Log levels of a running broker, changed by a client: every process logs by them, successors as well."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.broker import ServedBroker, run_kproc
from tests.support.configs import set_config
from tests.support.raw import RawClient, batch
from tests.support.status import processes, wait_replaced
from tests.support.wait import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.own_broker, pytest.mark.transports("process")]

LOGGERS = 8
OPENED = "role=handler-{} kproc.broker.handler.partitions: opened {}-0"
CLOSED = "level=DEBUG role=processor-{} kproc.broker.processor.connection_table: closing connection"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[ServedBroker]:
    settings = {"num.network.threads": 1, "num.io.threads": 1}
    with ServedBroker(tmp_path / "data", transport="process", settings=settings) as running:
        yield running


def set_level(broker: ServedBroker, name: str, level: str) -> None:
    with RawClient(broker.bootstrap) as client:
        assert set_config(client, name, level, kind=LOGGERS) == (0, None)


def first_record(broker: ServedBroker, topic: str) -> None:
    with RawClient(broker.bootstrap) as client:
        client.create_topic(topic)
        assert client.produce(topic, batch(b"x"))["error_code"] == 0


def test_log_level_applies_to_running_restarted_and_new_roles(broker: ServedBroker) -> None:
    first_record(broker, "before")
    set_level(broker, "kproc", "DEBUG")
    wait_until(
        lambda: CLOSED.format(0) in broker.log(), what="the Processor says that it closed a connection"
    )
    first_record(broker, "after")
    wait_until(lambda: OPENED.format(0, "after") in broker.log(), what="the Handler says what it opened")
    assert OPENED.format(0, "before") not in broker.log(), "which was before"

    old = processes(broker.bootstrap)[("handler", 0)]
    os.kill(old, signal.SIGKILL)
    wait_replaced(broker.bootstrap, ("handler", 0), old)
    first_record(broker, "successor")
    wait_until(lambda: OPENED.format(0, "successor") in broker.log(), what="its successor does, too")

    scaled = run_kproc("scale", "--processors", "2", "--bootstrap", broker.bootstrap)
    assert scaled.returncode == 0, scaled.stderr

    def newcomer_logs() -> bool:
        with RawClient(broker.bootstrap):
            return CLOSED.format(1) in broker.log()

    wait_until(newcomer_logs, what="a Processor that came later says what it closed")


def test_log_level_survives_controller_death_but_not_a_restart(broker: ServedBroker) -> None:
    set_level(broker, "kproc.broker.processor", "TRACE")
    old = processes(broker.bootstrap)[("controller", 0)]
    os.kill(old, signal.SIGKILL)
    wait_replaced(broker.bootstrap, ("controller", 0), old)
    set_level(broker, "kproc.broker.api", "ERROR")

    def shown(*names: str) -> list[str]:
        done = run_kproc("config", "get", "--loggers", *names, "--bootstrap", broker.bootstrap)
        assert done.returncode == 0, done.stderr
        return [line.split()[1] for line in done.stdout.splitlines()[1:]]

    assert shown("kproc.broker.api", "kproc.broker.processor", "root") == ["ERROR", "TRACE", "INFO"]
    unset = ("--unset", "kproc.broker.processor", "--bootstrap", broker.bootstrap)
    taken = run_kproc("config", "set", "--loggers", *unset)
    changed = "changed kproc.broker.processor of log levels of broker 1: TRACE -> default\n"
    assert (taken.returncode, taken.stdout) == (0, changed)
    assert shown("kproc.broker.processor.connection_table") == ["INFO"]

    broker.stop()
    broker.start()
    assert shown("kproc.broker.api") == ["INFO"], "levels last until the broker ends"


def test_log_level_reaches_hung_role_when_it_resumes(broker: ServedBroker) -> None:
    hung = processes(broker.bootstrap)[("cleaner", 0)]
    os.kill(hung, signal.SIGSTOP)
    try:
        set_level(broker, "kproc", "DEBUG")
    finally:
        os.kill(hung, signal.SIGCONT)
    first_record(broker, "meanwhile")
    wait_until(lambda: OPENED.format(0, "meanwhile") in broker.log(), what="the Handler says what it opened")
