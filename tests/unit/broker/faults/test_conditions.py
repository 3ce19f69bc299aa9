"""Conditions of fault rules that no request of an API can meet, by the schemas of its versions."""

from __future__ import annotations

import re
from typing import Any

import pytest

from kproc.broker.api import load_all
from kproc.broker.calls.own_operations import FaultRule
from kproc.broker.faults.conditions import conditions_of, unmet_condition
from kproc.broker.request.registry import APIS
from kproc.wire.header import ApiKey, kafka_name


@pytest.fixture(scope="module", autouse=True)
def every_api() -> None:
    load_all()


def unmet(api: ApiKey, **conditions: Any) -> str | None:
    rule = FaultRule(action="close", apis=[kafka_name(api)], **conditions)
    return unmet_condition(rule, int(api), kafka_name(api))


def test_condition_that_a_request_can_meet_is_accepted() -> None:
    for api, conditions in (
        (ApiKey.PRODUCE, {"topic": "t", "partition": 1, "transactional_id": "x"}),
        (ApiKey.FETCH, {"topic": "t", "partition": 1}),
        (ApiKey.METADATA, {"topic": "t"}),
        (ApiKey.FIND_COORDINATOR, {"group": "g"}),
        (ApiKey.FIND_COORDINATOR, {"transactional_id": "x"}),
        (ApiKey.OFFSET_FETCH, {"group": "g", "versions": (1, 7)}),
        (ApiKey.OFFSET_FETCH, {"group": "g", "versions": (8, 99)}),
        (ApiKey.DELETE_TOPICS, {"topic": "t", "versions": (1, 1)}),
        (ApiKey.HEARTBEAT, {"client": "c", "user": "u"}),
    ):
        assert unmet(api, **conditions) is None, (api, conditions)


def test_condition_that_no_request_meets_names_others() -> None:
    for api, conditions, expected in (
        (
            ApiKey.HEARTBEAT,
            {"topic": "t"},
            "Heartbeat have no topic, .*: match by group, client, user, versions$",
        ),
        (
            ApiKey.PRODUCE,
            {"group": "g"},
            "match by topic, partition, transactional_id, client, user, versions$",
        ),
        (ApiKey.METADATA, {"topic": "t", "partition": 0}, "Metadata have no partition"),
        (ApiKey.CREATE_ACLS, {"topic": "t"}, "have no topic, .*: match by client, user, versions$"),
        (
            ApiKey.FIND_COORDINATOR,
            {"transactional_id": "x", "versions": (0, 0)},
            "FindCoordinator 0-0 have no transactional_id",
        ),
        (ApiKey.PRODUCE, {"versions": (90, 99)}, "serves Produce in the versions 3-13"),
    ):
        assert re.search(expected, str(unmet(api, **conditions))), (api, conditions)


def test_every_version_of_every_api_has_an_example() -> None:
    for key, api in APIS.items():
        found = conditions_of(key, range(api.lo, api.hi + 1))
        assert "topic" in found or "partition" not in found, api
