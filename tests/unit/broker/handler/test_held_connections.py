"""HeldConnections: requests behind a large one wait for its response, and recalled blocks are copied."""

from __future__ import annotations

import pytest

from kproc.broker.handler import held_connections
from kproc.wire import codec
from kproc.wire.header import ApiKey
from tests.support.large_request_clients import Start, cluster, describe_groups, describe_groups_of, pass_once
from tests.support.raw import batch, produce_fields

ROWS = 1_000


def test_requests_behind_a_large_one_wait_for_its_answer(start: Start) -> None:
    """As in Kafka a request sees what the one before it on its connection has done."""
    rig = cluster(start)
    processor = rig.processors[0]
    frames = [
        codec.encode_request(ApiKey.DESCRIBE_GROUPS, 5, 1, "c", describe_groups(ROWS)),
        codec.encode_request(ApiKey.API_VERSIONS, 0, 2, "c", {}),
        codec.encode_request(
            ApiKey.PRODUCE, 9, 3, "c", produce_fields([("t", bytes(16), [(0, batch(b"v"))])])
        ),
    ]
    processor.send_frames(frames)
    processor.send(ApiKey.DESCRIBE_GROUPS, 5, describe_groups(ROWS))
    processor.send(ApiKey.API_VERSIONS, 0, {})
    pass_once(rig)
    assert processor.answers(settles=False) == []
    rig.create_topic("new")  # A change of the metadata drops fast paths, not what waits here.
    assert [answer.sequence for answer in processor.answers()] == [0, 1, 2, 3, 4]
    assert rig.open("t").log.state.end_offset == 1


def test_large_frame_behind_a_large_request_stays_in_the_arena(start: Start) -> None:
    rig = cluster(start)
    processor = rig.processors[0]
    for _ in range(3):
        processor.send(ApiKey.DESCRIBE_GROUPS, 5, describe_groups_of(20_000))
    assert len(processor._blocks) == 3
    answers = processor.answers()
    assert [answer.sequence for answer in answers] == [0, 1, 2]
    assert not processor._blocks
    assert not rig.handler()._requests.large


def test_recalled_block_of_a_held_request_is_copied(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Processor recalls a block after a second. A request that has not been handled by then keeps its frame."""
    for bytes_max, lent in ((1 << 20, 0), (0, 1)):
        monkeypatch.setattr(held_connections, "_COPIED_BYTES_MAX", bytes_max)
        rig = cluster(start)
        processor = rig.processors[0]
        processor.send(ApiKey.DESCRIBE_GROUPS, 5, describe_groups_of(30_000))
        processor.send(ApiKey.DESCRIBE_GROUPS, 5, describe_groups_of(24_000))
        pass_once(rig)
        processor.recall_blocks()
        pass_once(rig)
        assert processor.answers(settles=False) == []
        assert rig.arena.lent_count() == lent
        if not lent:
            offset = rig.arena.allocate(1 << 20)
            assert offset is not None
            with rig.arena.view(offset, 1 << 20) as view:
                view[:] = b"\xff" * (1 << 20)
        counts = [len(each.fields(ApiKey.DESCRIBE_GROUPS, 5)["groups"]) for each in processor.answers()]
        assert counts == [300, 240]
