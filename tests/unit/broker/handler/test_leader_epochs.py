"""Partitions whose log knows a higher leader epoch than the metadata: the metadata follow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kproc.broker.calls.calls import Lost
from kproc.broker.calls.controller_calls import LEADER_EPOCHS, LeaderEpochsRequest, RaisedLeaderEpochs
from kproc.broker.cluster import records as r
from kproc.broker.cluster.image import ClusterImage
from kproc.broker.handler.leader_epochs import LeaderEpochRaises
from kproc.broker.storage.fs import replace_file
from kproc.broker.storage.os_fs import OsFs
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey
from tests.support.handler_rig import HandlerRig
from tests.support.raw import batch, produce_fields

ID = b"i" * 16
KEY = ("t", 0)


class Scene:
    """A Handler's side, and the calls that it sent to the controller."""

    def __init__(self) -> None:
        self.image = ClusterImage()
        self.image.apply_records([r.TopicCreated("t", ID), r.PartitionsAdded(ID, 0, (0,), (1,), (3,))], 2)
        self.sent: list[tuple[list[int], Callable[[Any], None]]] = []
        self.raises = LeaderEpochRaises(lambda: self.image, self._take)

    def _take(self, call: Any, body: Any, on_reply: Callable[[Any], None]) -> None:
        assert call is LEADER_EPOCHS
        assert isinstance(body, LeaderEpochsRequest)
        assert (body.topic_id, body.partitions) == (ID, [0])
        self.sent.append((body.at_least, on_reply))


@pytest.mark.parametrize(
    "reply", [Lost(), RaisedLeaderEpochs([], failure=(int(ErrorCode.KAFKA_STORAGE_ERROR), "the disk is full"))]
)
def test_a_failed_raise_is_sent_again_until_the_metadata_have_it(reply: Any) -> None:
    scene = Scene()
    scene.raises.request(KEY, ID, 9)
    scene.raises.tick()
    assert [at_least for at_least, _ in scene.sent] == [[9]], "one at a time"
    scene.sent[0][1](reply)
    scene.raises.tick()
    assert len(scene.sent) == 2
    scene.image.apply_records([r.LeaderEpochRaised(ID, 0, 9)], 3)
    scene.sent[1][1](RaisedLeaderEpochs([9]))
    scene.raises.tick()
    scene.raises.tick()
    assert len(scene.sent) == 2


def test_a_raise_for_a_deleted_topic_is_dropped() -> None:
    scene = Scene()
    scene.raises.request(KEY, ID, 9)
    scene.sent[0][1](Lost())
    scene.image.apply_records([r.TopicDeleted(ID), r.TopicCreated("t", b"n" * 16)], 4)
    scene.raises.tick()
    assert len(scene.sent) == 1


def test_opening_a_log_with_a_higher_epoch_raises_the_metadata(start: Callable[..., HandlerRig]) -> None:
    """The files of the partition were replaced by those of another broker."""
    rig = start()
    rig.controller_serves.add("raise_leader_epochs")
    rig.create_topic("t")
    fields = produce_fields([("t", bytes(16), [(0, batch(b"v"))])])
    for epoch in (0, 8):
        assert rig.processors[0].ask(ApiKey.PRODUCE, 9, fields)["responses"][0]["partition_responses"]
        rig.settle()
        assert (rig.image_of("t").leader_epoch, rig.open("t").log.state.leader_epoch) == (epoch, epoch)
        rig.kill(0)
        path = rig.directory / "t-0" / "leader-epoch-checkpoint"
        replace_file(OsFs(), path, b"0\n1\n7 0\n")
        rig.table.writer(rig.image_of("t").slot).publish((0,) * 8)
        rig.start_handler(0, is_restart=True)
