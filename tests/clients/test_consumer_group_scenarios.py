"""Groups of the consumer protocol (KIP-848) by confluent-kafka and the Java client, alone and beside classic members.

What must hold of each scene: every record comes to somebody, and none twice that was committed before its partition
was assigned. Every partition has one owner once the group has come to rest, and committed offsets never go back.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

pytest.importorskip("confluent_kafka")

from confluent_kafka.admin import AdminClient, NewPartitions

from tests.support.broker import BrokerUnderTest
from tests.support.group_scene import (
    CONSUMER_PROTOCOL_SETTINGS,
    SESSION_MS,
    STATIC_SESSION_MS,
    GroupScene,
    MemberProcess,
)
from tests.support.groups import list_groups
from tests.support.kafka_jars import missing_reason
from tests.support.raw import RawClient
from tests.support.topics import fresh_name
from tests.support.wait import PATIENCE_SECONDS, wait_until

pytestmark = [pytest.mark.clients, pytest.mark.own_broker, pytest.mark.transports("process")]

PARTITIONS = 8
needs_java = [
    pytest.mark.java,
    pytest.mark.slow,
    pytest.mark.skipif(missing_reason() is not None, reason=missing_reason() or ""),
]
CONFLUENT_AND_JAVA = pytest.mark.parametrize(
    "other", ["confluent", pytest.param("java", marks=needs_java)], ids=["confluent", "confluent and Java"]
)


@pytest.fixture
def new_scene(start_broker: Callable[..., BrokerUnderTest]) -> Callable[..., GroupScene]:
    """`new_scene(protocol="classic")`: a scene with a broker of its own, on which members are missed in seconds."""

    def create(session_ms: int = SESSION_MS, **changes: Any) -> GroupScene:
        settings = {**CONSUMER_PROTOCOL_SETTINGS, "group.consumer.session.timeout.ms": session_ms}
        bootstrap = start_broker(settings=settings).bootstrap
        name = fresh_name("work")
        with RawClient(bootstrap) as client:
            client.create_topic(name, partitions=PARTITIONS)
        return GroupScene(
            bootstrap, name, PARTITIONS, fresh_name("scene"), **{"protocol": "consumer", **changes}
        )

    return create


def group_type(scene: GroupScene) -> str:
    with RawClient(scene.bootstrap) as client:
        return str(list_groups(client)[scene.group]["group_type"])


@CONFLUENT_AND_JAVA
def test_members_join_hang_die_and_leave(new_scene: Callable[..., GroupScene], other: str) -> None:
    """One commits and waits, one commits and goes on."""
    with new_scene() as scene:
        (first,) = scene.start("confluent", commit="async")
        (second,) = scene.start(other)
        scene.settle()
        assert group_type(scene).lower() == "consumer"
        (third,) = scene.start("confluent", commit="async")
        scene.settle()
        second.signal(signal.SIGSTOP)
        scene.settle(among=[first, third])
        second.signal(signal.SIGCONT)
        # It finds itself thrown out, and joins again.
        scene.settle()
        scene.kill(third)
        scene.settle()
        scene.close(second)
        scene.settle()
        scene.finish_producing()
        scene.wait_delivered()


@pytest.mark.slow
@CONFLUENT_AND_JAVA
def test_group_resumes_from_committed_offsets_after_absence(
    new_scene: Callable[..., GroupScene], other: str
) -> None:
    with new_scene() as scene:
        scene.start("confluent", other)
        scene.settle()
        wait_until(
            lambda: len(scene.committed()) == PARTITIONS, seconds=20, what="a commit of every partition"
        )
        scene.close(*scene.members)
        committed = scene.committed()
        again = scene.start(other, "confluent")
        scene.settle()
        scene.wait_reading(again)
        scene.finish_producing()
        scene.wait_delivered()
        assert scene.first_offsets(again) == committed


@pytest.mark.slow
@pytest.mark.parametrize("how", ["closed", "killed"])
@CONFLUENT_AND_JAVA
def test_static_member_returns_to_its_partitions(
    new_scene: Callable[..., GroupScene], other: str, how: str
) -> None:
    """Nobody else gets them meanwhile, unless the session of one that was killed has ended."""
    with new_scene(STATIC_SESSION_MS if how == "closed" else SESSION_MS) as scene:
        (stays,) = scene.start("confluent")
        (old,) = scene.start(other, instances=True)
        scene.settle()
        owned, kept, mark = old.owned, stays.owned, len(stays.events)
        if how == "closed":
            scene.close(old)
        else:
            scene.kill(old)
            scene.settle(among=[stays])
        (new,) = scene.start(other, instances=True)
        scene.settle()
        if how == "closed":
            assert (new.owned, stays.owned) == (owned, kept)
            changes = [each["name"] for each in stays.events[mark:] if each.get("partitions")]
            assert set(changes) <= {"records_consumed"}
        scene.finish_producing()
        scene.wait_delivered()


class Changes:
    """Random changes of a group of two to eight members, and of its topic; each returns when the group has settled."""

    FEWEST, MOST = 2, 8

    def __init__(self, scene: GroupScene, source: random.Random, makes: tuple[str, ...]) -> None:
        self._scene = scene
        self._source = source
        self._makes = makes
        (self._static,) = scene.start("confluent", instances=True)
        scene.start(*makes)
        scene.settle()

    def change(self) -> None:
        changes = [self.pause, self.restart_static, self.grow]
        changes += [self.join] * 2 if len(self._scene.members) < self.MOST else []
        changes += [self.leave, self.die] if len(self._scene.members) > self.FEWEST else []
        self._source.choice(changes)()
        self._scene.settle()

    def _dynamic(self) -> MemberProcess:
        return self._source.choice([each for each in self._scene.members if each is not self._static])

    def join(self) -> None:
        room = self.MOST - len(self._scene.members)
        self._scene.start(*self._source.choices(self._makes, k=self._source.randint(1, min(3, room))))

    def leave(self) -> None:
        self._scene.close(self._dynamic())

    def die(self) -> None:
        self._scene.kill(self._dynamic())

    def pause(self) -> None:
        """A member hangs until its session has ended, finds itself fenced and joins again."""
        hung = self._dynamic()
        hung.signal(signal.SIGSTOP)
        self._scene.settle(among=[each for each in self._scene.members if each is not hung])
        hung.signal(signal.SIGCONT)

    def restart_static(self) -> None:
        """The static member is closed or dies, and comes back with its instance id.

        The instance id of a member that died is free only when its session has ended.
        """
        if self._source.random() < 0.5:
            self._scene.close(self._static)
        else:
            self._scene.kill(self._static)
            self._scene.settle()
        (self._static,) = self._scene.start("confluent", instances=True)

    def grow(self) -> None:
        self._scene.grow(self._scene.partitions + self._source.randint(1, 3))


@pytest.mark.slow
@CONFLUENT_AND_JAVA
def test_random_changes_of_two_to_eight_members(
    new_scene: Callable[..., GroupScene], other: str, pytestconfig: pytest.Config
) -> None:
    """`--rounds 30 --seed N` for more of them."""
    source = random.Random(int(pytestconfig.getoption("seed")))
    with new_scene() as scene:
        changes = Changes(scene, source, ("confluent", other))
        for _ in range(int(pytestconfig.getoption("rounds"))):
            changes.change()
        scene.finish_producing()
        scene.wait_delivered()


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 8])
def test_regex_follows_created_grown_and_deleted_topics(
    new_scene: Callable[..., GroupScene], count: int
) -> None:
    with new_scene() as scene:
        members = scene.start(*["confluent"] * count, subscription=f"^{scene.topic}.*")
        scene.settle()
        admin = AdminClient({"bootstrap.servers": scene.bootstrap})
        other = f"{scene.topic}-other"

        def owned_elsewhere() -> set[tuple[str, int]]:
            return set().union(*(member.owned_elsewhere for member in members))

        def wait_others(count: int) -> None:
            wanted = {(other, index) for index in range(count)}
            # The expression of a group is resolved again after 10 s at the earliest.
            wait_until(lambda: owned_elsewhere() == wanted, seconds=40, what=f"{count} partitions of {other}")

        with RawClient(scene.bootstrap) as client:
            client.create_topic(other, partitions=2)
        wait_others(2)
        admin.create_partitions([NewPartitions(other, 4)])[other].result(timeout=PATIENCE_SECONDS)
        wait_others(4)
        admin.delete_topics([other])[other].result(timeout=PATIENCE_SECONDS)
        wait_others(0)
        scene.settle()
        scene.finish_producing()
        scene.wait_delivered()


@contextmanager
def upgraded(scene: GroupScene, makes: tuple[str, ...]) -> Iterator[GroupScene]:
    """A group of classic members, of which each was replaced by one of the consumer protocol, and back."""
    with scene:
        old = scene.start(*makes, protocol="classic")
        scene.settle()
        assert group_type(scene).lower() == "classic"
        for member in old:
            scene.start(member.make, protocol="consumer")
            scene.settle()
            assert group_type(scene).lower() == "consumer"
            scene.close(member)
            scene.settle()
        yield scene


@pytest.mark.parametrize(
    ("makes", "strategy"),
    [
        (("confluent",), "range"),
        pytest.param(("confluent", "confluent"), "roundrobin", marks=pytest.mark.slow),
        pytest.param(("java", "confluent"), "range", marks=needs_java),
        # librdkafka's cooperative-sticky adds user data to assignments: Kafka and kproc do not convert its groups.
        pytest.param(("java", "java"), "cooperative-sticky", marks=needs_java),
        pytest.param(("confluent",) * 8, "range", marks=pytest.mark.slow),
        pytest.param(("java", "confluent", "confluent", "confluent") * 2, "range", marks=needs_java),
    ],
    ids=[
        "one",
        "two",
        "Java and confluent",
        "Java cooperative",
        "eight",
        "eight of Java and confluent",
    ],
)
def test_group_changes_its_protocol_while_records_flow(
    new_scene: Callable[..., GroupScene], makes: tuple[str, ...], strategy: str
) -> None:
    with upgraded(new_scene(strategy=strategy), makes) as scene:
        for member in list(scene.members):
            (classic,) = scene.start(member.make, protocol="classic")
            scene.settle()
            scene.close(member)
            scene.settle()
        assert group_type(scene).lower() == "classic"
        assert classic in scene.members
        scene.finish_producing()
        scene.wait_delivered()


@pytest.mark.slow
@pytest.mark.parametrize("library", ["kafka-python", "aiokafka"])
def test_classic_libraries_stay_while_group_changes_protocol(
    new_scene: Callable[..., GroupScene], library: str
) -> None:
    """Members of libraries without the consumer protocol leave, join and die beside one that has it."""
    with new_scene(protocol="classic") as scene:
        leaves, stays = scene.start(library, library)
        scene.settle()
        (consumer,) = scene.start("confluent", protocol="consumer")
        scene.settle()
        assert group_type(scene).lower() == "consumer"
        scene.close(leaves)
        scene.settle()
        (dies,) = scene.start(library)
        scene.settle()
        scene.close(consumer)
        scene.settle()
        assert group_type(scene).lower() == "classic"
        scene.start("confluent", protocol="consumer")
        scene.settle()
        scene.kill(dies)
        scene.settle()
        assert stays in scene.members
        scene.finish_producing()
        scene.wait_delivered()
