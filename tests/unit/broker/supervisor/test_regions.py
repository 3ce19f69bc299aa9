"""Regions: each linked pair gets both ends of one new region, and no other."""

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from kproc.broker.config import Config
from kproc.broker.ipc.arena import Arena, ArenaReader
from kproc.broker.ipc.fdpass import make_socket_pair
from kproc.broker.ipc.link import open_first_end, open_second_end
from kproc.broker.ipc.region import Region, RegionKind
from kproc.broker.metrics.slab import Slab
from kproc.broker.role.roles import CLEANER, CONTROLLER, acceptor_id, handler_id, processor_id
from kproc.broker.supervisor.regions import Regions
from kproc.broker.transport.agent import AgentId
from kproc.broker.transport.process import Child, ControlSocket

Message = tuple[dict[str, Any], int | None]
REQUEST_BYTES = 1 << 20


class Sibling(Child):
    """A child that never forked: the test reads what it was sent."""

    def __init__(self, agent: AgentId) -> None:
        ours, theirs = make_socket_pair()
        super().__init__(agent, 0, -1, ControlSocket(ours))
        self._far = ControlSocket(theirs)
        self.received_fds: list[int] = []

    def received(self) -> list[Message]:
        """The messages since the last look; their descriptors are closed with the test."""
        messages = []
        while (message := self._far.receive()) is not None:
            messages.append(message)
            if message[1] is not None:
                self.received_fds.append(message[1])
        return messages

    def die(self) -> None:
        self._far.close()

    def close(self) -> None:
        self.control.close()
        self._far.close()
        for fd in self.received_fds:
            os.close(fd)


@pytest.fixture
def regions() -> Iterator[Regions]:
    made = Regions(Config.build({"socket.request.max.bytes": REQUEST_BYTES, "kproc.ring.bytes": 1 << 18}))
    yield made
    made.close()


@pytest.fixture
def family() -> Iterator[dict[str, Sibling]]:
    agents = [acceptor_id(0), processor_id(0), processor_id(1), handler_id(0), handler_id(1)]
    made = {str(agent): Sibling(agent) for agent in (*agents, CONTROLLER, CLEANER)}
    yield made
    for sibling in made.values():
        sibling.close()


def words(messages: list[Message]) -> list[str]:
    return [message["do"] for message, _ in messages]


def own_copy(fd: int | None) -> int:
    assert fd is not None
    return os.dup(fd)


# -- what belongs to one child ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("acceptor-0", ["slab", "eventfd", "listening", "start"]),
        ("processor-0", ["slab", "eventfd", "arena", "start"]),
        ("handler-1", ["slab", "eventfd", "table", "start"]),
        ("controller-0", ["slab", "eventfd", "table", "listening", "start"]),
        ("cleaner-0", ["slab", "eventfd", "table", "start"]),
    ],
)
def test_role_gets_what_is_its_own(
    regions: Regions, family: dict[str, Sibling], name: str, expected: list[str]
) -> None:
    with socket.socket() as listening:
        regions.send_own_regions(family[name], listening=listening.fileno())
        messages = family[name].received()
    assert words(messages) == expected
    assert all((fd is None) == (message["do"] == "start") for message, fd in messages)
    with Region.attach(own_copy(messages[0][1]), kind=RegionKind.SLAB) as slab:
        assert not any(Slab(slab.words, is_new=False).read(0).values())


def test_successor_gets_the_same_eventfd_and_another_arena(
    regions: Regions, family: dict[str, Sibling]
) -> None:
    processor = family["processor-0"]
    seen = []
    for _ in range(2):
        regions.send_own_regions(processor)
        fds = {message["do"]: fd for message, fd in processor.received()}
        os.eventfd_write(own := fds["eventfd"] or -1, 1)
        with Region.attach(own_copy(fds["arena"]), kind=RegionKind.ARENA) as arena:
            seen.append((os.fstat(own).st_ino, arena.generation, arena.payload_bytes))
        regions.release(processor.agent)
    assert seen[0][1] < seen[1][1]
    assert {each[2] for each in seen} == {2 * REQUEST_BYTES}
    eventfd = next(fd for fd in processor.received_fds if "eventfd" in os.readlink(f"/proc/self/fd/{fd}"))
    assert os.eventfd_read(eventfd) == 2, "both signals went to the same one"


# -- links ---------------------------------------------------------------------------------------------------


TALKING = {
    ("acceptor-0", "processor-0"),
    ("acceptor-0", "processor-1"),
    ("processor-0", "handler-0"),
    ("processor-0", "handler-1"),
    ("processor-1", "handler-0"),
    ("processor-1", "handler-1"),
    ("handler-0", "handler-1"),
    ("controller-0", "handler-0"),
    ("controller-0", "handler-1"),
    ("controller-0", "cleaner-0"),
    ("cleaner-0", "handler-0"),
    ("cleaner-0", "handler-1"),
}


def test_only_roles_that_talk_are_linked(regions: Regions, family: dict[str, Sibling]) -> None:
    linked = {
        pair
        for pair in itertools.permutations(family, 2)
        if regions.connect(family[pair[0]], family[pair[1]])
    }
    assert linked == TALKING | {pair[::-1] for pair in TALKING}


