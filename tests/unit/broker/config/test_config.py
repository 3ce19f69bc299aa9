"""kproc.broker.config: kinds of values, sources and their precedence, and the rules that span settings."""

from __future__ import annotations

import dataclasses
import re
import socket
from pathlib import Path

import pytest

from kproc.broker.config import (
    KNOWN_UNHONOURED,
    SETTINGS,
    Config,
    ConfigError,
    EndPoint,
    Flag,
    available_cpus,
    default_role_count,
    parse_assignments,
    read_settings_file,
)
from kproc.broker.config import listeners as listener_rules
from kproc.broker.config.listeners import outward_address, outward_host, parse_listeners, split_address
from kproc.broker.config.sources import parse_properties
from kproc.broker.config.values import LONG_MAX, Kind, parse_value, without_url_secrets
from kproc.broker.storage.log_config import LogConfig
from tests.support.cases import in_one_test

KPROC = Path(__file__).resolve().parents[4] / "kproc"


def build(warnings: list[str] | None = None, **kwargs: object) -> Config:
    sink = warnings if warnings is not None else []
    settings = {name.replace("_", "."): value for name, value in kwargs.items()}
    return Config.build(settings, on_warning=sink.append)


# -- the table


def test_defaults_are_valid_and_need_no_source():
    config = Config.build()
    assert vars(config) == vars(Config())
    assert config.num_network_threads == config.num_io_threads == default_role_count()
    assert config.explicit_settings == frozenset()


def test_every_default_passes_its_own_check():
    for row in SETTINGS.values():
        value = row.default() if callable(row.default) else row.default
        if value is not None and row.check is not None:
            assert row.check(value) is None, row.name


def test_names_are_the_fields_with_dots():
    fields = {field.name for field in dataclasses.fields(Config)} - {
        "explicit_settings",
        "listener_overrides",
    }
    assert {row.field_name for row in SETTINGS.values()} == fields
    assert not set(SETTINGS) & KNOWN_UNHONOURED


def test_every_setting_is_read_or_marked_without_effect():
    tables = {KPROC / "config" / f"{name}_settings.py" for name in ("network", "log", "group", "own")}
    code = "\n".join(path.read_text() for path in KPROC.rglob("*.py") if path not in tables)
    words = set(re.findall(r"\w+", code))
    unread = [
        row.name
        for row in SETTINGS.values()
        if row.unhonoured is None and row.field_name not in words and f'"{row.name}' not in code
    ]
    assert unread == []


def test_config_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().num_io_threads = 5  # type: ignore[misc]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("auto.create.topics.enable", "true"),
        ("log.cleanup.policy", "delete"),
        ("listeners", "PLAINTEXT://127.0.0.1:9092"),
        ("log.retention.minutes", None),
        ("log.retention.ms", "604800000"),
        ("log.cleaner.min.cleanable.ratio", "0.5"),
    ],
)
def test_values_are_written_as_kafka_writes_them(name, text):
    assert Config().wire_value(name) == text


# -- kinds


@in_one_test(
    ("kind", "raw", "value"),
    [
        (Kind.BOOLEAN, " TRUE ", True),
        (Kind.BOOLEAN, False, False),
        (Kind.INT, " +7 ", 7),
        (Kind.INT, "-2147483648", -(2**31)),
        (Kind.LONG, "9223372036854775807", LONG_MAX),
        (Kind.SHORT, "32767", 32767),
        (Kind.DOUBLE, "1.5e3", 1500.0),
        (Kind.DOUBLE, ".5", 0.5),
        (Kind.DOUBLE, 2, 2.0),
        (Kind.LIST, " a , b ,, ", ("a", "b")),
        (Kind.LIST, "", ()),
        (Kind.LIST, ["a", "b"], ("a", "b")),
        (Kind.STRING, "  x y ", "x y"),
        (Kind.SIZE, "64MiB", 64 << 20),
        (Kind.SIZE, "2k", 2048),
        (Kind.SIZE, "1 GB", 1 << 30),
        (Kind.SIZE, "77", 77),
    ],
)
def test_text_becomes_a_value(kind, raw, value):
    assert parse_value(kind, raw, "x") == value


