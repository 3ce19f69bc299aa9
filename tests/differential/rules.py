"""Differences that are meant. The name of each is the area of a line in kproc/COMPATIBILITY.md, section 2.

tests/tidy/test_compatibility.py holds that.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from tests.differential.compare import ITEMS, Difference
from tests.differential.steps import Step
from tests.differential.symbols import Words

_BROKER, _BROKER_LOGGER = 4, 8
_TRANSACTIONS = 1


class Case(NamedTuple):
    """A difference with what it was found in: the request, and both answers."""

    step: Step
    difference: Difference
    kproc: Any
    kafka: Any

    @property
    def resource_types(self) -> set[int]:
        return {resource["resource_type"] for resource in self.step.body.get("resources", ())}


def _transactions(case: Case) -> bool:
    step = case.step
    if step.api == "init_producer_id":
        return step.body["transactional_id"] is not None
    return (
        step.api == "find_coordinator" and step.version > 0 and step.body["key_type"] == _TRANSACTIONS
    ) or (step.api == "describe_transactions")


def _auto_creation(case: Case) -> bool:
    step = case.step
    return (
        step.api == "metadata"
        and step.body["allow_auto_topic_creation"]
        and case.difference.path[:1] == ("topics",)
    )


def _features(case: Case) -> bool:
    of_features = ("api_keys", "supported_features", "finalized_features")
    if case.step.api == "api_versions":
        return bool(case.difference.path) and case.difference.path[0] in of_features
    return case.step.api == "update_features"


def _broker_settings(case: Case) -> bool:
    step, path = case.step, case.difference.path
    if step.api == "describe_configs" and len(path) > 3:
        return any(row.get("resource_type") == _BROKER for row in case.difference.rows)
    return "alter_configs" in step.api and any(
        row.get("resource_type") == _BROKER for row in case.difference.rows
    )


def _broker_loggers(case: Case) -> bool:
    return "config" in case.step.api and _BROKER_LOGGER in case.resource_types


def _of_fetch(case: Case) -> bool:
    step, difference = case.step, case.difference
    if difference.path[-1:] == ("aborted_transactions",) and not (difference.kproc or difference.kafka):
        return True
    return (
        step.api == "fetch"
        and step.version >= 12
        and len(difference.path) > 3
        and re.search(r"'last_fetched_epoch': [01]", repr(step.body)) is not None
        and (1 in (difference.kproc, difference.kafka) or "diverging_epoch" in repr(case.kafka))
    )


def _replaced_group_request(case: Case) -> bool:
    kproc = case.difference.kproc
    if case.step.api == "join_group" and isinstance(case.kproc, dict) and case.kproc["error_code"] == -1:
        return True
    return (
        case.step.may_wait
        and case.step.api in ("join_group", "sync_group")
        and case.difference.kafka == "no answer"
        and isinstance(kproc, dict)
        and kproc["error_code"] != 0
    )


def _kafka_fails(case: Case) -> bool:
    difference = case.difference
    kafka = difference.kafka
    if isinstance(kafka, dict) and case.step.api == "describe_topic_partitions":
        return False
    failed_whole = case.step.api == "describe_topic_partitions" and "'error_code': -1" in repr(case.kafka)
    return failed_whole or (difference.path[-1:] == ("error_code",) and kafka == -1)


def _kafka_is_silent(case: Case) -> bool:
    return case.step.api == "alter_configs" and case.difference.kafka == "no answer"


def _has_a_message(case: Case) -> bool:
    difference = case.difference
    return (
        difference.path[-1:] == ("error_message",)
        and isinstance(difference.kproc, Words)
        and bool(difference.kproc)
        and not difference.kafka
    )


def _eligible_leaders(case: Case) -> bool:
    """The source of min.insync.replicas, and that it is a row of the cluster's settings."""
    difference = case.difference
    return difference.path[-1:] != ("value",) and any(
        row.get("name") == "min.insync.replicas" for row in difference.rows
    )


def _asked_twice(case: Case) -> bool:
    """A partition, or what else is answered row by row, that the request names more than once."""
    if case.difference.path[-1:] != (ITEMS,):
        return False
    return any(_has_twins(case.step.body.get(key)) for key in ("topics", "topic_data", "entries"))


def _has_twins(rows: Any) -> bool:
    if not isinstance(rows, list):
        return False
    named = [(str(_name_of(row)), row) for row in rows]
    return len({name for name, _ in named}) < len(rows) or any(
        _has_twins(inner) for row in rows if isinstance(row, dict) for inner in row.values()
    )


def _name_of(row: Any) -> Any:
    if not isinstance(row, dict):
        return row
    keys = ("name", "partition_index", "partition", "index", "entity")
    return next((row[key] for key in keys if row.get(key) is not None), row)


def _sizes_on_disk(case: Case) -> bool:
    return case.step.api == "describe_log_dirs" and case.difference.path[-1:] == ("partition_size",)


def _compressed_anew(case: Case) -> bool:
    path = case.difference.path
    return case.step.api == "fetch" and path[-1:] == ("base_time",)


def _deleted_maximum(case: Case) -> bool:
    """-3 after DeleteRecords: Kafka may answer with a record that is gone."""
    difference = case.difference
    asks = "'timestamp': -3" in repr(case.step.body)
    found = ("timestamp", "offset", "leader_epoch")
    return case.step.api == "list_offsets" and asks and difference.path[-1] in found


def _small_index(case: Case) -> bool:
    return case.difference.kproc == 40 and "segment.index.bytes" in repr(case.step.body)


def _colliding_names(case: Case) -> bool:
    return case.step.api == "create_topics" and case.difference.kproc == 17


RULES: dict[str, Callable[[Case], bool]] = {
    "transactions": _transactions,
    "Metadata with auto-creation": _auto_creation,
    "UpdateFeatures": _features,
    "settings of the broker": _broker_settings,
    "broker loggers": _broker_loggers,
    "Fetch": _of_fetch,
    "a group request that a later one of the same member replaces": _replaced_group_request,
    "UNKNOWN_SERVER_ERROR": _kafka_fails,
    "AlterConfigs without an answer": _kafka_is_silent,
    "error messages": _has_a_message,
    "what one request names twice": _asked_twice,
    "DescribeLogDirs": _sizes_on_disk,
    "Produce": _compressed_anew,
    "ListOffsets": _deleted_maximum,
    "`segment.index.bytes`": _small_index,
    "CreateTopics": _colliding_names,
    "DescribeQuorum": lambda case: case.step.api == "describe_quorum" and "listeners" in case.difference.path,
    "JoinGroup": lambda case: case.difference.path[-1:] == ("protocol_name",),
    "`min.insync.replicas` of a topic": _eligible_leaders,
}


def cannot_be_read(difference: Difference) -> bool:
    """Records of a codec that this tool does not read, or cut where they are compressed differently."""
    kproc, kafka = difference.kproc, difference.kafka
    if difference.path[-1:] == ("part of a batch",):
        return True
    is_of_codec = isinstance(kproc, str) and isinstance(kafka, str) and kproc[:8] == kafka[:8]
    return difference.path[-1:] == ("records",) and is_of_codec


def rule_for(case: Case) -> str | None:
    """The name of the rule that says that this difference is meant."""
    return next((name for name, holds in RULES.items() if holds(case)), None)
