"""`kproc txn list|describe|abort|find-hanging`: shows and aborts transactions, even those without a coordinator."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated, Final

import typer

from kproc.cli.common import (
    DEFAULT_BOOTSTRAP,
    INT_MAX,
    LONG_MAX,
    SECONDS_MAX,
    Bootstrap,
    Failure,
    Format,
    OutputFormat,
    chosen_names,
    print_done,
    print_json,
    topic_metadata,
    usage_error,
)
from kproc.cli.completion import complete_topics, complete_transactional_ids
from kproc.cli.connection import connect
from kproc.cli.consent import Consent
from kproc.cli.failure import explain
from kproc.cli.lines import print_facts, print_line
from kproc.cli.rights import print_empty_list_note, require_on_cluster, require_on_transactional_id
from kproc.cli.tables import print_table
from kproc.cli.topics import checked_topics
from kproc.cli.transaction_requests import (
    Row,
    abort_by_fencing,
    describe_transactions,
    open_transactions,
    partitions_of_producers,
    request_transactions,
    write_abort,
)
from kproc.cli.unserved import Partition, explain_unserved
from kproc.common.clock import SystemClock

if TYPE_CHECKING:
    from kproc.client import Client

app = typer.Typer(help="List, describe and abort transactions.", no_args_is_help=True)

STATES: Final = (
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
    "PrepareEpochFence",
)
# The default of transaction.max.timeout.ms in minutes: a coordinator aborts a transaction that is open for longer.
_LONGEST_MINUTES: Final = 15.0


States = Annotated[
    list[str] | None, typer.Option("--state", metavar="STATE", help=f"Only these: {', '.join(STATES)}.")
]
LongerThan = Annotated[
    float,
    typer.Option(
        "--longer-than",
        metavar="S",
        max=SECONDS_MAX,
        help="Only transactions that are open for more than this many seconds.",
    ),
]
IdPattern = Annotated[
    str | None,
    typer.Option(
        "--pattern", metavar="REGEX", help="Only ids that match this regular expression as a whole."
    ),
]


@app.command("list")
def list_transactions(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: OutputFormat = Format.TABLE,
    state: States = None,
    longer_than: LongerThan = -1.0,
    pattern: IdPattern = None,
) -> None:
    """List transactional ids with their states."""
    states = chosen_names("--state", state, STATES)
    with connect(bootstrap) as client:
        found = request_transactions(
            client,
            states=states,
            duration_ms=int(longer_than * 1000) if longer_than >= 0 else -1,
            pattern=pattern,
        )
        if not found and not states and pattern is None and longer_than < 0:
            print_empty_list_note(client, "transactional ids")
    rows = [
        {
            "transactional_id": row["transactional_id"],
            "producer_id": row["producer_id"],
            "state": row["transaction_state"],
        }
        for row in sorted(found, key=lambda row: str(row["transactional_id"]))
    ]
    if output is Format.JSON:
        print_json(rows)
    else:
        header = ("TRANSACTIONAL-ID", "PRODUCER-ID", "STATE")
        print_table(header, [list(row.values()) for row in rows], cut=("TRANSACTIONAL-ID",))
        counts = Counter(str(row["state"]) for row in rows)
        if rows:
            print_line()
            print_line(f"{', '.join(f'{counts[name]} {name}' for name in STATES if counts[name])}")


Ids = Annotated[
    list[str],
    typer.Argument(metavar="ID", help="Transactional ids.", autocompletion=complete_transactional_ids),
]


@app.command()
def describe(ids: Ids, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, output: OutputFormat = Format.TABLE) -> None:
    """Show transactions with producer, timeout, age, partitions."""
    with connect(bootstrap) as client:
        described = [_facts(row) for row in describe_transactions(client, ids)]
    if output is Format.JSON:
        print_json(described)
        return
    for position, row in enumerate(described):
        if position:
            print_line()
        age_s = row["age_s"]
        facts = [
            f"transactional id {row['transactional_id']}",
            f"state {row['state']}",
            f"producer {row['producer_id']} epoch {row['producer_epoch']}",
            f"timeout {row['timeout_ms'] / 1000:.15g} s",
            f"open for {age_s:.1f} s" if age_s is not None else "not open",
        ]
        print_facts(facts)
        if row["partitions"]:
            cells = [[each["topic"], each["partition"]] for each in row["partitions"]]
            print_table(("TOPIC", "PARTITION"), cells, cut=("TOPIC",))


TransactionalId = Annotated[
    str | None,
    typer.Argument(metavar="ID", help="A transactional id.", autocompletion=complete_transactional_ids),
]
HangingTopic = Annotated[
    str | None,
    typer.Option(
        "--topic",
        "-t",
        metavar="TOPIC",
        help="The topic with a hanging transaction.",
        autocompletion=complete_topics,
    ),
]
HangingPartition = Annotated[
    int, typer.Option("--partition", "-p", min=0, max=INT_MAX, help="The partition of that topic.")
]
StartOffset = Annotated[
    int | None,
    typer.Option(
        "--start-offset",
        min=0,
        max=LONG_MAX,
        help="First offset of the transaction, as find-hanging shows it.",
    ),
]


@app.command()
def abort(
    transactional_id: TransactionalId = None,
    topic: HangingTopic = None,
    partition: HangingPartition = 0,
    start_offset: StartOffset = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    consent: Consent = Consent(),
    output: OutputFormat = Format.TABLE,
) -> None:
    """Abort an open or a hanging transaction.

    Without --yes the command asks first.

    By id the coordinator aborts it and fences the producer: its next request fails, and a new producer of the same id
    may begin at once. Name a hanging transaction, which no coordinator knows, by topic, partition and start offset. The
    abort is then written to that partition only.
    """
    if (transactional_id is None) == (topic is None):
        usage_error("name a transactional id, or --topic, --partition and --start-offset")
    if topic is not None and start_offset is None:
        usage_error("--topic needs --start-offset, which kproc txn find-hanging shows")
    consent.check("txn abort")
    with connect(bootstrap) as client:
        if transactional_id is not None:
            _abort_by_id(client, transactional_id, consent, output)
        else:
            assert topic is not None
            assert start_offset is not None
            _abort_hanging(client, topic, partition, start_offset, consent, output)


def _abort_by_id(client: Client, transactional_id: str, consent: Consent, output: Format) -> None:
    [described] = describe_transactions(client, [transactional_id])
    row: Row = {"transactional_id": transactional_id, "result": "would abort"}
    words = "{result} the transaction of {transactional_id}"
    plan = {**row, "state": described["transaction_state"], "producer_id": described["producer_id"]}
    more = ", which is in state {state}, and fence producer {producer_id}"
    if consent.needs_plan:
        require_on_transactional_id(client, transactional_id)
    if consent.obtain([plan], words + more, output, question="abort?"):
        abort_by_fencing(client, described)
        print_done([{**row, "result": "aborted"}], words, output)


def _abort_hanging(
    client: Client, topic: str, partition: int, start_offset: int, consent: Consent, output: Format
) -> None:
    from kproc.broker.security.acl import Operation

    producer = _open_producer(client, topic, partition, start_offset)
    if consent.needs_plan:
        require_on_cluster(client, Operation.ALTER, Operation.CLUSTER_ACTION)
    row: Row = {"topic": topic, "partition": partition, "start_offset": start_offset, "result": "would abort"}
    words = "{result} the transaction at {topic}-{partition} from offset {start_offset} on"
    if consent.obtain([row], words, output, question="abort?"):
        write_abort(client, topic, partition, producer)
        print_done([{**row, "result": "aborted"}], words, output)


@app.command("find-hanging")
def find_hanging(
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic", "-t", metavar="TOPIC", help="Only these topics.", autocompletion=complete_topics
        ),
    ] = None,
    longer_than: Annotated[
        float,
        typer.Option(
            "--longer-than",
            metavar="MINUTES",
            min=0,
            max=SECONDS_MAX // 60,
            help="Only transactions without a record for this many minutes.",
        ),
    ] = _LONGEST_MINUTES,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: OutputFormat = Format.TABLE,
) -> None:
    """Find open transactions that no coordinator knows. Readers of committed records wait for them for ever.

    `kproc txn abort --topic T --partition N --start-offset O` ends one of them. Exit code 1 if there is any.
    """
    errors: dict[Partition, str] = {}
    with connect(bootstrap) as client:
        found = _hanging(client, topic, int(longer_than * 60_000), errors)
    if output is Format.JSON:
        print_json(found)
    elif found:
        header = [name.upper().replace("_", "-") for name in found[0]]
        print_table(header, [list(row.values()) for row in found], cut=("TOPIC",))
    else:
        print_line("no hanging transaction")
    if errors:
        raise Failure(f"partitions not read: {'; '.join(explain_unserved(bootstrap, errors).values())}")
    if found:
        raise typer.Exit(1)


def _facts(row: Row) -> Row:
    began_ms = row["transaction_start_time"]
    is_open = row["transaction_state"] == "Ongoing" and began_ms >= 0
    return {
        "transactional_id": row["transactional_id"],
        "state": row["transaction_state"],
        "producer_id": row["producer_id"],
        "producer_epoch": row["producer_epoch"],
        "timeout_ms": row["transaction_timeout"],
        "start_ms": began_ms if began_ms >= 0 else None,
        "age_s": max(0, _now_ms() - began_ms) / 1000 if is_open else None,
        "partitions": [
            {"topic": each["topic"], "partition": number}
            for each in sorted(row["topics"], key=lambda each: str(each["topic"]))
            for number in sorted(each["partitions"])
        ],
    }


def _open_producer(client: Client, topic: str, partition: int, start_offset: int) -> Row:
    """Return the producer whose open transaction begins at `start_offset`. Raise a Failure if there is none."""
    checked_topics(client, [topic])
    refused: dict[Partition, Row] = {}
    opened = open_transactions(client, [(topic, partition)], refused)
    for row in refused.values():
        raise Failure(explain(f"{topic}-{partition}", row["error_code"], row["error_message"]))
    found = [row for row in opened[topic, partition] if row["current_txn_start_offset"] == start_offset]
    if not found:
        raise Failure(f"{topic}-{partition}: no open transaction begins at offset {start_offset}")
    return found[0]


def _hanging(
    client: Client, names: list[str] | None, idle_ms: int, errors: dict[Partition, str]
) -> list[Row]:
    """Return the hanging transactions by the rule of KIP-664. Add partitions that cannot be read to `errors`.

    Such a transaction is open at a partition, its producer has been silent for `idle_ms`, and no coordinator knows the
    partition as part of it.
    """
    from kproc.client import error_text

    topics = topic_metadata(client, None) if names is None else checked_topics(client, names)
    partitions = [
        (str(topic["name"]), int(each["partition_index"])) for topic in topics for each in topic["partitions"]
    ]
    now_ms, refused = _now_ms(), dict[Partition, Row]()
    candidates = [
        (topic, number, row)
        for (topic, number), rows in open_transactions(client, partitions, refused).items()
        for row in rows
        if row["last_timestamp"] <= now_ms - idle_ms
    ]
    errors.update((partition, error_text(row["error_code"])) for partition, row in refused.items())
    if not candidates:
        return []
    # Send ListTransactions last and only for the candidates, because the broker handles it in all transaction
    # coordinators.
    known = partitions_of_producers(client, sorted({row["producer_id"] for _, _, row in candidates}))
    return [
        {
            "topic": topic,
            "partition": number,
            "producer_id": row["producer_id"],
            "producer_epoch": row["producer_epoch"],
            "coordinator_epoch": row["coordinator_epoch"],
            "start_offset": row["current_txn_start_offset"],
            "idle_minutes": round((now_ms - row["last_timestamp"]) / 60_000, 1),
        }
        for topic, number, row in candidates
        if (row["producer_id"], topic, number) not in known
    ]


def _now_ms() -> int:
    return SystemClock().wall_ms()
