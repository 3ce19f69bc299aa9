"""MigratingConnections: requests that are answered during a migration keep the client's identity."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kproc.broker.cluster.internal_topics import GROUP_METADATA_TOPIC
from kproc.broker.coordinator.topic_coordinators import partition_for
from kproc.broker.security.principal import Principal
from kproc.broker.transport.envelope import HEAD, MOVE_IN, MOVE_OUT, pack_sequences
from kproc.wire.header import ApiKey
from tests.support.handler_rig import HandlerRig

Start = Callable[..., HandlerRig]
ALICE = Principal("User", "alice")
SETTINGS = {
    "offsets.topic.num.partitions": 2,
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:alice",
}


class Scene:
    """Alice's home is Handler 0. Handler 1 coordinates her group, so her requests are completed by its replies."""

    def __init__(self, rig: HandlerRig) -> None:
        self.rig = rig
        rig.create_topic("t")
        rig.cluster.do("auto_create_topics", names=[GROUP_METADATA_TOPIC])
        rig.tell()
        partitions = rig.cluster.image.topics_by_name[GROUP_METADATA_TOPIC].partitions
        owned = {each.index for each in partitions if each.owner == 1}
        self.group = next(f"g{n}" for n in range(1000) if partition_for(f"g{n}", len(partitions)) in owned)
        rig.processors[0].introduce("10.0.0.7", principal=ALICE)
        part = {"partition_index": 0, "committed_offset": 5, "committed_metadata": "m"}
        fields = {
            "group_id": self.group,
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "topics": [{"name": "t", "partitions": [part]}],
        }
        answer = rig.processors[0].ask(ApiKey.OFFSET_COMMIT, 8, fields)
        assert answer["topics"][0]["partitions"][0]["error_code"] == 0

    def ask_while_migrating(self, key: ApiKey, version: int, fields: dict[str, Any]) -> dict[str, Any]:
        """Send a request with MOVE_OUT behind it, and claim the answer when the old Processor is done."""
        processor = self.rig.processors[0]
        sequence = processor.send(key, version, fields)
        processor.outbox.push(MOVE_OUT, HEAD.pack(1, 1, 0, 0))
        processor.outbox.flush()
        self.rig.handler(0).do_work(0)  # Which forwards the request, and then hears of the migration.
        self.rig.settle()
        processor.outbox.push(MOVE_IN, HEAD.pack(1, 0, 0, 0), pack_sequences([sequence]))
        processor.outbox.flush()
        (answer,) = processor.answers()
        return answer.fields(key, version)


@pytest.fixture
def scene(start: Start) -> Scene:
    return Scene(start(handlers=2, settings=SETTINGS))


def test_offset_fetch_while_migrating_returns_all_offsets(scene: Scene) -> None:
    group = {"group_id": scene.group, "topics": None}
    answer = scene.ask_while_migrating(ApiKey.OFFSET_FETCH, 8, {"groups": [group], "require_stable": False})
    (found,) = answer["groups"]
    assert [topic["name"] for topic in found["topics"]] == ["t"]


def test_list_groups_while_migrating_returns_groups(scene: Scene) -> None:
    answer = scene.ask_while_migrating(ApiKey.LIST_GROUPS, 4, {"states_filter": []})
    assert [each["group_id"] for each in answer["groups"]] == [scene.group]
