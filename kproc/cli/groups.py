"""`kproc group describe` and `kproc group delete`. The other subcommands are in the modules group_*.py."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from kproc.cli.common import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    Failure,
    Format,
    OutputFormat,
    print_done,
    print_json,
)
from kproc.cli.completion import complete_groups
from kproc.cli.connection import connect
from kproc.cli.consent import Consent
from kproc.cli.failure import explain
from kproc.cli.group_description import (
    AWAY_EPOCH,
    CONSUMER,
    assigned_members,
    call_describe_groups,
    is_unknown,
    member_as_json,
)
from kproc.cli.lines import print_facts, print_line, print_text
from kproc.cli.offsets import FoundOffset, find_offsets
from kproc.cli.rights import groups_without_right
from kproc.cli.share_group import (
    SHARE,
    describe_share_group,
    print_share_group,
    start_offsets,
    total_lag,
)
from kproc.cli.share_records import dead_letters, records_in_flight
from kproc.cli.streams_group import STREAMS, print_missing_topics, print_streams_members
from kproc.cli.tables import print_table
from kproc.cli.topic_usage import Gaps
from kproc.cli.unserved import Partition, explain_coordinator, explain_unserved, lacks_coordinators
from kproc.common.lag import lag_between
from kproc.common.reading import LATEST

if TYPE_CHECKING:
    from kproc.client import Client

app = typer.Typer(
    help="List, describe, move and delete groups of all types.",
    no_args_is_help=True,
)

Group = Annotated[
    str, typer.Argument(metavar="GROUP", help="The group's id.", autocompletion=complete_groups)
]
Groups = Annotated[
    list[str], typer.Argument(metavar="GROUP", help="Ids of groups.", autocompletion=complete_groups)
]


_WAITS_SHOWN: Final = 8
# A partition's row names its member without the member's assignment. Otherwise the output grows with the square of the
# number of partitions: 53 MB for one member of 1,500 partitions.
_READER_FIELDS: Final = ("member_id", "instance_id", "client_id", "host")


@app.command()
def describe(
    groups: Groups, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, output: OutputFormat = Format.TABLE
) -> None:
    """Show members, committed offsets and lag of groups.

    A dash as LAG means that nothing was committed, or that the end is unknown.

    A group of the consumer protocol also has epochs, and a row for each member. A member whose epoch is behind the
    assignment epoch has not finished the rebalance. OWNS and TARGET are numbers of partitions: those that the member
    reads, and those that it shall read. A line below says for whom a member waits.

    A share group has start offsets: all records before START are delivered. LAG counts those behind it whose delivery
    is not complete. IN FLIGHT of them were delivered, and ACQUIRED are with a member now. DELIVERIES has their numbers
    by delivery count: with 1:20 3:2, 20 records were delivered once and 2 three times. Only a kproc broker on this host
    counts them. Dead letters are the records of the group's dead letter topic.

    A streams group has a row for each member with the numbers of its tasks. ACTIVE tasks process records, STANDBY and
    WARMUP tasks keep copies of their states. TARGET counts the tasks that the member shall have.
    """
    with connect(bootstrap) as client:
        errors: dict[Partition, str] = {}
        rows, refusals = described_groups(client, bootstrap, groups)
        shares = [name for name, row in rows.items() if row["type"] == SHARE]
        gaps = Gaps()
        offsets = start_offsets(client, shares) if shares else {}
        counts = records_in_flight(client, bootstrap, offsets, gaps) if shares else {}
        letters = dead_letters(client, shares, gaps) if shares else {}
        others = {name: row for name, row in rows.items() if name not in offsets}
        consumers = describe_groups(client, others, errors) if others else []
        by_name = {row["group"]: row for row in consumers}
        by_name |= {
            name: describe_share_group(
                rows[name], offsets[name], counts.get(name, {}), letters.get(name, (None, None))
            )
            for name in shares
        }
        described = [by_name[name] for name in rows]
    line_of = explain_unserved(bootstrap, errors)
    for group in described:
        for row in group["partitions"]:
            row["error"] = line_of.get((row["topic"], row["partition"]))
    if output is Format.JSON:
        print_json(described)
    else:
        _print_groups(described)
    gaps.report()
    if refusals:
        raise Failure("; ".join(refusals))


def _print_groups(described: list[dict[str, Any]]) -> None:
    for position, group in enumerate(described):
        if position:
            print_line()
        if group["type"] == SHARE:
            print_share_group(group)
            continue
        print_facts(_facts(group))
        rows = group["partitions"]
        has_pending = any(row["in_transaction"] for row in rows)
        print_table(
            (
                *("TOPIC", "PARTITION", "COMMITTED", "END", "LAG"),
                *(("IN TRANSACTION",) if has_pending else ()),
                *("CLIENT", "HOST", "MEMBER"),
            ),
            [_partition_row(row, with_pending=has_pending) for row in rows],
            drop=("MEMBER", "HOST", "CLIENT"),
            cut=("TOPIC",),
        )
        if group["type"] == CONSUMER and group["members"]:
            print_line()
            _print_members(group["members"])
        if group["type"] == STREAMS:
            print_missing_topics(group)
            if group["members"]:
                print_line()
                print_streams_members(group["members"])
                _print_waits(group["members"])
        for row in rows:
            if row["error"]:
                print_line(f"partition not served: {row['error']}")


def _facts(group: dict[str, Any]) -> Iterator[str]:
    yield f"group {group['group']}"
    yield f"type {group['type']}"
    yield f"state {group['state']}"
    if group["group_epoch"] is not None:
        yield f"group epoch {group['group_epoch']}"
        yield f"assignment epoch {group['assignment_epoch']}"
    yield f"assignor {group['assignor'] or '-'}"
    yield f"members {len(group['members'])}"
    yield f"lag {'-' if group['lag'] is None else group['lag']}"


def _print_members(members: list[dict[str, Any]]) -> None:
    """Print the members of a consumer group, and the members for which they wait."""
    print_table(
        ("MEMBER", "EPOCH", "OWNS", "TARGET", "SUBSCRIPTION", "TYPE", "CLIENT", "HOST", "INSTANCE"),
        [
            (
                member["member_id"],
                "away" if member["member_epoch"] == AWAY_EPOCH else member["member_epoch"],
                len(member["assignment"]),
                len(member["target"]),
                [*member["topics"], *([f"/{member['regex']}/"] if member["regex"] else ())],
                member["type"],
                member["client_id"],
                member["host"],
                member["instance_id"],
            )
            for member in members
        ],
        drop=("INSTANCE", "TYPE", "HOST", "CLIENT"),
        cut=("SUBSCRIPTION", "MEMBER"),
    )
    _print_waits(members)


def _print_waits(members: list[dict[str, Any]]) -> None:
    for line in _wait_lines(members):
        print_text(line, "  ")


def _wait_lines(members: list[dict[str, Any]]) -> Iterator[str]:
    away = {each["member_id"] for each in members if each["member_epoch"] == AWAY_EPOCH}
    for member in members:
        # Print one line for all partitions that the same members must give up.
        waits: dict[tuple[str, ...], list[str]] = {}
        for wait in member["waits_for"]:
            waits.setdefault(tuple(wait["members"]), []).append(wait["partition"])
        for holders, partitions in waits.items():
            more = len(partitions) - _WAITS_SHOWN
            names = ", ".join(partitions[:_WAITS_SHOWN]) + (f" and {more} more" if more > 0 else "")
            if not holders:
                yield f"{member['member_id']} gets {names} with its next heartbeat"
                continue
            who = " or ".join(f"{each} (static, away)" if each in away else each for each in holders)
            yield f"{member['member_id']} waits for {who} to give up {names}"


def _partition_row(row: dict[str, Any], *, with_pending: bool) -> list[Any]:
    member = row["member"] or {}
    columns = [row[key] for key in ("topic", "partition", "committed", "end_offset", "lag")]
    if with_pending:
        columns.append("yes" if row["in_transaction"] else None)
    return columns + [member.get(key) for key in ("client_id", "host", "member_id")]


def describe_groups(
    client: Client, described: dict[str, dict[str, Any]], errors: dict[Partition, str]
) -> list[dict[str, Any]]:
    """Return each group's state and members, and for each partition the committed offset, the end and the lag.

    Offline partitions have no end and are added to `errors`.
    """
    names = list(described)
    committed = committed_offsets(client, names) if names else {}
    partitions = {name: sorted({*committed[name], *assigned_members(described[name])}) for name in names}
    pending = _pending_offsets(client, partitions)
    wanted = sorted({partition for each in partitions.values() for partition in each})
    ends = find_offsets(client, dict.fromkeys(wanted, LATEST), errors)
    return [_with_lag(name, described[name], committed[name], ends, pending[name]) for name in names]


def described_groups(
    client: Client, bootstrap: str, names: list[str]
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Return the descriptions by group, and an error line for each group that is unknown or has another error."""
    from kproc.common.errors import ErrorCode

    rows = call_describe_groups(client, names)
    found: dict[str, dict[str, Any]] = {}
    refusals = []
    for name in names:
        row = rows[name]
        is_homeless = row["error_code"] == ErrorCode.NOT_COORDINATOR
        if is_unknown(row) or (is_homeless and has_no_groups(client)):
            refusals.append(f"{name}: unknown group")
        elif row["error_code"]:
            refusal = explain(name, row["error_code"], row["error_message"])
            reason = explain_coordinator(bootstrap) if is_homeless else None
            refusals.append(refusal if reason is None else f"{name}: no coordinator: {reason}")
        else:
            found[name] = row
    return found, refusals