@in_one_test(
    ("kind", "raw"),
    [
        (Kind.BOOLEAN, "yes"),
        (Kind.BOOLEAN, 1),
        (Kind.INT, "2147483648"),
        (Kind.INT, "1_000"),
        (Kind.INT, "1.0"),
        (Kind.INT, ""),
        (Kind.INT, True),
        (Kind.INT, "64k"),
        (Kind.INT, "\u0661"),
        (Kind.LONG, "9223372036854775808"),
        (Kind.SHORT, "32768"),
        (Kind.DOUBLE, "1,5"),
        (Kind.DOUBLE, "nan"),
        (Kind.DOUBLE, True),
        (Kind.LIST, 3),
        (Kind.STRING, 3),
        (Kind.SIZE, "64 parsecs"),
        (Kind.SIZE, "-1k"),
    ],
)
def test_wrong_text_is_refused_by_name(kind, raw):
    with pytest.raises(ConfigError, match=r"^some\.name="):
        parse_value(kind, raw, "some.name")


def test_an_error_stays_on_one_short_line():
    with pytest.raises(ConfigError) as caught:
        build(num_io_threads="7\n" * 500)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200


# -- checks: every refusal of the table

REFUSED = [
    ("node.id", "-1"),
    ("kproc.work.us", "-1"),
    ("ssl.keystore.type", "PGP"),
    ("ssl.truststore.type", "PGP"),
    ("ssl.client.auth", "maybe"),
    ("ssl.enabled.protocols", "TLSv1.1"),
    ("kproc.tls.handshake.timeout.ms", "0"),
    ("kproc.tls.handshakes.max", "0"),
    ("log.dirs", "/a,/b"),
    ("log.dirs", ""),
    ("num.network.threads", "0"),
    ("num.io.threads", "0"),
    ("num.io.threads", "many"),
    ("queued.max.requests", "0"),
    ("queued.max.request.bytes", "1024"),
    ("socket.request.max.bytes", "0"),
    ("socket.send.buffer.bytes", "-2"),
    ("socket.receive.buffer.bytes", "-2"),
    ("socket.listen.backlog.size", "0"),
    ("max.connections", "-1"),
    ("max.connections.per.ip", "-1"),
    ("max.connections.per.ip", "0"),
    ("max.connections.per.ip.overrides", "hostname"),
    ("max.connections.per.ip.overrides", "hostname:-1"),
    ("max.connections.per.ip.overrides", ":5"),
    ("max.connection.creation.rate", "-1"),
    ("connections.max.idle.ms", "0"),
    ("connections.max.idle.ms", "100"),
    ("auto.create.topics.enable", "maybe"),
    ("num.partitions", "0"),
    ("default.replication.factor", "0"),
    ("max.request.partition.size.limit", "0"),
    ("compression.gzip.level", "0"),
    ("compression.gzip.level", "10"),
    ("compression.lz4.level", "0"),
    ("compression.zstd.level", "23"),
    ("min.insync.replicas", "0"),
    ("message.max.bytes", "-1"),
    ("compression.type", "brotli"),
    ("log.segment.bytes", "1048575"),
    ("log.roll.ms", "0"),
    ("log.roll.hours", "0"),
    ("log.roll.jitter.ms", "-1"),
    ("log.roll.jitter.hours", "-1"),
    ("log.retention.ms", "0"),
    ("log.retention.minutes", "0"),
    ("log.retention.check.interval.ms", "0"),
    ("log.index.interval.bytes", "-1"),
    ("log.index.size.max.bytes", "3"),
    ("log.segment.delete.delay.ms", "-1"),
    ("log.preallocate", "1"),
    ("log.cleanup.policy", "keep"),
    ("log.cleanup.policy", "delete,keep"),
    ("ssl.enabled.protocols", ""),
    ("log.cleaner.delete.retention.ms", "-1"),
    ("log.cleaner.min.compaction.lag.ms", "-1"),
    ("log.cleaner.max.compaction.lag.ms", "0"),
    ("log.cleaner.min.cleanable.ratio", "1.5"),
    ("log.cleaner.threads", "-1"),
    ("log.cleaner.backoff.ms", "-1"),
    ("log.cleaner.dedupe.buffer.size", "1000"),
    ("log.cleaner.io.buffer.load.factor", "2"),
    ("log.cleaner.io.buffer.size", "-1"),
    ("log.message.timestamp.type", "createtime"),
    ("log.message.timestamp.before.max.ms", "-1"),
    ("log.message.timestamp.after.max.ms", "-1"),
    ("log.flush.interval.messages", "0"),
    ("log.flush.offset.checkpoint.interval.ms", "-1"),
    ("log.flush.start.offset.checkpoint.interval.ms", "-1"),
    ("fetch.max.bytes", "1023"),
    ("max.incremental.fetch.session.cache.slots", "-1"),
    ("producer.id.expiration.ms", "0"),
    ("group.min.session.timeout.ms", "-1"),
    ("group.max.session.timeout.ms", "-1"),
    ("group.initial.rebalance.delay.ms", "-1"),
    ("group.max.size", "0"),
    ("offsets.topic.num.partitions", "0"),
    ("offsets.topic.replication.factor", "0"),
    ("offsets.topic.segment.bytes", "1000"),
    ("offsets.topic.compression.codec", "5"),
    ("offsets.retention.minutes", "0"),
    ("offsets.retention.check.interval.ms", "0"),
    ("offset.metadata.max.bytes", "-1"),
    ("transaction.max.timeout.ms", "0"),
    ("transaction.abort.timed.out.transaction.cleanup.interval.ms", "0"),
    ("transactional.id.expiration.ms", "0"),
    ("transaction.remove.expired.transaction.cleanup.interval.ms", "0"),
    ("transaction.state.log.num.partitions", "0"),
    ("transaction.state.log.segment.bytes", "1000"),
    ("add.partitions.to.txn.retry.backoff.max.ms", "-1"),
    ("kproc.flush", "always"),
    ("kproc.unknown.settings", "ignore"),
    ("kproc.transport", "fibre"),
    ("kproc.drain.timeout.ms", "-1"),
    ("kproc.request.receive.timeout.ms", "-1"),
    ("kproc.ring.bytes", "128k"),  # A Processor could not reserve one read in it.
    ("kproc.ring.bytes", "300000"),  # No power of two.
    ("kproc.ring.bytes", "2g"),
    ("kproc.handler.batch.max", "0"),
    ("kproc.hung.ms", "-1"),
    ("kproc.rebalance", "sometimes"),
    ("kproc.control.listener", "9091"),
    ("kproc.control.listener", "127.0.0.1:port"),
    ("kproc.control.listener", "127.0.0.1:65536"),
    ("kproc.validate.records", "some"),
    ("kproc.request.log", "some"),
    ("kproc.slow.request.log.ms", "-1"),
    ("kproc.request.log.bytes", "1023"),
    ("kproc.exit.with.pid", "-1"),
    ("listeners", ""),
    ("listeners", "PLAINTEXT"),
    ("listeners", "PLAINTEXT://127.0.0.1"),
    ("listeners", "PLAINTEXT://127.0.0.1:port"),
    ("listeners", "PLAINTEXT://127.0.0.1:65536"),
    ("listeners", "PLAINTEXT://127.0.0.1:-1"),
    ("listeners", "PLAINTEXT://a b:9092"),
    ("listeners", "PLAINTEXT://[::zz]:9092"),
    ("listeners", "PLAINTEXT://::zz:9092"),
    ("listeners", "INTERNAL://127.0.0.1:9092"),
    ("connections.max.reauth.ms", -1),
    ("sasl.server.max.receive.size", 0),
    ("connection.failed.authentication.delay.ms", -1),
    ("sasl.oauthbearer.jwks.endpoint.refresh.ms", 0),
    ("sasl.oauthbearer.clock.skew.seconds", -1),
    ("kproc.authentication.timeout.ms", -1),
    ("listeners", "PLAINTEXT://a:1,PLAINTEXT://b:2"),
    ("listeners", "PLAINTEXT://a:1,plaintext://b:2"),
    ("advertised.listeners", "OTHER://a:1"),
    ("advertised.listeners", "PLAINTEXT://0.0.0.0:9092"),
    ("advertised.listeners", "PLAINTEXT://[::]:9092"),
    ("advertised.listeners", "PLAINTEXT://:9092"),
    ("advertised.listeners", "PLAINTEXT://a:1,PLAINTEXT://b:1"),
    ("listener.security.protocol.map", "PLAINTEXT"),
    ("listener.security.protocol.map", "PLAINTEXT:TELNET"),
    ("listener.security.protocol.map", "A:PLAINTEXT,a:PLAINTEXT"),
    ("inter.broker.listener.name", "OTHER"),
    ("security.inter.broker.protocol", "TELNET"),
    ("early.start.listeners", "OTHER"),
    ("listener.name.plaintext.max.connections", "0"),
    ("quota.window.num", "0"),
    ("quota.window.num", "2147483647"),
    ("quota.window.size.seconds", "0"),
    ("delegation.token.secret.key", "changeit"),
    ("delegation.token.max.lifetime.ms", "0"),
    ("delegation.token.expiry.time.ms", "0"),
    ("delegation.token.expiry.check.interval.ms", "0"),
    ("controller.quota.window.num", "0"),
    ("controller.quota.window.num", "1001"),
    ("controller.quota.window.size.seconds", "0"),
    ("kproc.metrics.listener", "9464"),
    ("authorizer.class.name", "kafka.security.authorizer.AclAuthorizer"),
    ("authorizer.class.name", "com.example.Mine"),
    ("super.users", "User:a;bob"),
]


