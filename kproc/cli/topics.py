"""`kproc topic create|delete`, and common functions of the topic commands. The other commands are in topic_*.py."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kproc.cli.common import (
    DEFAULT_BOOTSTRAP,
    INT_MAX,
    Bootstrap,
    Failure,
    Format,
    OutputFormat,
    pairs,
    print_done,
    topic_metadata,
)
from kproc.cli.completion import complete_topic_settings, complete_topics
from kproc.cli.connection import connect
from kproc.cli.consent import Consent, DryRun
from kproc.cli.failure import explain
from kproc.cli.offsets import find_offsets
from kproc.cli.patterns import is_topic_pattern, matching_topics
from kproc.cli.rights import topics_without_right
from kproc.cli.unserved import Partition
from kproc.common.reading import EARLIEST, LATEST

if TYPE_CHECKING:
    from kproc.broker.security.acl import Operation
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
    dry_run: DryRun = False,
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
        "validate_only": dry_run,
    }
    with connect(bootstrap) as client:
        answer = client.call_latest(ApiKey.CREATE_TOPICS, fields)
    # Tolerate the error instead of checking first: another client can create the topic between the check and the
    # creation.
    tolerated = ErrorCode.TOPIC_ALREADY_EXISTS if if_not_exists else None
    _report("would create" if dry_run else "created", answer["topics"], tolerated, output)


@app.command()
def delete(
    names: Names,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    if_exists: Annotated[bool, typer.Option("--if-exists", help="A missing topic is no error.")] = False,
    consent: Consent = Consent(),
    output: OutputFormat = Format.TABLE,
) -> None:
    """Delete topics and their records.

    Without --yes the command shows what is lost and asks first.

    `kproc topic delete orders --dry-run` only shows it.
    """
    from kproc.common.errors import ErrorCode
    from kproc.wire.header import ApiKey

    consent.check("topic delete")
    names = list(dict.fromkeys(names))  # The broker rejects a repeated name.
    with connect(bootstrap) as client:
        if consent.needs_plan:
            rows = _deletions(client, names, if_exists=if_exists)
            if not rows:
                print_done(rows, _DELETION, output)
                return
            if not consent.obtain(rows, _DELETION, output):
                return
        answer = client.call_latest(ApiKey.DELETE_TOPICS, {"topic_names": names, "timeout": TIMEOUT_MS})
    # Tolerate the error instead of checking first: another client can delete the topic between the check and the
    # deletion.
    tolerated = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if if_exists else None
    _report("deleted", answer["responses"], tolerated, output)


_DELETION = "{result} {name} (partitions: {partitions}, records: {records})"


def _deletions(client: Client, names: list[str], *, if_exists: bool) -> list[dict[str, Any]]:
    """Return a row for each topic with what its deletion would delete.

    Raise a Failure for an unknown topic unless `if_exists`, and for a topic without the right to delete it.
    """
    from kproc.broker.security.acl import Operation
    from kproc.common.errors import ErrorCode

    topics = topic_metadata(client, names, with_operations=True)
    tolerated = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if if_exists else None
    refusals = [
        explain(topic["name"], topic["error_code"])
        for topic in topics
        if topic["error_code"] not in (0, tolerated)
    ]
    refusals += topics_without_right(topics, Operation.DELETE)
    if refusals:
        raise Failure("; ".join(refusals))
    found = [topic for topic in topics if not topic["error_code"]]
    partitions = [(topic["name"], row["partition_index"]) for topic in found for row in topic["partitions"]]
    records = _record_counts(client, partitions)
    return [
        {
            "name": topic["name"],
            "result": "would delete",
            "partitions": len(topic["partitions"]),
            "records": "unknown" if records is None else records[topic["name"]],
        }
        for topic in found
    ]


def _record_counts(client: Client, partitions: list[Partition]) -> Counter[str] | None:
    """Return by topic the number of offsets from start to end of the logs that are online.

    Return None at a control listener, which has no ListOffsets.
    """
    from kproc.wire.header import ApiKey

    if ApiKey.LIST_OFFSETS not in client.api_versions():
        return None
    errors: dict[Partition, str] = {}
    starts = find_offsets(client, dict.fromkeys(partitions, EARLIEST), errors)
    ends = find_offsets(client, dict.fromkeys(starts, LATEST), errors)
    counts: Counter[str] = Counter()
    for partition, end in ends.items():
        counts[partition[0]] += end.offset - starts[partition].offset
    return counts


def _report(done: str, results: list[dict[str, Any]], tolerated: int | None, output: Format) -> None:
    """Print `done` for each topic that succeeded. Raise a Failure with the errors, except the code `tolerated`."""
    refusals = [
        explain(result["name"], result["error_code"], result.get("error_message"))
        for result in results
        if result["error_code"] not in (0, tolerated)
    ]
    rows = [{"name": result["name"], "result": done} for result in results if not result["error_code"]]
    print_done(rows, "{result} {name}", output, refusals)


def find_topics(client: Client, names: list[str], *, internal: bool = False) -> list[dict[str, Any]]:
    """Return the metadata of topics by names and patterns. Raise a Failure for a name or pattern without a topic.

    internal: patterns match internal topics, too.
    """
    if any(map(is_topic_pattern, names)):
        known = topic_metadata(client, None)
        names = matching_topics(
            names, [each["name"] for each in known if internal or not each.get("is_internal")]
        )
    return checked_topics(client, list(dict.fromkeys(names)))


def checked_topics(
    client: Client, names: list[str], *, needs: Operation | None = None
) -> list[dict[str, Any]]:
    """Return the metadata of topics, with partitions sorted by number.

    Raise a Failure if one of them does not exist, or if the user may not do the operation `needs` on it.
    """
    topics = topic_metadata(client, names, with_operations=needs is not None)
    refusals = [explain(topic["name"], topic["error_code"]) for topic in topics if topic["error_code"]]
    if needs is not None:
        refusals += topics_without_right(topics, needs)
    if refusals:
        raise Failure("; ".join(refusals))
    for topic in topics:
        topic["partitions"].sort(key=lambda partition: partition["partition_index"])
    return topics