@pytest.mark.parametrize(
    "pair", sorted(TALKING - {("acceptor-0", "processor-0"), ("acceptor-0", "processor-1")})
)
@pytest.mark.parametrize("is_turned", [False, True])
def test_both_ends_of_a_link_talk_in_both_directions(
    regions: Regions, family: dict[str, Sibling], pair: tuple[str, str], *, is_turned: bool
) -> None:
    names = pair[::-1] if is_turned else pair
    assert regions.connect(family[names[0]], family[names[1]])
    ends = {}
    for name, peer in (names, names[::-1]):
        messages = family[name].received()
        message, fd = messages[-1]
        assert words(messages)[-1] == "link"
        assert words(messages)[0] == "peer_eventfd"
        assert AgentId(*message["peer"]) == family[peer].agent
        region = Region.attach(own_copy(fd), kind=RegionKind.LINK, generation=message["generation"])
        ends[name] = (region, *(open_first_end if message["is_first"] else open_second_end)(region))
    for name, peer in (names, names[::-1]):
        _, producer, _ = ends[name]
        assert producer.try_push(4, name.encode())
        producer.publish()
        _, _, consumer = ends[peer]
        assert [(kind, bytes(view)) for kind, view in consumer.poll(10)] == [(4, name.encode())]
        consumer.release()
    for region, _, _ in ends.values():
        region.close()


def test_processors_links_are_as_large_as_configured(regions: Regions, family: dict[str, Sibling]) -> None:
    regions.connect(family["processor-0"], family["handler-0"])
    message, fd = family["handler-0"].received()[-1]
    assert not message["is_first"]
    with Region.attach(own_copy(fd)) as region:
        producer, consumer = open_second_end(region)
        assert (producer.capacity, consumer.capacity) == (1 << 18, 1 << 18)


def test_handler_is_given_the_processors_arena_before_the_link(
    regions: Regions, family: dict[str, Sibling]
) -> None:
    processor, handler = family["processor-0"], family["handler-0"]
    regions.send_own_regions(processor)
    (arena_fd,) = [fd for message, fd in processor.received() if message["do"] == "arena"]
    regions.connect(handler, processor)
    assert words(processor.received()) == ["peer_eventfd", "link"]
    messages = handler.received()
    assert words(messages) == ["peer_eventfd", "peer_arena", "link"]
    owner = Arena(Region.attach(own_copy(arena_fd), kind=RegionKind.ARENA), 0)
    offset = owner.allocate(100)
    assert offset is not None
    owner.view(offset, 5)[:] = b"hello"
    message, fd = messages[1]
    reader = ArenaReader.attach(own_copy(fd), generation=message["generation"])
    assert bytes(reader.view(offset, 5)) == b"hello"
    reader.close()
    owner.close()


def test_every_link_is_of_a_new_generation(regions: Regions, family: dict[str, Sibling]) -> None:
    """A restarted role must never take what its predecessor left in a ring for its own."""
    generations = []
    for _ in range(3):
        regions.connect(family["processor-0"], family["handler-0"])
        message, _ = family["handler-0"].received()[-1]
        generations.append(message["generation"])
    assert generations == sorted(set(generations))


def test_handoff_sockets_are_two_ends_of_one_pair(regions: Regions, family: dict[str, Sibling]) -> None:
    acceptor, processor = family["acceptor-0"], family["processor-1"]
    regions.connect(processor, acceptor)
    ((to_acceptor, ours),), ((to_processor, theirs),) = acceptor.received(), processor.received()
    assert to_acceptor == {"do": "handoff", "peer": ["processor", 1]}
    assert to_processor == {"do": "handoff", "peer": ["acceptor", 0]}
    with socket.socket(fileno=own_copy(ours)) as one, socket.socket(fileno=own_copy(theirs)) as other:
        one.send(b"x")
        assert other.recv(10) == b"x"


@pytest.mark.parametrize("dead", [0, 1])
@pytest.mark.parametrize("pair", [("processor-0", "handler-0"), ("acceptor-0", "processor-0")])
def test_child_that_has_just_died_is_reported_and_nothing_leaks(
    regions: Regions, family: dict[str, Sibling], pair: tuple[str, str], dead: int
) -> None:
    family[pair[dead]].die()
    before = len(os.listdir("/proc/self/fd"))
    for names in (pair, pair[::-1]):
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            regions.connect(family[names[0]], family[names[1]])
        family[pair[1 - dead]].received()
    kept = len(family[pair[1 - dead]].received_fds) + 2  # What the other one was sent, and the two eventfds.
    assert len(os.listdir("/proc/self/fd")) <= before + kept


def test_nothing_is_left_after_close(family: dict[str, Sibling]) -> None:
    before = set(os.listdir("/proc/self/fd"))
    regions = Regions(Config.build({"socket.request.max.bytes": REQUEST_BYTES}))
    regions.send_own_regions(family["processor-0"])
    regions.connect(family["processor-0"], family["handler-0"])
    for sibling in family.values():
        sibling.received()
        for fd in sibling.received_fds:
            os.close(fd)
        sibling.received_fds.clear()
    regions.close()
    assert set(os.listdir("/proc/self/fd")) == before