@in_one_test(("name", "value"), REFUSED)
def test_a_wrong_value_is_refused_with_the_settings_name(name, value):
    settings = {name: value}
    if name == "advertised.listeners" and "OTHER" in value:
        settings["listener.security.protocol.map"] = "PLAINTEXT:PLAINTEXT,OTHER:PLAINTEXT"
    with pytest.raises(ConfigError) as caught:
        Config.build(settings)
    # A list that cannot be served is refused under `listeners`, whichever setting made it so.
    assert (
        name in str(caught.value)
        or name.split(".")[-1] in str(caught.value)
        or "log.retention.ms" in str(caught.value)
    )


def test_every_setting_with_a_check_has_a_refusal_above():
    tested = {name for name, _ in REFUSED}
    assert {row.name for row in SETTINGS.values() if row.check is not None} <= tested


# -- unknown and unhonoured names


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("num.io.thread", "num.io.threads"),
        ("num_io_threads", "num.io.threads"),
        ("log.dir.s", "log.dirs"),
        ("kproc.transprot", "kproc.transport"),
        ("broker.rak", "broker.rack"),
    ],
)
def test_a_misspelt_setting_is_refused_with_the_nearest_name(name, hint):
    with pytest.raises(
        ConfigError, match=rf"unknown setting {re.escape(name)} .*did you mean {re.escape(hint)}\?"
    ):
        Config.build({name: "1"})


