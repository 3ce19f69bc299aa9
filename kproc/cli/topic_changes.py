"""`kproc topic alter|trim`: more partitions, other settings, fewer records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from kproc.cli.common import (
    DEFAULT_BOOTSTRAP,
    INT_MAX,
    Bootstrap,
    Failure,
    Format,
    OutputFormat,
    connect,
    print_done,
    usage_error,
)
from kproc.cli.completion import (
    complete_topic_setting_names,
    complete_topics,
)
from kproc.cli.configs import alter_configs, config_changes, topic_resource
from kproc.cli.positions import chosen_partitions, find_positions, parse_where
from kproc.cli.topics import TIMEOUT_MS, Settings, checked_topics, explain
from kproc.cli.unserved import Partition, explain_unserved

if TYPE_CHECKING:
    from kproc.client import Client

Name = Annotated[
    str, typer.Argument(metavar="TOPIC", help="The topic's name.", autocompletion=complete_topics)
]


def alter(
    name: Name,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions", "-p", min=1, max=INT_MAX, help="The new number of partitions. It can only grow."
        ),
    ] = None,
    config: Settings = None,
    unset: Annotated[
        list[str] | None,
        typer.Option(
            "--unset",
            metavar="NAME",
            help="Reset this setting to its default; may be repeated.",
            autocompletion=complete_topic_setting_names,
        ),
    ] = None,
    output: OutputFormat = Format.TABLE,
) -> None:
    """Change a topic: its number of partitions, its settings, or both."""
    changes = config_changes("--config", config, unset)
    if partitions is None and not changes:
        usage_error("nothing to change: give --partitions, --config or --unset")
    done = []
    try:
        with connect(bootstrap) as client:
            if partitions is not None:
                _grow(client, name, partitions)
                done.append({"name": name, "result": f"has {partitions} partitions"})
            if changes:
                alter_configs(client, topic_resource(name), changes)
                names = ", ".join(change["name"] for change in changes)
                done.append({"name": name, "result": f"changed: {names}"})
    finally:
        # Print the finished changes even if a later one was rejected, because they stay in force.
        print_done(done, "{name} {result}", output)


def _grow(client: Client, name: str, count: int) -> None:
    from kproc.wire.header import ApiKey

    topic = {"name": name, "count": count, "assignments": None}
    fields = {"topics": [topic], "timeout": TIMEOUT_MS, "validate_only": False}
    [result] = client.call_latest(ApiKey.CREATE_PARTITIONS, fields)["results"]
    if result["error_code"]:
        raise Failure(explain(name, result["error_code"], result.get("error_message")))


def trim(
    name: Name,
    before: Annotated[
        str,
        typer.Option(
            "--before",
            metavar="WHERE",
            help="end, an offset, -N (all but the last N), @MILLISECONDS or an ISO 8601 time.",
        ),
    ],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    partition: Annotated[
        list[int] | None,
        typer.Option("--partition", "-p", min=0, help="Only this partition; may be repeated."),
    ] = None,
    output: OutputFormat = Format.TABLE,
) -> None:
    """Delete a topic's oldest records permanently."""
    from kproc.wire.header import ApiKey

    where = parse_where("--before", before)
    if where == "beginning":
        usage_error("--before beginning: nothing stands before the beginning")
    with connect(bootstrap) as client:
        [metadata] = checked_topics(client, [name])
        known = [row["partition_index"] for row in metadata["partitions"]]
        errors: dict[Partition, str] = {}
        chosen = chosen_partitions(name, known, partition)
        found = find_positions(client, name, chosen, where, errors).found
        rows = [{"partition_index": number, "offset": offset} for number, offset in found.items()]
        fields = {"topics": [{"name": name, "partitions": rows}], "timeout": TIMEOUT_MS}
        answer = client.call_latest(ApiKey.DELETE_RECORDS, fields)
    results = sorted(answer["topics"][0]["partitions"], key=lambda row: int(row["partition_index"]))
    refusals = explain_unserved(bootstrap, errors)
    refusals += [
        explain(f"{name}-{row['partition_index']}", row["error_code"]) for row in results if row["error_code"]
    ]
    done = [
        {"topic": name, "partition": row["partition_index"], "start_offset": row["low_watermark"]}
        for row in results
        if not row["error_code"]
    ]
    print_done(done, "{topic}-{partition} begins at {start_offset}", output, refusals)
