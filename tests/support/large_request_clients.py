"""Clients with large requests at a Handler, and duty cycles that are measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kproc.wire.header import ApiKey
from tests.support.handler_rig import HandlerRig

Start = Callable[..., HandlerRig]
Fields = dict[str, Any]
LARGE_ONE, OTHER = 1, 2  # Connections.
# A step decodes or handles 200 rows, fewer where they are dear. CPython 3.11 runs some 50 million bytecodes a second.
STEP_BYTECODES_MAX = 260_000
CHANGES = {
    "raise_leader_epochs",
    "allocate_producer_ids",
    "auto_create_topics",
    "create_topics",
    "delete_topics",
    "create_partitions",
    "alter_configs",
    "incremental_alter_configs",
    "alter_client_quotas",
    "create_acls",
    "delete_acls",
    "alter_user_scram_credentials",
    "update_features",
}


def cluster(start: Start, **parts: Any) -> HandlerRig:
    rig = start(**parts)
    rig.controller_serves |= CHANGES
    for name, partitions in (("t", 4), ("__consumer_offsets", 1), ("__transaction_state", 1)):
        rig.create_topic(name, partitions=partitions)
    return rig


def describe_groups(count: int, id_bytes: int = 0) -> Fields:
    return {"groups": [f"g{at}".ljust(id_bytes, "x") for at in range(count)]}


def describe_groups_of(size_bytes: int) -> Fields:
    """Return a request of so many bytes: long ids, because each group costs a slice of its own."""
    return describe_groups(size_bytes // 100, 99)


def pass_once(rig: HandlerRig) -> None:
    for handler in rig.handlers:
        if handler is not None:
            handler.do_work(0)


def groups_of(rig: HandlerRig, sequence_count: int = 1) -> list[Fields]:
    """The groups in the answer to DescribeGroups v5."""
    answers = rig.processors[0].answers()
    assert len(answers) == sequence_count
    groups: list[Fields] = answers[0].fields(ApiKey.DESCRIBE_GROUPS, 5)["groups"]
    return groups
