"""`kproc group describe|delete`: consumer groups, how far they are, and how far behind. The others: group_*.py."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kproc.cli.common import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    Failure,
    Format,
    OutputFormat,
    connect,
    print_done,
    print_json,
)
from kproc.cli.completion import complete_groups
from kproc.cli.consent import Consent
from kproc.cli.failure import explain
from kproc.cli.lines import print_facts, print_line
from kproc.cli.offsets import FoundOffset, find_offsets
from kproc.cli.tables import print_table
from kproc.cli.unserved import Partition, explain_coordinator, explain_unserved, lacks_coordinators
from kproc.common.lag import lag_between
from kproc.common.reading import LATEST

if TYPE_CHECKING:
    from kproc.client import Client

app = typer.Typer(
    help="List, describe, move and delete consumer groups.",
    no_args_is_help=True,
)

Group = Annotated[
    str, typer.Argument(metavar="GROUP", help="The group's id.", autocompletion=complete_groups)
]
Groups = Annotated[
    list[str], typer.Argument(metavar="GROUP", help="Ids of groups.", autocompletion=complete_groups)
]


@app.command()
def describe(
    groups: Groups, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, output: OutputFormat = Format.TABLE
) -> None:
    """Show members, committed offsets and lag of groups."""
    with connect(bootstrap) as client:
        errors: dict[Partition, str] = {}
        rows, refusals = described_groups(client, bootstrap, groups)
        described = describe_groups(client, rows, errors)
    line_of = explain_unserved(bootstrap, errors)
    for group in described:
        for row in group["partitions"]:
            row["error"] = line_of.get((row["topic"], row["partition"]))
    if output is Format.JSON:
        print_json(described)
    else:
        _print_groups(described)
    if refusals:
        raise Failure("; ".join(refusals))


def _print_groups(described: list[dict[str, Any]]) -> None:
    for position, group in enumerate(described):
        if position:
            print_line()
        facts = [
            f"group {group['group']}",
            f"state {group['state']}",
            f"assignor {group['assignor'] or '-'}",
            f"members {len(group['members'])}",
            f"lag {group['lag']}",
        ]
        print_facts(facts)
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
        for row in rows:
            if row["error"]:
                print_line(f"not served: {row['error']}")


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

    Partitions that are not served have no end and are added to `errors`.
    """
    names = list(described)
    committed = committed_offsets(client, names) if names else {}
    partitions = {name: sorted({*committed[name], *_assigned(described[name])}) for name in names}
    pending = _pending_offsets(client, partitions)
    wanted = sorted({partition for each in partitions.values() for partition in each})
    ends = find_offsets(client, dict.fromkeys(wanted, LATEST), errors)
    return [_with_lag(name, described[name], committed[name], ends, pending[name]) for name in names]


