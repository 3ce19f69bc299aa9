"""Descriptors arrive whole and closed on exec, or are reported lost; none is ever leaked."""

from __future__ import annotations

import array
import contextlib
import os
import resource
import socket

import pytest

from kproc.broker.ipc.fdpass import TruncatedDescriptor, make_socket_pair, recv_fd, send_fd
from tests.support.proc import open_descriptors
from tests.support.ring_pair import Forked


@pytest.fixture
def pair():
    first, second = make_socket_pair()
    with first, second:
        yield first, second


@pytest.fixture
def pipe():
    """A pipe to send ends of; what a test closes itself is fine."""
    ends = os.pipe()
    yield ends
    for end in ends:
        with contextlib.suppress(OSError):
            os.close(end)


def send_raw(sock: socket.socket, payload: bytes, fds: list[int]) -> None:
    sock.sendmsg([payload], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])


def test_pair_is_seqpacket_nonblocking_and_closed_on_exec(pair):
    for sock in pair:
        assert sock.type == socket.SOCK_SEQPACKET
        assert not sock.getblocking()
        assert not sock.get_inheritable()


def test_descriptor_arrives_as_a_working_copy_closed_on_exec(pair, pipe):
    sender, receiver = pair
    assert send_fd(sender, b"connection 7", pipe[1])
    payload, fd = recv_fd(receiver, 100)
    assert payload == b"connection 7"
    assert fd not in pipe
    assert not os.get_inheritable(fd)
    os.write(fd, b"through the copy")
    os.close(fd)
    assert os.read(pipe[0], 100) == b"through the copy"


def test_sender_keeps_its_copy_until_it_closes_it_itself(pair, pipe):
    """The receiver may refuse: only the acknowledgement, a message of the caller, ends the sender's hold."""
    sender, receiver = pair
    assert send_fd(sender, b"take it", pipe[1])
    os.write(pipe[1], b"still mine")
    _, fd = recv_fd(receiver, 100)
    assert send_fd(receiver, b"ack")
    assert recv_fd(sender, 100) == (b"ack", None)
    os.close(pipe[1])
    os.write(fd, b", now yours")
    os.close(fd)
    assert os.read(pipe[0], 100) == b"still mine, now yours"
    assert os.read(pipe[0], 100) == b"", "somebody still holds the write end"


def test_unread_descriptor_is_freed_with_receivers_socket(pair, pipe):
    sender, receiver = pair
    send_fd(sender, b"never read", pipe[1])
    os.close(pipe[1])
    receiver.close()
    assert os.read(pipe[0], 1) == b""


def test_each_message_keeps_its_own_descriptor(pair):
    sender, receiver = pair
    pipes = [os.pipe() for _ in range(5)]
    for number, (_, write_end) in enumerate(pipes):
        assert send_fd(sender, b"m" * (number + 1), write_end if number % 2 == 0 else None)
    for number, (read_end, write_end) in enumerate(pipes):
        payload, fd = recv_fd(receiver, 100)
        assert payload == b"m" * (number + 1)
        assert (fd is not None) == (number % 2 == 0)
        if fd is not None:
            os.write(fd, payload)
            assert os.read(read_end, 100) == payload
            os.close(fd)
        os.close(read_end)
        os.close(write_end)


def test_nothing_there_yet_is_none(pair):
    assert recv_fd(pair[1], 100) is None


def test_full_queue_answers_not_now_and_sends_nothing(pair, pipe):
    sender, receiver = pair
    sent = 0
    while send_fd(sender, sent.to_bytes(4, "little"), pipe[0]):
        sent += 1
        assert sent < 100_000
    for number in range(sent):
        payload, fd = recv_fd(receiver, 100)
        os.close(fd)
        assert int.from_bytes(payload, "little") == number
    assert recv_fd(receiver, 100) is None
    assert send_fd(sender, b"room again", pipe[0])
    os.close(recv_fd(receiver, 100)[1])


def test_too_many_descriptors_under_way_answer_not_now():
    """The kernel counts them per user, against nofile, and exempts root: so as another user, in a child."""

    def fill() -> tuple[int, int]:
        if os.geteuid() == 0:
            os.setgid(65534)
            os.setuid(65534)
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        sender, _receiver = make_socket_pair()
        sent = 0
        while send_fd(sender, b"x", sender.fileno()):
            sent += 1
        # Without a descriptor there is room, so it is not the queue that is full.
        return sent, send_fd(sender, b"no descriptor")

    sent, has_room = Forked(fill).result()
    assert 64 <= sent <= 66
    assert has_room


