"""`kproc group list`: groups with their state, members, lag, and the age of the lag."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kproc.cli.common import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    Failure,
    Format,
    OutputFormat,
    chosen_names,
    print_json,
)
from kproc.cli.connection import connect
from kproc.cli.failure import explain
from kproc.cli.group_description import CONSUMER
from kproc.cli.groups import committed_offsets
from kproc.cli.human import format_duration
from kproc.cli.lag_age import Position, record_times
from kproc.cli.offsets import PATIENCE_MS, find_offsets
from kproc.cli.rights import print_empty_list_note
from kproc.cli.share_group import SHARE, start_offsets, total_lag
from kproc.cli.streams_group import STREAMS
from kproc.cli.tables import print_count, print_table
from kproc.cli.topic_usage import Gaps
from kproc.cli.unserved import Partition
from kproc.common.clock import SystemClock
from kproc.common.lag import lag_between
from kproc.common.reading import LATEST

if TYPE_CHECKING:
    from kproc.client import Client


class GroupOrder(StrEnum):
    """The column by which groups are sorted. Numbers are in descending order."""

    NAME = "name"
    STATE = "state"
    MEMBERS = "members"
    LAG = "lag"
    BEHIND = "behind"


State = Annotated[
    list[str] | None,
    typer.Option(
        "--state", metavar="STATE", help="Only in this state, such as Stable or Empty; may be repeated."
    ),
]


def list_groups(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: OutputFormat = Format.TABLE,
    sort: Annotated[GroupOrder, typer.Option("--sort", help="Column to sort by.")] = GroupOrder.NAME,
    state: State = None,
) -> None:
    """List groups with state, members and lag.

    LAG: records between the committed offsets and the ends of all partitions. BEHIND: age of the oldest record that is
    not committed, so the time since when the group lags. A dash is an unknown figure, or no committed offset. A share
    group's LAG counts the records whose delivery is not complete. TYPE and PROTOCOL are Kafka's words. TYPE: the way in
    which members join: classic, consumer (KIP-848), share or streams. PROTOCOL: the purpose of a classic group:
    consumer for consumers of topics, connect for workers of Kafka Connect. Most groups have type classic and protocol
    consumer.
    """
    from kproc.client.requests import GROUP_STATES

    wanted = chosen_names("--state", state, GROUP_STATES)
    gaps = Gaps()
    with connect(bootstrap) as client:
        client.timeout_ms = PATIENCE_MS
        rows = listed_groups(client, wanted)
        if not rows and not wanted:
            print_empty_list_note(client, "groups")
        by_name = {row["group"]: row for row in rows}
        add_members(client, by_name)
        add_ages(client, by_name, add_lags(client, by_name, gaps), gaps)
    sort_rows(rows, sort)
    if output is Format.JSON:
        print_json(rows)
    else:
        now_ms = SystemClock().wall_ms()
        print_table(
            ("GROUP", "STATE", "MEMBERS", "LAG", "BEHIND", "TYPE", "PROTOCOL"),
            [_cells(row, now_ms) for row in rows],
            drop=("PROTOCOL", "TYPE"),
            cut=("GROUP",),
        )
        print_count(len(rows), "group")
    gaps.report()


def listed_groups(client: Client, states: list[str]) -> list[dict[str, Any]]:
    """Return a row for each group in one of `states`, or for all groups if `states` is empty.

    Its members and lag are None, for add_members() and add_lags() to fill in.
    """
    from kproc.wire.header import ApiKey

    answer = client.call_latest(ApiKey.LIST_GROUPS, {"states_filter": states, "types_filter": []})
    if answer["error_code"]:
        raise Failure(explain("groups", answer["error_code"]))
    return [
        {
            "group": row["group_id"],
            "state": row.get("group_state"),
            "type": row.get("group_type"),
            "protocol_type": row["protocol_type"],
            "members": None,
            "lag": None,
            "lag_since_ms": None,
        }
        for row in answer["groups"]
    ]


def sort_rows(rows: list[dict[str, Any]], order: GroupOrder) -> None:
    """Sort the rows in place. Rows without a number come last, rows without a state first, equal rows by name."""
    rows.sort(key=lambda row: str(row["group"]))
    if order is GroupOrder.STATE:
        rows.sort(key=lambda row: row["state"] or "")
    elif order is GroupOrder.BEHIND:
        rows.sort(key=lambda row: (row["lag_since_ms"] is None, row["lag_since_ms"] or 0))
    elif order is not GroupOrder.NAME:
        rows.sort(key=lambda row: -1 if row[order.value] is None else row[order.value], reverse=True)


def add_lags(client: Client, rows: Mapping[str, dict[str, Any]], gaps: Gaps) -> dict[str, list[Position]]:
    """Add the lags to the rows. Return by group the committed positions with a lag above 0, without share groups."""
    from kproc.client import error_text
    from kproc.wire.header import ApiKey

    if not rows:
        return {}
    refused: dict[str, int] = {}
    shares = [name for name, row in rows.items() if row["type"] == SHARE]
    for name, offsets in start_offsets(client, shares, refused).items() if shares else ():
        rows[name]["lag"] = total_lag(offsets.values())
    others = [name for name in rows if name not in shares]
    committed = committed_offsets(client, others, refused) if others else {}
    if refused:
        gaps.add("the lag of some groups", error_text(next(iter(refused.values()))))
    if not others or gaps.lacks(client, ApiKey.LIST_OFFSETS, "lags"):
        return {}
    errors: dict[Partition, str] = {}
    partitions = sorted({partition for offsets in committed.values() for partition in offsets})
    ends = find_offsets(client, dict.fromkeys(partitions, LATEST), errors)
    if errors:
        gaps.add("the lag of some partitions", next(iter(errors.values())))
    behind: dict[str, list[Position]] = {}
    for group, committed_by in committed.items():
        lags = {
            (partition, offset): lag_between(offset, ends[partition].offset)
            for partition, offset in committed_by.items()
            if partition in ends
        }
        if lags:
            rows[group]["lag"] = sum(lags.values())
            behind[group] = [position for position, lag in lags.items() if lag]
    return behind


def add_members(client: Client, rows: Mapping[str, dict[str, Any]]) -> None:
    """Add the number of members to the rows. Uses one request for each group protocol."""
    from kproc.wire.header import ApiKey

    if not rows:
        return
    # By group type, the request that describes groups of that newer protocol. DescribeGroups covers classic groups.
    requests = {
        CONSUMER: ApiKey.CONSUMER_GROUP_DESCRIBE,
        SHARE: ApiKey.SHARE_GROUP_DESCRIBE,
        STREAMS: ApiKey.STREAMS_GROUP_DESCRIBE,
    }
    described: list[dict[str, Any]] = []
    classic = [name for name, row in rows.items() if row["type"] not in requests]
    if classic:
        described += client.call_latest(ApiKey.DESCRIBE_GROUPS, {"groups": classic})["groups"]
    for group_type, key in requests.items():
        names = [name for name, row in rows.items() if row["type"] == group_type]
        if names and key in client.api_versions():
            described += client.call_latest(key, {"group_ids": names})["groups"]
    for group in described:
        if not group["error_code"]:
            rows[group["group_id"]]["members"] = len(group["members"])


def add_ages(
    client: Client,
    rows: Mapping[str, dict[str, Any]],
    behind: Mapping[str, list[Position]],
    gaps: Gaps,
    known: Mapping[Position, int] | None = None,
) -> dict[Position, int]:
    """Add the time of the oldest uncommitted record to each row. Groups with the largest lags are read first.

    Return the times of the records by position. Times in `known` are not read again.
    """
    from kproc.wire.header import ApiKey

    groups = sorted(behind, key=lambda group: rows[group]["lag"], reverse=True)
    positions = [position for group in groups for position in behind[group]]
    if not positions or gaps.lacks(client, ApiKey.FETCH, "ages of lags"):
        return {}
    times = {each: known[each] for each in positions if each in known} if known else {}
    times |= record_times(client, [each for each in positions if each not in times])
    if not times:
        gaps.add("the age of lags", "it needs the right READ on the topics")
    for group in groups:
        of_group = [times[position] for position in behind[group] if position in times]
        rows[group]["lag_since_ms"] = min((each for each in of_group if each >= 0), default=None)
    return times


def _cells(row: Mapping[str, Any], now_ms: int) -> list[object]:
    since_ms = row["lag_since_ms"]
    behind = None if since_ms is None else format_duration(now_ms - since_ms)
    return [
        *(row[name] for name in ("group", "state", "members", "lag")),
        behind,
        row["type"],
        row["protocol_type"],
    ]
