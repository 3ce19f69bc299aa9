"""Children and control sockets: real forks, real descriptors."""

from __future__ import annotations

import ctypes
import json
import logging
import os
import select
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kproc.broker.ipc.fdpass import make_socket_pair
from kproc.broker.transport.agent import AgentId
from kproc.broker.transport.process import Child, ControlSocket, fork_child
from kproc.common.errors import FatalError
from tests.support.wait import wait_until

NAME = AgentId("handler", 7)
DEADLINE_S = 120.0
PR_GET_PDEATHSIG = 2


@pytest.fixture
def controls() -> Iterator[tuple[ControlSocket, ControlSocket]]:
    ours, theirs = map(ControlSocket, make_socket_pair())
    yield ours, theirs
    ours.close()
    theirs.close()


def next_message(control: ControlSocket) -> tuple[dict[str, Any], int | None]:
    """The next message, waited for."""
    while (message := control.receive()) is None:
        assert select.select([control.sock], [], [], DEADLINE_S)[0], "nothing came"
    return message


class Family:
    """Forks children and reaps every one of them."""

    def __init__(self) -> None:
        self._children: list[Child] = []

    def fork(self, main: Callable[[ControlSocket], int], *, keep: tuple[int, ...] = ()) -> Child:
        def guarded(control: ControlSocket) -> int:
            signal.alarm(30)  # A test that fails between here and reap() must not leave it.
            return main(control)

        child = fork_child(NAME, guarded, keep=keep)
        self._children.append(child)
        return child

    def end(self, child: Child) -> int:
        """Its exit status, once it has ended."""
        assert select.select([child.pidfd], [], [], DEADLINE_S)[0], "it does not end"
        self._children.remove(child)
        return child.reap()

    def close(self) -> None:
        for child in self._children:
            child.kill()
            child.reap()


@pytest.fixture
def family() -> Iterator[Family]:
    made = Family()
    yield made
    made.close()


# -- control sockets ----------------------------------------------------------------------------------------


def test_messages_keep_their_order_and_their_descriptor(
    controls: tuple[ControlSocket, ControlSocket],
) -> None:
    ours, theirs = controls
    read_end, write_end = os.pipe()
    ours.send({"do": "first", "n": [1, "two", None]})
    ours.send({"do": "second"}, write_end)
    os.close(write_end)
    assert theirs.receive() == ({"do": "first", "n": [1, "two", None]}, None)
    message, fd = next_message(theirs)
    assert message == {"do": "second"}
    assert fd is not None
    assert theirs.receive() is None
    os.write(fd, b"through")
    os.close(fd)
    assert os.read(read_end, 100) == b"through"
    assert os.read(read_end, 100) == b"", "no copy is left open"
    os.close(read_end)


def test_sender_never_blocks_and_nothing_is_lost_or_overtaken(
    controls: tuple[ControlSocket, ControlSocket],
) -> None:
    ours, theirs = controls
    sent = [{"do": "x", "number": number, "padding": "p" * 1000} for number in range(2000)]
    for message in sent:
        ours.send(message)
    assert not ours.flush(), "the kernel cannot have taken 2 MB"
    received = [next_message(theirs)[0] for _ in range(20)]
    sent.append({"do": "last"})
    ours.send(sent[-1])  # There is room for it now, but not before its turn.
    while len(received) < len(sent):
        message, _ = next_message(theirs)
        received.append(message)
        ours.flush()
    assert received == sent
    assert ours.flush()


def test_descriptor_that_waits_is_kept_open_and_closed_once_sent(
    controls: tuple[ControlSocket, ControlSocket],
) -> None:
    ours, theirs = controls
    while ours.flush():
        ours.send({"do": "fill", "padding": "p" * 10_000})
    read_end, write_end = os.pipe()
    ours.send({"do": "late"}, write_end)
    os.close(write_end)  # The caller may: a duplicate waits.
    while True:
        message, fd = next_message(theirs)
        ours.flush()
        if message["do"] == "late":
            break
    assert fd is not None
    os.close(fd)
    assert os.read(read_end, 1) == b"", "the duplicate was closed after it was sent"
    os.close(read_end)


