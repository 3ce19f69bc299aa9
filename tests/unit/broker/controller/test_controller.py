"""The controller: a change is answered when it is on disk and every Handler that lives knows it."""

from __future__ import annotations

import errno
import random
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from kproc.broker.cluster.metadata_log import MetadataLog
from kproc.broker.cluster.records import DelegationTokenSet
from kproc.broker.config import Config
from kproc.broker.config.dynamic import DynamicSettings
from kproc.broker.observe.offline_partitions import REPORT_OFFLINE, OfflineNoted, OfflineReport
from kproc.broker.role.plan import BrokerPlan
from kproc.broker.role.roles import CLEANER, CONTROLLER, handler_id
from kproc.broker.storage.fs import DiskFailed
from kproc.broker.storage.os_fs import OsFs
from kproc.broker.supervisor.broker import RoleParts, SupervisorCalls, build_controller
from kproc.broker.transport.envelope import CALL, DELTA_ACK, REPLY, SNAPSHOT, TOKEN
from kproc.common.clock import ManualClock
from kproc.common.errors import ErrorCode, FatalError, KafkaError
from tests.support.controller_rig import ControllerRig, Reply, ScriptedPeer
from tests.support.in_memory_controller import NEW_CLUSTER_CONFIGS, topic


def create(peer: ScriptedPeer, name: str) -> list[Reply]:
    return peer.ask("create_topics", topics=[topic(name, 2)], validate_only=False)


def test_peer_begins_with_a_whole_image(rig: ControllerRig) -> None:
    peer = rig.attach(handler_id(0))
    assert peer.kinds == [SNAPSHOT]
    assert peer.image is not None
    assert peer.image.snapshot() == rig.controller.image.snapshot()
    assert peer.image.cluster_id == "the-cluster"
    assert peer.image.handler_count == 2


def test_change_is_sent_to_all_but_cleaner_is_not_awaited(
    rig: ControllerRig, peers: tuple[ScriptedPeer, ScriptedPeer]
) -> None:
    cleaner = rig.attach(CLEANER)
    cleaner.acknowledges = False
    replies = create(peers[0], "t")
    rig.settle()
    assert len(replies) == 1
    for peer in (*peers, cleaner):
        assert peer.image is not None
        assert peer.image.snapshot() == rig.controller.image.snapshot()


def delete(peer: ScriptedPeer, name: str) -> list[Reply]:
    return peer.ask("delete_topics", topics=[{"name": name, "topic_id": bytes(16)}])


@pytest.mark.parametrize("ending", ["acknowledges", "dies", "hangs"])
def test_topic_is_recreated_after_all_handlers_released_old_one(
    rig: ControllerRig, peers: tuple[ScriptedPeer, ScriptedPeer], ending: str
) -> None:
    asking, slow = peers
    create(asking, "t")
    rig.settle()
    first = rig.controller.image.topics_by_name["t"].topic_id
    slow.acknowledges = False
    delete(asking, "t")
    replies = asking.ask("create_topics", topics=[topic("t"), topic("other")], validate_only=False)
    automatic = asking.ask("auto_create_topics", names=["t"])
    question = asking.ask("create_topics", topics=[topic("t")], validate_only=True)
    rig.settle()
    assert "t" not in rig.controller.image.topics_by_name
    assert [row["error_code"] for row in question[0]["topics"]] == [0], "a question makes nothing"
    slow.acknowledges = True
    if ending == "acknowledges":
        slow.acknowledge()
    elif ending == "dies":
        rig.lose(slow)
    else:
        rig.clock.advance_ms(5_100)
    rig.settle()
    codes = {row["name"]: row["error_code"] for row in replies[0]["topics"]}
    if ending == "hangs":
        assert codes == {"t": ErrorCode.REQUEST_TIMED_OUT, "other": 0}
        assert automatic[0]["topics"][0]["error_code"] == ErrorCode.REQUEST_TIMED_OUT
        slow.acknowledge()
        assert create(asking, "t") == []
        rig.settle()
    else:
        assert codes == {"t": 0, "other": 0}
        assert automatic[0]["topics"][0]["error_code"] == 0
    assert rig.controller.image.topics_by_name["t"].topic_id != first


def test_stopping_controller_answers_waits_for_a_name(
    rig: ControllerRig, peers: tuple[ScriptedPeer, ScriptedPeer]
) -> None:
    asking, slow = peers
    create(asking, "t")
    rig.settle()
    slow.acknowledges = False
    delete(asking, "t")
    replies = create(asking, "t")
    rig.settle()
    rig.controller.drain()
    assert not rig.controller.is_drained()
    rig.clock.advance_ms(200)
    rig.settle()
    assert replies[0]["topics"][0]["error_code"] == ErrorCode.REQUEST_TIMED_OUT


