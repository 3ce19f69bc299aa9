r"""kill -9 of everything under a Spark job that copies a topic exactly once: no record is lost, none is doubled.

As in test_spark_kills, against Apache Kafka as well as kproc, and for a reader of committed records. What each death
between two steps of the commit leads to is in tests/spark/test_exactly_once.py, for every step; this shows that
Spark, brokers and the sink are what the model says they are. A round is a kill. A million records and 15 kills of each
of driver, worker, role and broker:

    pytest -m 'faults and slow' tests/faults/test_spark_exactly_once.py -k kproc \
        --rounds 60 --records-per-kill 16700 --batch-records 2000
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.peers.kafka import KafkaPeer
from kproc.pipeline.access import Access
from kproc.pipeline.delivery import has_transactions
from tests.support.broker import ServedBroker
from tests.support.exactly_once_sink import JVM, SETTINGS, read_committed
from tests.support.kafka_jars import missing_reason as no_kafka
from tests.support.spark_kills import KINDS_OF_ONE_JVM, ONE_JVM, Copying, copy_under_kills
from tests.support.spark_session import missing_reason

pytestmark = [
    pytest.mark.faults,
    pytest.mark.slow,
    pytest.mark.spark,
    pytest.mark.own_broker,
    pytest.mark.no_leak_guard,
    pytest.mark.timeout(4 * 3_600),  # Waits by condition, each with its own limit.
    pytest.mark.skipif(missing_reason() is not None, reason=str(missing_reason())),
]

class OnceCopying(Copying):
    """The job with delivery=exactly-once."""

    delivery = "exactly-once"
    may_double = False

    def read(self) -> Counter[bytes]:
        return read_committed(self.broker.bootstrap, "copy")


class Kafka(KafkaPeer):
    """Apache Kafka with the few names by which a job's broker is asked."""

    def __init__(self, directory: Path) -> None:
        super().__init__(settings=SETTINGS, under=directory, jvm=JVM)

    def stop(self) -> float:
        self.kill()
        self._remove_directory()
        return 0.0


class OnceCopyingOnKafka(OnceCopying):
    """The same on Apache Kafka, which has no roles."""

    def __init__(self, directory: Path, **arguments: object) -> None:
        super().__init__(directory, **arguments)  # type: ignore[arg-type]
        self.kafka = Kafka(directory)
        self.broker = self.kafka  # type: ignore[assignment]

    def kill_broker(self) -> bool:
        self.kafka.kill()
        self.kafka.start_after_kill()
        return True


@pytest.fixture(params=["kafka", "kproc"])
def copying_class(request: pytest.FixtureRequest, tmp_path: Path) -> type[OnceCopying]:
    if request.param == "kafka":
        if (reason := no_kafka()) is not None:
            pytest.skip(reason)
        return OnceCopyingOnKafka
    with ServedBroker(tmp_path / "probe", transport="process") as broker:
        if not has_transactions(Access(broker.bootstrap)):
            pytest.skip("this kproc has no transactions")
    return OnceCopying


def test_spark_copy_is_exactly_once_under_kill_9(
    copying_class: type[OnceCopying],
    tmp_path: Path,
    pytestconfig: pytest.Config,
    record_property: Callable[[str, object], None],
) -> None:
    source = random.Random(int(pytestconfig.getoption("seed")))
    kinds = KINDS_OF_ONE_JVM if copying_class is OnceCopying else ("driver", "worker", "driver", "broker")
    rounds = max(1, int(pytestconfig.getoption("rounds")) // len(kinds))
    order = [kind for _ in range(rounds) for kind in source.sample(kinds, len(kinds))]
    copying = copying_class(
        tmp_path,
        master=ONE_JVM,
        records=int(pytestconfig.getoption("records_per_kill")) * len(order),
        batch_records=int(pytestconfig.getoption("batch_records")),
        source=source,
    )
    record_property("outcome", copy_under_kills(copying, order))