def test_closing_gives_up_descriptors_that_wait(controls: tuple[ControlSocket, ControlSocket]) -> None:
    ours, _ = controls
    while ours.flush():
        ours.send({"do": "fill", "padding": "p" * 10_000})
    read_end, write_end = os.pipe()
    ours.send({"do": "late"}, write_end)
    os.close(write_end)
    ours.close()
    assert os.read(read_end, 1) == b""
    os.close(read_end)


def test_eof_of_peer_comes_after_its_messages(controls: tuple[ControlSocket, ControlSocket]) -> None:
    ours, theirs = controls
    theirs.send({"do": "closed"})
    theirs.close()
    assert ours.receive() == ({"do": "closed"}, None)
    with pytest.raises(EOFError):
        ours.receive()
    with pytest.raises(BrokenPipeError):
        ours.send({"do": "stop"})


# -- children -----------------------------------------------------------------------------------------------


def test_result_of_main_is_the_exit_status(family: Family) -> None:
    assert family.end(family.fork(lambda _control: 0)) == 0
    assert family.end(family.fork(lambda _control: 3)) == 3


def test_child_talks_with_its_parent_and_gets_descriptors(family: Family) -> None:
    def main(control: ControlSocket) -> int:
        message, fd = next_message(control)
        assert fd is not None
        os.write(fd, message["text"].encode())
        control.send({"do": "done", "pid": os.getpid()})
        return 0

    child = family.fork(main)
    read_end, write_end = os.pipe()
    child.control.send({"do": "write", "text": "hello"}, write_end)
    os.close(write_end)
    assert next_message(child.control)[0] == {"do": "done", "pid": child.pid}
    assert os.read(read_end, 100) == b"hello"
    os.close(read_end)
    assert family.end(child) == 0


def test_exception_in_main_never_reaches_the_parents_stack(family: Family) -> None:
    """Standard error of the child is a closed descriptor here: it must end all the same."""

    def main(_control: ControlSocket) -> int:
        raise RuntimeError("for the log")

    child = family.fork(main)
    assert family.end(child) == 70


def test_child_holds_only_what_it_was_given(family: Family) -> None:
    """A sibling's copy of a handoff socket would make passing a connection to a dead Processor succeed."""
    kept, gone = os.pipe()
    sibling, _other = make_socket_pair()

    def main(control: ControlSocket) -> int:
        fds = sorted(int(name) for name in os.listdir("/proc/self/fd"))
        targets = {fd: os.path.exists(f"/proc/self/fd/{fd}") for fd in fds}
        control.send({"do": "fds", "fds": [fd for fd in targets if fd != control.fd], "own": control.fd})
        return 0

    child = family.fork(main, keep=(kept,))
    message = next_message(child.control)[0]
    listing = set(message["fds"]) - {0, 1, 2, kept}
    assert gone not in listing
    assert sibling.fileno() not in listing
    assert child.control.fd not in listing or child.control.fd == message["own"]
    assert len(listing) <= 1, f"only the listing's own descriptor: {listing}"
    assert family.end(child) == 0
    for fd in (kept, gone):
        os.close(fd)
    sibling.close()
    _other.close()


def test_dead_childs_socket_is_seen_dead_despite_siblings(family: Family) -> None:
    def wait_for_end(control: ControlSocket) -> int:
        try:
            next_message(control)
        except EOFError:
            return 0
        return 1

    first = family.fork(wait_for_end)
    second = family.fork(wait_for_end)
    first.kill()
    assert family_end_status(first) == -signal.SIGKILL
    with pytest.raises(EOFError):
        first.control.receive()
    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        first.control.send({"do": "anything"})
    assert family.end(first) == -signal.SIGKILL
    second.control.sock.shutdown(socket.SHUT_RDWR)
    assert family.end(second) == 0


def family_end_status(child: Child) -> int:
    """How a child ended, without reaping it."""
    assert select.select([child.pidfd], [], [], DEADLINE_S)[0]
    result = os.waitid(os.P_PIDFD, child.pidfd, os.WEXITED | os.WNOWAIT)
    assert result is not None
    return -result.si_status if result.si_code == os.CLD_KILLED else result.si_status


