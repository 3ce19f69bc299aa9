"""Dynamic settings without effect: stored, described and validated."""

from __future__ import annotations

import pytest

from kproc.broker.cluster.describe import SOURCE_DYNAMIC_BROKER, describe_broker, describe_cluster_default
from kproc.broker.cluster.image import ClusterImage
from tests.support.in_memory_controller import InMemoryController, changes, outcome, topic

SET, DELETE, APPEND, SUBTRACT = range(4)
BROKER, NODE = 4, "1"
INVALID_CONFIG, INVALID_REQUEST = 40, 42


@pytest.fixture
def cluster() -> InMemoryController:
    cluster = InMemoryController()
    cluster.create(topic("t"))
    return cluster


# DynamicBrokerConfig.ALL_DYNAMIC_CONFIGS of Kafka 4.4 that had been refused here, with a value that Kafka takes.
WITHOUT_EFFECT = """
    background.threads=12 config.providers= cordoned.log.dirs=/x follower.fetch.last.tiered.offset.enable=true
    follower.replication.throttled.rate=1000 group.consumer.assignor.offload.enable=false
    group.share.assignor.offload.enable=false group.streams.assignor.offload.enable=false
    group.coordinator.cached.buffer.max.bytes=600000
    leader.replication.throttled.rate=1000 log.cleaner.threads=2
    log.local.retention.bytes=-2 log.local.retention.ms=-2 log.remote.copy.lag.bytes=5 log.remote.copy.lag.ms=-1
    metric.reporters=a.B num.recovery.threads.per.data.dir=3
    num.replica.fetchers=2 principal.builder.class=a.B remote.fetch.max.wait.ms=5
    remote.list.offsets.request.timeout.ms=5 remote.log.index.file.cache.total.size.bytes=5
    remote.log.manager.copier.thread.pool.size=5 remote.log.manager.copy.max.bytes.per.second=5
    remote.log.manager.expiration.thread.pool.size=5 remote.log.manager.fetch.max.bytes.per.second=5
    remote.log.manager.follower.thread.pool.size=5 remote.log.reader.threads=5
    replica.alter.log.dirs.io.max.bytes.per.second=5 sasl.kerberos.kinit.cmd=/k
    sasl.kerberos.min.time.before.relogin=58000 sasl.kerberos.principal.to.local.rules=DEFAULT
    sasl.kerberos.service.name=kafka sasl.kerberos.ticket.renew.jitter=0.06
    sasl.kerberos.ticket.renew.window.factor=0.7 sasl.login.refresh.buffer.seconds=299
    sasl.login.refresh.min.period.seconds=59 sasl.login.refresh.window.factor=0.7
    sasl.login.refresh.window.jitter=0.06 sasl.mechanism.inter.broker.protocol=PLAIN
    share.coordinator.cached.buffer.max.bytes=600000 ssl.endpoint.identification.algorithm= ssl.engine.factory.class=a.B
    ssl.keymanager.algorithm=PKIX ssl.protocol=TLSv1.3 ssl.provider=P ssl.secure.random.implementation=X
    ssl.trustmanager.algorithm=PKIX
"""
PER_BROKER_PREFIXES = ("sasl.", "ssl.", "cordoned", "principal")


@pytest.mark.parametrize("incremental", [True, False])
def test_settings_without_effect_are_stored_and_described(
    cluster: InMemoryController, *, incremental: bool
) -> None:
    for setting in WITHOUT_EFFECT.split():
        name, _, value = setting.partition("=")
        alter = cluster.alter if incremental else cluster.replace_configs
        told = outcome(alter(changes(BROKER, NODE, (name, SET, value))))
        assert told == [(0, None)], name
        (row,) = describe_broker(cluster.image, cluster.config, [name])
        assert (row["value"], row["read_only"], row["config_source"]) == (value, False, SOURCE_DYNAMIC_BROKER)
        assert "Not honoured: " in row["documentation"]
        told = outcome(alter(changes(BROKER, "", (name, SET, value))))
        is_per_broker = name.startswith(PER_BROKER_PREFIXES)
        assert told[0][0] == (INVALID_REQUEST if is_per_broker else 0), name
        if not is_per_broker:
            (row,) = describe_cluster_default(cluster.image, [name])
            assert row["value"] == value
        assert outcome(cluster.alter(changes(BROKER, NODE, (name, DELETE, None)))) == [(0, None)]
    again = ClusterImage.from_snapshot(memoryview(cluster.image.snapshot()))
    assert not again.unusable_configs


@pytest.mark.parametrize(
    "setting",
    ["background.threads=0", "background.threads=x", "leader.replication.throttled.rate=-1", "log.cleaner.threads=-1",
     "sasl.login.refresh.buffer.seconds=99999", "sasl.kerberos.ticket.renew.jitter=x"],
)  # fmt: skip
def test_setting_without_effect_with_wrong_value_is_rejected(
    cluster: InMemoryController, setting: str
) -> None:
    name, _, value = setting.partition("=")
    ((code, message),) = outcome(cluster.alter(changes(BROKER, NODE, (name, SET, value))))
    assert code in (INVALID_REQUEST, INVALID_CONFIG)
    assert message.startswith(f"Invalid value {value} for configuration {name}: ")


@pytest.mark.parametrize(
    "name",
    ["ssl.client.auth", "ssl.cipher.suites", "ssl.enabled.protocols", "sasl.enabled.mechanisms", "sasl.jaas.config",
     "listener.security.protocol.map"],
)  # fmt: skip
def test_dynamic_setting_of_access_is_rejected(
    cluster: InMemoryController, name: str
) -> None:
    """Kafka takes these. Here they hold from the start on; one that was stored in vain would be believed."""
    ((code, _),) = outcome(cluster.alter(changes(BROKER, NODE, (name, SET, "x"))))
    assert code == INVALID_REQUEST


def test_list_setting_without_effect_is_appended_to(cluster: InMemoryController) -> None:
    name = "metric.reporters"
    assert outcome(cluster.alter(changes(BROKER, "", (name, APPEND, "a.B")))) == [(0, None)]
    (row,) = describe_cluster_default(cluster.image, [name])
    assert row["value"] == "org.apache.kafka.common.metrics.JmxReporter,a.B"
