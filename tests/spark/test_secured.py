"""Source and sink over TLS with a login, against Apache Kafka: the same client code as the commands have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

np = pytest.importorskip("numpy")
pa = pytest.importorskip("pyarrow")

from kproc.spark.brokers import EARLIEST, LATEST, Cluster, Connecting  # noqa: E402
from kproc.spark.encode import RecordEncoder, Rows  # noqa: E402
from kproc.spark.offsets import TopicPartition  # noqa: E402
from kproc.spark.options import parse_source  # noqa: E402
from kproc.spark.producer import Producer  # noqa: E402
from kproc.spark.sink_options import parse_sink_options  # noqa: E402
from kproc.spark.source import KprocDataSource  # noqa: E402
from tests.support.certificates import Certificates  # noqa: E402
from tests.support.kafka_jars import missing_reason  # noqa: E402
from tests.support.secured_kafka import (  # noqa: E402
    SCRAM_PASSWORD,
    SecuredKafka,
    login_lines,
    write_properties,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.java,
    pytest.mark.skipif(missing_reason() is not None, reason=missing_reason() or ""),
]
SESSION_MS = 3_000
LOGINS_WANTED = 3
TURNS_MAX = 20_000


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    certificates = Certificates(tmp_path_factory.mktemp("certificates"))
    with SecuredKafka(certificates, reauthentication_ms=SESSION_MS) as peer:
        yield peer


def client_lines(kafka: SecuredKafka, mechanism: str = "SCRAM-SHA-512") -> dict[str, str]:
    return {"security.protocol": "SASL_SSL", **kafka.certificates.java(), **login_lines(mechanism)}


def as_options(kafka: SecuredKafka, lines: Mapping[str, str]) -> dict[str, str]:
    options = {f"kafka.{name}": value for name, value in lines.items()}
    return {"kafka.bootstrap.servers": kafka.at("SASL_SSL"), **options}


def test_producer_logs_in_anew_when_its_session_ends_and_loses_nothing(kafka: SecuredKafka) -> None:
    topic = "expiring"
    options = parse_sink_options({**as_options(kafka, client_lines(kafka)), "topic": topic})
    connecting = Connecting(security=options.producer.security)
    encoder = RecordEncoder(batch_bytes=1 << 20, bytes_max=1 << 20)
    count = 0
    links: dict[int, object] = {}
    with (
        closing(Cluster(options.bootstrap, connecting)) as cluster,
        closing(Producer(cluster, options.producer)) as producer,
    ):
        assert producer.partition_count(topic) == 1
        for _ in range(TURNS_MAX):
            values = pa.array([b"x" * 20_000, b"y"], pa.binary())
            rows = Rows(values, values, None, np.full(2, 1_700_000_000_000, np.int64))
            for draft in encoder.encode(rows, np.zeros(2, np.int32)):
                producer.send(topic, draft)
                count += draft.count
            producer.flush()
            links |= {id(node.link): node.link for node in producer._nodes.values()}
            if len(links) == LOGINS_WANTED:
                break
        partition = TopicPartition(topic, 0)
        written = cluster.list_offsets({partition: LATEST})[partition]
        first = cluster.list_offsets({partition: EARLIEST})[partition]
        assert len(links) == LOGINS_WANTED
        assert written - first == count


def test_wrong_password_ends_a_write_at_once(kafka: SecuredKafka) -> None:
    lines = client_lines(kafka) | login_lines("SCRAM-SHA-512", "s3cret-marker")
    options = parse_sink_options({**as_options(kafka, lines), "topic": "t"})
    from kproc.client import AuthenticationFailed

    cluster = Cluster(options.bootstrap, Connecting(security=options.producer.security, retry_ms=600_000))
    with closing(cluster), pytest.raises(AuthenticationFailed, match="login of alice") as caught:
        cluster.metadata()
    assert "s3cret-marker" not in str(caught.value)


def test_no_form_of_the_options_shows_a_secret(kafka: SecuredKafka) -> None:
    given = as_options(kafka, client_lines(kafka))
    source = parse_source({**given, "subscribe": "t"}, is_stream=True)
    sink = parse_sink_options({**given, "topic": "t"})
    assert SCRAM_PASSWORD not in f"{source!r} {sink!r}"


def test_stream_is_written_exactly_once_and_read_back(
    kafka: SecuredKafka, spark: SparkSession, tmp_path: Path
) -> None:
    spark.dataSource.register(KprocDataSource)
    config = write_properties(tmp_path / "client.properties", client_lines(kafka))
    # By a file: nothing that Spark may show has the secret in it.
    broker = {"kafka.bootstrap.servers": kafka.at("SASL_SSL"), "kproc.client.config": str(config)}
    spark.range(500).selectExpr("cast(id as string) value").write.format("kproc").mode("append").options(
        **broker, topic="in"
    ).save()
    frame = (
        spark.readStream.format("kproc").options(**broker, subscribe="in", startingOffsets="earliest").load()
    )
    query = (
        frame.selectExpr("value")
        .writeStream.format("kproc")
        .options(**broker, topic="out", delivery="exactly-once", checkpointLocation=str(tmp_path / "state"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert query.exception() is None
    given = as_options(kafka, client_lines(kafka, "OAUTHBEARER"))
    read = spark.read.format("kproc").options(
        **given, subscribe="out", **{"kafka.isolation.level": "read_committed"}
    )
    values = {row.value for row in read.load().selectExpr("cast(value as string) value").collect()}
    assert values == {str(number) for number in range(500)}
    told = [path for path in (tmp_path / "state").rglob("*") if path.is_file()]
    assert told
    assert not [path for path in told if SCRAM_PASSWORD.encode() in path.read_bytes()]
