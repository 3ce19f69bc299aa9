"""Requests of OffsetFetch for one or several groups."""

from __future__ import annotations

from tests.support.raw import Fields


def fetch_fields(version: int, group: str, name: str, topic_id: bytes) -> Fields:
    topic = {"name": name, "partition_indexes": [0, 1]}
    return {
        "group_id": group,
        "topics": [topic],
        "groups": [{"group_id": group, "topics": [{**topic, "topic_id": topic_id}]}],
        "require_stable": version >= 7,
    }
