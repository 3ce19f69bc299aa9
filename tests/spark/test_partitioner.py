"""Partitions by key as Kafka's own clients choose them; without a key, evenly."""

from __future__ import annotations

import random
import subprocess
from collections import Counter
from pathlib import Path

import pytest

np = pytest.importorskip("numpy")
pa = pytest.importorskip("pyarrow")

from kproc.spark.partitioner import VECTOR_KEY_BYTES_MAX, Spread, murmur2, murmur2_column, partitions_by_key  # noqa: E402
from tests.support.broker import BrokerUnderTest  # noqa: E402
from tests.support.java_programs import program_command  # noqa: E402
from tests.support.kafka_jars import classpath, missing_reason  # noqa: E402
from tests.support.topics import TopicFactory  # noqa: E402
from tests.support.wait import PATIENCE_SECONDS  # noqa: E402

# What org.apache.kafka.common.utils.Utils.murmur2 gives, as a signed number; `test_java_agrees` asks it anew.
JAVA = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


def some_keys(count: int, *, least: int = 0) -> list[bytes]:
    source = random.Random(11)
    lengths = [
        *range(least, 40),
        VECTOR_KEY_BYTES_MAX - 1,
        VECTOR_KEY_BYTES_MAX,
        VECTOR_KEY_BYTES_MAX + 1,
        3_000,
    ]
    return [source.randbytes(source.choice(lengths)) for _ in range(count)]


def test_partitioner_hashes_equal_java() -> None:
    for key, wanted in JAVA.items():
        assert murmur2(key) == wanted & 0xFFFFFFFF, key


def test_partitioner_hashes_column_like_single_keys() -> None:
    keys = some_keys(3_000)
    column = pa.array([None, *keys], pa.binary()).slice(1)  # Not at the start of its buffers.
    assert murmur2_column(column).tolist() == [murmur2(key) for key in keys]
    assert murmur2_column(pa.array([], pa.binary())).tolist() == []


def test_keys_beside_nulls_keep_their_partition() -> None:
    keys = some_keys(500)
    mixed = pa.array([key for one in keys for key in (None, one)], pa.binary())
    alone = partitions_by_key(pa.array(keys, pa.binary()), 7)
    assert partitions_by_key(mixed, 7)[1::2].tolist() == alone.tolist()
    assert set(alone.tolist()) == set(range(7))


@pytest.mark.java
@pytest.mark.skipif(missing_reason() is not None, reason=str(missing_reason()))
def test_java_agrees(tmp_path: Path) -> None:
    keys = [*JAVA, *some_keys(2_000, least=1)]
    (tmp_path / "keys").write_text("".join(f"{key.hex()}\n" for key in keys))
    done = subprocess.run(
        program_command("Murmur", classpath(), str(tmp_path / "keys")),
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=True,
    )
    wanted = [int(line) & 0xFFFFFFFF for line in done.stdout.split()]
    assert murmur2_column(pa.array(keys, pa.binary())).tolist() == wanted


@pytest.mark.clients
@pytest.mark.transports("process")
def test_partitioner_agrees_with_librdkafka(
    broker: BrokerUnderTest, topic: TopicFactory
) -> None:
    from confluent_kafka import Message, Producer

    name = topic(partitions=5)
    keys = some_keys(800, least=1)
    got: dict[bytes, int] = {}

    def on_delivery(error: object, message: Message) -> None:
        assert error is None, error
        got[message.key()] = message.partition()

    producer = Producer({"bootstrap.servers": broker.bootstrap, "partitioner": "murmur2_random"})
    for key in keys:
        producer.produce(name, key=key, value=b"v", on_delivery=on_delivery)
    assert producer.flush(PATIENCE_SECONDS) == 0
    wanted = partitions_by_key(pa.array(keys, pa.binary()), 5).tolist()
    assert [got[key] for key in keys] == wanted


def test_records_without_a_key_spread_evenly_and_in_runs() -> None:
    spread = Spread(0)
    chosen = spread.next_partitions(1_000, 4)
    assert Counter(chosen.tolist()) == dict.fromkeys(range(4), 250)
    assert int((np.diff(chosen) != 0).sum()) == 3
    ones = Counter(int(spread.next_partitions(1, 4)[0]) for _ in range(100))
    assert ones == dict.fromkeys(range(4), 25)


def test_spread_starts_per_task_and_is_repeatable() -> None:
    assert {int(Spread(task).next_partitions(1, 3)[0]) for task in range(3)} == {0, 1, 2}
    first, second = Spread(2), Spread(2)
    for rows in (1, 17, 3, 1_000):
        assert first.next_partitions(rows, 6).tolist() == second.next_partitions(rows, 6).tolist()