def test_a_name_like_no_other_is_refused_without_a_guess():
    with pytest.raises(ConfigError, match=r"^unknown setting qqq in --set qqq$"):
        Config.build({"qqq": "1"})


def test_a_kafka_setting_of_no_effect_warns():
    warnings: list[str] = []
    build(warnings, broker_rack="r1", zookeeper_connect="z:1", sasl_login_class="x.y")
    assert [warning.split()[0] for warning in warnings] == [
        "broker.rack",
        "zookeeper.connect",
        "sasl.login.class",
    ]


def test_a_listener_may_have_limits_of_its_own():
    warnings: list[str] = []
    settings = {
        "listener.name.PlainText.max.connections": "5",
        "listener.name.other.num.network.threads": "2",
    }
    config = Config.build(settings, on_warning=warnings.append)
    assert config.listener_value("PLAINTEXT", "max.connections") == 5
    assert config.listener_value("PLAINTEXT", "num.network.threads") is None
    assert warnings == ["listener.name.other.* has no effect: listeners has no OTHER"]


def test_inter_broker_listener_is_named_or_by_protocol():
    names = {"listeners": "IN://:1,OUT://:2", "listener.security.protocol.map": "IN:PLAINTEXT,OUT:PLAINTEXT"}
    assert Config.build(names).inter_broker_listener == "PLAINTEXT"
    assert Config.build({**names, "inter.broker.listener.name": "in"}).inter_broker_listener == "IN"
    both = {"inter.broker.listener.name": "in", "security.inter.broker.protocol": "PLAINTEXT"}
    with pytest.raises(ConfigError, match="set only one of them"):
        Config.build({**names, **both})
    only_out = {"inter.broker.listener.name": "in", "advertised.listeners": "OUT://host:2"}
    with pytest.raises(ConfigError, match="must be an advertised listener"):
        Config.build({**names, **only_out})


