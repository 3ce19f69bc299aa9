"""The themes of sequences: for each its kinds of requests, with a weight for their frequency."""

from __future__ import annotations

from collections.abc import Callable

from tests.differential.scene import Scene
from tests.differential.steps import Step
from tests.differential.themes import (
    cluster,
    configs,
    consumers,
    groups,
    logins,
    queues,
    quotas,
    records,
    shares,
    spread,
    streams,
    topics,
    transactions,
)
from tests.differential.themes.records import add_producers
from tests.support.kafka_jars import KAFKA_VERSION

Maker = Callable[[Scene], None]
_LENGTHS = (4, 36)
_LOCKS_LENGTH = 12  # Of a sequence in which locks end.

THEMES: dict[str, dict[Maker, int]] = {
    "produce": {
        records.produce: 9,
        records.fetch: 4,
        records.list_offsets: 2,
        records.describe_producers: 2,
        records.init_producer_id: 1,
        records.delete_records: 1,
        records.offset_for_leader_epoch: 1,
        topics.describe_log_dirs: 1,
    },
    "fetch": {
        records.produce: 2,
        records.fetch: 9,
        records.waiting_fetch: 1,
        records.list_offsets: 1,
        records.delete_records: 1,
        topics.create_partitions: 1,
        topics.delete_topics: 1,
        topics.create_topics: 1,
        configs.incremental_alter_configs: 1,
    },
    "offsets": {
        records.produce: 3,
        records.list_offsets: 5,
        records.offset_for_leader_epoch: 3,
        records.delete_records: 3,
        records.fetch: 2,
        topics.describe_log_dirs: 1,
    },
    "topics": {
        topics.create_topics: 6,
        topics.create_partitions: 4,
        topics.delete_topics: 3,
        topics.metadata: 6,
        topics.describe_topic_partitions: 4,
        configs.describe_configs: 2,
        records.produce: 1,
        records.list_offsets: 1,
    },
    "configs": {
        configs.incremental_alter_configs: 7,
        configs.alter_configs: 4,
        configs.describe_configs: 6,
        configs.list_config_resources: 1,
        topics.create_topics: 2,
        records.produce: 1,
    },
    "groups": {
        groups.cycle: 2,
        groups.join_group: 3,
        groups.sync_group: 3,
        groups.heartbeat: 3,
        groups.leave_group: 2,
        groups.offset_commit: 4,
        groups.offset_fetch: 4,
        groups.offset_delete: 2,
        groups.describe_groups: 3,
        groups.list_groups: 2,
        groups.delete_groups: 1,
        cluster.find_coordinator: 1,
        topics.delete_topics: 1,
    },
    "consumers": {
        consumers.cycle: 3,
        consumers.heartbeat: 8,
        consumers.join: 2,
        consumers.leave: 2,
        consumers.describe: 4,
        consumers.describe_groups: 1,
        consumers.list_groups: 1,
        consumers.delete_groups: 1,
        consumers.offset_commit: 3,
        consumers.offset_fetch: 3,
        consumers.offset_delete: 1,
        consumers.join_classic: 2,
        consumers.heartbeat_classic: 1,
        consumers.sync_classic: 1,
        consumers.leave_classic: 1,
        topics.create_partitions: 1,
        topics.delete_topics: 1,
    },
    "shares": {
        shares.share_fetch: 8,
        shares.share_acknowledge: 4,
        shares.renewal: 1,
        topics.create_partitions: 1,
        topics.delete_topics: 1,
    },
    "queues": {
        queues.share_fetch: 8,
        queues.share_acknowledge: 8,
        queues.wrong_acknowledge: 2,
        queues.end_session: 2,
        queues.produce: 3,
        queues.transaction: 1,
        queues.delete_records: 1,
        queues.alter_offsets: 1,
        queues.delete_offsets: 1,
        queues.describe_offsets: 2,
    },
    "spread": {
        spread.share_fetch: 8,
        spread.share_acknowledge: 6,
        spread.end_session: 2,
        spread.produce: 4,
        spread.describe_offsets: 1,
    },
    "locks": {queues.lock_timeout: 1},
    "streams": {
        streams.cycle: 3,
        streams.heartbeat: 8,
        streams.join: 2,
        streams.leave: 2,
        streams.describe: 4,
        streams.describe_groups: 1,
        streams.list_groups: 1,
        streams.delete_groups: 1,
        streams.offset_commit: 3,
        streams.offset_fetch: 2,
        streams.offset_delete: 1,
        topics.create_partitions: 1,
        topics.delete_topics: 1,
    },
    "transactions": {
        transactions.whole_transaction: 6,
        transactions.produce: 5,
        transactions.init_producer_id: 2,
        transactions.add_partitions_to_txn: 3,
        transactions.add_offsets_to_txn: 2,
        transactions.txn_offset_commit: 3,
        transactions.end_txn: 5,
        transactions.write_txn_markers: 1,
        transactions.describe_transactions: 3,
        transactions.list_transactions: 2,
        transactions.find_coordinator: 1,
        groups.offset_fetch: 2,
        groups.describe_groups: 1,
        records.fetch: 3,
        records.list_offsets: 3,
        records.describe_producers: 2,
        records.delete_records: 1,
    },
    "logins": {logins.login: 1},
    "quotas": {
        quotas.describe_client_quotas: 3,
        quotas.alter_client_quotas: 4,
        cluster.describe_user_scram_credentials: 1,
    },
    "cluster": {
        cluster.api_versions: 1,
        cluster.describe_cluster: 2,
        cluster.elect_leaders: 2,
        cluster.alter_partition_reassignments: 2,
        cluster.list_partition_reassignments: 1,
        topics.describe_log_dirs: 2,
        cluster.alter_replica_log_dirs: 1,
        records.init_producer_id: 2,
        cluster.find_coordinator: 2,
        cluster.describe_acls: 1,
        cluster.create_acls: 1,
        cluster.delete_acls: 1,
        cluster.describe_user_scram_credentials: 1,
        cluster.delegation_tokens: 2,
        cluster.describe_transactions: 1,
        cluster.list_transactions: 1,
        configs.list_config_resources: 1,
        cluster.describe_quorum: 1,
        cluster.update_features: 1,
        topics.metadata: 1,
        topics.delete_topics: 1,
    },
}
# Kafka 4.3 has no static members and no task offsets in streams groups.
if KAFKA_VERSION < "4.4":
    del THEMES["streams"]