def has_no_groups(client: Client) -> bool:
    """Return True if __consumer_offsets does not exist, because no group has ever used the broker.

    Without it, requests about groups get NOT_COORDINATOR.
    """
    from kproc.broker.cluster.internal_topics import GROUP_METADATA_TOPIC

    return lacks_coordinators(client, GROUP_METADATA_TOPIC)


def committed_offsets(
    client: Client, names: list[str], refused: dict[str, int] | None = None
) -> dict[str, dict[Partition, int]]:
    """Return the committed offset of each partition, by group.

    Groups with an error are added to `refused` with the error code. If `refused` is None, raise a Failure instead.
    """
    # KIP-709: OffsetFetch for several groups. Null topics request every topic for which a group has committed offsets.
    groups = [{"group_id": name, "topics": None} for name in names]
    return {
        name: {
            partition: row["committed_offset"]
            for partition, row in rows.items()
            if row["committed_offset"] >= 0
        }
        for name, rows in _fetched_offsets(client, groups, refused, require_stable=False).items()
    }


def _pending_offsets(client: Client, partitions: dict[str, list[Partition]]) -> dict[str, set[Partition]]:
    """Return by group the partitions with an offset in an open transaction (UNSTABLE_OFFSET_COMMIT)."""
    from kproc.client.requests import numbers_by_topic
    from kproc.common.errors import ErrorCode

    groups = []
    for name, of_group in partitions.items():
        numbers = numbers_by_topic(of_group).items()
        rows = [{"name": topic, "partition_indexes": each} for topic, each in numbers]
        groups.append({"group_id": name, "topics": rows})
    return {
        name: {
            partition
            for partition, row in rows.items()
            if row["error_code"] == ErrorCode.UNSTABLE_OFFSET_COMMIT
        }
        for name, rows in _fetched_offsets(client, groups, None, require_stable=True).items()
    }


