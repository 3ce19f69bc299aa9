"""`kproc monitor` against a broker whose client produces meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import orjson

from tests.support.command_line import Kproc, refused, told
from tests.support.raw import RawClient, batch
from tests.support.topics import fresh_name


@contextmanager
def producing(bootstrap: str, topic: str) -> Iterator[None]:
    """A client that produces a record every 20 ms."""
    stop = threading.Event()

    def run() -> None:
        with RawClient(bootstrap) as client:
            while not stop.wait(0.02):
                client.produce(topic, batch(b"v"))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def test_monitor_prints_the_requests_of_a_topic(kproc: Kproc, broker, topic) -> None:
    name = topic()
    with producing(broker.bootstrap, name):
        shown = told(kproc(f"monitor --topic {name} --api produce --count 3 --seconds 60"))
        rows = told(kproc(f"monitor --topic {name} --count 2 --seconds 60 --format json"))
    lines = shown.splitlines()
    assert len(lines) == 3
    assert all(line.split(" ")[1:4] == ["Produce", name, "ok"] for line in lines)
    assert [orjson.loads(row)["topics"] for row in rows.splitlines()] == [[name]] * 2


def test_monitor_ends_after_its_time_and_rejects_an_unknown_api(kproc: Kproc) -> None:
    assert told(kproc(f"monitor --topic {fresh_name()} --seconds 0.1")) == ""
    assert "--api 'Prodce': expected one of" in refused(kproc("monitor --api Prodce"), code=2)
