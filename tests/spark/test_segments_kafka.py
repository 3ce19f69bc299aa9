"""Data directories that Apache Kafka itself wrote: live and after its stop, with transactions and every codec."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

pytest.importorskip("pyarrow")

from confluent_kafka import Producer

from bench.peers.kafka import KafkaPeer
from kproc.spark.decode import Decoder
from kproc.spark.local import local_files
from kproc.spark.log_options import LogOptions
from kproc.spark.log_plan import plan
from kproc.spark.offsets import TopicPartition
from kproc.spark.options import parse_source
from tests.support.kafka_jars import missing_reason

pytestmark = [
    pytest.mark.usefixtures("own_connections"),
    pytest.mark.java,
    pytest.mark.skipif(missing_reason() is not None, reason=missing_reason() or ""),
]
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@pytest.fixture(scope="module")
def kafka() -> Iterator[KafkaPeer]:
    # Small segments and intervals: there are indexes and rolls in a small test.
    with KafkaPeer(settings={"log.segment.bytes": "1048576", "log.index.interval.bytes": "1024"}) as peer:
        yield peer


def produce(peer: KafkaPeer, topic: str, values: list[bytes], **settings: str) -> None:
    producer = Producer({"bootstrap.servers": peer.bootstrap, "linger.ms": 5, **settings})
    for value in values:
        producer.produce(topic, value, key=value[:2], headers=[("h", value[:1])], partition=0)
    assert producer.flush(30) == 0


def values_of(peer: KafkaPeer, topic: str, **options: str) -> list[bytes]:
    parsed = LogOptions.parse({"path": str(peer.data), "topics": topic, **options})
    found = []
    for files, first, end in plan(parsed):
        decoder = Decoder(["value"], files.topic, files.partition, first, end, isolation=parsed.isolation)
        for table in files.read(decoder, isolation=parsed.isolation):
            found += table.column(0).to_pylist()
    return found


def test_every_codec_is_read_from_a_live_directory_whatever_the_pieces(kafka: KafkaPeer) -> None:
    chance = random.Random(1)
    expected = []
    for codec in CODECS:
        values = [b"%s %05d " % (codec.encode(), number) + chance.randbytes(900) for number in range(400)]
        produce(kafka, "codecs", values, **{"compression.type": codec})
        expected += values
    assert len(list((kafka.data / "codecs-0").glob("*.log"))) > 1
    assert values_of(kafka, "codecs") == expected
    assert values_of(kafka, "codecs", maxPartitionBytes="40k") == expected
    assert values_of(kafka, "codecs", startingOffsets='{"codecs": {"0": 1999}}') == expected[1999:]


def test_aborted_and_open_transactions_are_those_of_the_transaction_index(kafka: KafkaPeer) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": "segments"})
    producer.init_transactions(30)
    committed = []
    for number in range(12):
        producer.begin_transaction()
        values = [b"%d of %d" % (each, number) for each in range(20)]
        for value in values:
            producer.produce("transactions", value, partition=0)
        producer.flush(30)
        if number % 3 == 0:
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)
            committed += values
    producer.begin_transaction()
    producer.produce("transactions", b"open", partition=0)
    producer.flush(30)
    committed_only = {"isolation.level": "read_committed"}
    assert values_of(kafka, "transactions", **committed_only) == committed
    assert values_of(kafka, "transactions", **committed_only, maxPartitionBytes="1k") == committed
    assert len(values_of(kafka, "transactions")) == 241
    producer.abort_transaction(30)


def test_the_source_believes_a_directory_that_is_the_leaders(kafka: KafkaPeer) -> None:
    produce(kafka, "local", [b"one", b"two"])
    given = {"kafka.bootstrap.servers": kafka.bootstrap, "subscribe": "local"}
    partition = TopicPartition("local", 0)
    named = parse_source({**given, "kproc.data.dir": str(kafka.data)}, is_stream=False)
    files = local_files(named, partition)
    assert files is not None
    assert files.end_offset() == 2
    # Kafka does not say where its files are: what is not known is fetched.
    assert local_files(parse_source(given, is_stream=False), partition) is None