def test_receiver_at_limit_learns_of_lost_descriptor():
    def receive() -> tuple[bytes, bool, int]:
        sender, receiver = make_socket_pair()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        assert send_fd(sender, b"connection 9", sender.fileno())
        assert send_fd(sender, b"connection 10", sender.fileno())
        before = len(open_descriptors())
        resource.setrlimit(resource.RLIMIT_NOFILE, (receiver.fileno() + 1, hard))
        try:
            recv_fd(receiver, 100)
            return b"nothing was lost", False, 0
        except TruncatedDescriptor as error:
            payload = error.payload
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        leaked = len(open_descriptors()) - before
        return payload, recv_fd(receiver, 100)[1] is not None, leaked

    assert Forked(receive).result() == (b"connection 9", True, 0)


@pytest.mark.parametrize("count", [2, 3, 10])
def test_surplus_descriptors_are_reported_and_closed(pair, pipe, count):
    sender, receiver = pair
    before = open_descriptors()
    send_raw(sender, b"too many", [pipe[0]] * count)
    with pytest.raises(TruncatedDescriptor) as caught:
        recv_fd(receiver, 100)
    assert caught.value.payload == b"too many"
    assert open_descriptors() == before


def test_too_long_message_is_rejected_and_descriptor_closed(pair, pipe):
    sender, receiver = pair
    before = open_descriptors()
    send_fd(sender, b"x" * 101, pipe[0])
    with pytest.raises(ValueError, match="longer than the limit of 100 bytes"):
        recv_fd(receiver, 100)
    assert open_descriptors() == before
    send_fd(sender, b"x" * 100, None)
    assert recv_fd(receiver, 100) == (b"x" * 100, None)


def test_end_of_stream_comes_after_the_last_message(pair, pipe):
    sender, receiver = pair
    send_fd(sender, b"last", pipe[0])
    sender.close()
    payload, fd = recv_fd(receiver, 100)
    os.close(fd)
    assert payload == b"last"
    for _ in range(2):
        with pytest.raises(EOFError):
            recv_fd(receiver, 100)


def test_peer_that_closed_with_messages_unread_is_an_end_too(pair):
    sender, receiver = pair
    send_fd(receiver, b"never read")
    sender.close()
    with pytest.raises(EOFError):
        recv_fd(receiver, 100)


def test_sending_to_a_closed_peer_raises(pair, pipe):
    sender, receiver = pair
    receiver.close()
    with pytest.raises(BrokenPipeError):
        send_fd(sender, b"x", pipe[0])


def test_empty_message_is_our_own_mistake(pair):
    with pytest.raises(AssertionError):
        send_fd(pair[0], b"", None)


def test_closed_descriptor_is_not_mistaken_for_not_now(pair):
    read_end, write_end = os.pipe()
    os.close(read_end)
    os.close(write_end)
    with pytest.raises(OSError, match="Bad file descriptor"):
        send_fd(pair[0], b"x", read_end)


def test_socket_moves_between_processes_with_live_client():
    """The handoff of an Acceptor to a Processor, with the acknowledgement in the caller's hands."""
    acceptor, processor = make_socket_pair()
    client, accepted = socket.socketpair()

    def serve() -> bytes:
        client.close()
        accepted.close()
        acceptor.close()
        processor.setblocking(True)
        _, fd = recv_fd(processor, 100)
        send_fd(processor, b"ack")
        with socket.socket(fileno=fd) as taken:
            question = taken.recv(100)
            taken.sendall(b"answer to " + question)
        return question

    with acceptor, processor, client, accepted:
        assert send_fd(acceptor, b"connection 1", accepted.fileno())
        client.sendall(b"question")
        child = Forked(serve)
        assert child.result() == b"question"
        assert recv_fd(acceptor, 100) == (b"ack", None)
        accepted.close()
        assert client.recv(100) == b"answer to question"
        assert client.recv(100) == b"", "a forgotten copy would keep the client waiting for ever"


def test_dead_peers_messages_arrive_despite_unread_ones() -> None:
    """The kernel reports the unread message first, once."""
    ours, theirs = make_socket_pair()
    with ours:
        send_fd(ours, b"unread")
        send_fd(theirs, b"sent before the end")
        theirs.close()
        assert recv_fd(ours, 100) == (b"sent before the end", None)
        with pytest.raises(EOFError):
            recv_fd(ours, 100)
