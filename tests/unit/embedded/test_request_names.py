"""Names in decoded requests, and in the requests that an API can have."""

from __future__ import annotations

from typing import Any

from kproc.broker.faults.conditions import conditions_of
from kproc.embedded.request_names import CONDITIONS, can_name, names_in
from kproc.wire.header import ApiKey
from kproc.wire.schema_table import supported_versions


def test_conditions_of_an_api_are_those_of_fault_rules() -> None:
    for key in ApiKey:
        expected = conditions_of(key, supported_versions(key)) - {"partition"}
        assert {each for each in CONDITIONS if can_name(key, each)} == expected, key.name


def test_names_are_found_at_any_depth() -> None:
    topics = [{"name": "a", "partitions": [{"name": "no"}]}, {"topic": "b"}, {"topic_id": "0f", "name": None}]
    cases: list[tuple[dict[str, Any], dict[str, list[str]]]] = [
        ({"topics": topics}, {"topic": ["a", "b"]}),
        ({"topic_names": ["a", "b"]}, {"topic": ["a", "b"]}),
        ({"topics": None, "group_id": None}, {}),
        ({"groups": [{"group_id": "g", "topics": [{"name": "t"}]}]}, {"group": ["g"], "topic": ["t"]}),
        ({"group_ids": ["g", "h"]}, {"group": ["g", "h"]}),
        ({"v3_and_below_transactional_id": "x", "v3_and_below_topics": [{"name": "t"}]},
         {"transactional_id": ["x"], "topic": ["t"]}),
        ({"transactions": [{"transactional_id": "x", "topics": [{"name": "t"}]}]},
         {"transactional_id": ["x"], "topic": ["t"]}),
        ({"entries": [{"ops": [{"key": "rate"}]}], "sizeInBytes": 5}, {}),
    ]  # fmt: skip
    for fields, expected in cases:
        found = {each: list(names_in(fields, each)) for each in CONDITIONS}
        assert {each: names for each, names in found.items() if names} == expected
