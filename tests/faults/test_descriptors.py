"""Every process holds the descriptors that its role needs and no other: compared with /proc/PID/fd.

What a child inherits by mistake does harm from afar: with a sibling's copy of a hand-over socket, passing a
client to a dead Processor succeeds; with one of a client's socket, closing it does not close the connection;
with one of a listening socket, a stopped broker keeps its port.
"""

from __future__ import annotations

import os
import signal
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from kproc.client import Client
from tests.support.broker import EmbeddedBroker, ServedBroker
from tests.support.proc import child_pids, open_descriptors
from tests.support.raw import RawClient, batch
from tests.support.status import Role, processes, wait_replaced
from tests.support.wait import pause, wait_until

pytestmark = [pytest.mark.faults, pytest.mark.own_broker, pytest.mark.transports("process")]

ACCEPTORS, PROCESSORS, HANDLERS, PARTITIONS = 1, 2, 2, 4
SETTINGS = {"num.network.threads": PROCESSORS, "num.io.threads": HANDLERS}
CHILDREN = ACCEPTORS + PROCESSORS + HANDLERS + 2  # and the controller and the cleaner

EVENTFD, EPOLL, PIDFD, SOCKET = "eventfd", "epoll", "pidfd", "socket"
SLAB, TABLE, ARENA, LINK = "memfd slab", "memfd table", "memfd arena", "memfd link"
LOCK, METADATA, SEGMENT = "lock", "metadata log", "segment file"
_MEMFDS = {"1": LINK, "2": ARENA, "3": SLAB, "4": TABLE}

# Own eventfd and epoll, the control socket, the mapping of the slab.
EVERY_CHILD = Counter({EVENTFD: 1, EPOLL: 1, SOCKET: 1, SLAB: 1})


def on_links(peers: int) -> Counter[str]:
    """A link's mapping and the peer's eventfd, for each peer."""
    return Counter({LINK: peers, EVENTFD: peers})


WANTED: dict[str, Counter[str]] = {
    "controller": EVERY_CHILD + on_links(HANDLERS + 1) + Counter({LOCK: 1, METADATA: 1}),
    "cleaner": EVERY_CHILD + on_links(HANDLERS + 1) + Counter({LOCK: 1, TABLE: 1}),
    # Of an arena the descriptor and the mapping's own; the files of its partitions come on top.
    "handler": EVERY_CHILD
    + on_links(2 + HANDLERS - 1 + PROCESSORS)
    + Counter({LOCK: 1, TABLE: 1, ARENA: 2 * PROCESSORS}),
    # A hand-over socket for each Acceptor; its clients come on top.
    "processor": EVERY_CHILD + on_links(HANDLERS) + Counter({ARENA: 2, SOCKET: ACCEPTORS}),
    "acceptor": EVERY_CHILD + Counter({SOCKET: 1 + PROCESSORS}),  # the listening one and the hand-overs
    # The signals' pair, the listening sockets, a control socket for each child.
    "supervisor": Counter(
        {
            LOCK: 1,
            SLAB: 1,
            TABLE: 1,
            ARENA: PROCESSORS,
            EPOLL: 1,
            EVENTFD: CHILDREN,
            PIDFD: CHILDREN,
            SOCKET: 2 + ACCEPTORS + CHILDREN,
        }
    ),
}

# The control listener's own two: a Processor with one link, to the controller, and an Acceptor with one hand-over.
CONTROL: dict[Role, Counter[str]] = {
    ("processor", 447): EVERY_CHILD + on_links(1) + Counter({ARENA: 2, SOCKET: 1}),
    ("acceptor", 111): EVERY_CHILD + Counter({SOCKET: 2}),
}


def kind_of(target: str) -> str:
    """What a link of /proc/PID/fd points at, in the words above."""
    if target.startswith("/memfd:kproc-"):
        return _MEMFDS[target.removeprefix("/memfd:kproc-").split("-")[0]]
    for mark, kind in (("eventfd", EVENTFD), ("eventpoll", EPOLL), ("pidfd", PIDFD), ("socket:", SOCKET)):
        if mark in target:
            return kind
    if target.endswith("/.lock"):
        return LOCK
    if "/__cluster_metadata-0/" in target:
        return METADATA
    return SEGMENT if Path(target).suffix in (".log", ".index", ".timeindex") else target


def held(pid: int) -> dict[int, str]:
    """A process's descriptors behind the standard three."""
    return {number: target for number, target in open_descriptors(pid).items() if number > 2}


def check_all(roles: dict[Role, int], *, extra: dict[str, Counter[str]]) -> None:
    """Every role against the table, and each socket in one process only."""
    check_each(roles, extra=extra)
    check_sockets(roles)


def check_each(roles: dict[Role, int], *, extra: dict[str, Counter[str]]) -> None:
    """Every role against the table."""
    for (role, index), pid in roles.items():
        found = Counter(map(kind_of, held(pid).values()))
        if role != "handler":
            assert SEGMENT not in found, f"{role}-{index} holds segment files"
        del found[SEGMENT]
        wanted = WANTED[role] + extra.get(role, Counter())
        assert found == wanted, (
            f"{role}-{index}: too much {dict(found - wanted)}, missing {dict(wanted - found)}"
        )


