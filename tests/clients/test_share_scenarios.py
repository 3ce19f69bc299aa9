"""Share groups of Java's KafkaShareConsumer: members join, leave, die and hang while records flow.

Every record is accepted, and none comes again without a reason (tests/support/share_deliveries.py). The same scenes
run against Apache Kafka (`-k kafka`): a scene that fails there is wrong itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("confluent_kafka")

from tests.support.either_broker import EitherBroker, either_broker
from tests.support.kafka_jars import missing_reason
from tests.support.raw import RawClient
from tests.support.share_scene import SHARE_SETTINGS, ShareScene
from tests.support.topics import fresh_name

pytestmark = [
    pytest.mark.java,
    pytest.mark.slow,
    pytest.mark.own_broker,
    pytest.mark.transports("process"),
    pytest.mark.skipif(missing_reason() is not None, reason=missing_reason() or ""),
]

PARTITIONS = 4
RULES = ("a", "a", "a", "l1", "a", "l2", "a", "n", "r", "L")


@pytest.fixture(params=["kproc", "kafka"])
def either(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EitherBroker]:
    with either_broker(request.param, tmp_path, SHARE_SETTINGS) as broker:
        yield broker


@pytest.fixture
def scene(either: EitherBroker, tmp_path: Path) -> Iterator[ShareScene]:
    topic = fresh_name("jobs")
    with RawClient(either.bootstrap) as client:
        client.create_topic(topic, partitions=PARTITIONS)
    with ShareScene(either, tmp_path, topic, fresh_name("workers")) as scene:
        yield scene


def rules(count: int) -> list[str]:
    return list(itertools.islice(itertools.cycle(RULES), count))


@pytest.mark.parametrize("mode", ["sync", "async", "implicit"])
def test_share_members_join_die_and_leave(scene: ShareScene, mode: str) -> None:
    first, second = scene.start(2, mode)
    scene.produce(rules(400), PARTITIONS)
    scene.wait_accepted()
    (third,) = scene.start(1, mode)
    scene.produce(rules(400), PARTITIONS)
    scene.kill(first)
    scene.wait_accepted()
    scene.close(second)
    scene.produce(rules(400), PARTITIONS)
    scene.wait_accepted()
    scene.check()
    scene.close(third)


def test_paused_share_member_loses_its_records(scene: ShareScene) -> None:
    first, _second = scene.start(2, max_poll_records="20")
    scene.produce(rules(200), PARTITIONS)
    scene.wait_until_each_has_more(0)
    scene.pause(first)
    scene.produce(rules(400), PARTITIONS)
    scene.wait_accepted()
    scene.resume(first)
    # It finds itself thrown out, and joins again.
    scene.produce(rules(400), PARTITIONS)
    scene.wait_until_each_has_more()
    scene.wait_accepted()
    scene.check()


def test_share_group_follows_growth_of_its_topic(scene: ShareScene) -> None:
    from confluent_kafka.admin import AdminClient, NewPartitions

    scene.start(2)
    scene.produce(rules(200), PARTITIONS)
    scene.wait_accepted()
    admin = AdminClient({"bootstrap.servers": scene.broker.bootstrap})
    admin.create_partitions([NewPartitions(scene.topic, 2 * PARTITIONS)])[scene.topic].result(timeout=60)
    scene.produce(rules(400), 2 * PARTITIONS)
    scene.wait_accepted()
    scene.check()


def test_eight_share_members_and_deaths(scene: ShareScene) -> None:
    scene.start(4)
    scene.start(4, "implicit")
    for _ in range(4):
        scene.produce(rules(400), PARTITIONS)
        scene.kill(scene.members[0])
        scene.start(1)
    scene.wait_accepted()
    scene.check()
