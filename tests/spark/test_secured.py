"""Source, sink and pipelines over TLS with a login: kproc and Apache Kafka, by the client code of the commands."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

np = pytest.importorskip("numpy")
pa = pytest.importorskip("pyarrow")

from kproc.client import AuthenticationFailed  # noqa: E402
from kproc.common.reading import EARLIEST, LATEST  # noqa: E402
from kproc.pipeline.build import Builder  # noqa: E402
from kproc.pipeline.sinks import start_stream  # noqa: E402
from kproc.pipeline.spec import Outside, parse_spec  # noqa: E402
from kproc.spark.brokers import Cluster, Connecting  # noqa: E402
from kproc.spark.encode import RecordEncoder, RowColumns  # noqa: E402
from kproc.spark.offsets import TopicPartition  # noqa: E402
from kproc.spark.options import parse_source  # noqa: E402
from kproc.spark.producer import BatchProducer  # noqa: E402
from kproc.spark.sink_options import parse_sink_options  # noqa: E402
from kproc.spark.source import KprocDataSource  # noqa: E402
from tests.support.broker import forked_broker, run_kproc  # noqa: E402
from tests.support.certificates import Certificates  # noqa: E402
from tests.support.command_line import run_here  # noqa: E402
from tests.support.kafka_jars import missing_reason  # noqa: E402
from tests.support.secured_kafka import SCRAM_PASSWORD, SecuredKafka, login_lines, write_properties  # noqa: E402

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SESSION_MS = 3_000
LOGINS_WANTED = 3
TURNS_MAX = 20_000


class Secured(NamedTuple):
    """A broker whose sessions end soon, and how alice connects to it."""

    bootstrap: str
    lines: dict[str, str]
    password: str

    @property
    def options(self) -> dict[str, str]:
        """For source and sink."""
        named = {f"kafka.{name}": value for name, value in self.lines.items()}
        return {"kafka.bootstrap.servers": self.bootstrap, **named}

    def with_password(self, password: str) -> dict[str, str]:
        """The options with another password."""
        return {name: value.replace(self.password, password) for name, value in self.options.items()}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("kproc", marks=pytest.mark.long),
        pytest.param("kafka", marks=[pytest.mark.java, pytest.mark.slow]),
    ],
)
def secured(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    if request.param == "kproc":
        settings = {"connections.max.reauth.ms": SESSION_MS}
        with forked_broker()(settings, tls=True, users=["alice"]) as broker:
            lines = broker.client_config("java")
            password = broker.client_config()["sasl.password"]
            yield Secured(lines.pop("bootstrap.servers"), lines, password)
        return
    if (reason := missing_reason()) is not None:
        pytest.skip(reason)
    certificates = Certificates(tmp_path_factory.mktemp("certificates"))
    with SecuredKafka(certificates, reauthentication_ms=SESSION_MS) as kafka:
        lines = {"security.protocol": "SASL_SSL", **certificates.java(), **login_lines("SCRAM-SHA-512")}
        yield Secured(kafka.at("SASL_SSL"), lines, SCRAM_PASSWORD)


def test_producer_reauthenticates_without_losing_records(secured: Secured) -> None:
    topic = "expiring"
    options = parse_sink_options({**secured.options, "topic": topic})
    connecting = Connecting(security=options.producer.security)
    encoder = RecordEncoder(batch_bytes=1 << 20, bytes_max=1 << 20)
    count = 0
    links: dict[int, object] = {}
    with (
        closing(Cluster(options.bootstrap, connecting)) as cluster,
        closing(BatchProducer(cluster, options.producer)) as producer,
    ):
        assert producer.partition_count(topic) == 1
        for _ in range(TURNS_MAX):
            values = pa.array([b"x" * 20_000, b"y"], pa.binary())
            rows = RowColumns(values, values, None, np.full(2, int(time.time() * 1000), np.int64))
            for draft in encoder.encode(rows, np.zeros(2, np.int32)):
                producer.send(topic, draft)
                count += draft.count
            producer.flush()
            links |= {id(node.link): node.link for node in producer._nodes.by_number.values()}
            if len(links) == LOGINS_WANTED:
                break
        partition = TopicPartition(topic, 0)
        written = cluster.list_offsets({partition: LATEST})[partition]
        first = cluster.list_offsets({partition: EARLIEST})[partition]
        assert len(links) == LOGINS_WANTED
        assert written - first == count


def test_wrong_password_ends_a_write_at_once(secured: Secured) -> None:
    options = parse_sink_options({**secured.with_password("s3cret-marker"), "topic": "t"})
    connecting = Connecting(security=options.producer.security, retry_ms=600_000)
    with (
        closing(Cluster(options.bootstrap, connecting)) as cluster,
        pytest.raises(AuthenticationFailed, match="login of alice") as caught,
    ):
        cluster.metadata()
    assert "s3cret-marker" not in str(caught.value)


def test_no_form_of_the_options_shows_a_secret(secured: Secured) -> None:
    source = parse_source({**secured.options, "subscribe": "t"}, is_stream=True)
    sink = parse_sink_options({**secured.options, "topic": "t"})
    assert secured.password not in f"{source!r} {sink!r}"


def test_stream_is_written_exactly_once_and_read_back(
    secured: Secured, spark: SparkSession, tmp_path: Path
) -> None:
    spark.dataSource.register(KprocDataSource)
    config = write_properties(tmp_path / "client.properties", secured.lines)
    # By a file: nothing that Spark may show has the secret in it.
    broker = {"kafka.bootstrap.servers": secured.bootstrap, "kproc.client.config": str(config)}
    numbers = spark.range(500).selectExpr("cast(id as string) value")
    numbers.write.format("kproc").mode("append").options(**broker, topic="in").save()
    stream = spark.readStream.format("kproc").options(**broker, subscribe="in", startingOffsets="earliest")
    writer = stream.load().selectExpr("value").writeStream.format("kproc")
    state = tmp_path / "state"
    writer = writer.options(**broker, topic="out", delivery="exactly-once", checkpointLocation=str(state))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    assert query.exception() is None
    read = spark.read.format("kproc").options(**secured.options, subscribe="out")
    found = read.option("kafka.isolation.level", "read_committed").load()
    values = {row.value for row in found.selectExpr("cast(value as string) value").collect()}
    assert values == {str(number) for number in range(500)}
    told = [path for path in state.rglob("*") if path.is_file()]
    assert told
    assert not [path for path in told if secured.password.encode() in path.read_bytes()]


def test_pipeline_reads_login_from_file_and_never_prints_it(
    secured: Secured, spark: SparkSession, tmp_path: Path
) -> None:
    """The pipeline runs in the shared session. What the command prints at its start is what `check` prints."""
    config = write_properties(tmp_path / "client.properties", secured.lines)
    spec = tmp_path / "words.toml"
    spec.write_text(PIPELINE)
    where = ["--bootstrap", secured.bootstrap, "--command-config", str(config)]
    made = run_kproc("topic", "create", "lines", *where)
    assert made.returncode == 0, made.stderr
    sent = run_kproc("produce", "lines", *where, stdin="a\nb\n")
    assert sent.returncode == 0, sent.stderr
    pipeline = parse_spec(spec.read_text(), spec, Outside(bootstrap=secured.bootstrap))
    [sink] = pipeline.sinks
    frame = Builder(pipeline, spark, state=tmp_path / "initial").frame(sink)
    notes: list[str] = []
    assert start_stream(pipeline, sink, frame, notes.append).awaitTermination(240)
    read = run_kproc("consume", "copies", "--isolation", "read-committed", *where)
    assert sorted(read.stdout.split()) == ["a", "b"], read.stderr
    told = [
        run_here("pipeline", *command, str(spec), "--bootstrap", secured.bootstrap)
        for command in (("check", "--no-spark"), ("status",))
    ]
    assert [each.returncode for each in told] == [0, 0], told
    shown = "".join([*notes, *(each.stdout + each.stderr for each in told)])
    assert secured.password not in shown
    files = [path for path in (tmp_path / "state").rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if secured.password.encode() in path.read_bytes()]


PIPELINE = """
pipeline = { name = "p", checkpoint = "state", trigger = "available-now", client_config = "client.properties" }
spark = { master = "local[1]" }
source = [{ name = "lines", topic = "lines", starting = "earliest", value_type = "string" }]
sink = [{ name = "out", input = "lines", topic = "copies", value = "value" }]
"""
