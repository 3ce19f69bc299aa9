"""`kproc topic create|list|describe|delete`, over one plain connection; alter and trim: topic_changes.py."""

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
    connect,
    pairs,
    print_done,
    print_facts,
    print_json,
    print_table,
    topic_metadata,
)
from kproc.cli.completion import complete_topic_settings, complete_topics
from kproc.cli.lines import print_line
from kproc.cli.unserved import Partition, explain_unserved
from kproc.common.reading import EARLIEST, LATEST, READ_COMMITTED, READ_UNCOMMITTED

if TYPE_CHECKING:
    from kproc.client import Client

app = typer.Typer(help="Create, list, describe, alter, trim and delete topics.", no_args_is_help=True)

Names = Annotated[
    list[str], typer.Argument(metavar="TOPIC", help="Names of topics.", autocompletion=complete_topics)
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--config",
        "-c",
        metavar="NAME=VALUE",
        help="A setting of the topic; may be repeated.",
        autocompletion=complete_topic_settings,
    ),
]
TIMEOUT_MS = 30_000


@app.command()
def create(
    names: Names,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    partitions: Annotated[
        int, typer.Option("--partitions", "-p", min=-1, max=INT_MAX, help="-1: the broker's default.")
    ] = -1,
    replication_factor: Annotated[
        int, typer.Option(min=-1, max=2**15 - 1, help="-1: the broker's default.")
    ] = -1,
    config: Settings = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="An existing topic is no error.")
    ] = False,
    output: OutputFormat = Format.TABLE,
) -> None:
    """Create topics."""
    from kproc.client.requests import topic_creation
    from kproc.common.errors import ErrorCode
    from kproc.wire.header import ApiKey

    configs = pairs("--config", config or ())
    fields = {
        "topics": [
            topic_creation(
                name, partitions=partitions, replication_factor=replication_factor, configs=configs
            )
            for name in names
        ],
        "timeout": TIMEOUT_MS,
        "validate_only": False,
    }
    with connect(bootstrap) as client:
        answer = client.call_latest(ApiKey.CREATE_TOPICS, fields)
    # Tolerate the error instead of checking first: another client can create the topic between the check and the
    # creation.
    tolerated = ErrorCode.TOPIC_ALREADY_EXISTS if if_not_exists else None
    _report("created", answer["topics"], tolerated, output)


@app.command("list")
def list_topics(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: OutputFormat = Format.TABLE,
    internal: Annotated[bool, typer.Option("--internal", help="Also list internal topics.")] = False,
) -> None:
    """List topics with their numbers of partitions."""
    with connect(bootstrap) as client:
        topics = topic_metadata(client, None)
    shown = sorted(
        (t for t in topics if internal or not t.get("is_internal")), key=lambda topic: str(topic["name"])
    )
    rows = [{"name": topic["name"], "partitions": len(topic["partitions"])} for topic in shown]
    if output is Format.JSON:
        print_json(rows)
    else:
        print_table(("TOPIC", "PARTITIONS"), [list(row.values()) for row in rows], cut=("TOPIC",))


@app.command()
def describe(
    names: Names, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, output: OutputFormat = Format.TABLE
) -> None:
    """Show partitions with their offsets, and the settings that differ from the broker's."""
    with connect(bootstrap) as client:
        errors: dict[Partition, str] = {}
        described = [_describe(client, topic, errors) for topic in checked_topics(client, names)]
    _add_errors(described, explain_unserved(bootstrap, errors), errors)
    if output is Format.JSON:
        print_json(described)
        return
    for position, topic in enumerate(described):
        settings = " ".join(f"{name}={value}" for name, value in topic["configs"].items()) or "-"
        if position:
            print_line()
        facts = [
            f"topic {topic['name']}",
            f"id {topic['id'] or '-'}",
            f"partitions {len(topic['partitions'])}",
            f"records {topic['records']}",
            f"settings {settings}",
        ]
        print_facts(facts)
        keys = ("partition", "leader", "leader_epoch", "start_offset", "end_offset", "last_stable_offset")
        header = [*(key.upper().replace("_", "-") for key in keys), "OPEN-TRANSACTIONS"]
        rows = [
            [*(row[key] for key in keys), None if row["error"] else len(row["open_transactions"])]
            for row in topic["partitions"]
        ]
        print_table(header, rows)
        for row in topic["partitions"]:
            if row["error"]:
                print_line(f"not served: {row['error']}")


