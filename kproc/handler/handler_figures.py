"""Gathers a Handler's figures of topics and groups for the cleaner, when metrics are scraped."""

from __future__ import annotations

from typing import Any

from kproc.api.context import OnReply, Services
from kproc.api.group_call import GROUPS
from kproc.handler.partitions import Partitions


def serve_call(services: Services, body: dict[str, Any], on_reply: OnReply) -> None:
    """{"since", "traffic": {topic: [bytes in, records in, bytes out, fetches]}, "sizes": {topic: [index, bytes,
    segments, ...]}, "offline": count, "groups": [[id, state, members, {topic: {partition: offset}}], ...]}"""
    del body
    GROUPS.of(services).when_loaded(lambda: on_reply(_figures(services)))


def _figures(services: Services) -> dict[str, Any]:
    partitions = services.partitions
    assert isinstance(partitions, Partitions)
    sizes: dict[str, list[int]] = {}
    offline = partitions.damaged_count
    for owned in partitions.opened():
        log = owned.log
        topic, index = owned.key
        flat = sizes.get(topic)
        if flat is None:
            flat = sizes[topic] = []
        flat += (index, *log.sizes())
        if log.offline_reason is not None:
            offline += 1
    return {
        "since": partitions.since_ns,
        "traffic": {
            topic: [each.bytes_in, each.records_in, each.bytes_out, each.fetches]
            for topic, each in partitions.traffic.items()
        },
        "sizes": sizes,
        "offline": offline,
        "groups": _groups(services),
    }


def _groups(services: Services) -> list[list[Any]]:
    rows: list[list[Any]] = []
    for coordinator in GROUPS.of(services).loaded():
        for group_id, state, members in coordinator.sizes():
            offsets = {
                topic: {index: committed.offset for index, committed in partitions.items()}
                for topic, partitions in coordinator.offsets.of_group(group_id).items()
            }
            rows.append([group_id, state, members, offsets])
    return rows
