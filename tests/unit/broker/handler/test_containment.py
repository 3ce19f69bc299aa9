"""An unexpected exception fails its request or operation, is counted and logged once; the Handler continues."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from kproc.broker.api.init_producer_id import ProducerIdAllocator
from kproc.broker.calls.controller_calls import ProducerIds
from kproc.broker.cluster.internal_topics import GROUP_METADATA_TOPIC
from kproc.broker.fetch.delayed_fetch import DelayedFetch
from kproc.broker.group.coordinator import GroupCoordinator
from kproc.broker.handler.partition_transfer import PartitionTransfer
from kproc.broker.security.principal import Principal
from kproc.broker.storage import log_append
from kproc.broker.transport.agent import STORE_MS
from kproc.broker.transport.envelope import (
    CLOSE,
    DISCONNECTED,
    HEAD,
    IDENTITY,
    MOVE_IN,
    MOVE_OUT,
    RECALL_BLOCK,
    SOCKET_TIME,
)
from kproc.common.containment import Containment
from kproc.common.errors import ErrorCode, FatalError
from kproc.wire import codec
from kproc.wire.header import ApiKey
from tests.support.groups import SESSION_MS, join_fields
from tests.support.handler_rig import HandlerRig, parts_of
from tests.support.raw import batch, fetch_fields, list_offsets_fields, produce_fields

Start = Callable[..., HandlerRig]
NO_ID = bytes(16)


def stumble(*_: Any, **__: Any) -> Any:
    raise ZeroDivisionError("by the test")


def surprises(rig: HandlerRig) -> int:
    rig.advance_ms(STORE_MS)
    return int(rig.handler().containment.count + rig.slab.read(0)["contained_failures"])


def produce(rig: HandlerRig, **more: Any) -> int:
    fields = produce_fields([("t", NO_ID, [(0, batch(b"x"))])], **more)
    answer = rig.processors[0].ask(ApiKey.PRODUCE, 9, fields, connection=9)
    return int(answer["responses"][0]["partition_responses"][0]["error_code"])


def test_contained_call_keeps_owner_and_logs_each_place_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    failed: list[str] = []

    class Request:
        def fail(self) -> None:
            failed.append("failed")

    containment, request = Containment(), Request()
    containment.owner = request
    later = containment.bind_owner("what was kept", stumble)
    containment.owner = None
    later()
    later()
    assert (failed, containment.count, containment.owner) == (["failed"] * 2, 2, None)
    logged = [record.exc_info[0] for record in caplog.records if record.exc_info]
    assert logged == [ZeroDivisionError]
    with pytest.raises(FatalError):
        containment.run("an append", request, _fatal)


def _fatal() -> None:
    raise FatalError("half way")


def test_unencodable_callback_answer_becomes_error_of_request(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = start(settings={"group.initial.rebalance.delay.ms": 3000})
    rig.cluster.do("auto_create_topics", names=[GROUP_METADATA_TOPIC])
    rig.tell()
    encode = codec.encode_response_in_pieces

    def refuse(key: int, version: int, number: int, fields: dict[str, Any]) -> list[bytes]:
        if fields.get("members"):
            raise ValueError("too long for the wire")
        return encode(key, version, number, fields)

    monkeypatch.setattr(codec, "encode_response_in_pieces", refuse)
    rig.processors[0].send(ApiKey.JOIN_GROUP, 2, join_fields("g"))
    rig.settle()
    rig.advance_ms(3000)  # The timer of the initial delay answers.
    (answer,) = rig.processors[0].answers()
    fields = answer.fields(ApiKey.JOIN_GROUP, 2)
    assert fields["error_code"] == ErrorCode.UNKNOWN_SERVER_ERROR
    assert surprises(rig) == 1


def test_parked_fetch_that_stumbles_over_an_append_ends_alone(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = start()
    rig.create_topic("t")
    fields = fetch_fields([("t", NO_ID, [(0, 0)])], max_wait_ms=5000)
    rig.processors[0].send(ApiKey.FETCH, 12, fields)
    assert rig.processors[0].answers() == []
    with monkeypatch.context() as patched:
        patched.setattr(DelayedFetch, "try_complete", stumble)
        rig.processors[0].send(
            ApiKey.PRODUCE, 9, produce_fields([("t", NO_ID, [(0, batch(b"x"))])]), connection=9
        )
        answers = rig.processors[0].answers()
    assert sorted(each.connection_id for each in answers) == [1, 9], "both are answered"
    assert surprises(rig) == 1
    assert produce(rig) == 0


def test_unreadable_reply_of_handler_ends_its_request(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = start(handlers=2)
    rig.create_topic("t", partitions=8)
    foreign = next(index for index in range(8) if rig.owner("t", index) == 1)
    monkeypatch.setattr("kproc.broker.request.context.RequestContext.reply", stumble)
    rig.processors[0].send(ApiKey.LIST_OFFSETS, 5, list_offsets_fields("t", [(foreign, -1)]))
    (answer,) = rig.processors[0].answers()
    assert answer.kind == CLOSE, "no answer can be made at all"
    assert surprises(rig) >= 1


def test_batch_whose_check_raises_is_rejected_and_next_stored(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = start()
    rig.create_topic("t", cleanup_policy="compact")
    with monkeypatch.context() as patched:
        patched.setattr(log_append, "examine", stumble)
        assert produce(rig) == ErrorCode.UNKNOWN_SERVER_ERROR
    assert surprises(rig) == 1
    keyed = rig.processors[0].ask(ApiKey.LIST_OFFSETS, 5, list_offsets_fields("t", [(0, -1)]))
    assert keyed["topics"][0]["partitions"][0]["offset"] == 0, "nothing of it is there"


def test_exception_between_write_and_publish_ends_role(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = start()
    rig.create_topic("t")
    rig.processors[0].send(ApiKey.PRODUCE, 9, produce_fields([("t", NO_ID, [(0, batch(b"x"))])]))
    with monkeypatch.context() as patched:
        patched.setattr(rig.open("t").log.state, "snapshots", None)
        with pytest.raises(FatalError, match="unexpected error in an append"):
            rig.settle()


def test_exception_in_group_timer_unloads_its_coordinator(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = start()
    rig.cluster.do("auto_create_topics", names=[GROUP_METADATA_TOPIC])
    rig.tell()
    first = rig.processors[0].ask(ApiKey.JOIN_GROUP, 4, join_fields("g"))
    assert first["error_code"] == ErrorCode.MEMBER_ID_REQUIRED
    with monkeypatch.context() as patched:
        patched.setattr(GroupCoordinator, "tick", stumble)
        rig.advance_ms(2 * SESSION_MS)
    assert surprises(rig) == 1
    assert not parts_of(rig.handler()).coordinators._shards
    again = rig.processors[0].ask(ApiKey.JOIN_GROUP, 4, join_fields("g"))
    assert again["error_code"] == ErrorCode.MEMBER_ID_REQUIRED, "loaded anew"


def test_exception_in_producer_id_waiter_spares_next_waiters() -> None:
    containment, asked, given = Containment(), [], []
    allocator = ProducerIdAllocator(lambda _op, _body, on_reply: asked.append(on_reply), containment)
    allocator.allocate(stumble, stumble)
    allocator.allocate(given.append, stumble)
    (on_block,) = asked
    on_block(ProducerIds(first=7, count=5))
    assert (given, containment.count) == ([8], 1)


def test_exception_in_partition_tick_does_not_stop_transfers(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = start()
    ticks: list[PartitionTransfer] = []
    monkeypatch.setattr("kproc.broker.handler.partitions.Partitions.tick", stumble)
    monkeypatch.setattr(PartitionTransfer, "tick", lambda each: ticks.append(each))
    rig.advance_ms(1000)
    assert ticks, "requests that wait for a partition must have an end"
    assert surprises(rig) > 0


def test_transfer_that_is_a_surprise_ends_the_role(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Contained, whoever waits for the partition would wait for ever."""
    rig = start(handlers=2)
    rig.create_topic("t", partitions=4)
    monkeypatch.setattr(PartitionTransfer, "_arrived", stumble)
    with pytest.raises(FatalError, match="unexpected error in the transfer"):
        rig.set_handler_count(1)
    rig.kill(0)


