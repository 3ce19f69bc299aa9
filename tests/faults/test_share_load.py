"""Many records through one share group while its members and roles of kproc are killed.

Every record is accepted, none comes again without a reason, and a record that is rejected, or released until its
delivery count reaches the limit, has one dead letter.
"""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest

from tests.support.kafka_jars import KAFKA_VERSION, missing_reason
from tests.support.raw import RawClient
from tests.support.wait import wait_until

pytest.importorskip("confluent_kafka", reason="confluent is not installed: it produces the records")

from tests.support.either_broker import either_broker
from tests.support.share_scene import SHARE_SETTINGS, TOPIC_RESOURCE, ShareScene

pytestmark = [
    pytest.mark.faults,
    pytest.mark.java,
    pytest.mark.own_broker,
    pytest.mark.transports("process"),
    pytest.mark.skipif(missing_reason() is not None, reason=missing_reason() or ""),
]

PARTITIONS = 6
JOBS, DEAD = "jobs", "dlq.jobs"
OTHERS_EVERY, OTHERS = 50, ("r", "L", "l1", "n", "l2")


def rule(number: int) -> str:
    """Return the rule of a record: most are accepted at once."""
    return OTHERS[number // OTHERS_EVERY % len(OTHERS)] if number % OTHERS_EVERY == 0 else "a"


@pytest.mark.parametrize(
    ("make", "members", "records", "kills"),
    [
        ("kproc", 2, 2_000, 2),
        pytest.param("kproc", 6, 60_000, 8, marks=pytest.mark.slow),
        pytest.param("kproc", 6, 1_000_000, 20, marks=pytest.mark.slow),
        pytest.param("kafka", 6, 60_000, 4, marks=pytest.mark.slow),
    ],
)
def test_share_group_processes_every_record_under_kills(
    tmp_path: Path, pytestconfig: pytest.Config, make: str, members: int, records: int, kills: int
) -> None:
    source = random.Random(int(pytestconfig.getoption("seed")))
    # Kafka has dead letters since 4.4, and rejects their settings before. kproc always has them.
    has_dead_letters = make == "kproc" or not KAFKA_VERSION.startswith("4.3.")
    with either_broker(make, tmp_path, SHARE_SETTINGS) as broker:
        with RawClient(broker.bootstrap) as client:
            client.create_topic(JOBS, partitions=PARTITIONS)
            client.create_topic(DEAD, partitions=2)
        with ShareScene(broker, tmp_path, JOBS, "workers") as scene:
            if has_dead_letters:
                enable = "errors.deadletterqueue.group.enable"
                scene.configure(enable, "true", resource=DEAD, kind=TOPIC_RESOURCE)
                scene.configure("errors.deadletterqueue.topic.name", DEAD)
            scene.start(members - 1)
            scene.start(1, "async")
            load = threading.Thread(target=scene.produce, args=(map(rule, range(records)), PARTITIONS))
            load.start()
            try:
                for number in range(kills):
                    progress = records * (number + 1) // (kills + 2)
                    wait_until(
                        lambda progress=progress: scene.history.delivered >= progress,  # type: ignore[misc]
                        seconds=120,
                        what=f"{progress} deliveries",
                    )
                    if number % 2 and broker.is_kproc:
                        scene.kill_role(source)
                    else:
                        scene.kill(scene.members[number % len(scene.members)])
                        scene.start(1, source.choice(["sync", "async"]))
            finally:
                load.join()
            scene.wait_accepted()
            scene.wait_drained()
            scene.check()
            if has_dead_letters:
                scene.check_dead_letters(DEAD, 2, "rL")
            scene.close(*scene.members)