def _add_errors(described: list[dict[str, Any]], lines: list[str], errors: dict[Partition, str]) -> None:
    """Add to each row the error line of its partition, or None if the partition is served."""
    line_of = dict(zip(sorted(errors), lines, strict=True))
    for topic in described:
        for row in topic["partitions"]:
            row["error"] = line_of.get((topic["name"], row["partition"]))


@app.command()
def delete(
    names: Names,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    if_exists: Annotated[bool, typer.Option("--if-exists", help="A missing topic is no error.")] = False,
    output: OutputFormat = Format.TABLE,
) -> None:
    """Delete topics and their records."""
    from kproc.common.errors import ErrorCode
    from kproc.wire.header import ApiKey

    with connect(bootstrap) as client:
        answer = client.call_latest(ApiKey.DELETE_TOPICS, {"topic_names": names, "timeout": TIMEOUT_MS})
    # Tolerate the error instead of checking first: another client can delete the topic between the check and the
    # deletion.
    tolerated = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if if_exists else None
    _report("deleted", answer["responses"], tolerated, output)


def _report(done: str, results: list[dict[str, Any]], tolerated: int | None, output: Format) -> None:
    """Print the result for each topic. Raise a Failure with the errors, if any."""
    refusals = [
        explain(result["name"], result["error_code"], result.get("error_message"))
        for result in results
        if result["error_code"] not in (0, tolerated)
    ]
    rows = [{"name": result["name"], "result": done} for result in results if not result["error_code"]]
    print_done(rows, "{result} {name}", output, refusals)


def explain(topic: object, code: int, message: str | None = None) -> str:
    """Format a topic's error for a Failure, with the broker's message or our own words."""
    from kproc.client import code_name
    from kproc.common.errors import ErrorCode

    known = {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "unknown topic",
        ErrorCode.TOPIC_ALREADY_EXISTS: "exists already",
    }
    if code == ErrorCode.INVALID_REPLICATION_FACTOR:
        told = (message or code_name(code)).rstrip(".")
        return f"{topic}: {told}; a broker started with --clamp-replication counts it as 1"
    return f"{topic}: {known.get(ErrorCode(code)) if code in known else message or code_name(code)}"


def checked_topics(client: Client, names: list[str]) -> list[dict[str, Any]]:
    """Return the metadata of topics. Raise a Failure if one of them does not exist."""
    topics = topic_metadata(client, names)
    refusals = [explain(topic["name"], topic["error_code"]) for topic in topics if topic["error_code"]]
    if refusals:
        raise Failure("; ".join(refusals))
    for topic in topics:
        topic["partitions"].sort(key=lambda partition: partition["partition_index"])
    return topics


def _describe(client: Client, topic: dict[str, Any], errors: dict[Partition, str]) -> dict[str, Any]:
    name = topic["name"]
    numbers = [partition["partition_index"] for partition in topic["partitions"]]
    # Each look-up narrows the partitions for the next one, so that a partition that is not served costs one error and
    # not three.
    starts = served_offsets(client, name, dict.fromkeys(numbers, EARLIEST), errors)
    stable = served_offsets(client, name, dict.fromkeys(starts, LATEST), errors, isolation=READ_COMMITTED)
    ends = served_offsets(client, name, dict.fromkeys(stable, LATEST), errors)
    numbers = list(ends)
    held_back = [number for number in numbers if stable[number] < ends[number]]
    # Only partitions whose last stable offset lags have open transactions, so usually this request is not sent at all.
    opened = _open_transactions(client, topic["name"], held_back) if held_back else {}
    partitions = [
        {
            "partition": partition["partition_index"],
            "leader": partition["leader_id"],
            "leader_epoch": partition.get("leader_epoch"),
            "start_offset": starts.get(partition["partition_index"]),
            "end_offset": ends.get(partition["partition_index"]),
            "last_stable_offset": stable.get(partition["partition_index"]),
            "open_transactions": opened.get(partition["partition_index"], []),
        }
        for partition in topic["partitions"]
    ]
    return {
        "name": topic["name"],
        "id": _topic_id_text(topic.get("topic_id")),
        "records": sum(ends[number] - starts[number] for number in numbers),
        "configs": _topic_configs(client, topic["name"]),
        "partitions": partitions,
    }


