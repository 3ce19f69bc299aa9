"""One group of confluent-kafka, kafka-python, aiokafka and the Java client: they come, leave, die, hang and return.

What must hold of each scene: every record comes to somebody, every partition has one owner once the group has come to
rest, nobody rebalances without a reason, and committed offsets are where a group goes on that was away.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

pytest.importorskip("confluent_kafka")
pytest.importorskip("kafka")
pytest.importorskip("aiokafka")

from tests.support.broker import BrokerUnderTest
from tests.support.group_scene import GroupScene, MemberProcess
from tests.support.kafka_jars import missing_reason
from tests.support.topics import TopicFactory, fresh_name
from tests.support.wait import pause, stretched, wait_until

pytestmark = [
    pytest.mark.clients,
    pytest.mark.java,
    pytest.mark.transports("process"),
    pytest.mark.skipif(missing_reason() is not None, reason=missing_reason() or ""),
]

PARTITIONS = 8
MAKES = ("confluent", "kafka-python", "aiokafka", "java")


@pytest.fixture
def scene(broker: BrokerUnderTest, topic: TopicFactory) -> Iterator[GroupScene]:
    with GroupScene(
        broker.bootstrap, topic(partitions=PARTITIONS), PARTITIONS, fresh_name("scene")
    ) as running:
        yield running


@pytest.fixture
def cooperative(broker: BrokerUnderTest, topic: TopicFactory) -> Iterator[GroupScene]:
    name = topic(partitions=PARTITIONS)
    with GroupScene(
        broker.bootstrap, name, PARTITIONS, fresh_name("scene"), strategy="cooperative-sticky"
    ) as running:
        yield running


def wait_quiet() -> None:
    """Wait for several heartbeats of every member: a rebalance that is still to come has begun by then."""
    pause(stretched(2_000) / 1000)


def rebalances_until_settled(scene: GroupScene, before: int) -> int:
    """How many it took, those included that begin after the group looks settled."""
    scene.settle()
    wait_quiet()
    scene.settle()
    return scene.generation() - before


def test_group_of_four_client_libraries_changes_its_members(scene: GroupScene) -> None:
    """They join, hang and come back, leave and die; the group rebalances once for each."""
    scene.start("confluent", "java")
    scene.settle()
    before = scene.generation()
    scene.start("kafka-python", "aiokafka")
    assert 1 <= rebalances_until_settled(scene, before) <= 2, "one for each newcomer at most"

    before = scene.generation()
    hung = scene.of("confluent")
    hung.signal(signal.SIGSTOP)
    scene.settle(among=[member for member in scene.members if member is not hung])
    assert scene.generation() == before + 1
    hung.signal(signal.SIGCONT)
    # It finds itself thrown out, and joins again.
    assert rebalances_until_settled(scene, before + 1) == 1

    # confluent-kafka stays to the end: somebody has to get the last records.
    for make, end in (("java", scene.close), ("kafka-python", scene.close), ("aiokafka", scene.kill)):
        before = scene.generation()
        end(scene.of(make))
        assert rebalances_until_settled(scene, before) == 1, f"{make} has left or died"
    scene.finish_producing()
    scene.wait_delivered()


@pytest.mark.parametrize(
    ("how", "makes"),
    [
        ("killed", ("aiokafka", "confluent")),  # The broker sees no difference between makes of static members.
        pytest.param("killed", MAKES, marks=pytest.mark.slow),
        pytest.param("closed", MAKES, marks=pytest.mark.slow),
    ],
    ids=["two killed", "all killed", "all closed"],
)
def test_static_members_rejoin_without_rebalance(
    scene: GroupScene, how: str, makes: tuple[str, ...]
) -> None:
    scene.start(*makes, instances=True)
    scene.settle()
    wait_quiet()
    scene.settle()
    generation = scene.generation()
    for make in makes:
        old = scene.of(make)
        owned = old.owned
        if how == "closed":
            scene.close(old)
        else:
            scene.kill(old)
        (new,) = scene.start(make, instances=True)
        scene.settle()
        assert new.owned == owned
    wait_quiet()
    scene.settle()
    assert scene.generation() == generation
    scene.finish_producing()
    scene.wait_delivered()


def test_cooperative_rebalance_keeps_unmoved_partitions(cooperative: GroupScene) -> None:
    scene = cooperative
    first = scene.start("confluent", "java")
    scene.settle()
    before = scene.generation()
    owned = [member.owned for member in first]
    marks = [len(member.events) for member in first]
    second = scene.start("confluent", "confluent")
    # Each newcomer begins one, and so does each member that has given partitions up and joins again. Two that give up
    # at once share one, unless the SyncGroup of the second comes when the first has joined again: it is told to join
    # again, too, as by Kafka, and hears only in the next generation what it is to give up.
    took = rebalances_until_settled(scene, before)
    gave_up = sum(len(revocations(member, mark)) for member, mark in zip(first, marks, strict=True))
    gave_up += sum(len(revocations(member, 0)) for member in second)
    assert 2 <= took <= len(second) + gave_up
    for member, had, mark in zip(first, owned, marks, strict=True):
        assert member.owned < had, member.said()
        assert revoked(member, mark) == had - member.owned, "nothing else was ever given up"
    before = scene.generation()
    owned = [member.owned for member in first]
    marks = [len(member.events) for member in first]
    scene.close(second[0])
    scene.kill(second[1])
    # The one that has left begins it; the session of the other ends in the middle of it, or begins another. Nobody has
    # to give anything up.
    assert 1 <= rebalances_until_settled(scene, before) <= 2
    for member, had, mark in zip(first, owned, marks, strict=True):
        assert member.owned > had
        assert revoked(member, mark) == set()
    scene.finish_producing()
    scene.wait_delivered()


def revoked(member: MemberProcess, mark: int) -> set[int]:
    """What a member gave up since that many events."""
    return set().union(*revocations(member, mark))


def revocations(member: MemberProcess, mark: int) -> list[set[int]]:
    """What a member gave up, each time that it did, since that many events."""
    given = (
        {each["partition"] for each in event["partitions"]}
        for event in member.events[mark:]
        if event["name"] == "partitions_revoked"
    )
    return [each for each in given if each]


@pytest.mark.slow  # Of one client at a time: tests/clients/test_groups.py.
def test_group_resumes_from_committed_offsets_after_absence(scene: GroupScene) -> None:
    scene.start(*MAKES)
    scene.settle()
    wait_until(lambda: len(scene.committed()) == PARTITIONS, seconds=20, what="a commit of every partition")
    scene.close(*scene.members)
    committed = scene.committed()
    again = scene.start(*reversed(MAKES))
    scene.settle()
    scene.wait_reading(again)
    scene.finish_producing()
    scene.wait_delivered()
    assert scene.first_offsets(again) == committed
    ends = {
        partition: max(at for index, at in scene.produced if index == partition) + 1 for partition in committed
    }
    wait_until(lambda: scene.committed() == ends, seconds=20, what="everything is committed")