def test_listener_settings_warn_and_misspelt_are_rejected():
    warnings: list[str] = []
    settings = {
        "listener.name.plaintext.queued.max.requests": "5",
        "listener.name.x.ssl.keystore.location": "/k",
    }
    Config.build(settings, on_warning=warnings.append)
    assert len(warnings) == 2
    with pytest.raises(ConfigError, match="unknown setting"):
        Config.build({"listener.name.plaintext.max.konnections": "5"})


@pytest.mark.parametrize("text", ["delete,delete", "delete,", " delete ,,delete"])
def test_file_with_a_repeated_or_empty_list_element_warns(text: str) -> None:
    """As in Kafka such elements are dropped: a properties file of Kafka's must not keep kproc from starting."""
    warnings: list[str] = []
    assert build(warnings, log_cleanup_policy=text, ssl_enabled_protocols="TLSv1.3").log_cleanup_policy == ("delete",)
    (warning,) = warnings
    assert "Such elements are ignored" in warning


def test_log_cleanup_policy_may_be_empty() -> None:
    """Kafka 4.3 takes it at the start and at run time: records are kept for ever."""
    warnings: list[str] = []
    config = build(warnings, log_cleanup_policy="")
    assert config.log_cleanup_policy == ()
    assert warnings == []
    assert not LogConfig.of(config).is_deleting


def test_non_default_value_without_effect_warns():
    warnings: list[str] = []
    build(warnings, log_cleanup_policy="delete", min_insync_replicas="1")
    assert warnings == []
    config = build(warnings, log_cleanup_policy="compact", default_replication_factor=3)
    assert config.log_cleanup_policy == ("compact",)
    assert config.default_replication_factor == 3
    assert "kproc.clamp.replication.factor" in warnings[-1]


def test_replication_factors_are_clamped_when_that_is_asked_for():
    warnings: list[str] = []
    config = build(warnings, default_replication_factor=3, kproc_clamp_replication_factor=True)
    assert config.default_replication_factor == 1
    assert warnings == ["default.replication.factor=3 counts as 1: one host keeps one replica"]


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


def test_a_name_that_is_given_twice_is_told_without_its_values():
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


@pytest.mark.parametrize(
    "content", [b"a = ", b"a = '\xff'", b"max.connections = 1\nmax.connections.per.ip = 2\n"]
)
def test_a_broken_toml_file_is_one_line(tmp_path, content):
    file = tmp_path / "k.toml"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=r"k\.toml is not TOML"):
        read_settings_file(file)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"^cannot read .*none\.properties: No such file"):
        Config.build(file=tmp_path / "none.properties")


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


# -- rules that span settings


@pytest.mark.parametrize(
    ("settings", "retention_ms"),
    [
        ({}, 604_800_000),
        ({"log.retention.hours": 2}, 7_200_000),
        ({"log.retention.hours": 2, "log.retention.minutes": 3}, 180_000),
        ({"log.retention.hours": 2, "log.retention.minutes": 3, "log.retention.ms": 4}, 4),
        ({"log.retention.hours": -1}, -1),
        ({"log.retention.minutes": -5}, -1),
        ({"log.retention.ms": -7}, -1),
        ({"log.retention.hours": 2**31 - 1}, (2**31 - 1) * 3_600_000),
    ],
)
def test_the_finest_unit_of_retention_wins(settings, retention_ms):
    assert Config.build(settings).log_retention_ms == retention_ms


def test_the_finest_unit_of_rolling_wins():
    assert build(log_roll_hours=1).log_roll_ms == 3_600_000
    assert build(log_roll_hours=1, log_roll_ms=5).log_roll_ms == 5
    assert build(log_roll_jitter_hours=1).log_roll_jitter_ms == 3_600_000


