"""Gathers a Handler's figures of topics and groups for the cleaner, when metrics are scraped."""

from __future__ import annotations

from kproc.api.calls import FromImage, OnResult
from kproc.api.context import Services
from kproc.api.group_call import GROUPS
from kproc.handler.partitions import Partitions
from kproc.observe.broker_figures import Group, HandlerFigures


def serve_call(services: Services, _body: FromImage, on_reply: OnResult[HandlerFigures]) -> None:
    GROUPS.of(services).when_loaded(lambda: on_reply(_figures(services)))


def _figures(services: Services) -> HandlerFigures:
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
    traffic = {
        topic: [each.bytes_in, each.records_in, each.bytes_out, each.fetches]
        for topic, each in partitions.traffic.items()
    }
    return HandlerFigures(partitions.since_ns, traffic, sizes, offline, _groups(services))


def _groups(services: Services) -> list[Group]:
    rows: list[Group] = []
    for coordinator in GROUPS.of(services).loaded():
        for group_id, state, members in coordinator.sizes():
            offsets = {
                topic: {index: committed.offset for index, committed in partitions.items()}
                for topic, partitions in coordinator.offsets.of_group(group_id).items()
            }
            rows.append(Group(group_id, state, members, offsets))
    return rows
