"""Requests that wait on a Handler, and what becomes of them when their client leaves."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from kproc.broker.request.request import ClientPeer, HandlerRequest
from kproc.broker.role.handoff import pack_address
from kproc.broker.security.acl import Operation, ResourceType
from kproc.broker.security.acl_table import AclTable
from kproc.broker.security.authorizer import StandardAuthorizer
from kproc.broker.security.principal import Principal
from kproc.broker.security.session import Session
from kproc.broker.transport.agent import AgentId
from kproc.broker.transport.envelope import HEAD, NO_OP, SEND
from kproc.broker.transport.outbox import Outbox
from tests.support.links import CountingWaker, LinkMaker

PROCESSOR = AgentId("processor", 0)
HANDLER = AgentId("handler", 0)
EVERYBODY = StandardAuthorizer(AclTable, super_users=["User:ANONYMOUS"], allow_everyone=True)


def sent(link_maker: LinkMaker) -> tuple[ClientPeer, Any]:
    """A Processor as its Handler sees it, and what gets there: (kind, connection, sequence) of each answer."""
    near, far = link_maker.make(PROCESSOR, HANDLER)
    peer = ClientPeer(Outbox(far.sender, CountingWaker()))

    def take() -> list[tuple[int, int, int]]:
        peer.outbox.flush()
        answers = [(kind, *HEAD.unpack_from(view)[:2]) for kind, view in near.receiver.poll(100)]
        near.receiver.release()
        return answers

    return peer, take


def a_request(peer: ClientPeer, connection_id: int, sequence: int) -> HandlerRequest:
    return HandlerRequest(cast("Any", None), peer, connection_id, sequence, 0, 0, 1, 12, 1, None)


def test_parked_requests_of_left_client_are_cancelled() -> None:
    cancelled: list[int] = []
    with LinkMaker("pipe") as links:
        peer, take = sent(links)
        for connection_id, sequence in ((7, 3), (7, 4), (8, 0)):
            request = a_request(peer, connection_id, sequence)
            request.when_gone(lambda sequence=sequence: cancelled.append(sequence))  # type: ignore[misc]
        peer.cancel(7)
        assert cancelled == [3, 4]
        # The Processor gives a large request's block back when its answer comes, whoever still wants that.
        assert take() == [(NO_OP, 7, 3), (NO_OP, 7, 4)]
        assert list(peer.waiting) == [8]
        peer.cancel(7)
        assert take() == []


def test_an_answered_request_waits_no_longer() -> None:
    with LinkMaker("pipe") as links:
        peer, take = sent(links)
        request = a_request(peer, 7, 3)
        request.when_gone(lambda: None)
        request.send(b"")
        assert peer.waiting == {}
        peer.cancel(7)
        assert take() == [(SEND, 7, 3)]


@pytest.mark.parametrize(
    ("address", "shown"),
    [("10.0.0.7", "/10.0.0.7"), ("::1", "/0:0:0:0:0:0:0:1"), ("fe80::a1", "/fe80:0:0:0:0:0:0:a1")],
)
def test_addresses_are_shown_as_java_shows_them(address: str, shown: str) -> None:
    peer = ClientPeer(cast(Any, None))
    assert a_request(peer, 7, 0).client_host == "/unknown"
    session = Session(Principal("User", "al", is_token=True), "PLAIN", 5)
    peer.introduce(7, memoryview(pack_address(address) + session.pack()))
    assert peer.sessions == {7: session}
    request = a_request(peer, 7, 0)
    assert request.client_host == shown
    assert str(request.principal) == "User:al"
    assert request.principal.is_token
    peer.cancel(7)
    assert not peer.identities
    assert not peer.sessions


def test_request_of_unknown_connection_has_no_rights() -> None:
    """ANONYMOUS may be a super user; a connection that nobody introduced is not ANONYMOUS."""
    request = a_request(ClientPeer(cast(Any, None)), 7, 0)
    request.services = cast("Any", SimpleNamespace(authorizer=EVERYBODY))
    assert not request.is_allowed(Operation.WRITE, ResourceType.TOPIC, "t")
    assert not request.is_allowed_for_any(Operation.WRITE, ResourceType.TOPIC)


def test_request_keeps_its_identity_when_its_client_leaves() -> None:
    """The part of a request that is handled later has the rights of its client, neither more nor fewer."""
    al_only = StandardAuthorizer(AclTable, super_users=["User:al"], allow_everyone=False)
    peer = ClientPeer(cast(Any, None))
    requests = []
    for connection_id, name in ((7, "al"), (8, "mallory")):
        identity = pack_address("127.0.0.1") + Session(Principal("User", name)).pack()
        peer.introduce(connection_id, memoryview(identity))
        requests.append(a_request(peer, connection_id, 0))
        peer.cancel(connection_id)
    for request in requests:
        request.services = cast("Any", SimpleNamespace(authorizer=al_only))
    assert [each.is_allowed(Operation.WRITE, ResourceType.TOPIC, "t") for each in requests] == [True, False]
    assert [str(each.principal) for each in requests] == ["User:al", "User:mallory"]


def test_request_keeps_its_identity_in_another_session() -> None:
    """A login that follows on the same connection does not change the requests before it."""
    peer = ClientPeer(cast(Any, None))
    peer.introduce(7, memoryview(pack_address("127.0.0.1") + Session(Principal("User", "al")).pack()))
    request = a_request(peer, 7, 0)
    peer.introduce(7, memoryview(pack_address("127.0.0.1") + Session(Principal("User", "bo")).pack()))
    assert str(request.principal) == "User:al"