def test_the_scheduler_interval_is_the_flush_intervals_default():
    assert build(log_flush_scheduler_interval_ms=9).log_flush_interval_ms == 9
    assert build(log_flush_scheduler_interval_ms=9, log_flush_interval_ms=3).log_flush_interval_ms == 3


def test_log_dir_is_another_name_and_log_dirs_wins():
    assert build(log_dir="/a").log_dirs == "/a"
    assert build(log_dir="/a", log_dirs="/b").log_dirs == "/b"


def test_broker_id_is_another_name_and_must_agree():
    assert build(broker_id=4).node_id == 4
    assert build(broker_id=4, node_id=4).node_id == 4
    for settings, expected in (
        ({}, 1),
        ({"node_id": 3}, 3),
        ({"broker_id": -1}, 1),
        ({"broker_id": -1, "node_id": 3}, 3),
    ):
        config = build(**settings)
        assert (config.broker_id, config.node_id) == (expected, expected), settings
    with pytest.raises(ConfigError, match=r"node\.id=5 conflicts with broker\.id=4"):
        build(broker_id=4, node_id=5)


def test_the_memory_limit_must_hold_the_largest_request():
    assert build(queued_max_request_bytes=100, socket_request_max_bytes=100).queued_max_request_bytes == 100
    assert build(queued_max_request_bytes=0).queued_max_request_bytes == 0


# -- listeners


def listeners(text: str, **settings: object) -> tuple[EndPoint, ...]:
    return build(listeners=text, **settings).listeners


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("PLAINTEXT://:9092", "", 9092),
        ("plaintext://0.0.0.0:0", "0.0.0.0", 0),
        ("PLAINTEXT://[::1]:9092", "::1", 9092),
        ("PLAINTEXT://::1:9092", "::1", 9092),
        ("PLAINTEXT://[0:0::1]:9092", "::1", 9092),
        ("PLAINTEXT://my-host.example_1:65535", "my-host.example_1", 65535),
    ],
)
def test_a_listener_is_parsed(text, host, port):
    assert listeners(text) == (EndPoint("PLAINTEXT", "PLAINTEXT", host, port),)


def test_several_listeners_with_names_of_their_own():
    parsed = listeners(
        " in://a:1 , ,out://b:0, third://c:0",
        listener_security_protocol_map="IN:PLAINTEXT,OUT:plaintext,Third:PLAINTEXT",
    )
    assert [end_point.name for end_point in parsed] == ["IN", "OUT", "THIRD"]


def test_one_ipv4_and_one_ipv6_address_may_share_a_port():
    names = "A:PLAINTEXT,B:PLAINTEXT,C:PLAINTEXT"
    assert len(listeners("A://127.0.0.1:9092,B://[::1]:9092", listener_security_protocol_map=names)) == 2
    for text in (
        "A://127.0.0.1:9,B://127.0.0.2:9",
        "A://:9,B://[::1]:9",
        "A://1.1.1.1:9,B://[::1]:9,C://2.2.2.2:9",
    ):
        with pytest.raises(ConfigError, match="port 9 is used"):
            listeners(text, listener_security_protocol_map=names)


def test_an_end_point_is_written_as_it_was_read():
    assert str(EndPoint("A", "PLAINTEXT", "::1", 5)) == "A://[::1]:5"
    assert EndPoint("A", "PLAINTEXT", "h", 5).address == "h:5"


def test_a_free_port_is_advertised_as_the_bound_one():
    config = build(listeners="PLAINTEXT://127.0.0.1:0")
    told = config.resolve_advertised({"PLAINTEXT": ("127.0.0.1", 40_000)})
    assert told["PLAINTEXT"].address == "127.0.0.1:40000"


def test_an_advertised_port_of_zero_means_the_bound_one():
    config = build(listeners="PLAINTEXT://:0", advertised_listeners="PLAINTEXT://broker.example:0")
    assert config.resolve_advertised({"PLAINTEXT": ("0.0.0.0", 7)})["PLAINTEXT"].address == "broker.example:7"


def test_a_wildcard_is_advertised_as_an_address_of_this_host():
    told = build(listeners="PLAINTEXT://:0").resolve_advertised({"PLAINTEXT": ("0.0.0.0", 7)})["PLAINTEXT"]
    assert not told.is_wildcard
    meant = {found[4][0] for found in socket.getaddrinfo(told.host, None, type=socket.SOCK_STREAM)}
    assert outward_address() in meant


