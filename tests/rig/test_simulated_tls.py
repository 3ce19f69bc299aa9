"""The simulation's judgement of connections that the broker ends in order."""

from __future__ import annotations

import random
import ssl

from kproc.wire.header import ApiKey
from tests.simulation.client import Client, Life
from tests.simulation.kernel import Socket
from tests.simulation.tls_end import TlsEnd
from tests.simulation.world import S, World


class Idle(Client):
    """A client whose only request has no answer."""

    def life(self) -> Life:
        yield


def ended_connection(request: bytes) -> tuple[Idle, TlsEnd, Socket]:
    """Return a client with an unanswered request, its end, and the broker's end, which a paused Acceptor keeps open."""
    world = World(1)
    world.clock.present_ns = 100 * S
    client = Idle(world, "client", random.Random(1), [])
    raw, broker = Socket.pair(is_stream=True)
    end = TlsEnd(world, "client", raw, rng=random.Random(1), version=ssl.TLSVersion.TLSv1_3, session=None)
    raw.send(request)
    client.waits.append((1, ApiKey.METADATA, 12))
    client.lone_since_ns = world.now_ns()
    broker.shut()
    return client, end, broker


def test_request_that_was_read_needs_an_answer_before_the_end() -> None:
    client, end, broker = ended_connection(b"request")
    broker.bytes.clear()
    client._judge_end(end)
    assert client.world.violations == ["client: the broker closed in order and had not answered METADATA"]


def test_request_that_came_after_the_end_needs_no_answer() -> None:
    """The broker had closed, but a paused Acceptor had a copy of the descriptor, so the client's send did not fail."""
    client, end, _ = ended_connection(b"request")
    client._judge_end(end)
    assert client.world.violations == []
