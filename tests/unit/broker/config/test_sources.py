"""Sources of settings: flags, assignments, properties and TOML files, and their precedence."""

from __future__ import annotations

from pathlib import Path

import pytest

from kproc.broker.config import Config, ConfigError, EndPoint, Flag, parse_assignments
from kproc.broker.config.sources import parse_properties

# -- sources


def test_flags_precede_file_and_file_precedes_defaults(tmp_path):
    file = tmp_path / "server.properties"
    file.write_text("num.io.threads=2\nnum.partitions=3\nfetch.max.bytes=2048\n")
    config = Config.build(
        {"num.partitions": "4"},
        flags=[Flag("--handlers", "num.io.threads", "5")],
        file=file,
        defaults={"fetch.max.bytes": 4096, "num.network.threads": 7},
    )
    assert (config.num_io_threads, config.num_partitions, config.fetch_max_bytes) == (5, 4, 2048)
    assert config.num_network_threads == 7
    assert config.explicit_settings == {
        "num.io.threads",
        "num.partitions",
        "fetch.max.bytes",
        "num.network.threads",
    }


def test_a_flag_that_contradicts_an_assignment_is_an_error():
    flag = Flag("--processors", "num.network.threads", "2")
    with pytest.raises(ConfigError, match=r"^--processors 2 conflicts with --set num\.network\.threads=3$"):
        Config.build({"num.network.threads": "3"}, flags=[flag])
    assert Config.build({"num.network.threads": "2"}, flags=[flag]).num_network_threads == 2


def test_a_flag_that_was_not_given_changes_nothing():
    assert (
        Config.build({"num.io.threads": 4}, flags=[Flag("--handlers", "num.io.threads", None)]).num_io_threads
        == 4
    )


def test_assignments_are_split_at_the_first_equals_sign():
    assert parse_assignments(["a=b=c", " d = e "]) == {"a": "b=c", "d": "e"}


@pytest.mark.parametrize("items", [["a"], ["=1"], ["a=1", "a=2"]])
def test_bad_assignments_are_refused(items):
    with pytest.raises(ConfigError, match="--set"):
        parse_assignments(items)


def test_setting_given_twice_is_rejected_without_its_values():
    with pytest.raises(ConfigError, match=r"ssl\.key\.password is given twice") as refused:
        parse_assignments(["ssl.key.password=s3cret", "ssl.key.password=other"])
    assert "s3cret" not in str(refused.value)
    assert "other" not in str(refused.value)


def test_properties_follow_javas_rules():
    text = (
        "# comment\n! comment\n\n  a=1\nb : 2\nc 3\nd\\=e=4\nf=one,\\\n   two\ng=\\u0041\\t\\\\x\n"
        "h\ni=\nlast=1\nlast=2\nj = trailing \n# no continuation \\\nk=5\\"
    )
    assert parse_properties(text) == {
        "a": "1",
        "b": "2",
        "c": "3",
        "d=e": "4",
        "f": "one,two",
        "g": "A\t\\x",
        "h": "",
        "i": "",
        "last": "2",
        "j": "trailing ",
        "k": "5",
    }


def test_toml_tables_dotted_and_quoted_keys_are_the_same(tmp_path):
    file = tmp_path / "kproc.toml"
    file.write_text(
        'listeners = ["PLAINTEXT://127.0.0.1:0"]\nnum.io.threads = 2\n"max.connections" = 9\n'
        '"max.connections.per.ip" = 8\n[log.retention]\nhours = 1\n[kproc]\nring.bytes = "2MiB"\n'
    )
    config = Config.build(file=file)
    assert (config.num_io_threads, config.max_connections, config.max_connections_per_ip) == (2, 9, 8)
    assert (config.log_retention_ms, config.kproc_ring_bytes) == (3_600_000, 2 << 20)
    assert config.listeners[0].port == 0


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"^cannot read .*none\.properties: No such file"):
        Config.build(file=tmp_path / "none.properties")


def test_endless_configuration_file_is_rejected():
    """The start read /dev/zero until the memory was full."""
    with pytest.raises(ConfigError, match=r"^cannot read /dev/zero: Larger than 16777216 bytes$"):
        Config.build(file=Path("/dev/zero"))


def test_a_file_that_is_not_utf8_is_latin1_as_java_reads_it(tmp_path):
    file = tmp_path / "server.properties"
    file.write_bytes("log.dirs=/tmp/d\u00e9j\u00e0".encode("latin-1"))
    assert Config.build(file=file).log_dirs == "/tmp/d\u00e9j\u00e0"


def test_kafkas_own_server_properties_starts_a_broker(tmp_path):
    """The file that Kafka 4 ships, without its comments: nothing in it may be refused."""
    file = tmp_path / "server.properties"
    file.write_text(
        "process.roles=broker,controller\nnode.id=1\ncontroller.quorum.bootstrap.servers=localhost:9093\n"
        "listeners=PLAINTEXT://:9092,CONTROLLER://:9093\ninter.broker.listener.name=PLAINTEXT\n"
        "advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093\n"
        "controller.listener.names=CONTROLLER\n"
        "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,"
        "SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL\n"
        "num.network.threads=3\nnum.io.threads=8\nsocket.send.buffer.bytes=102400\n"
        "socket.receive.buffer.bytes=102400\nsocket.request.max.bytes=104857600\n"
        "log.dirs=/tmp/kraft-combined-logs\nnum.partitions=1\nnum.recovery.threads.per.data.dir=1\n"
        "offsets.topic.replication.factor=1\nshare.coordinator.state.topic.replication.factor=1\n"
        "share.coordinator.state.topic.min.isr=1\ntransaction.state.log.replication.factor=1\n"
        "transaction.state.log.min.isr=1\nlog.retention.hours=168\nlog.segment.bytes=1073741824\n"
        "log.retention.check.interval.ms=300000\n"
    )
    warnings: list[str] = []
    config = Config.build(file=file, on_warning=warnings.append)
    assert config.listeners == (EndPoint("PLAINTEXT", "PLAINTEXT", "", 9092),)
    assert config.advertised_listeners == (EndPoint("PLAINTEXT", "PLAINTEXT", "localhost", 9092),)
    assert any("CONTROLLER://:9093" in warning for warning in warnings)
    assert any(warning.startswith(f"{file}:1: process.roles has no effect") for warning in warnings)