def described_groups(
    client: Client, bootstrap: str, names: list[str]
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Return the answers of DescribeGroups by group, and a line for each group without an answer or a coordinator."""
    from kproc.common.errors import ErrorCode
    from kproc.wire.header import ApiKey

    answer = client.call_latest(ApiKey.DESCRIBE_GROUPS, {"groups": names})
    rows = {row["group_id"]: row for row in answer["groups"]}
    found: dict[str, dict[str, Any]] = {}
    refusals = []
    for name in names:
        row = rows[name]
        is_homeless = row["error_code"] == ErrorCode.NOT_COORDINATOR
        # KIP-1043: brokers before it describe a group that does not exist as dead, and without an error.
        is_unknown = row["error_code"] == ErrorCode.GROUP_ID_NOT_FOUND or (
            not row["error_code"] and row["group_state"] == "Dead"
        )
        if is_unknown or (is_homeless and has_no_groups(client)):
            refusals.append(f"{name}: unknown group")
        elif row["error_code"]:
            refusal = explain(name, row["error_code"], row.get("error_message"))
            reason = explain_coordinator(bootstrap) if is_homeless else None
            refusals.append(refusal if reason is None else f"{name}: no coordinator: {reason}")
        else:
            found[name] = row
    return found, refusals


def has_no_groups(client: Client) -> bool:
    """Return True if no group has ever used the broker. It answers NOT_COORDINATOR then."""
    from kproc.broker.cluster.internal_topics import GROUP_METADATA_TOPIC

    return lacks_coordinators(client, GROUP_METADATA_TOPIC)


def committed_offsets(
    client: Client, names: list[str], refused: dict[str, int] | None = None
) -> dict[str, dict[Partition, int]]:
    """Return the committed offset of each partition, by group.

    Groups with an error are added to `refused` with its code. Without it they raise a Failure.
    """
    # KIP-709: one request for all groups. Null asks for every topic that a group has committed offsets of.
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
    """Return the partitions with an uncommitted offset of an open transaction, by group (UNSTABLE_OFFSET_COMMIT)."""
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


def _fetched_offsets(
    client: Client, groups: list[dict[str, Any]], refused: dict[str, int] | None, *, require_stable: bool
) -> dict[str, dict[Partition, dict[str, Any]]]:
    """Return the rows of OffsetFetch by group and partition. `refused` is the one of `committed_offsets`."""
    from kproc.common.errors import ErrorCode
    from kproc.wire.header import ApiKey

    fields = {"groups": groups, "require_stable": require_stable}
    fetched: dict[str, dict[Partition, dict[str, Any]]] = {}
    for group in client.call_latest(ApiKey.OFFSET_FETCH, fields)["groups"]:
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
    assigned = _assigned(described)
    rows = []
    for topic, number in sorted({*committed, *assigned}):
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
                "member": assigned.get((topic, number)),
            }
        )
    return {
        "group": name,
        "state": described["group_state"],
        "protocol_type": described["protocol_type"],
        "assignor": described["protocol_data"],
        "lag": sum(row["lag"] or 0 for row in rows),
        "members": [_member(row) for row in described["members"]],
        "partitions": rows,
    }


def _member(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "member_id": row["member_id"],
        "instance_id": row.get("group_instance_id"),
        "client_id": row["client_id"],
        "host": row["client_host"],
        "assignment": [f"{topic}-{number}" for topic, number in parse_assignment(row["member_assignment"])],
    }


def _assigned(described: dict[str, Any]) -> dict[Partition, dict[str, Any]]:
    """Return the member of each assigned partition. Other protocol types than consumer have none."""
    if described["protocol_type"] != "consumer":
        return {}
    return {
        partition: _member(row)
        for row in described["members"]
        for partition in parse_assignment(row["member_assignment"])
    }


def parse_assignment(data: bytes) -> list[Partition]:
    """Parse a member's ConsumerProtocolAssignment and return its partitions. Another protocol gives none.

    int16 version, int32 count of topics, each an int16-length name, an int32 count and int32 partitions.
    """
    found: list[Partition] = []
    try:
        (topics,) = struct.unpack_from(">i", data, 2)
        position = 6
        for _ in range(topics):
            (length,) = struct.unpack_from(">h", data, position)
            name = bytes(data[position + 2 : position + 2 + length]).decode()
            position += 2 + length
            (count,) = struct.unpack_from(">i", data, position)
            numbers = struct.unpack_from(f">{count}i", data, position + 4)
            position += 4 + 4 * count
            found += [(name, number) for number in numbers]
    except (struct.error, UnicodeDecodeError):
        return []  # Other protocol types (Connect, Schema Registry) have other formats.
    return found


@app.command()
def delete(
    groups: Groups,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    consent: Consent = Consent(),
    output: OutputFormat = Format.TABLE,
) -> None:
    """Delete groups without members, and their committed offsets.

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
        explain(row["group_id"], row["error_code"], known.get(row["error_code"]))
        for row in results
        if row["error_code"]
    ]
    done = [{"group": row["group_id"], "result": "deleted"} for row in results if not row["error_code"]]
    print_done(done, "{result} {group}", output, refusals)


_HAS_MEMBERS = "it has members: stop its consumers first"
_DELETION = "{result} {group} (committed offsets: {offsets})"


def _deletions(client: Client, bootstrap: str, groups: list[str]) -> list[dict[str, Any]]:
    """Return what a deletion of these groups would delete. Raise a Failure if one of them cannot be deleted."""
    names = list(dict.fromkeys(groups))
    rows, refusals = described_groups(client, bootstrap, names)
    refusals += [f"{name}: {_HAS_MEMBERS}" for name, row in rows.items() if row["members"]]
    if refusals:
        raise Failure("; ".join(refusals))
    committed = committed_offsets(client, names)
    return [{"group": name, "result": "would delete", "offsets": len(committed[name])} for name in names]