def _offset_fetch_rows(
    client: Client, groups: list[dict[str, Any]], *, require_stable: bool
) -> list[dict[str, Any]]:
    """Return a row of OffsetFetch for each group, by one request, or by one for each group before Kafka 3.0."""
    from kproc.wire.header import ApiKey

    rows: list[dict[str, Any]] = []
    for group in groups:
        # KIP-709: newer versions send `groups`, and older ones the fields of one group.
        fields = {**group, "groups": groups, "require_stable": require_stable}
        answer = client.call_latest(ApiKey.OFFSET_FETCH, fields)
        if "groups" in answer:
            return list(answer["groups"])
        rows.append({**answer, "group_id": group["group_id"]})
    return rows


def _fetched_offsets(
    client: Client, groups: list[dict[str, Any]], refused: dict[str, int] | None, *, require_stable: bool
) -> dict[str, dict[Partition, dict[str, Any]]]:
    """Return the rows of OffsetFetch by group and partition.

    Groups with an error are added to `refused` with the error code. If `refused` is None, raise a Failure instead.
    require_stable: a partition whose offset an open
    transaction changes gets the error UNSTABLE_OFFSET_COMMIT (KIP-447). Groups of a broker without __consumer_offsets
    have no rows.
    """
    from kproc.common.errors import ErrorCode

    fetched: dict[str, dict[Partition, dict[str, Any]]] = {}
    for group in _offset_fetch_rows(client, groups, require_stable=require_stable):
        if group["error_code"]:
            if group["error_code"] == ErrorCode.NOT_COORDINATOR and has_no_groups(client):
                fetched[group["group_id"]] = {}
                continue
            if refused is None:
                raise Failure(explain(group["group_id"], group["error_code"]))
            refused[group["group_id"]] = group["error_code"]
            continue
        fetched[group["group_id"]] = {
            (topic["name"], row["partition_index"]): row
            for topic in group["topics"]
            for row in topic["partitions"]
        }
    return fetched