def check_sockets(roles: dict[Role, int]) -> None:
    """No socket is open in two processes, but for the listening ones: supervisor and Acceptor."""
    holders: dict[str, set[str]] = defaultdict(set)
    for (role, index), pid in roles.items():
        for target in held(pid).values():
            if target.startswith("socket:"):
                holders[target].add(f"{role}-{index}")
    shared = sorted(sorted(names) for names in holders.values() if len(names) > 1)
    assert shared == [[f"acceptor-{index}", "supervisor-0"] for index in range(ACCEPTORS)]


def touch_all(broker: ServedBroker) -> None:
    """Give every Handler something to hold."""
    with RawClient(broker.bootstrap) as client:
        client.create_topic("t", partitions=PARTITIONS)
        for partition in range(PARTITIONS):
            assert client.produce("t", batch(b"x"), partition=partition)["error_code"] == 0


def wait_checked(
    broker: ServedBroker, roles: dict[Role, int], extra: dict[str, Counter[str]] | None = None
) -> None:
    def is_as_wanted() -> bool:
        check_all(roles, extra=extra or {})
        return True

    # The connection that asked for the status takes a moment to be closed.
    wait_until(is_as_wanted, seconds=5, what="every role holds what it needs")


def test_every_role_holds_what_it_needs_and_no_more(tmp_path: Path, transport: str) -> None:
    with ServedBroker(tmp_path / "data", transport=transport, settings=SETTINGS) as broker:
        touch_all(broker)
        roles = processes(broker.bootstrap)
        assert len(roles) == CHILDREN + 1
        wait_checked(broker, roles)
        for (role, index), pid in roles.items():
            if role == "handler":
                files = [target for target in held(pid).values() if kind_of(target) == SEGMENT]
                assert len(files) == 3 * PARTITIONS // HANDLERS, f"{role}-{index} holds {files}"


def test_restarts_of_every_role_leave_nothing_behind_in_the_others(tmp_path: Path, transport: str) -> None:
    with ServedBroker(tmp_path / "data", transport=transport, settings=SETTINGS) as broker:
        touch_all(broker)
        wait_checked(broker, processes(broker.bootstrap))
        for _ in range(2):
            for role in [role for role, pid in processes(broker.bootstrap).items() if pid != broker.pid]:
                pid = processes(broker.bootstrap)[role]
                os.kill(pid, signal.SIGKILL)
                wait_replaced(broker.bootstrap, role, pid)
        wait_checked(broker, processes(broker.bootstrap))


def test_a_client_costs_its_processor_one_descriptor_and_nobody_else_any(
    tmp_path: Path, transport: str
) -> None:
    with ServedBroker(tmp_path / "data", transport=transport, settings=SETTINGS) as broker:
        clients = [RawClient(broker.bootstrap) for _ in range(2 * PROCESSORS)]
        try:
            pause(0.1)
            roles = processes(broker.bootstrap)
            wait_checked(broker, roles, {"processor": Counter({SOCKET: 2})})
        finally:
            for client in clients:
                client.close()
        wait_checked(broker, roles)


def test_roles_that_came_and_went_leave_nothing_behind_in_the_others(tmp_path: Path, transport: str) -> None:
    with ServedBroker(tmp_path / "data", transport=transport, settings=SETTINGS) as broker:
        touch_all(broker)
        clients = [RawClient(broker.bootstrap) for _ in range(4 * PROCESSORS)]
        try:
            for _ in range(2):
                with Client.connect("127.0.0.1", broker.port) as operator:
                    # Connections go to the new Processors and come back when those leave.
                    operator.scale(processors=PROCESSORS + 2, handlers=HANDLERS + 2)
                    operator.scale(processors=PROCESSORS, handlers=HANDLERS)
            roles = processes(broker.bootstrap)
            assert len(roles) == CHILDREN + 1
            check_sockets(roles)
        finally:
            for client in clients:
                client.close()
        wait_checked(broker, roles)


def test_the_control_plane_holds_what_it_needs(tmp_path: Path, transport: str) -> None:
    settings = {**SETTINGS, "kproc.control.listener": "127.0.0.1:0"}
    with ServedBroker(tmp_path / "data", transport=transport, settings=settings) as broker:
        roles = processes(broker.control)
        pids = {role: roles.pop(role) for role in CONTROL}

        def is_as_wanted() -> bool:
            for role, wanted in CONTROL.items():
                found = Counter(map(kind_of, held(pids[role]).values()))
                assert found == wanted, f"{role}: {found} instead of {wanted}"
            extra = {
                "controller": on_links(1) + Counter({ARENA: 2}),
                # Two children more, a listening socket and an arena.
                "supervisor": Counter({EVENTFD: 2, PIDFD: 2, SOCKET: 3, ARENA: 1}),
            }
            check_each(roles, extra=extra)
            return True

        wait_until(is_as_wanted, seconds=5, what="every role holds what it needs")


def test_the_janitor_holds_only_the_brokers_pidfd(transport: str) -> None:
    with EmbeddedBroker(transport=transport) as broker:
        known = {int(row["pid"]) for row in broker.processes}
        (janitor,) = set(child_pids(broker.pid)) - known
        assert [kind_of(target) for target in open_descriptors(janitor).values()] == [PIDFD]
