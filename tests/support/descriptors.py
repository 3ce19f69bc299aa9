"""The descriptors of each role: the exact table, and the comparison with /proc/PID/fd."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

from kproc.broker.supervisor import stacks
from tests.support.proc import open_descriptors
from tests.support.status import Role

ACCEPTORS, PROCESSORS, HANDLERS = 1, 2, 2
CHILDREN = ACCEPTORS + PROCESSORS + HANDLERS + 2  # and the controller and the cleaner

EVENTFD, EPOLL, PIDFD, SOCKET = "eventfd", "epoll", "pidfd", "socket"
STACKS = "memfd stacks"
SLAB, TABLE, ARENA, LINK = "memfd slab", "memfd table", "memfd arena", "memfd link"
LOCK, METADATA, SEGMENT, DATA = "lock", "metadata log", "segment file", "data directory"
_MEMFDS = {"1": LINK, "2": ARENA, "3": SLAB, "4": TABLE}

# Own eventfd and epoll, the control socket, the mapping of the slab, what its stacks would be written to.
EVERY_CHILD = Counter({EVENTFD: 1, EPOLL: 1, SOCKET: 1, SLAB: 1, STACKS: 1})


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
    # A handoff socket for each Acceptor; its clients come on top.
    "processor": EVERY_CHILD + on_links(HANDLERS) + Counter({ARENA: 2, SOCKET: ACCEPTORS}),
    "acceptor": EVERY_CHILD + Counter({SOCKET: 1 + PROCESSORS}),  # the listening one and the handoffs
    # The signals' pair, the status window, the listening sockets, a control socket for each child.
    "supervisor": Counter(
        {
            LOCK: 1,
            DATA: 1,
            SLAB: 1,
            STACKS: 1,
            TABLE: 1,
            ARENA: PROCESSORS,
            EPOLL: 1,
            EVENTFD: CHILDREN,
            PIDFD: CHILDREN,
            SOCKET: 3 + ACCEPTORS + CHILDREN,
        }
    ),
}

# The control listener's own two: a Processor with one link, to the controller, and an Acceptor with one handoff.
CONTROL: dict[Role, Counter[str]] = {
    ("processor", 447): EVERY_CHILD + on_links(1) + Counter({ARENA: 2, SOCKET: 1}),
    ("acceptor", 111): EVERY_CHILD + Counter({SOCKET: 2}),
}
# What it costs the others: a link, two children more with a listening socket and an arena.
CONTROL_EXTRA = {
    "controller": on_links(1) + Counter({ARENA: 2}),
    "supervisor": Counter({EVENTFD: 2, PIDFD: 2, SOCKET: 3, ARENA: 1}),
}


def kind_of(target: str) -> str:
    """What a link of /proc/PID/fd points at, in the words above."""
    if target.startswith("/memfd:kproc-"):
        return _MEMFDS[target.removeprefix("/memfd:kproc-").split("-")[0]]
    if target.startswith(f"/memfd:{stacks.NAME}"):
        return STACKS
    for mark, kind in (("eventfd", EVENTFD), ("eventpoll", EPOLL), ("pidfd", PIDFD), ("socket:", SOCKET)):
        if mark in target:
            return kind
    if target.endswith("/.lock"):
        return LOCK
    if (Path(target) / ".lock").exists():
        return DATA
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


def check_control(roles: dict[Role, int], *, transfers: int = 0) -> None:
    """The roles of a broker with a control listener, all of them."""
    others = dict(roles)
    for role, wanted in CONTROL.items():
        found = Counter(map(kind_of, held(others.pop(role)).values()))
        assert found == wanted, f"{role}: {found} instead of {wanted}"
    check_each(others, extra=CONTROL_EXTRA, transfers=transfers)


def check_each(roles: dict[Role, int], *, extra: dict[str, Counter[str]], transfers: int = 0) -> None:
    """Every role against the table. A Processor may keep segments open that it has sent from, and for so many other
    Processors the socket by which they gave each other connections.
    """
    for (role, index), pid in roles.items():
        found = Counter(map(kind_of, held(pid).values()))
        if role not in ("handler", "processor"):
            assert SEGMENT not in found, f"{role}-{index} holds segment files"
        del found[SEGMENT]
        wanted = WANTED[role] + extra.get(role, Counter())
        if role == "processor":
            wanted[SOCKET] += min(transfers, max(0, found[SOCKET] - wanted[SOCKET]))
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