def _open_transactions(client: Client, topic: str, numbers: list[int]) -> dict[int, list[dict[str, int]]]:
    """Return the producers with an open transaction by partition, with the oldest transaction first."""
    from kproc.wire.header import ApiKey

    fields = {"topics": [{"name": topic, "partition_indexes": numbers}]}
    opened = {}
    for row in client.call_latest(ApiKey.DESCRIBE_PRODUCERS, fields)["topics"][0]["partitions"]:
        if row["error_code"]:
            number = row["partition_index"]
            raise Failure(explain(f"{topic}-{number}", row["error_code"], row.get("error_message")))
        opened[row["partition_index"]] = [
            {
                "producer_id": each["producer_id"],
                "producer_epoch": each["producer_epoch"],
                "start_offset": each["current_txn_start_offset"],
            }
            for each in sorted(row["active_producers"], key=lambda each: each["current_txn_start_offset"])
            if each["current_txn_start_offset"] >= 0
        ]
    return opened


def _topic_id_text(topic_id: bytes | None) -> str | None:
    """Format a topic id as Kafka does, in URL-safe base64 without padding."""
    import base64

    return base64.urlsafe_b64encode(topic_id).decode().rstrip("=") if topic_id and any(topic_id) else None


def served_offsets(
    client: Client,
    topic: str,
    timestamps: dict[int, int],
    errors: dict[Partition, str],
    *,
    isolation: int = READ_UNCOMMITTED,
) -> dict[int, int]:
    """Return by partition the offset at a timestamp, EARLIEST or LATEST; -1 if every record is older than it.

    Partitions that are not served, for example because of a damaged log, are added to `errors` instead.
    """
    from kproc.client import code_name

    offsets = {}
    for row in _list_offsets(client, topic, timestamps, isolation) if timestamps else ():
        if row["error_code"]:
            errors[topic, row["partition_index"]] = code_name(row["error_code"])
        else:
            offsets[row["partition_index"]] = row["offset"]
    return offsets


def _list_offsets(
    client: Client, topic: str, timestamps: dict[int, int], isolation: int
) -> list[dict[str, Any]]:
    from kproc.client.requests import list_offsets_fields
    from kproc.wire.header import ApiKey

    wanted = {(topic, number): timestamp for number, timestamp in timestamps.items()}
    fields = list_offsets_fields(wanted, isolation=isolation, timeout_ms=TIMEOUT_MS)
    answer = client.call_latest(ApiKey.LIST_OFFSETS, fields, newest=9)
    rows: list[dict[str, Any]] = answer["topics"][0]["partitions"]
    return rows


def _topic_configs(client: Client, topic: str) -> dict[str, str | None]:
    """Return the settings that are set on this topic itself (source 1, DYNAMIC_TOPIC_CONFIG)."""
    from kproc.wire.header import ApiKey

    resource = {"resource_type": 2, "resource_name": topic, "configuration_keys": None}
    fields = {"resources": [resource], "include_synonyms": False, "include_documentation": False}
    result = client.call_latest(ApiKey.DESCRIBE_CONFIGS, fields)["results"][0]
    if result["error_code"]:
        raise Failure(explain(topic, result["error_code"], result.get("error_message")))
    return {row["name"]: row["value"] for row in result["configs"] if row.get("config_source") == 1}