# What these change is seen by every client of the broker.
CHANGES_ALL = frozenset({"quotas"})
# Themes that mostly wait for locks or for the ends of connections, and how many of their sequences a worker runs at
# once. A sequence of `locks` takes 5 s and 0.05 s of CPU.
WAITING = {"locks": 24, "queues": 4, "spread": 4}
# What logs in by itself cannot be a guest's. A change of rules by another sequence ends the waits of share sessions.
WITHOUT_RIGHTS = frozenset({"logins"})
_WITH_PRODUCERS = frozenset({"produce", "fetch", "offsets"})


def sequence(theme: str, seed: str, versions: dict[str, list[int]]) -> list[Step]:
    """The requests of one sequence."""
    scene = Scene(seed, versions)
    if theme in _WITH_PRODUCERS:
        add_producers(scene)
    if theme == "transactions":
        transactions.add_producers(scene)
    if theme in ("queues", "locks"):
        queues.prepare(scene, has_short_locks=theme == "locks")
    if theme == "spread":
        spread.prepare(scene)
    size = len(scene.steps) + (_LOCKS_LENGTH if theme == "locks" else scene.random.randint(*_LENGTHS))
    makers = THEMES[theme]
    while len(scene.steps) < size:
        (maker,) = scene.random.choices(list(makers), weights=list(makers.values()))
        maker(scene)
    if theme in CHANGES_ALL:
        quotas.take_back(scene)
    return scene.steps
