"""Older releases of Apache Kafka that this broker can emulate (kproc.emulate.release).

`releases.json` has, for each release, the versions and features that its broker advertises, without the APIs that only
other brokers call. From 3.3 on they are the answers of a real broker, which for 4.0 is 4.0.0. For 2.1 and 2.8 they are
those of the class ApiKeys in kafka-clients 2.1.1 and 2.8.2, because these brokers need ZooKeeper.

The answers of real brokers of 3.3.2, 3.9.1, 4.0.0, 4.3.0 and 4.4.0 were compared with the tables on 2026-11-27, and
ApiKeys of 2.1.1 and 2.8.2. They have two groups of APIs more, which this broker does not serve: those that ZooKeeper's
controller or a raft quorum sends to brokers (LeaderAndIsr, UpdateMetadata, StopReplica, ControlledShutdown), and those
that change the quorum's members (AddRaftVoter, RemoveRaftVoter, UnregisterController).

A release also lacks the types of resources with configs that came later: loggers (2.4, KIP-412), subscriptions to
client metrics (3.7, KIP-714) and groups (4.0, KIP-848).

The names of group configs are those that the class GroupConfig of kafka-group-coordinator 4.0.0, 4.3.0 and 4.4.0
defines, without the internal ones. Real brokers of these versions list the same names. 4.1.0 added
share.isolation.level and three configs of streams groups to the six of 4.0.0, and 4.2.0 added
streams.initial.rebalance.delay.ms.

Kafka 4.0 removed the oldest versions of many APIs (KIP-896). Emulated releases advertise them, but requests of these
versions are rejected like unknown ones. Clients choose the highest common version, so only clients older than the
releases that KIP-896 names meet this.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from kproc.broker.cluster import config_changes, features, group_config
from kproc.broker.request import registry
from kproc.wire.header import ApiKey, kafka_name

_FILE: Final = Path(__file__).with_name("releases.json")


class Release(msgspec.Struct, frozen=True):
    """The (lowest, highest) level of each feature and the (lowest, highest) version of each API of a release.

    group_configs: the names of the configs that a group can have.
    """

    features: dict[str, tuple[int, int]]
    versions: dict[str, tuple[int, int]]
    group_configs: tuple[str, ...] = ()


_decoder: Final = msgspec.json.Decoder(dict[str, Release])


def load_releases() -> dict[str, Release]:
    """Return the releases by their names, such as "2.8"."""
    return _decoder.decode(_FILE.read_bytes())


def emulate_release(name: str) -> None:
    """Restrict the APIs and the features of this process to those of a release, for as long as the process runs.

    Call it before roles are started, because every role reads these tables.
    """
    release = load_releases()[name]
    keys = {kafka_name(key): key for key in ApiKey}
    registry.restrict({int(keys[api]): versions for api, versions in release.versions.items()})
    features.restrict(release.features)
    config_changes.restrict(_missing_resource_types(release))
    group_config.restrict(release.group_configs)


def _missing_resource_types(release: Release) -> list[int]:
    """Return the types of resources whose configs a release does not have.

    A release has the configs of loggers and of client metrics if it has the API that was introduced with them.
    """
    apis = {
        config_changes.RESOURCE_BROKER_LOGGER: "IncrementalAlterConfigs",
        config_changes.RESOURCE_CLIENT_METRICS: "ListConfigResources",
    }
    missing = [kind for kind, api in apis.items() if api not in release.versions]
    if not release.group_configs:
        missing.append(config_changes.RESOURCE_GROUP)
    return missing
