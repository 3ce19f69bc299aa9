"""Answers of the controller to calls about the metadata."""

from __future__ import annotations

import errno
import os
from typing import Any

import pytest

from kproc.broker.calls.controller_calls import CHANGE, Change
from kproc.broker.cluster.metadata_log import MetadataLog
from kproc.broker.role.roles import CONTROLLER
from kproc.broker.transport.envelope import DELTA
from kproc.common.errors import ErrorCode, KafkaError
from tests.support.controller_rig import ControllerRig, Reply, ScriptedPeer
from tests.support.in_memory_controller import topic


def create(peer: ScriptedPeer, name: str) -> list[Reply]:
    return peer.ask("create_topics", topics=[topic(name, 2)], validate_only=False)


def test_change_is_answered_when_every_handler_knows_it(
    rig: ControllerRig, peers: tuple[ScriptedPeer, ScriptedPeer]
) -> None:
    asking, slow = peers
    slow.acknowledges = False
    replies = create(asking, "t")
    rig.settle()
    assert "t" in rig.controller.image.topics_by_name
    assert asking.image is not None
    assert "t" in asking.image.topics_by_name
    assert replies == []
    slow.acknowledge()
    rig.settle()
    assert [row["error_code"] for row in replies[0]["topics"]] == [0]


def test_answers_leave_in_the_order_of_the_changes(
    rig: ControllerRig, peers: tuple[ScriptedPeer, ScriptedPeer]
) -> None:
    asking, slow = peers
    slow.acknowledges = False
    order: list[str] = []
    for name in ("first", "second", "third"):
        body = {"topics": [topic(name)], "validate_only": False}
        change = Change("create_topics", body)
        asking.calls.send(asking.outbox, CONTROLLER, CHANGE, change, lambda _r, name=name: order.append(name))
        asking.outbox.flush()
        rig.settle()
    assert order == []
    slow.acknowledge()  # Of the newest version: it knows all three.
    rig.settle()
    assert order == ["first", "second", "third"]


def test_validate_only_change_waits_for_no_handler(
    rig: ControllerRig, peers: tuple[ScriptedPeer, ScriptedPeer]
) -> None:
    for peer in peers:
        peer.acknowledges = False
    replies = peers[0].ask("create_topics", topics=[topic("t")], validate_only=True)
    rig.settle()
    assert len(replies) == 1
    assert "t" not in rig.controller.image.topics_by_name


def test_unwritable_change_is_rejected_and_not_sent(
    rig: ControllerRig, peers: tuple[ScriptedPeer, ScriptedPeer], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as full:
        full.setattr(
            MetadataLog,
            "commit",
            lambda *_: _raise(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, os.strerror(errno.ENOSPC))),
        )
        replies = create(peers[0], "t")
        rig.settle()
    assert len(replies) == 1
    assert "No space left" in str(replies[0])
    assert "t" not in rig.controller.image.topics_by_name
    assert DELTA not in peers[1].kinds
    again = create(peers[0], "t")
    rig.settle()
    assert [row["error_code"] for row in again[0]["topics"]] == [0]


def _raise(error: Exception) -> Any:
    raise error
