"""Both brokers, with settings under which they can be compared; and a question for those that run already."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.peers.kproc import KprocPeer
from kproc.wire.schema_table import supported_versions
from tests.differential import logins, rights
from tests.differential.protocol import API_NAMES, KEYS
from tests.differential.side import Side
from tests.differential.steps import Pair
from tests.support.kafka_jars import short_lived_jvm

SETTINGS = {
    "node.id": "1",
    "num.partitions": "2",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.num.partitions": "2",
    "group.share.min.record.lock.duration.ms": "1000",
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.assignment.interval.ms": "0",
    "group.streams.assignment.interval.ms": "0",
    "group.streams.initial.rebalance.delay.ms": "0",
}
# Its controller would wait this long for more to write.
# Its assignor would run in another thread, so that a heartbeat does not tell what it changes.
_KAFKA_SETTINGS = {
    "controller.quorum.append.linger.ms": "0",
    "group.consumer.assignor.offload.enable": "false",
    "group.streams.assignor.offload.enable": "false",
}
_READY_SECONDS = 240.0
# Quick from the first request on, and few threads: the brokers' own time is most of what a run takes.
JVM = ("-Xmx1G", "-Xms512m", *short_lived_jvm())
_SHARE_COORDINATORS_SINCE = 6  # The version of FindCoordinator that knows them.
# Both write to the disk before they answer a change; in memory that takes no time.
_IN_MEMORY = Path("/dev/shm")


@contextmanager
def both_brokers(*, with_authorizer: bool = False) -> Iterator[Pair]:
    """kproc and Kafka, started together; their bootstraps. With an authorizer all but ourselves need rights."""
    ours = SETTINGS | (rights.kproc_settings() if with_authorizer else logins.kproc_settings())
    of_kafka = rights.KafkaWithGuest if with_authorizer else logins.KafkaWithLogins
    under = _IN_MEMORY if os.access(_IN_MEMORY, os.W_OK) else None
    with ExitStack() as running:
        kafka = running.enter_context(of_kafka(settings=SETTINGS | _KAFKA_SETTINGS, jvm=JVM, under=under))
        kproc = running.enter_context(KprocPeer(settings=ours, under=under))
        pair = kproc.bootstrap, kafka.bootstrap
        for bootstrap in pair:
            warm_up(bootstrap)
        if with_authorizer:
            rights.allow_ourselves(pair)
        else:
            _make_users(pair)
        yield pair


def _make_users(pair: Pair) -> None:
    for bootstrap in pair:
        side = Side(bootstrap)
        logins.make_users(side.ask)
        side.close()


def warm_up(bootstrap: str) -> None:
    """Until groups of all partitions and producer ids are served: Kafka begins with them at the first request."""
    side = Side(bootstrap)
    end = time.monotonic() + _READY_SECONDS
    for key_type in (0, 1):
        side.ask("find_coordinator", 1, {"key": "warm", "key_type": key_type})
    if _served(bootstrap)["find_coordinator"][-1] >= _SHARE_COORDINATORS_SINCE:
        key = "warm:AAAAAAAAAAAAAAAAAAAAAQ:0"
        side.ask("find_coordinator", _SHARE_COORDINATORS_SINCE, {"key_type": 2, "coordinator_keys": [key]})
    while not _is_warm(side) and time.monotonic() < end:
        select.select([], [], [], 0.2)
    side.close()


def _is_warm(side: Side) -> bool:
    groups = ({"group_id": f"warm{number}", "topics": None} for number in range(16))
    if any(side.ask("offset_fetch", 5, group)["error_code"] for group in groups):
        return False
    producers = ({"transactional_id": name} for name in (None, *(f"warm{number}" for number in range(16))))
    return not any(
        side.ask("init_producer_id", 0, {"transaction_timeout": 60000, **each})["error_code"]
        for each in producers
    )


def common_versions(pair: Pair) -> dict[str, list[int]]:
    """The versions of each API that both advertise and the schemas have."""
    kproc, kafka = (_served(bootstrap) for bootstrap in pair)
    return {
        api: [
            version
            for version in kproc[api]
            if version in kafka[api] and version in supported_versions(KEYS[api])
        ]
        for api in sorted(kproc.keys() & kafka.keys())
    }


def _served(bootstrap: str) -> dict[str, range]:
    side = Side(bootstrap)
    rows = side.ask("api_versions", 0, {})["api_keys"]
    side.close()
    return {
        API_NAMES[row["api_key"]]: range(row["min_version"], row["max_version"] + 1)
        for row in rows
        if row["api_key"] in API_NAMES
    }
