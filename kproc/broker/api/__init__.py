"""The Kafka APIs, one file per key. This list is the table of contents.

An api file turns one decoded request into response fields. It does not know how the bytes of a request arrive
(`transport/`, `processor/`), and does no I/O of its own. A request that must wait is parked through its RequestContext.
"""

from __future__ import annotations

import importlib
from typing import Final

# Names below kproc.broker. Produce, Fetch and ShareFetch have packages of their own.
MODULES: Final = (
    "produce.produce",
    "fetch.fetch",
    "api.list_offsets",
    "api.metadata",
    "api.api_versions",
    "api.sasl_handshake",
    "api.sasl_authenticate",
    "api.create_topics",
    "api.delete_topics",
    "api.init_producer_id",
    "api.add_partitions_to_txn",
    "api.add_offsets_to_txn",
    "api.end_txn",
    "api.find_coordinator",
    "api.join_group",
    "api.sync_group",
    "api.heartbeat",
    "api.leave_group",
    "api.offset_commit",
    "api.txn_offset_commit",
    "api.offset_fetch",
    "api.offset_delete",
    "api.describe_groups",
    "api.consumer_group_heartbeat",
    "api.consumer_group_describe",
    "api.streams_group_heartbeat",
    "api.streams_group_describe",
    "api.streams_group_topology_description_update",
    "share.session.share_fetch",
    "share.session.share_acknowledge",
    "api.share_group_heartbeat",
    "api.share_group_describe",
    "api.describe_share_group_offsets",
    "api.alter_share_group_offsets",
    "api.delete_share_group_offsets",
    "api.list_groups",
    "api.delete_groups",
    "api.initialize_share_group_state",
    "api.read_share_group_state",
    "api.write_share_group_state",
    "api.delete_share_group_state",
    "api.read_share_group_state_summary",
    "api.describe_configs",
    "api.alter_configs",
    "api.create_partitions",
    "api.create_delegation_token",
    "api.renew_delegation_token",
    "api.expire_delegation_token",
    "api.describe_delegation_token",
    "api.incremental_alter_configs",
    "api.describe_cluster",
    "api.describe_client_quotas",
    "api.alter_client_quotas",
    "api.delete_records",
    "api.offset_for_leader_epoch",
    "api.describe_acls",
    "api.create_acls",
    "api.delete_acls",
    "api.alter_replica_log_dirs",
    "api.describe_log_dirs",
    "api.elect_leaders",
    "api.alter_partition_reassignments",
    "api.list_partition_reassignments",
    "api.describe_user_scram_credentials",
    "api.alter_user_scram_credentials",
    "api.describe_quorum",
    "api.update_features",
    "api.describe_producers",
    "api.write_txn_markers",
    "api.unregister_broker",
    "api.describe_transactions",
    "api.list_transactions",
    "api.get_telemetry_subscriptions",
    "api.push_telemetry",
    "api.list_config_resources",
    "api.describe_topic_partitions",
)


def load_all() -> None:
    """Import every api file, which fills `registry.APIS`. A file that is missing or broken raises."""
    for name in MODULES:
        importlib.import_module(f"kproc.broker.{name}")
