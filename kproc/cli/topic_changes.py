"""`kproc topic alter` adds partitions and changes settings. `kproc topic trim` deletes the oldest records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from kproc.cli.common import (
    DEFAULT_BOOTSTRAP,
    INT_MAX,
    Bootstrap,
    Failure,
    Format,
    OutputFormat,
    print_done,
    usage_error,
)
from kproc.cli.completion import (
    complete_topic_setting_names,
    complete_topics,
)
from kproc.cli.config_requests import alter_configs, topic_resource
from kproc.cli.configs import config_changes, confirm_changes, unset_option
from kproc.cli.connection import connect
from kproc.cli.consent import Consent
from kproc.cli.failure import explain
from kproc.cli.positions import Partitions, Positions, chosen_partitions, find_positions, parse_where
from kproc.cli.topics import TIMEOUT_MS, Settings, checked_topics
from kproc.cli.unserved import Partition, explain_unserved

if TYPE_CHECKING:
    from kproc.client import Client

Name = Annotated[
    str, typer.Argument(metavar="TOPIC", help="The topic's name.", autocompletion=complete_topics)
]


PartitionCount = Annotated[
    int | None,
    typer.Option(
        "--partitions", "-p", min=1, max=INT_MAX, help="The new number of partitions. It can only grow."
    ),
]
Unset = Annotated[list[str] | None, unset_option(complete_topic_setting_names)]


def alter(
    name: Name,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    partitions: PartitionCount = None,
    config: Settings = None,
    unset: Unset = None,
    consent: Consent = Consent(),
    output: OutputFormat = Format.TABLE,
) -> None:
    """Change the partitions and settings of a topic.

    A change that resets a setting or can delete records (a shorter retention) is shown and confirmed first, unless
    --yes is given.
    """
    changes = config_changes("--config", config, unset)
    if partitions is None and not changes:
        usage_error("nothing to change: give --partitions, --config or --unset")
    done = []
    try:
        with connect(bootstrap) as client:
            resource, dry_run = topic_resource(name), consent.dry_run
            if changes:
                plan = confirm_changes(client, resource, changes, consent, "topic alter")
            if partitions is not None:
                _grow(client, name, partitions, dry_run=dry_run)
                result = f"{'would have' if dry_run else 'has'} {partitions} partitions"
                done.append({"name": name, "result": result})
            if changes:
                alter_configs(client, resource, changes, dry_run=dry_run)
                result = "would change" if dry_run else "changed"
                done += [
                    {"name": name, "result": f"{result} {{setting}}: {{from}} -> {{to}}".format_map(row)}
                    for row in plan
                ]
    finally:
        # Print the finished changes even if a later one was rejected, because they stay in force.
        print_done(done, "{name} {result}", output)


def _grow(client: Client, name: str, count: int, *, dry_run: bool) -> None:
    from kproc.wire.header import ApiKey

    topic = {"name": name, "count": count, "assignments": None}
    fields = {"topics": [topic], "timeout": TIMEOUT_MS, "validate_only": dry_run}
    [result] = client.call_latest(ApiKey.CREATE_PARTITIONS, fields)["results"]
    if result["error_code"]:
        raise Failure(explain(name, result["error_code"], result.get("error_message")))


Before = Annotated[
    str,
    typer.Option(
        "--before",
        metavar="WHERE",
        help="end, an offset, -N (all but the last N), @MILLISECONDS or an ISO 8601 time.",
    ),
]


def trim(
    name: Name,
    before: Before,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    partition: Partitions = None,
    consent: Consent = Consent(),
    output: OutputFormat = Format.TABLE,
) -> None:
    """Delete a topic's oldest records permanently.

    Without --yes the command shows how many and asks first.
    """
    from kproc.broker.security.acl import Operation
    from kproc.wire.header import ApiKey

    where = parse_where("--before", before)
    if where == "beginning":
        usage_error("--before beginning: nothing stands before the beginning")
    consent.check("topic trim")
    with connect(bootstrap) as client:
        [metadata] = checked_topics(client, [name], needs=Operation.DELETE)
        errors: dict[Partition, str] = {}
        positions = find_positions(client, name, chosen_partitions(metadata, partition), where, errors)
        if consent.needs_plan:
            plan = _trims(name, positions)
            if not consent.obtain(plan, _TRIM, output):
                if errors:
                    raise Failure("; ".join(explain_unserved(bootstrap, errors).values()))
                return
        rows = [{"partition_index": number, "offset": offset} for number, offset in positions.found.items()]
        fields = {"topics": [{"name": name, "partitions": rows}], "timeout": TIMEOUT_MS}
        answer = client.call_latest(ApiKey.DELETE_RECORDS, fields)
    refusals = list(explain_unserved(bootstrap, errors).values())
    _print_trimmed(name, answer["topics"][0]["partitions"], refusals, output)


def _print_trimmed(name: str, rows: list[dict[str, Any]], refusals: list[str], output: Format) -> None:
    """Print the results of DeleteRecords.

    Raise a Failure with the errors of partitions and with `refusals`, the reasons why partitions were not requested.
    """
    from kproc.common.errors import ErrorCode

    rows = sorted(rows, key=lambda row: int(row["partition_index"]))
    # DeleteRecords has no messages, and this is the only policy that it knows.
    reasons = {
        int(ErrorCode.POLICY_VIOLATION): "the topic has cleanup.policy=compact; "
        "records can be deleted with cleanup.policy=compact,delete"
    }
    refused = [
        explain(f"{name}-{row['partition_index']}", code, reasons.get(code))
        for row in rows
        if (code := row["error_code"])
    ]
    done = [
        {"topic": name, "partition": row["partition_index"], "start_offset": row["low_watermark"]}
        for row in rows
        if not row["error_code"]
    ]
    print_done(done, "{topic}-{partition} begins at offset {start_offset}", output, refusals + refused)


_TRIM = "{result} {topic}-{partition} before offset {start_offset} (records: {records})"


def _trims(name: str, positions: Positions) -> list[dict[str, Any]]:
    """Return a row for each partition with the number of records before its position, which a trim would delete."""
    return [
        {
            "topic": name,
            "partition": number,
            "result": "would delete",
            "records": offset - positions.starts[number],
            "start_offset": offset,
        }
        for number, offset in sorted(positions.found.items())
    ]