def test_death_of_awaited_handler_releases_answer(
    rig: ControllerRig, peers: tuple[ScriptedPeer, ScriptedPeer]
) -> None:
    asking, dying = peers
    dying.acknowledges = False
    replies = create(asking, "t")
    rig.settle()
    assert replies == []
    rig.lose(dying)
    assert len(replies) == 1


def test_successor_handler_does_not_delay_a_change(
    rig: ControllerRig, peers: tuple[ScriptedPeer, ScriptedPeer]
) -> None:
    asking, dying = peers
    dying.acknowledges = False
    replies = create(asking, "t")
    rig.settle()
    rig.peers.remove(dying)
    successor = rig.attach(dying.id)  # Attached before anybody said that the other one is gone.
    assert len(replies) == 1
    assert successor.image is not None
    assert "t" in successor.image.topics_by_name


def test_offline_partitions_report_is_read_by_declared_types(
    rig: ControllerRig, peers: tuple[ScriptedPeer, ScriptedPeer]
) -> None:
    asking, _ = peers
    replies: list[object] = []
    report = OfflineReport(0, 2, [("t", 1, "the disk is broken")])
    asking.calls.send(asking.outbox, CONTROLLER, REPORT_OFFLINE, report, replies.append)
    asking.outbox.flush()
    rig.settle()
    assert replies == [OfflineNoted()]
    assert rig.controller._operations.status.offline.problem == "2 partitions are offline"


def test_acknowledgement_of_older_change_keeps_newer_waiting(
    rig: ControllerRig, peers: tuple[ScriptedPeer, ScriptedPeer]
) -> None:
    asking, slow = peers
    slow.acknowledges = False
    first = create(asking, "first")
    rig.settle()
    seen = rig.controller.image.version
    second = create(asking, "second")
    rig.settle()
    slow.outbox.push(DELTA_ACK, TOKEN.pack(seen, 0))
    slow.outbox.flush()
    rig.settle()
    assert (len(first), len(second)) == (1, 0)


def test_change_without_handlers_is_answered_at_once(rig: ControllerRig) -> None:
    cleaner = rig.attach(CLEANER)
    replies = create(cleaner, "t")
    rig.settle()
    assert len(replies) == 1


def _raise(error: Exception) -> Any:
    raise error