def _with_lag(
    name: str,
    described: dict[str, Any],
    committed: dict[Partition, int],
    ends: Mapping[Partition, FoundOffset],
    pending: set[Partition],
) -> dict[str, Any]:
    readers = {
        partition: {name: member[name] for name in _READER_FIELDS}
        for partition, member in assigned_members(described).items()
    }
    rows = []
    for topic, number in sorted({*committed, *readers}):
        offset, found = committed.get((topic, number)), ends.get((topic, number))
        end = None if found is None else found.offset
        rows.append(
            {
                "topic": topic,
                "partition": number,
                "committed": offset,
                "end_offset": end,
                "lag": lag_between(offset, end) if offset is not None and end is not None else None,
                "in_transaction": (topic, number) in pending,
                "member": readers.get((topic, number)),
            }
        )
    figures = ("type", "state", "protocol_type", "assignor", "group_epoch", "assignment_epoch")
    return {
        "group": name,
        **{figure: described[figure] for figure in figures},
        **({"missing_topics": described["missing_topics"]} if "missing_topics" in described else {}),
        "lag": total_lag(rows),
        "members": [member_as_json(member) for member in described["members"]],
        "partitions": rows,
    }


@app.command()
def delete(
    groups: Groups,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    consent: Consent = Consent(),
    output: OutputFormat = Format.TABLE,
) -> None:
    """Delete groups without members, and their offsets.

    Without --yes the command shows them and asks first.
    """
    from kproc.common.errors import ErrorCode
    from kproc.wire.header import ApiKey

    known = {
        ErrorCode.GROUP_ID_NOT_FOUND: "unknown group",
        ErrorCode.NON_EMPTY_GROUP: _HAS_MEMBERS,
    }
    consent.check("group delete")
    with connect(bootstrap) as client:
        if consent.needs_plan:
            rows = _deletions(client, bootstrap, groups)
            if not consent.obtain(rows, _DELETION, output):
                return
        results = client.call_latest(ApiKey.DELETE_GROUPS, {"groups_names": groups})["results"]
        is_homeless = any(row["error_code"] == ErrorCode.NOT_COORDINATOR for row in results)
        if is_homeless and has_no_groups(client):
            known[ErrorCode.NOT_COORDINATOR] = known[ErrorCode.GROUP_ID_NOT_FOUND]
    refusals = [
        explain(row["group_id"], row["error_code"], words=known.get(row["error_code"]))
        for row in results
        if row["error_code"]
    ]
    done = [{"group": row["group_id"], "result": "deleted"} for row in results if not row["error_code"]]
    print_done(done, "{result} {group}", output, refusals)


_HAS_MEMBERS = "it has members: stop its consumers first"
_DELETION = "{result} {group} (partitions with offsets: {offsets})"


def _deletions(client: Client, bootstrap: str, groups: list[str]) -> list[dict[str, Any]]:
    """Return a row for each group with what its deletion would delete. Raise a Failure if a group cannot be deleted."""
    from kproc.broker.security.acl import Operation

    names = list(dict.fromkeys(groups))
    rows, refusals = described_groups(client, bootstrap, names)
    refusals += groups_without_right(client, list(rows), Operation.DELETE)
    refusals += [f"{name}: {_HAS_MEMBERS}" for name, row in rows.items() if row["members"]]
    if refusals:
        raise Failure("; ".join(refusals))
    shares = [name for name in names if rows[name]["type"] == SHARE]
    others = [name for name in names if name not in shares]
    found: dict[str, dict[Partition, Any]] = {**(committed_offsets(client, others) if others else {})}
    found |= start_offsets(client, shares) if shares else {}
    return [{"group": name, "result": "would delete", "offsets": len(found[name])} for name in names]
