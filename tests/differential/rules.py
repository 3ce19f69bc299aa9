"""Differences that are meant. The name of each is the area of a line in kproc/COMPATIBILITY.md, section 2.

tests/tidy/test_compatibility.py holds that.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from tests.differential.compare import Difference
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
    refused_here = (case.difference.kproc, case.difference.kafka) == (40, 0)
    return "alter_configs" in step.api and _BROKER in case.resource_types and refused_here


def _broker_loggers(case: Case) -> bool:
    return "config" in case.step.api and _BROKER_LOGGER in case.resource_types


def _diverging_epoch(case: Case) -> bool:
    step, difference = case.step, case.difference
    return (
        step.api == "fetch"
        and step.version >= 12
        and len(difference.path) > 3
        and re.search(r"'last_fetched_epoch': [01]", repr(step.body)) is not None
        and (1 in (difference.kproc, difference.kafka) or "diverging_epoch" in repr(case.kafka))
    )


def _replaced_group_request(case: Case) -> bool:
    kproc = case.difference.kproc
    return (
        case.step.may_wait
        and case.step.api in ("join_group", "sync_group")
        and case.difference.kafka == "no answer"
        and isinstance(kproc, dict)
        and kproc["error_code"] != 0
    )


def _kafka_fails(case: Case) -> bool:
    difference = case.difference
    return difference.path[-1:] == ("error_code",) and difference.kafka == -1 and difference.kproc != 0


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
    return difference.path[-1] != "value" and any(
        row.get("name") == "min.insync.replicas" for row in difference.rows
    )


RULES: dict[str, Callable[[Case], bool]] = {
    "transactions": _transactions,
    "Metadata with auto-creation": _auto_creation,
    "UpdateFeatures": _features,
    "settings of the broker": _broker_settings,
    "broker loggers": _broker_loggers,
    "Fetch": _diverging_epoch,
    "a group request that a later one of the same member replaces": _replaced_group_request,
    "UNKNOWN_SERVER_ERROR": _kafka_fails,
    "AlterConfigs without an answer": _kafka_is_silent,
    "error messages": _has_a_message,
    "`min.insync.replicas` of a topic": _eligible_leaders,
}


def cannot_be_read(difference: Difference) -> bool:
    """Records of a codec that this tool does not read, compressed differently: nothing can be said."""
    kproc, kafka = difference.kproc, difference.kafka
    is_of_codec = isinstance(kproc, str) and isinstance(kafka, str) and kproc[:8] == kafka[:8]
    return difference.path[-1:] == ("records",) and is_of_codec


def rule_for(case: Case) -> str | None:
    """The name of the rule that says that this difference is meant."""
    return next((name for name, holds in RULES.items() if holds(case)), None)
