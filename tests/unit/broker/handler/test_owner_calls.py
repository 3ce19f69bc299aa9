"""Calls between Handlers: a call with newer metadata waits for them; a missing Handler differs from one that just
died.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_origin

import msgspec

from kproc.broker.calls.call_links import Calls
from kproc.broker.calls.calls import Answers, Call, FromImage, Lost, Reply
from kproc.broker.handler.handler_peers import UnlinkedCalls
from kproc.broker.peers.forwarding import OPERATIONS, PartitionsRequest
from kproc.broker.role.roles import handler_id
from kproc.common.clock import NS_PER_S, ManualClock
from tests.support.handler_rig import HandlerRig, parts_of

Start = Callable[..., HandlerRig]
PEER = handler_id(1)
ANY: Call[PartitionsRequest, Reply] = Call("any", PartitionsRequest, Reply)


def test_call_with_newer_metadata_waits_and_leaves_with_sender(start: Start) -> None:
    rig = start()
    rig.create_topic("t")
    has_ended = False
    call = OPERATIONS["leader_epoch_end"].call
    body = PartitionsRequest(rig.cluster.image.version + 1, [("later", 0, [-1, 0])])
    replies: list[Any] = []
    lost: list[Any] = []
    raw = msgspec.Raw(msgspec.msgpack.encode(body))
    parts_of(rig.handler()).owner_calls.handle_raw(
        call.name, raw, memoryview(b""), lost.append, lambda: has_ended
    )
    parts_of(rig.handler()).owner_calls.handle_raw(
        call.name, raw, memoryview(b""), replies.append, lambda: False
    )
    assert replies == []
    has_ended = True
    rig.create_topic("later")
    assert lost == [], "served for somebody whose clients have asked anew meanwhile"
    (reply,) = replies
    assert isinstance(reply, Answers)
    assert [row["error_code"] for row in reply.answers] == [0]
    assert reply.known == rig.cluster.image.version


def test_owner_unreachable_for_one_second_is_away(start: Start) -> None:
    clock, handler = ManualClock(), start(handlers=2).handler(0)
    parts = parts_of(handler)
    unlinked = UnlinkedCalls(Calls(handler.containment), parts.services, parts.owner_calls, clock.now_ns)

    def ask() -> list[Any]:
        replies: list[Any] = []
        unlinked.add(PEER, ANY, PartitionsRequest(1, []), replies.append, b"")
        unlinked.resend(lambda _peer: None)
        return replies

    assert ask() == [Lost(is_away=False)]
    clock.advance_ms(NS_PER_S // 1_000_000)
    assert ask() == [Lost(is_away=True)]
    unlinked.attached(PEER)
    assert ask() == [Lost(is_away=False)]


def test_calls_that_may_overtake_others_depend_on_no_order(start: Start) -> None:
    """The docstring of owner_calls.py says why. A new call without a version of the metadata must be added there."""
    by_op = parts_of(start().handler()).owner_calls._by_op
    bodies = {op: getattr(served.decode, "__self__").type for op, served in by_op.items()}  # noqa: B009
    # The body of parts for several owners is a generic class.
    unordered = {op for op, body in bodies.items() if not issubclass(get_origin(body) or body, FromImage)}
    assert unordered == {"client_bytes", "prepare_compaction", "read_watch", "reload_faults", "swap_segments"}
    assert len(by_op) > 15
