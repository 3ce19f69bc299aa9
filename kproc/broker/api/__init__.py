"""The Kafka APIs, one file per key. This list is the table of contents.

An api file turns one decoded request into response fields. It never learns how the bytes came (`transport/`,
`net/`) and does no I/O of its own: what must wait is parked through the RequestContext.
"""

from __future__ import annotations

import importlib
from typing import Final

MODULES: Final = (
    "produce",
    "fetch",
    "list_offsets",
    "metadata",
    "api_versions",
    "sasl_handshake",
    "sasl_authenticate",
    "create_topics",
    "delete_topics",
    "init_producer_id",
    "add_partitions_to_txn",
    "add_offsets_to_txn",
    "end_txn",
    "find_coordinator",
    "join_group",
    "sync_group",
    "heartbeat",
    "leave_group",
    "offset_commit",
    "txn_offset_commit",
    "offset_fetch",
    "offset_delete",
    "describe_groups",
    "list_groups",
    "delete_groups",
    "describe_configs",
    "alter_configs",
    "create_partitions",
    "create_delegation_token",
    "renew_delegation_token",
    "expire_delegation_token",
    "describe_delegation_token",
    "incremental_alter_configs",
    "describe_cluster",
    "describe_client_quotas",
    "alter_client_quotas",
    "delete_records",
    "offset_for_leader_epoch",
    "describe_acls",
    "create_acls",
    "delete_acls",
    "alter_replica_log_dirs",
    "describe_log_dirs",
    "elect_leaders",
    "alter_partition_reassignments",
    "list_partition_reassignments",
    "describe_user_scram_credentials",
    "alter_user_scram_credentials",
    "describe_quorum",
    "update_features",
    "describe_producers",
    "write_txn_markers",
    "unregister_broker",
    "describe_transactions",
    "list_transactions",
    "get_telemetry_subscriptions",
    "push_telemetry",
    "list_config_resources",
    "describe_topic_partitions",
)


def load_all() -> None:
    """Import every api file, which fills `registry.APIS`. A file that is missing or broken raises."""
    for name in MODULES:
        importlib.import_module(module_of(name))


def module_of(name: str) -> str:
    """Return the module that registers an API. Produce and Fetch have packages of their own."""
    return f"kproc.broker.{name}.{name}" if name in ("produce", "fetch") else f"kproc.broker.api.{name}"