def test_child_ignores_group_signals_and_dies_with_parent(family: Family) -> None:
    def main(control: ControlSocket) -> int:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
            os.kill(os.getpid(), number)
        wanted = ctypes.c_int()
        ctypes.CDLL(None).prctl(PR_GET_PDEATHSIG, ctypes.byref(wanted))
        blocked = sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
        comm = Path("/proc/self/comm").read_text().strip()
        control.send({"do": "told", "death": wanted.value, "blocked": list(blocked), "comm": comm})
        return 0

    child = family.fork(main)
    message = next_message(child.control)[0]
    assert message["death"] == signal.SIGKILL
    assert message["blocked"] == []
    assert message["comm"] == "kproc:handler-7"
    assert family.end(child) == 0


def test_fork_keeps_the_parents_mask_and_gives_the_child_none(family: Family) -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGUSR1))
    try:
        child = family.fork(lambda _control: len(signal.pthread_sigmask(signal.SIG_BLOCK, ())))
        after = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert after == before | {signal.SIGTERM, signal.SIGUSR1}
    assert family.end(child) == 0


def test_child_dies_with_its_parent(family: Family) -> None:
    """A parent in between, killed, so that the test itself goes on."""

    def parent(control: ControlSocket) -> int:
        grandchild = fork_child(AgentId("acceptor", 0), lambda _c: signal.pause() or 0, keep=())
        control.send({"do": "made", "pid": grandchild.pid})
        signal.pause()
        return 0

    child = family.fork(parent)
    grandchild_pid = next_message(child.control)[0]["pid"]
    grandchild_pidfd = os.pidfd_open(grandchild_pid)
    child.kill()
    assert family.end(child) == -signal.SIGKILL
    assert select.select([grandchild_pidfd], [], [], DEADLINE_S)[0], "it outlived its parent"
    os.close(grandchild_pidfd)


def test_killing_an_ended_child_does_no_harm(family: Family) -> None:
    child = family.fork(lambda _control: 5)
    assert select.select([child.pidfd], [], [], DEADLINE_S)[0]
    child.kill()
    assert family.end(child) == 5


def test_child_that_the_host_lets_down_says_so_in_one_line(
    family: Family, capfd: pytest.CaptureFixture[str]
) -> None:
    def main(_control: ControlSocket) -> int:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115 - what pytest put there was closed in the child.
        logging.getLogger().handlers = [logging.StreamHandler()]
        raise FatalError("metadata log in /data: no space left") from OSError(28, "No space left on device")

    assert family.end(family.fork(main)) == 70
    said = capfd.readouterr().err
    assert f"{NAME} cannot continue: metadata log in /data: no space left" in said
    assert "Traceback" not in said


def test_child_with_broken_stderr_ends_with_its_status(family: Family, tmp_path: Path) -> None:
    """Its traceback and its last flush raise BrokenPipeError; it must not run on in the parent's code."""
    trace = tmp_path / "trace"

    def main(_control: ControlSocket) -> int:
        read_end, write_end = os.pipe()
        os.dup2(write_end, 1)
        os.dup2(write_end, 2)
        os.close(read_end)
        os.close(write_end)
        import sys

        sys.stdout = sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
        raise RuntimeError("nobody reads this")

    test_pid = os.getpid()
    try:
        child = family.fork(main)
    finally:
        if os.getpid() != test_pid:  # Only if the child came back here: the mistake that this test is about.
            trace.write_text(json.dumps("escaped"))
            os._exit(99)
    assert family.end(child) == 70
    assert not trace.exists()


def test_grandparent_sees_no_zombie(family: Family) -> None:
    child = family.fork(lambda _control: 0)
    assert family.end(child) == 0
    wait_until(lambda: not Path(f"/proc/{child.pid}").exists(), what="it was reaped")


def test_message_longer_than_packet_arrives_whole_in_order(
    controls: tuple[ControlSocket, ControlSocket],
) -> None:
    near, far = controls
    read, write = os.pipe()
    os.close(write)
    rows = ["x" * 100] * 20_000  # 2 MB: more than the kernel keeps.
    near.send({"do": "long", "rows": rows}, read)
    near.send({"do": "short"})
    assert near.has_unsent
    got = []
    while len(got) < 2:
        near.flush()
        message = far.receive()
        if message is not None:
            got.append(message)
    os.close(read)
    assert [each[0]["do"] for each in got] == ["long", "short"]
    assert got[0][0]["rows"] == rows
    assert got[0][1] is not None, "the descriptor comes with the end of the message"
    os.close(got[0][1])
    assert not near.has_unsent
