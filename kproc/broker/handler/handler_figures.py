"""Collects a Handler's metrics of topics and groups for the controller when a client scrapes metrics."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Final

from kproc.broker.calls.calls import FromImage, OnResult
from kproc.broker.coordinator.steps import Work
from kproc.broker.fetch.delayed_fetch import DelayedFetch
from kproc.broker.fetch.fetch_owners import WATCH
from kproc.broker.handler.partitions import Partitions
from kproc.broker.observe.broker_figures import (
    REPORTED_GROUPS_MAX,
    REPORTED_OFFSETS_MAX,
    Group,
    HandlerFigures,
)
from kproc.broker.observe.topic_traffic import TrafficReport
from kproc.broker.peers.group_call import GROUPS
from kproc.broker.request.context import Services
from kproc.broker.share.session.acquire import Acquisition
from kproc.common.bounded import short_name

# Costs of a group in a survey, in units of about 1 us: to count it, and to describe it without its offsets.
_COUNT_COST: Final = 2
_ROW_COST: Final = 4


def handle_call(services: Services, _body: FromImage, on_reply: OnResult[HandlerFigures]) -> None:
    groups = GROUPS.of(services)
    groups.when_loaded(lambda: groups.start_survey(_collect(services, on_reply)))


def handle_traffic(services: Services, _body: FromImage, on_reply: OnResult[TrafficReport]) -> None:
    """Reply with this Handler's traffic by topic, its number of long polls, and its number of outstanding syncs."""
    partitions = services.owner.partitions
    assert isinstance(partitions, Partitions)
    on_reply(TrafficReport(_traffic(partitions), _count_long_polls(services), partitions.count_syncs()))


def _count_long_polls(services: Services) -> int:
    """Return how many requests of clients wait for records.

    Reads that this Handler does for another one do not count.
    """
    return sum(
        isinstance(each, Acquisition) or (isinstance(each, DelayedFetch) and not _is_for_home(each))
        for each in services.owner.purgatory.deadlines
    )


def _is_for_home(fetch: DelayedFetch) -> bool:
    # The length tells a WATCH key from the key (topic, index) of a partition whose topic is named "watch".
    return any(isinstance(key, tuple) and len(key) == 3 and key[0] == WATCH for key in fetch.watched)


def _collect(services: Services, on_reply: OnResult[HandlerFigures]) -> Work:
    """Collect the metrics of topics, logs and groups in steps, because a Handler can have 100,000 groups."""
    rows: list[Group] = []
    more: dict[str, Counter[str]] = defaultdict(Counter)
    yield from _collect_groups(services, rows, more)
    partitions = services.owner.partitions
    assert isinstance(partitions, Partitions)
    sizes: dict[str, list[int]] = {}
    offline = partitions.damaged_count
    for owned in partitions.opened():
        log = owned.log
        topic, index = owned.key
        flat = sizes.get(topic)
        if flat is None:
            flat = sizes[topic] = []
        flat += (index, *log.state.sizes())
        if log.state.offline_reason is not None:
            offline += 1
    on_reply(HandlerFigures(partitions.since_ns, _traffic(partitions), sizes, offline, rows, dict(more)))


def _traffic(partitions: Partitions) -> dict[str, list[int]]:
    """Return [bytes in, records in, bytes out, fetches] by topic."""
    return {
        topic: [each.bytes_in, each.records_in, each.bytes_out, each.fetches]
        for topic, each in partitions.traffic.items()
    }


def _collect_groups(services: Services, rows: list[Group], more: dict[str, Counter[str]]) -> Work:
    """Add the groups to `rows`, and count those beyond the limits of a reply in `more`, by type and state."""
    offset_count = 0
    for coordinator in GROUPS.of(services).loaded():
        for group_id, group_type, state, members in coordinator.sizes():
            committed = coordinator.offsets.of_group(group_id)
            own_count = sum(map(len, committed.values()))
            offset_count += own_count
            if len(rows) == REPORTED_GROUPS_MAX or offset_count > REPORTED_OFFSETS_MAX:
                more[group_type][state] += 1
                yield _COUNT_COST
                continue
            offsets = {
                topic: {index: each.offset for index, each in partitions.items()}
                for topic, partitions in committed.items()
            }
            rows.append(Group(short_name(group_id), group_type, state, members, offsets))
            yield _ROW_COST + own_count
