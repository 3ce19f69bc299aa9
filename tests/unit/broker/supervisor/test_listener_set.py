"""ListenerSet: listeners that come and go. Those that cannot be opened are skipped, and slots are reused."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from kproc.broker.config import Config
from kproc.broker.config.listeners import LISTENERS_MAX
from kproc.broker.role.roles import CONTROLLER, PROCESSOR, acceptor_id, processor_id
from tests.support.scale_rig import Rig

NAMES = ["C", *(f"L{number}" for number in range(2 * LISTENERS_MAX))]
CONFIG = Config.build(
    {
        "num.io.threads": 2,
        "num.network.threads": 2,
        "kproc.allow.unauthenticated.network": "*",
        "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in ["PLAINTEXT", *NAMES]),
    }
)
PLAIN = "PLAINTEXT://127.0.0.1:9092"


@pytest.fixture
def rig() -> Iterator[Rig]:
    with closing(Rig(CONFIG)) as rig:
        yield rig


@pytest.fixture
def taken() -> Iterator[socket.socket]:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        yield holder


def names(rig: Rig) -> set[str]:
    return set(rig.listeners.names().values())


def at(holder: socket.socket) -> str:
    return f"C://127.0.0.1:{holder.getsockname()[1]}"


def test_skipped_listener_stays_closed_when_count_changes(
    rig: Rig, taken: socket.socket
) -> None:
    listeners = f"{PLAIN},{at(taken)}"
    rig.set(listeners=listeners)
    rig.go_on()
    assert names(rig) == {"PLAINTEXT"}
    assert "cannot bind C" in (rig.scaler.problem or "")
    taken.close()
    rig.set(listeners=listeners, num_network_threads="3")
    rig.go_on()
    assert len(rig.table.processors("")) == 3
    assert names(rig) == {"PLAINTEXT"}, "until `listeners` is changed again"
    rig.set(listeners=listeners.replace(PLAIN, "PLAINTEXT://127.0.0.1:0"), num_network_threads="3")
    rig.go_on()
    assert names(rig) == {"PLAINTEXT", "C"}
    assert rig.scaler.problem is None


def test_listener_corrected_during_retry_is_opened(
    rig: Rig, taken: socket.socket
) -> None:
    rig.set(listeners=at(taken))
    rig.scaler.advance()
    rig.set(listeners="C://127.0.0.1:0")
    rig.go_on()
    assert names(rig) == {"C"}
    assert rig.scaler.problem is None


def test_count_change_without_openable_listener_closes_nothing(
    rig: Rig, taken: socket.socket
) -> None:
    rig.set(listeners=at(taken))
    rig.go_on()
    assert names(rig) == {"PLAINTEXT"}, "the old one is there again"
    before = rig.listening.copy()
    rig.set(listeners=at(taken), num_io_threads="3")
    rig.go_on()
    assert len(rig.table.handlers()) == 3
    assert rig.listening == before


@pytest.mark.long
def test_listeners_may_change_for_ever(rig: Rig) -> None:
    for name in NAMES:
        rig.set(listeners=f"{PLAIN},{name}://127.0.0.1:0")
        rig.go_on()
        assert names(rig) == {"PLAINTEXT", name}
    assert len(rig.children.plan.endpoints) <= LISTENERS_MAX


def test_listener_of_the_same_name_gets_the_same_place(rig: Rig) -> None:
    for _ in range(3):
        rig.set(listeners=f"{PLAIN},C://127.0.0.1:0")
        rig.go_on()
        assert rig.listeners.names() == {0: "PLAINTEXT", 1: "C"}
        rig.set(listeners=PLAIN)
        rig.go_on()


def test_place_that_is_used_again_is_empty_before(rig: Rig) -> None:
    rig.set(listeners=f"{PLAIN},C://127.0.0.1:0")
    rig.go_on()
    rig.set(listeners=PLAIN)
    rig.go_on()
    rig.set(listeners=f"{PLAIN},C://127.0.0.1:0")
    rig.scaler.advance()
    asked = [(agent, what, body) for agent, what, body, _ in rig.children.asked]
    assert asked == [(str(role.agent), "open_listener", {"listener": 1}) for role in rig.roles(PROCESSOR)]
    assert acceptor_id(1) not in rig.table


@pytest.mark.long
def test_all_listeners_can_be_replaced_by_others(rig: Rig) -> None:
    first, second = NAMES[:LISTENERS_MAX], NAMES[LISTENERS_MAX : 2 * LISTENERS_MAX]
    for wanted in (first, second, first):
        rig.set(listeners=",".join(f"{name}://127.0.0.1:0" for name in wanted))
        rig.go_on(turns=5000)
        assert names(rig) == set(wanted)


@pytest.mark.long
def test_nothing_is_closed_for_listeners_without_slot(rig: Rig) -> None:
    first, second = NAMES[:LISTENERS_MAX], NAMES[LISTENERS_MAX : 2 * LISTENERS_MAX]
    rig.set(listeners=",".join(f"{name}://127.0.0.1:0" for name in first))
    rig.go_on(turns=5000)
    rig.set(listeners=",".join(f"{name}://127.0.0.1:0" for name in second))
    rig.go_on(turns=5000, silent=[processor_id(1)])
    assert names(rig) == set(first)
    assert "a Processor that hangs" in (rig.scaler.problem or "")


def test_controller_looks_up_host_names_without_waiting(rig: Rig) -> None:
    rig.set(listeners=f"{PLAIN},C://some-name.invalid:0", num_network_threads="3")
    rig.scaler.advance()
    ((agent, what, body, on_reply),) = rig.children.asked
    assert (agent, what, body) == (str(CONTROLLER), "look_up", {"host": "some-name.invalid"})
    on_reply({"found": []})
    rig.children.asked.clear()
    rig.go_on()
    assert names(rig) == {"PLAINTEXT"}
    assert "cannot resolve the host of C" in (rig.scaler.problem or "")
    assert len(rig.table.processors("")) == 3


def test_listener_of_a_name_is_bound_to_what_was_found(rig: Rig) -> None:
    rig.set(listeners=f"{PLAIN},C://some-name.invalid:0")
    rig.scaler.advance()
    rig.children.asked.pop()[3]({"found": ["127.0.0.1"]})
    rig.go_on()
    assert rig.children.plan.endpoints[1].bound_host == "127.0.0.1"
    assert rig.children.plan.endpoints[1].advertised_host == "some-name.invalid"


def test_advertised_host_of_wildcard_is_looked_up(rig: Rig) -> None:
    rig.set(listeners=f"{PLAIN},C://:0")
    rig.scaler.advance()
    agent, what, body, on_reply = rig.children.asked.pop()
    assert (agent, what, body) == (str(CONTROLLER), "look_up", {"host": ""})
    on_reply({"found": ["host.example"]})
    rig.go_on()
    assert rig.children.plan.endpoints[1].advertised_host == "host.example"


def test_controller_dying_before_reply_is_asked_again(rig: Rig) -> None:
    rig.set(listeners=f"{PLAIN},C://some-name.invalid:0")
    rig.scaler.advance()
    controller = rig.table[CONTROLLER]
    child, controller.child = controller.child, None
    rig.children.asked.pop()[3]({"lost": True})
    rig.scaler.advance()
    assert rig.children.asked == []
    controller.child = child
    rig.scaler.advance()
    assert rig.children.asked[0][1] == "look_up"
