"""Settings of topics, groups, client-metrics subscriptions and the broker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tests.differential.scene import Scene

_TOPIC, _BROKER, _BROKER_LOGGER, _CLIENT_METRICS, _GROUP = 2, 4, 8, 16, 32
# Values to try, the name first; a comma stands in some, so blanks part them.
_TOPIC_VALUES = """
    cleanup.policy compact delete compact,delete delete,compact foo delete,foo delete,delete none
    retention.ms 1000000 -1 -2 abc 9223372036854775808 1.5
    retention.bytes -1 1024 -2
    segment.bytes 1048576 14 1048575 2147483648 1e6
    max.message.bytes 0 -1 1000 1048588
    min.insync.replicas 1 0 2
    compression.type gzip zstd producer none GZIP uncompressed
    message.timestamp.type CreateTime LogAppendTime createtime
    message.timestamp.before.max.ms 0 -1 1000
    message.timestamp.after.max.ms 0 -1 1000
    unclean.leader.election.enable true false TRUE yes
    preallocate true x
    min.cleanable.dirty.ratio 0.5 1.1 -0.1 x 1
    segment.ms 1 0 100000
    segment.jitter.ms 0 -1 5
    delete.retention.ms 0 -1 5
    file.delete.delay.ms 0 -1 1000
    flush.messages 1 0
    flush.ms 0 -1 1000
    index.interval.bytes 0 -1 4096
    segment.index.bytes 24 3 1024
    max.compaction.lag.ms 1 0 10000
    min.compaction.lag.ms 0 -1 20000
    compression.gzip.level -1 0 9 10
    compression.lz4.level 1 0 17 18
    compression.zstd.level 3 23 -5
    leader.replication.throttled.replicas * 0:1 0:1,1:1 x none
    follower.replication.throttled.replicas * 0:1 1
    message.format.version 3.0
    message.downconversion.enable true
    remote.storage.enable false true
    local.retention.ms -2 1000 -3
    local.retention.bytes -2 1000
    remote.log.copy.disable false true
    remote.log.delete.on.disable false true
    no.such 1
    confluent.value x
"""
_GROUP_VALUES = """
    consumer.session.timeout.ms 45000 44999 60000 x 1
    consumer.heartbeat.interval.ms 5000 1 99999
    share.session.timeout.ms 45000 1
    share.auto.offset.reset earliest none by_duration:PT1H
    share.isolation.level read_committed x
    streams.num.standby.replicas 1 -1 9
    no.such 1
"""
_CLIENT_METRICS_VALUES = """
    interval.ms 1000 100 99 3600001 x
    metrics org.apache.kafka. * a,b
    match client_id=x client_id=[ no=1 client_id
    no.such 1
"""
_BROKER_VALUES = """
    log.retention.ms 1000000000 -2 x
    message.max.bytes 1048588 -1
    log.segment.bytes 1073741824 1
    log.cleanup.policy delete foo
    compression.type producer x
    broker.id 1
    no.such 1
    num.partitions 3
    log.message.timestamp.type CreateTime x
"""
_LOGGER_VALUES = """
    root DEBUG INFO FATAL OFF warn x
    no.such DEBUG x
"""


def _table(text: str) -> dict[str, list[str]]:
    rows = [line.split() for line in text.strip().splitlines()]
    return {name: values for name, *values in rows}


_VALUES = {
    _TOPIC: _table(_TOPIC_VALUES),
    _GROUP: _table(_GROUP_VALUES),
    _CLIENT_METRICS: _table(_CLIENT_METRICS_VALUES),
    _BROKER: _table(_BROKER_VALUES),
    _BROKER_LOGGER: _table(_LOGGER_VALUES),
}


def some_configs(
    scene: Scene, counts: Sequence[int] = (0, 1, 1, 2, 3), kind: int = _TOPIC
) -> list[dict[str, Any]]:
    """Names with values, good and bad; a name may come twice."""
    values = _VALUES.get(kind, _VALUES[_TOPIC])
    names = scene.random.choices(list(values), k=scene.pick(counts))
    scene.is_compressing |= "compression.type" in names
    return [{"name": name, "value": scene.usually([scene.pick(values[name])], None, "")} for name in names]


def _resource(scene: Scene) -> tuple[int, str]:
    """Type and name."""
    kind = scene.pick((2, 2, 2, 2, 2, 4, 32, 16, scene.usually([2], 0, 8, 3)))
    if kind == _TOPIC:
        return kind, scene.topic()
    names = {
        _GROUP: scene.usually(["~g0", "~g1"], ""),
        _CLIENT_METRICS: scene.usually(["~m0", "~m1"], ""),
        _BROKER: scene.usually(["1"], "", "2", "x"),
        _BROKER_LOGGER: scene.usually(["1"], "", "2", "x"),
    }
    return kind, names.get(kind, "x")


def describe_configs(scene: Scene) -> None:
    resources = []
    for _ in range(scene.pick((1, 1, 2))):
        kind, name = _resource(scene)
        keys = [config["name"] for config in some_configs(scene, (1, 2, 3), kind)]
        row = {"resource_type": kind, "resource_name": name}
        resources.append({**row, "configuration_keys": scene.pick((None, None, [], keys))})
    body = {
        "resources": resources,
        "include_synonyms": scene.chance(0.5),
        "include_documentation": scene.chance(0.2),
    }
    scene.add("describe_configs", body)


def _alter(scene: Scene, api: str, counts: Sequence[int], more: Callable[[], dict[str, Any]]) -> None:
    resources = [_resource(scene) for _ in range(scene.pick((1, 1, 1, 2)))]
    rows = [
        {
            "resource_type": kind,
            "resource_name": name,
            "configs": [{**config, **more()} for config in some_configs(scene, counts, kind)],
        }
        for kind, name in resources
    ]
    if scene.chance(0.03):
        rows.append(rows[0])
    # The broker's settings hold for other sequences, too.
    only_validates = scene.chance(0.25) or any(kind in (_BROKER, _BROKER_LOGGER) for kind, _ in resources)
    scene.add(api, {"resources": rows, "validate_only": only_validates})


def alter_configs(scene: Scene) -> None:
    _alter(scene, "alter_configs", (0, 1, 1, 1, 2, 3), dict)


def incremental_alter_configs(scene: Scene) -> None:
    _alter(
        scene,
        "incremental_alter_configs",
        (1, 1, 1, 2, 3, 0),
        lambda: {"config_operation": scene.pick((0, 0, 0, 1, 2, 3))},
    )


def list_config_resources(scene: Scene) -> None:
    types = scene.pick(([], [2], [32], [16, 4], [8], [0], [99], [2, 2]))
    scene.add("list_config_resources", {"resource_types": types})
