"""Reports of Processors to Acceptors about connections: complete, coalesced, never blocking."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterator

import pytest

from kproc.broker.ipc.fdpass import make_socket_pair
from kproc.broker.processor.count_reporter import CountReporter
from kproc.broker.role.handoff import (
    CHANGES_MAX,
    REFUSED,
    REPORT_BYTES_MAX,
    Key,
    Report,
    address_text,
    pack_address,
)
from kproc.broker.transport.agent import AgentId

ACCEPTOR = AgentId("acceptor", 0)
ONE, TWO = pack_address("10.0.0.1"), pack_address("2001:db8::1")


class Reader:
    """An Acceptor's end: the counts as it would keep them, and the acknowledgements."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.counts: Counter[Key] = Counter()
        self.answers: list[int] = []
        self.reports: list[Report] = []

    def read(self) -> None:
        while True:
            try:
                message = self.sock.recv(REPORT_BYTES_MAX)
            except BlockingIOError:
                return
            report = Report.unpack(message)
            self.reports.append(report)
            self.answers += report.answers
            for key, change in report.changes:
                self.counts[key] += change


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, Reader]]:
    ours, theirs = make_socket_pair()
    with ours, theirs:
        yield ours, Reader(theirs)


def test_late_acceptor_gets_all_connection_counts(pair: tuple[socket.socket, Reader]) -> None:
    sock, reader = pair
    reporter = CountReporter()
    reporter.opened(0, ONE)
    reporter.opened(1, ONE)
    reporter.opened(0, ONE)
    reporter.opened(0, TWO)
    reporter.closed(0, TWO)
    reporter.flush()
    reporter.attach(ACCEPTOR, sock)
    reporter.flush()
    reader.read()
    assert reader.counts == {(ONE, 0): 2, (ONE, 1): 1}
    assert reporter.totals == reader.counts


def test_changes_of_one_cycle_travel_as_one(pair: tuple[socket.socket, Reader]) -> None:
    sock, reader = pair
    reporter = CountReporter()
    reporter.attach(ACCEPTOR, sock)
    for _ in range(10):
        reporter.opened(0, ONE)
    reporter.opened(0, TWO)
    reporter.closed(0, TWO)
    reporter.flush()
    reader.read()
    assert reader.counts == {(ONE, 0): 10}
    assert reader.reports[-1].changes == [((ONE, 0), 10)]
    assert not reporter.has_unsent


def test_an_acknowledgement_comes_with_the_count(pair: tuple[socket.socket, Reader]) -> None:
    sock, reader = pair
    reporter = CountReporter()
    reporter.attach(ACCEPTOR, sock)
    reporter.acknowledge(sock, 7)
    reporter.opened(0, ONE)
    reporter.acknowledge(sock, 8 | REFUSED)
    reporter.flush()
    reader.read()
    assert reader.reports == [Report([7, 8 | REFUSED], [((ONE, 0), 1)])]


def test_stopped_acceptor_costs_no_memory_and_catches_up(
    pair: tuple[socket.socket, Reader],
) -> None:
    sock, reader = pair
    reporter = CountReporter()
    reporter.attach(ACCEPTOR, sock)
    for serial in range(5000):  # More than a socket's buffer takes.
        reporter.opened(0, ONE)
        reporter.acknowledge(sock, serial)
        reporter.flush()
    assert reporter.has_unsent
    while reporter.has_unsent:
        reader.read()
        reporter.flush()
    reader.read()
    assert reader.counts == {(ONE, 0): 5000}
    assert reader.answers == list(range(5000))


def test_many_addresses_take_several_messages(pair: tuple[socket.socket, Reader]) -> None:
    sock, reader = pair
    reporter = CountReporter()
    reporter.attach(ACCEPTOR, sock)
    addresses = [pack_address(f"10.1.{n >> 8}.{n & 255}") for n in range(2 * CHANGES_MAX + 1)]
    for address in addresses:
        reporter.opened(2, address)
    reporter.flush()
    reader.read()
    assert reader.counts == {(address, 2): 1 for address in addresses}
    assert [report.has_more for report in reader.reports] == [True, True, False]
    reporter.closed(2, addresses[0])
    for address in addresses[: 2 * CHANGES_MAX]:
        reporter.closed(2, address) if address != addresses[0] else reporter.opened(3, address)
    reporter.acknowledge(sock, 9)
    reporter.flush()
    reader.reports.clear()
    reader.read()
    assert reader.reports[0].answers == [9], "what was opened comes first, with its answer"
    assert reader.reports[0].changes[0] == ((addresses[0], 3), 1)


def test_an_ended_acceptor_does_not_disturb_the_others(pair: tuple[socket.socket, Reader]) -> None:
    sock, reader = pair
    dead, far = make_socket_pair()
    far.close()
    reporter = CountReporter()
    reporter.attach(AgentId("acceptor", 1), dead)
    reporter.attach(ACCEPTOR, sock)
    reporter.opened(0, ONE)
    reporter.acknowledge(dead, 1)
    reporter.flush()
    reporter.opened(0, ONE)
    reporter.flush()
    reader.read()
    assert reader.counts == {(ONE, 0): 2}
    assert not reporter.has_unsent
    dead.close()


def test_the_old_pair_of_an_acceptor_goes_and_its_new_one_stays(pair: tuple[socket.socket, Reader]) -> None:
    sock, reader = pair
    reporter = CountReporter()
    old, far = make_socket_pair()
    with old, far:
        reporter.attach(ACCEPTOR, old)
        reporter.attach(ACCEPTOR, sock)
        reporter.detach(ACCEPTOR, old)
        reporter.acknowledge(old, 1)  # Came by the old pair: that Acceptor cannot be told any more.
        reporter.opened(0, ONE)
        reporter.flush()
        reader.read()
        assert reader.counts == {(ONE, 0): 1}
        assert reader.answers == []
        reporter.detach(ACCEPTOR)
        reporter.closed(0, ONE)
        reporter.flush()
        reader.read()
        assert reader.counts == {(ONE, 0): 1}, "told after detach"


@pytest.mark.parametrize(
    ("host", "text"),
    [("10.0.0.1", "10.0.0.1"), ("::ffff:10.0.0.1", "10.0.0.1"), ("fe80::1%lo", "fe80::1"), ("::1", "::1")],
)
def test_both_forms_of_an_address_are_one_key(host: str, text: str) -> None:
    assert address_text(pack_address(host)) == text
    assert len(pack_address(host)) == 16