def test_wildcard_is_advertised_as_usable_canonical_name(monkeypatch):
    addresses = {"good.example": "10.0.0.5", "laptop": "127.0.1.1"}

    def resolve(name, *_args, **_more):
        if name not in addresses:
            raise socket.gaierror("unknown")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (addresses[name], 0))]

    monkeypatch.setattr(listener_rules, "outward_address", lambda _: "10.0.0.5")
    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    for name, told in (("good.example", "good.example"), ("laptop", "10.0.0.5"), ("unknown", "10.0.0.5")):
        monkeypatch.setattr(socket, "getfqdn", lambda name=name: name)
        assert outward_host() == told


def test_running_brokers_listeners_are_checked_like_at_start():
    names = ("A:PLAINTEXT", "B:PLAINTEXT")
    assert [each.name for each in parse_listeners("A://h:1 , B://h:2,", names)] == ["A", "B"]
    for text in ("", "A://h:1,B://h:1", "C://h:1", "A://h:x"):
        with pytest.raises(ConfigError, match="listeners"):
            parse_listeners(text, names)


@pytest.mark.parametrize(
    ("text", "address"),
    [("a:1", ("a", 1)), ("[::1]:2", ("::1", 2)), ("a", ("a", 9092)), ("[::1]", ("::1", 9092))],
)
def test_an_address_is_split(text, address):
    assert split_address(text, default_port=9092) == address


@pytest.mark.parametrize("text", ["", "a:", ":1", "a:0", "a:65536", "a b:1", "::1:2", "http://a:1", "a:x"])
def test_a_wrong_address_is_refused(text):
    with pytest.raises(ConfigError, match="is not an address"):
        split_address(text, default_port=9092)


def test_processors_of_all_listeners_together_are_bounded():
    settings = {"num.network.threads": 400, "listener.name.plaintext.num.network.threads": 47}
    assert Config.build(settings).num_network_threads == 400
    with pytest.raises(ConfigError, match=r"at most 447, including the 48"):
        Config.build({**settings, "listener.name.plaintext.num.network.threads": 48})
    Config.build({**settings, "listener.name.absent.num.network.threads": 48})


# -- CPUs


def cgroup(tmp_path: Path, lines: str, **files: str) -> tuple[Path, Path]:
    proc, sysfs = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "self" / "cgroup").write_text(lines)
    for name, content in files.items():
        path = sysfs / name.replace("__", "/").replace("cpu_max", "cpu.max")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return proc, sysfs


@pytest.mark.parametrize(
    ("lines", "files", "quota"),
    [
        ("0::/a/b\n", {"a__b__cpu_max": "50000 100000\n"}, 0.5),
        ("0::/a/b\n", {"a__b__cpu_max": "max 100000\n", "a__cpu_max": "25000 100000\n"}, 0.25),
        ("0::/gone/in/container\n", {"cpu_max": "10000 100000\n"}, 0.1),
        ("0::/\n", {"cpu_max": "garbage\n"}, None),
        ("0::/\n", {"cpu_max": "5 0\n"}, None),
        ("0::/\n", {}, None),
        ("", {}, None),
    ],
)
def test_a_quota_of_cgroup_version_2_binds(tmp_path, lines, files, quota):
    proc, sysfs = cgroup(tmp_path, lines, **files)
    affinity = available_cpus(proc=tmp_path, sysfs=tmp_path)
    assert available_cpus(proc=proc, sysfs=sysfs) == (quota if quota is not None else affinity)


@pytest.mark.parametrize("mount", ["cpu", "cpu,cpuacct"])
def test_a_quota_of_cgroup_version_1_binds(tmp_path, mount):
    proc, sysfs = cgroup(tmp_path, "4:memory:/x\n3:cpu,cpuacct:/x\n")
    (sysfs / mount / "x").mkdir(parents=True)
    (sysfs / mount / "x" / "cpu.cfs_quota_us").write_text("20000\n")
    (sysfs / mount / "x" / "cpu.cfs_period_us").write_text("100000\n")
    (sysfs / mount / "cpu.cfs_quota_us").write_text("-1\n")
    (sysfs / mount / "cpu.cfs_period_us").write_text("100000\n")
    assert available_cpus(proc=proc, sysfs=sysfs) == 0.2


