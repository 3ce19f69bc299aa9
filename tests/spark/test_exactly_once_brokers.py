"""The commit protocol of the exactly-once sink against real brokers, without Spark: a death at every step.

Spark's part and the deaths are those of test_exactly_once_model, requests and transactions are real ones.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing

import pytest

np = pytest.importorskip("numpy")
pa = pytest.importorskip("pyarrow")

from bench.peers.kafka import KafkaPeer  # noqa: E402
from kproc.spark.brokers import Cluster, Connecting  # noqa: E402
from kproc.spark.encode import RecordEncoder, RowColumns  # noqa: E402
from kproc.spark.exactly_once import Mark, Unsettled  # noqa: E402
from kproc.spark.lane import ProducerIdentity  # noqa: E402
from kproc.spark.offsets import TopicPartition  # noqa: E402
from kproc.spark.producer import BatchProducer  # noqa: E402
from kproc.spark.sink_options import ProducerSettings  # noqa: E402
from kproc.spark.transactions import OpenTransaction, Transactions  # noqa: E402
from tests.support.broker import EmbeddedBroker  # noqa: E402
from tests.support.exactly_once_model import (  # noqa: E402
    BATCHES,
    ROWS,
    ModelBroker,
    Spark,
    another_number_of_tasks,
    dying,
    failing,
    steps_of,
)
from tests.support.exactly_once_sink import JVM, SETTINGS, read_committed  # noqa: E402
from tests.support.kafka_jars import missing_reason  # noqa: E402
from tests.support.raw import RawClient  # noqa: E402
from tests.support.spark_kills import PARTITIONS  # noqa: E402
from tests.support.wait import wait_until  # noqa: E402

pytestmark = pytest.mark.own_broker
TOPIC = "rows"


class RealBroker(ModelBroker):
    """The model's interface over the requests of the sink."""

    def __init__(self, bootstrap: str, name: str) -> None:
        super().__init__()
        self._cluster = Cluster(bootstrap, Connecting(backoff_ms=5))
        self._requests = Transactions(self._cluster, timeout_ms=60_000, limit_ms=30_000)
        self._name = name

    def close(self) -> None:
        self._cluster.close()

    def init(self, transactional_id: str) -> ProducerIdentity:
        self.on_step()
        return self._requests.init(transactional_id)

    def write(self, identity: ProducerIdentity, rows: Sequence[tuple[int, int]]) -> None:
        self.on_step()
        values = pa.array([f"{self._name} {batch} {row}".encode() for batch, row in rows], pa.binary())
        # Now: Kafka removes older records 30 s after its start, which a busy machine needs for this test.
        columns = RowColumns(values, values, None, np.full(len(rows), int(time.time() * 1000), np.int64))
        places = np.array([row % PARTITIONS for _, row in rows], np.int32)
        with closing(BatchProducer(self._cluster, ProducerSettings())) as producer:
            producer.start_transaction(OpenTransaction(self._requests, identity))
            producer.partition_count(TOPIC)
            for draft in RecordEncoder(batch_bytes=1 << 20, bytes_max=1 << 20).encode(columns, places):
                producer.send(TOPIC, draft)
            producer.flush()

    def mark(self, identity: ProducerIdentity, marks: Mapping[int, Mark]) -> None:
        self.on_step()
        self._requests.mark(identity, marks)

    def is_open(self, identity: ProducerIdentity, place: TopicPartition) -> bool:
        self.on_step()
        # A partition that is not in it yet asks the same.
        return self._requests.is_open(identity, TopicPartition(TOPIC, 0))

    def finish(self, identity: ProducerIdentity, *, commit: bool) -> bool:
        self.on_step()
        is_ended = self._requests.finish(identity, commit=commit)
        if is_ended:
            # EndTxn is answered before its markers are written. A look at the marks would be repeated until then, and
            # each repetition is a step: on a busy machine deaths would come at other steps than in the model.
            group = str(identity.transactional_id)
            wait_until(lambda: self._are_settled(group), seconds=60, what=f"the marks of {group} are settled")
        return is_ended

    def _are_settled(self, group: str) -> bool:
        try:
            return bool(self._requests.marks(group, [0]))
        except Unsettled:
            return False

    def marks(self, group: str, partitions: Sequence[int]) -> dict[int, Mark]:
        self.on_step()
        return self._requests.marks(group, partitions)

    def open_ids(self, prefix: str) -> list[str]:
        self.on_step()
        return self._requests.open_ids(prefix)


@pytest.fixture(scope="module", params=["kproc", pytest.param("kafka", marks=pytest.mark.slow)])
def bootstrap(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "kproc":
        with EmbeddedBroker(transport="process") as broker:
            yield broker.bootstrap
    elif (reason := missing_reason()) is not None:
        pytest.skip(reason)
    else:
        with KafkaPeer(settings=SETTINGS, jvm=JVM) as kafka:
            yield kafka.bootstrap


@pytest.mark.long
def test_exactly_once_on_broker_after_death_or_timeout(bootstrap: str) -> None:
    with RawClient(bootstrap) as client:
        client.create_topic(TOPIC, partitions=PARTITIONS)
    names = []
    for step in range(steps_of(another_number_of_tasks)):
        # By turns: test_exactly_once_model.py tries both at every step.
        kind = (dying, failing)[step % 2]
        name = f"{kind.__name__}-{step}"
        names.append(name)
        with closing(RealBroker(bootstrap, name)) as broker:
            spark = Spark(broker, another_number_of_tasks, name)
            broker.on_step = kind(step)
            spark.run_to_the_end()
            broker.on_step = lambda: None
            assert broker.open_ids(f"{name}-") == []
    rows = [(batch, row) for batch in range(BATCHES) for row in range(ROWS)]
    wanted = Counter(f"{name} {batch} {row}".encode() for name in names for batch, row in rows)
    assert read_committed(bootstrap, TOPIC) == wanted