def test_recreated_topic_ignores_files_restored_by_power_loss(
    rig: ControllerRig,
    peers: tuple[ScriptedPeer, ScriptedPeer],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    back = tmp_path / "t-1"
    back.mkdir()
    (back / "partition.metadata").write_bytes(b"")
    with monkeypatch.context() as broken:
        broken.setattr(OsFs, "rename", lambda *_: _raise(DiskFailed(errno.EIO, "a test says so")))
        replies = create(peers[0], "t")
        rig.settle()
    assert "a test says so" in str(replies[0])
    assert "t" not in rig.controller.image.topics_by_name
    again = create(peers[0], "t")
    rig.settle()
    assert [row["error_code"] for row in again[0]["topics"]] == [0]
    assert not back.exists()
    assert [path.name.rpartition("-")[2] for path in tmp_path.glob("t-1.*")] == ["stray"]


def test_change_outlives_the_controller(tmp_path: Path) -> None:
    with ExitStack() as stack:
        rig = ControllerRig(stack, tmp_path)
        create(rig.attach(handler_id(0)), "kept")
        rig.settle()
        before = rig.controller.image.snapshot()
        epoch = rig.controller.image.broker_epoch
    with ExitStack() as stack:
        restarted = ControllerRig(stack, tmp_path, is_restart=True)
        assert restarted.controller.image.snapshot() == before
        assert restarted.attach(handler_id(0)).image is not None
    with ExitStack() as stack:
        started = ControllerRig(stack, tmp_path)
        assert started.controller.image.broker_epoch > epoch, "a start of the broker, not of the controller"
        assert "kept" in started.controller.image.topics_by_name


def test_data_of_another_cluster_is_refused(tmp_path: Path) -> None:
    with ExitStack() as stack:
        ControllerRig(stack, tmp_path)
    config = Config.build({"log.dirs": str(tmp_path)})
    plan = BrokerPlan(config, ManualClock(), [], "another-cluster", was_clean=True)
    parts = RoleParts(
        doze=None,  # type: ignore[arg-type]  # It ends before it would sleep.
        metrics=None,  # type: ignore[arg-type]
        supervisor=SupervisorCalls(send_request=lambda *_: None, send_settings=lambda _: None),
    )
    with pytest.raises(FatalError, match="of cluster the-cluster"):
        build_controller(CONTROLLER, plan, parts)


@pytest.mark.parametrize("seed", range(4))
def test_damaged_calls_and_replies_do_not_end_the_controller(
    rig: ControllerRig, peers: tuple[ScriptedPeer, ScriptedPeer], seed: int
) -> None:
    """Whatever a Handler sends, the controller goes on for everybody else."""
    chance = random.Random(seed)
    request = msgspec.msgpack.encode(["own", [{"op": "status"}]])
    for _ in range(300):
        damaged = bytearray(TOKEN.pack(chance.randrange(5), len(request)) + request)
        for _ in range(chance.randrange(1, 4)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        del damaged[chance.randrange(8, len(damaged) + 1) :]
        peers[0].outbox.push(chance.choice((CALL, REPLY)), bytes(damaged))
    peers[0].outbox.flush()
    for _ in range(40):
        rig.controller.do_work(0)
        peers[0].inbox.poll(1000)
        peers[0].inbox.release()
    heard = peers[1].ask_own("status")
    rig.settle()
    assert heard[0]["error"] is None
    assert rig.controller.containment.count > 0


def test_changed_settings_are_sent_at_once_and_at_next_start(tmp_path: Path) -> None:
    with ExitStack() as stack:
        rig = ControllerRig(stack, tmp_path)
        assert rig.settings == [DynamicSettings(NEW_CLUSTER_CONFIGS)]
        body = {"node": "1", "configs": {"num.io.threads": "5"}}
        rig.controller.handle_change("override_broker_configs", body, lambda _: None)
        assert rig.settings[-1].integer("num.io.threads", 2) == 5
    with ExitStack() as stack:
        again = ControllerRig(stack, tmp_path)
        assert again.settings == [DynamicSettings(NEW_CLUSTER_CONFIGS | {"num.io.threads": "5"})]
        assert again.controller.image.handler_count == 5, "what was changed beats what it is started with"


def test_tokens_that_have_expired_are_removed_once_an_interval(rig: ControllerRig) -> None:
    """The first time right after the start, whatever became due while there was no controller."""
    rig.settle()
    token = DelegationTokenSet("id", ("User", "a"), ("User", "a"), (), 0, rig.clock.wall_ms() + 5000, 2**62)
    rig.controller._commit(
        {}, [token, replace(token, token_id="lasts", expires_ms=2**62)], lambda _reply: None, False
    )
    peer = rig.attach(handler_id(0))
    assert peer.image is not None
    for seconds, left in ((6, ["id", "lasts"]), (3593, ["id", "lasts"]), (2, ["lasts"])):
        rig.clock.advance_ms(seconds * 1000)
        rig.settle()
        assert list(peer.image.delegation_tokens) == left


def test_removal_of_an_expired_token_is_tried_again_soon(
    rig: ControllerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full at the check. The next check comes an hour later."""
    rig.settle()
    token = DelegationTokenSet("id", ("User", "a"), ("User", "a"), (), 0, rig.clock.wall_ms() + 5000, 2**62)
    rig.controller._commit({}, [token], lambda _reply: None, False)
    with monkeypatch.context() as full:

        def fail(*_: object) -> None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "no space")

        full.setattr(MetadataLog, "commit", fail)
        rig.clock.advance_ms(3_600_000)
        rig.settle()
    assert list(rig.controller.image.delegation_tokens) == ["id"]
    rig.clock.advance_ms(5000)
    rig.settle()
    assert not rig.controller.image.delegation_tokens


def test_controller_is_drained_when_every_change_is_answered(
    rig: ControllerRig, peers: tuple[ScriptedPeer, ScriptedPeer]
) -> None:
    peers[1].acknowledges = False
    create(peers[0], "t")
    rig.settle()
    rig.controller.drain()
    assert not rig.controller.is_drained()
    peers[1].acknowledge()
    rig.settle()
    assert rig.controller.is_drained()


@pytest.mark.long
def test_thousand_topics_reach_a_peer_although_the_ring_is_small(rig: ControllerRig) -> None:
    asking = rig.attach(handler_id(0))
    names = [f"topic-with-a-rather-long-name-{number:05}" for number in range(3000)]
    replies = asking.ask("create_topics", topics=[topic(name) for name in names], validate_only=False)
    for _ in range(30):
        asking.outbox.flush()
        rig.settle()
    assert len(replies) == 1
    late = rig.attach(handler_id(1))
    for _ in range(30):
        rig.settle()
    assert late.image is not None
    assert late.image.partition_count == 3000
    assert CALL not in late.kinds