def test_there_is_always_one_of_each_role():
    assert default_role_count() >= 1


def test_all_errors_of_file_are_reported_with_lines(tmp_path):
    file = tmp_path / "server.properties"
    file.write_text(
        "# a comment\nnum.io.threads=x\n\nlog.segment.bytes=\\\n  -5\nno.such=1\nnum.partitions=2\n"
    )
    with pytest.raises(ConfigError) as raised:
        Config.build({"kproc.flush": "always"}, file=file)
    lines = str(raised.value).splitlines()
    assert [line.partition(": ")[0] for line in lines[:3]] == [f"{file}:{number}" for number in (2, 4, 6)]
    assert "num.io.threads" in lines[0]
    assert "log.segment.bytes" in lines[1]
    assert "unknown setting no.such" in lines[2]
    assert lines[3].startswith("kproc.flush=always")

    toml = tmp_path / "kproc.toml"
    toml.write_text('"num.io.threads" = "x"\n\n[log]\nretention.ms = "y"\n')
    with pytest.raises(ConfigError) as raised:
        Config.build(file=toml)
    assert [line.partition(": ")[0] for line in str(raised.value).splitlines()] == [f"{toml}:1", f"{toml}:4"]


def test_mistakes_between_settings_are_told_together():
    with pytest.raises(ConfigError) as raised:
        Config.build({"node.id": "2", "broker.id": "3", "early.start.listeners": "NONE"})
    assert len(str(raised.value).splitlines()) == 2


def test_unknown_settings_warn_where_that_is_wanted(tmp_path):
    file = tmp_path / "server.properties"
    file.write_text("my.plugin.setting=1\nkproc.unknown.settings=warn\nnum.partitons=3\n")
    warnings: list[str] = []
    Config.build(file=file, on_warning=warnings.append)
    assert warnings == [
        f"{file}:1: my.plugin.setting has no effect: unknown setting",
        f"{file}:3: num.partitons has no effect: unknown setting; did you mean num.partitions?",
    ]


def test_removed_settings_warn_and_name_the_replacement() -> None:
    warnings: list[str] = []
    Config.build({"kproc.telemetry": "all"}, on_warning=warnings.append)
    assert len(warnings) == 1
    assert "kproc.telemetry has no effect" in warnings[0]
    assert "kproc.metrics.listener" in warnings[0]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sasl.oauthbearer.jwks.endpoint.url", "htp://user:hunter2@host/keys?token=hunter2"),
        ("num.io.threads", "https://user:hunter2@host"),
        ("listeners", "PLAINTEXT://user:hunter2@host:9092"),
        ("log.retention.ms", "https://host/?password=hunter2"),
    ],
)
def test_error_about_setting_shows_no_password_of_url(name: str, value: str) -> None:
    settings = {name: value}
    if name.startswith("sasl."):
        settings |= {"listeners": "SASL_PLAINTEXT://127.0.0.1:0", "sasl.enabled.mechanisms": "OAUTHBEARER"}
    with pytest.raises(ConfigError) as caught:
        Config.build(settings)
    assert "hunter2" not in str(caught.value)
    assert "[hidden]" in str(caught.value)


def test_service_unit_bounds_memory_and_core_dumps() -> None:
    text = (Path(__file__).resolve().parents[4] / "scripts/service/kproc.service").read_text()
    assert "\nLimitCORE=0\n" in text
    assert "\nMemoryMax=75%\n" in text


def test_url_secrets_are_hidden_in_linear_work() -> None:
    """A client's value of 32 kB without an end of the URL costs a bounded search from each `://`."""
    text = "://" * 11_000
    assert without_url_secrets(text) == text
    assert (
        without_url_secrets("a https://u:p@h/x?y=z b http://h ")
        == "a https://[hidden]@h/x?[hidden] b http://h "
    )


@pytest.mark.parametrize("text", ["user:hunter2@host:9092", "user:hunter2@host", "a://user:hunter2@host:1"])
def test_address_with_password_is_rejected_without_showing_it(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        split_address(text, default_port=9092)
    assert "hunter2" not in str(caught.value)