def test_unreadable_claim_ends_role_but_is_not_its_death(start: Start) -> None:
    """Whoever claims a partition opens its log when the owner has died."""
    rig = start()
    body = msgspec.Raw(msgspec.msgpack.encode(["no", "version"]))
    with pytest.raises(msgspec.ValidationError):
        parts_of(rig.handler()).owner_calls.handle_raw(
            "take_partitions", body, memoryview(b""), lambda _reply: pytest.fail("answered"), lambda: False
        )


@pytest.mark.parametrize("op", ["fetch", "an op that nobody serves"])
def test_unreadable_call_is_answered_as_lost(start: Start, op: str) -> None:
    rig = start()
    replies: list[object] = []
    body = msgspec.Raw(msgspec.msgpack.encode(["no", "version"]))
    parts_of(rig.handler()).owner_calls.handle_raw(op, body, memoryview(b""), replies.append, lambda: False)
    assert replies == [None]
    assert rig.handler().containment.count == 1


@pytest.mark.parametrize("seed", range(4))
def test_damaged_news_of_a_processor_do_not_end_the_handler(start: Start, seed: int) -> None:
    chance = random.Random(seed)
    rig = start()
    processor = rig.processors[0]
    for _ in range(200):
        kind = chance.choice((IDENTITY, SOCKET_TIME, MOVE_OUT, MOVE_IN, DISCONNECTED, RECALL_BLOCK))
        record = HEAD.pack(2, 0, 0, 0) + chance.randbytes(chance.randrange(40))
        processor.outbox.push(kind, record[: chance.randrange(len(record) + 1)])
    processor.outbox.flush()
    rig.settle()
    while processor.inbox.poll(1000):
        processor.inbox.release()
    answer = processor.ask(ApiKey.API_VERSIONS, 0, {})
    assert answer["error_code"] == 0
    assert surprises(rig) > 0


def test_identity_that_cannot_be_read_leaves_no_former_identity(start: Start) -> None:
    rig = start()
    processor = rig.processors[0]
    processor.introduce("10.0.0.7", principal=Principal("User", "alice"))
    processor.outbox.push(IDENTITY, HEAD.pack(1, 0, 0, 0), b"\xff" * 30)
    processor.outbox.flush()
    rig.settle()
    (client,) = rig.handler()._clients.values()
    assert client.requests.identities == {}
