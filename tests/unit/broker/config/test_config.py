"""kproc.broker.config: kinds of values, sources and their precedence, and the rules that span settings."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from kproc.broker.config import KNOWN_UNHONOURED, SETTINGS, Config, ConfigError, EndPoint, default_role_count
from kproc.broker.config.group_settings import GROUP_BOUNDS
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


@pytest.mark.long
def test_every_setting_is_read_or_marked_without_effect():
    code = "\n".join(path.read_text() for path in KPROC.rglob("*.py"))
    # The declaration of a field does not read it.
    code, count = re.subn(r"^    \w+: .* = setting\(", "", code, flags=re.MULTILINE)
    assert count >= len(SETTINGS)
    words = set(re.findall(r"\w+", code))
    unread = [
        row.name
        for row in SETTINGS.values()
        if row.unhonoured is None
        and row.field_name not in words
        # security/sasl/listeners.py puts this prefix in front.
        and f'"{row.name.removeprefix("sasl.oauthbearer.")}' not in code
        # cluster/group_config.py reads these, and their bounds.
        and row.name not in {name for names in GROUP_BOUNDS for name in names}
    ]
    assert unread == []


def test_config_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().num_io_threads = 5  # type: ignore[misc]


def test_config_rejects_fields_that_do_not_exist() -> None:
    with pytest.raises(TypeError, match="no such settings: num_oi_threads"):
        Config(num_io_threads=5, num_oi_threads=5)


# -- checks: every refusal of the table

REFUSED = [
    ("node.id", "-1"),
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
    ("group.consumer.session.timeout.ms", "0"),
    ("group.consumer.heartbeat.interval.ms", "0"),
    ("group.consumer.max.size", "0"),
    ("group.consumer.min.session.timeout.ms", "0"),
    ("group.consumer.min.session.timeout.ms", "45001"),  # Above the timeout.
    ("group.consumer.max.session.timeout.ms", "0"),
    ("group.consumer.max.session.timeout.ms", "44999"),  # Below the minimum.
    ("group.consumer.session.timeout.ms", "60001"),
    ("group.consumer.min.heartbeat.interval.ms", "0"),
    ("group.consumer.max.heartbeat.interval.ms", "4999"),
    ("group.consumer.heartbeat.interval.ms", "15001"),
    ("group.consumer.max.heartbeat.interval.ms", "0"),
    ("group.consumer.min.assignment.interval.ms", "-1"),
    ("group.consumer.min.assignment.interval.ms", "1001"),
    ("group.consumer.max.assignment.interval.ms", "-1"),
    ("group.consumer.max.assignment.interval.ms", "999"),
    ("group.consumer.assignment.interval.ms", "15001"),
    ("group.consumer.regex.refresh.interval.ms", "9999"),
    ("max.decompressed.message.bytes", "0"),
    ("max.decompressed.message.bytes", "2147483640"),
    ("group.consumer.assignors", "sticky"),
    ("group.consumer.assignment.interval.ms", "-1"),
    ("group.consumer.migration.policy", "sometimes"),
    ("group.streams.session.timeout.ms", "0"),
    ("group.streams.min.session.timeout.ms", "0"),
    ("group.streams.max.session.timeout.ms", "0"),
    ("group.streams.heartbeat.interval.ms", "0"),
    ("group.streams.min.heartbeat.interval.ms", "0"),
    ("group.streams.max.heartbeat.interval.ms", "0"),
    ("group.streams.assignment.interval.ms", "-1"),
    ("group.streams.min.assignment.interval.ms", "-1"),
    ("group.streams.max.assignment.interval.ms", "-1"),
    ("group.streams.initial.rebalance.delay.ms", "-1"),
    ("group.streams.num.standby.replicas", "-1"),
    ("group.streams.num.standby.replicas", "3"),  # Above the maximum.
    ("group.streams.max.standby.replicas", "-1"),
    ("group.streams.max.size", "0"),
    ("group.streams.assignors", "other"),
    ("group.share.session.timeout.ms", "0"),
    ("group.share.min.session.timeout.ms", "0"),
    ("group.share.max.session.timeout.ms", "0"),
    ("group.share.heartbeat.interval.ms", "0"),
    ("group.share.heartbeat.interval.ms", "15001"),
    ("group.share.min.heartbeat.interval.ms", "0"),
    ("group.share.max.heartbeat.interval.ms", "0"),
    ("group.share.assignment.interval.ms", "-1"),
    ("group.share.min.assignment.interval.ms", "-1"),
    ("group.share.max.assignment.interval.ms", "-1"),
    ("group.share.max.size", "1001"),
    ("group.share.max.share.sessions", "0"),
    ("group.share.record.lock.duration.ms", "999"),
    ("group.share.record.lock.duration.ms", "14999"),  # Below the minimum.
    ("group.share.min.record.lock.duration.ms", "30001"),
    ("group.share.max.record.lock.duration.ms", "29999"),
    ("group.share.delivery.count.limit", "1"),
    ("group.share.min.delivery.count.limit", "6"),
    ("group.share.max.delivery.count.limit", "26"),
    ("group.share.partition.max.record.locks", "99"),
    ("group.share.min.partition.max.record.locks", "2001"),
    ("group.share.max.partition.max.record.locks", "1999"),
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
    ("max.connections.per.ip.overrides", "hostname:" + "9" * 5000),
    ("listeners", "PLAINTEXT://127.0.0.1:" + "9" * 5000),
    ("listeners", "PLAINTEXT://127.0.0.1:-" + "9" * 5000),
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
    ("kproc.group.members.max.bytes", "1048575"),
    ("kproc.group.offsets.max.bytes", "0"),
    ("kproc.transactional.ids.max.bytes", "1"),
    ("kproc.share.states.max.bytes", "1"),
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
    ("share.coordinator.state.topic.num.partitions", "0"),
    ("share.coordinator.state.topic.segment.bytes", "1000"),
    ("share.coordinator.state.topic.compression.codec", "5"),
    ("share.coordinator.snapshot.update.records.per.snapshot", "501"),
    ("share.coordinator.state.topic.prune.interval.ms", "0"),
    ("share.coordinator.cold.partition.snapshot.interval.ms", "0"),
    ("kproc.flush", "always"),
    ("kproc.emulate.release", "1.0"),
    ("kproc.unknown.settings", "ignore"),
    ("kproc.transport", "fibre"),
    ("kproc.drain.timeout.ms", "-1"),
    ("kproc.request.receive.timeout.ms", "-1"),
    ("kproc.ring.bytes", "128k"),  # A Processor could not reserve one read in it.
    ("kproc.ring.bytes", "300000"),  # No power of two.
    ("kproc.ring.bytes", "2g"),
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


def test_times_of_consumer_groups_lie_within_their_bounds():
    with pytest.raises(
        ConfigError, match=r"^group\.consumer\.session\.timeout\.ms=6000: must be at least group\."
    ):
        build(group_consumer_session_timeout_ms=6000)
    config = build(group_consumer_session_timeout_ms=6000, group_consumer_min_session_timeout_ms=6000)
    assert config.group_consumer_session_timeout_ms == 6000
    with pytest.raises(ConfigError, match=r"must be below group\.consumer\.session\.timeout\.ms=5000"):
        build(group_consumer_session_timeout_ms=5000, group_consumer_min_session_timeout_ms=5000)


def test_replication_factors_are_clamped_when_that_is_asked_for():
    warnings: list[str] = []
    config = build(warnings, default_replication_factor=3, kproc_clamp_replication_factor=True)
    assert config.default_replication_factor == 1
    assert warnings == ["default.replication.factor=3 counts as 1: one host keeps one replica"]


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


def test_errors_between_settings_are_reported_together():
    with pytest.raises(ConfigError) as raised:
        Config.build({"node.id": "2", "broker.id": "3", "early.start.listeners": "NONE"})
    assert len(str(raised.value).splitlines()) == 2
