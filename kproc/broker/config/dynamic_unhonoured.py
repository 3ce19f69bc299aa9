"""Kafka's dynamic broker settings without effect here. They are accepted, stored and shown, because clients set them.

librdkafka's tests alter `sasl.kerberos.*`, and `kafka-reassign-partitions --throttle` sets the rates of replication.
Such clients fail if the broker rejects a setting, so each is validated as in Kafka 4.4 and stored. DescribeConfigs and
`kproc config get` show that it has no effect, and why. settings.py has the settings with an effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kproc.broker.config.values import (
    BOOLEAN,
    CLUSTER,
    DOUBLE,
    INT,
    LIST,
    LONG,
    LONG_MAX,
    ONE_REPLICA,
    PER_BROKER,
    STRING,
    Check,
    Dynamic,
    Kind,
    Setting,
    at_least,
)

_NO_KERBEROS: Final = "GSSAPI is not offered"
_NO_LOGIN: Final = "this broker logs in to no other"
_NO_TIERS: Final = "there is no tiered storage"
_NO_POOL: Final = "processes do this work, there is no thread pool"
_NO_JAVA: Final = "it names a Java class"
_OPENSSL: Final = "OpenSSL decides this"
_NO_BUFFER: Final = "coordinators keep no such buffer"
_NO_OFFLOAD: Final = "assignors run in the Handler"


def _row(
    name: str,
    kind: Kind,
    default: object,
    why: str,
    check: Check | None = None,
    *,
    dynamic: Dynamic = CLUSTER,
) -> Setting:
    return Setting(
        name=name,
        kind=kind,
        default=default,
        doc="Stored for clients that set it.",
        check=check,
        dynamic=dynamic,
        unhonoured=why,
        is_internal=False,
        per_listener=False,
        per_mechanism=False,
    )


def _kerberos(name: str, kind: Kind, default: object) -> Setting:
    return _row(f"sasl.kerberos.{name}", kind, default, _NO_KERBEROS, dynamic=PER_BROKER)


def _refresh(name: str, kind: Kind, default: object) -> Setting:
    return _row(f"sasl.login.refresh.{name}", kind, default, _NO_LOGIN, dynamic=PER_BROKER)


def _tiers(name: str, kind: Kind, default: object, low: int = 1) -> Setting:
    return _row(name, kind, default, _NO_TIERS, at_least(low))


def _tls(name: str, default: object, why: str = _OPENSSL) -> Setting:
    return _row(f"ssl.{name}", STRING, default, why, dynamic=PER_BROKER)


_ROWS: Final = (
    _row("background.threads", INT, 10, _NO_POOL, at_least(1)),
    _row("num.recovery.threads.per.data.dir", INT, 2, _NO_POOL, at_least(1)),
    _row("num.replica.fetchers", INT, 1, ONE_REPLICA, at_least(1)),
    _row("follower.replication.throttled.rate", LONG, LONG_MAX, ONE_REPLICA, at_least(0)),
    _row("leader.replication.throttled.rate", LONG, LONG_MAX, ONE_REPLICA, at_least(0)),
    _row(
        "replica.alter.log.dirs.io.max.bytes.per.second",
        LONG,
        LONG_MAX,
        "there is one directory",
        at_least(0),
    ),
    _row("cordoned.log.dirs", LIST, (), "there is one directory", dynamic=PER_BROKER),
    _row("config.providers", LIST, (), _NO_JAVA),
    _row("metric.reporters", LIST, ("org.apache.kafka.common.metrics.JmxReporter",), _NO_JAVA),
    _row("principal.builder.class", STRING, None, _NO_JAVA, dynamic=PER_BROKER),
    _row("group.consumer.assignor.offload.enable", BOOLEAN, True, _NO_OFFLOAD),
    _row("group.share.assignor.offload.enable", BOOLEAN, True, _NO_OFFLOAD),
    _row("group.streams.assignor.offload.enable", BOOLEAN, True, _NO_OFFLOAD),
    _row(
        "group.coordinator.cached.buffer.max.bytes",
        INT,
        1048588,
        _NO_BUFFER,
        at_least(524288),
    ),
    _row(
        "share.coordinator.cached.buffer.max.bytes",
        INT,
        1048588,
        _NO_BUFFER,
        at_least(524288),
    ),
    _tiers("log.local.retention.bytes", LONG, -2, -2),
    _tiers("log.local.retention.ms", LONG, -2, -2),
    _tiers("log.remote.copy.lag.bytes", LONG, -1, -1),
    _tiers("log.remote.copy.lag.ms", LONG, 0, -1),
    _tiers("remote.fetch.max.wait.ms", INT, 500),
    _tiers("remote.list.offsets.request.timeout.ms", LONG, 30000),
    _tiers("remote.log.index.file.cache.total.size.bytes", LONG, 1073741824),
    _tiers("remote.log.manager.copier.thread.pool.size", INT, 10),
    _tiers("remote.log.manager.copy.max.bytes.per.second", LONG, LONG_MAX),
    _tiers("remote.log.manager.expiration.thread.pool.size", INT, 10),
    _tiers("remote.log.manager.fetch.max.bytes.per.second", LONG, LONG_MAX),
    _tiers("remote.log.manager.follower.thread.pool.size", INT, 2),
    _tiers("remote.log.reader.threads", INT, 10),
    _row("follower.fetch.last.tiered.offset.enable", BOOLEAN, False, _NO_TIERS),
    _kerberos("kinit.cmd", STRING, "/usr/bin/kinit"),
    _kerberos("min.time.before.relogin", LONG, 60000),
    _kerberos("principal.to.local.rules", LIST, ("DEFAULT",)),
    _kerberos("service.name", STRING, None),
    _kerberos("ticket.renew.jitter", DOUBLE, 0.05),
    _kerberos("ticket.renew.window.factor", DOUBLE, 0.8),
    _refresh("buffer.seconds", Kind.SHORT, 300),
    _refresh("min.period.seconds", Kind.SHORT, 60),
    _refresh("window.factor", DOUBLE, 0.8),
    _refresh("window.jitter", DOUBLE, 0.05),
    _row("sasl.mechanism.inter.broker.protocol", STRING, "GSSAPI", _NO_LOGIN, dynamic=PER_BROKER),
    _tls("endpoint.identification.algorithm", "https", _NO_LOGIN),
    _tls("engine.factory.class", None, _NO_JAVA),
    _tls("keymanager.algorithm", "SunX509"),
    _tls("protocol", "TLSv1.3"),
    _tls("provider", None),
    _tls("secure.random.implementation", None),
    _tls("trustmanager.algorithm", "PKIX"),
)
DYNAMIC_UNHONOURED: Final[Mapping[str, Setting]] = {row.name: row for row in _ROWS}
