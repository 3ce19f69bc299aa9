"""`kproc txn list|describe|abort|find-hanging`: transactional ids, and transactions that nobody will end."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

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
    connect,
    print_done,
    print_json,
    topic_metadata,
    usage_error,
)
from kproc.cli.completion import complete_topics, complete_transactional_ids
from kproc.cli.consent import Consent
from kproc.cli.failure import explain
from kproc.cli.lines import print_facts, print_line
from kproc.cli.tables import print_table
from kproc.cli.topics import checked_topics
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
# transaction.max.timeout.ms by default: no transaction that a coordinator knows is open for longer.
_LONGEST_MINUTES: Final = 15.0
_WAIT_SECONDS: Final = 30.0  # For a coordinator that loads, or that writes the markers of an abort.
_STEP_SECONDS: Final = 0.1
_ABORT: Final = False  # In WriteTxnMarkers.

Row = dict[str, Any]
T = TypeVar("T")


@app.command("list")
def list_transactions(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: OutputFormat = Format.TABLE,
    state: Annotated[
        list[str] | None, typer.Option("--state", metavar="STATE", help=f"Only these: {', '.join(STATES)}.")
    ] = None,
    longer_than: Annotated[
        float,
        typer.Option(
            "--longer-than",
            metavar="S",
            max=SECONDS_MAX,
            help="Only transactions that are open for more than this many seconds.",
        ),
    ] = -1.0,
    pattern: Annotated[
        str | None,
        typer.Option(
            "--pattern", metavar="REGEX", help="Only ids that match this regular expression as a whole."
        ),
    ] = None,
) -> None:
    """List transactional ids with their states."""
    states = chosen_names("--state", state, STATES)
    with connect(bootstrap) as client:
        found = _listed(
            client,
            states=states,
            duration_ms=int(longer_than * 1000) if longer_than >= 0 else -1,
            pattern=pattern,
        )
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
        described = [_facts(row) for row in _described(client, ids)]
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
            f"timeout {row['timeout_ms'] / 1000:g} s",
            f"open for {age_s:.1f} s" if age_s is not None else "not open",
        ]
        print_facts(facts)
        if row["partitions"]:
            cells = [[each["topic"], each["partition"]] for each in row["partitions"]]
            print_table(("TOPIC", "PARTITION"), cells, cut=("TOPIC",))


@app.command()
def abort(
    transactional_id: Annotated[
        str | None,
        typer.Argument(metavar="ID", help="A transactional id.", autocompletion=complete_transactional_ids),
    ] = None,
    topic: Annotated[
        str | None,
        typer.Option(
            "--topic",
            "-t",
            metavar="TOPIC",
            help="The topic with a hanging transaction.",
            autocompletion=complete_topics,
        ),
    ] = None,
    partition: Annotated[
        int, typer.Option("--partition", "-p", min=0, max=INT_MAX, help="The partition of that topic.")
    ] = 0,
    start_offset: Annotated[
        int | None,
        typer.Option(
            "--start-offset",
            min=0,
            max=LONG_MAX,
            help="First offset of the transaction, as find-hanging shows it.",
        ),
    ] = None,
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
        usage_error("--start-offset: find-hanging shows it")
    consent.check("txn abort")
    with connect(bootstrap) as client:
        if transactional_id is not None:
            _abort_by_id(client, transactional_id, consent, output)
        else:
            assert topic is not None
            assert start_offset is not None
            _abort_hanging(client, topic, partition, start_offset, consent, output)


def _abort_by_id(client: Client, transactional_id: str, consent: Consent, output: Format) -> None:
    [described] = _described(client, [transactional_id])
    row: Row = {"transactional_id": transactional_id, "result": "would abort"}
    words = "{result} the transaction of {transactional_id}"
    plan = {**row, "state": described["transaction_state"], "producer_id": described["producer_id"]}
    more = ", which is in state {state}, and fence producer {producer_id}"
    if consent.obtain([plan], words + more, output, question="abort?"):
        _fence(client, described)
        print_done([{**row, "result": "aborted"}], words, output)


def _abort_hanging(
    client: Client, topic: str, partition: int, start_offset: int, consent: Consent, output: Format
) -> None:
    producer = _open_producer(client, topic, partition, start_offset)
    row: Row = {"topic": topic, "partition": partition, "start_offset": start_offset, "result": "would abort"}
    words = "{result} the transaction at {topic}-{partition} from offset {start_offset} on"
    if consent.obtain([row], words, output, question="abort?"):
        _write_abort(client, topic, partition, producer)
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

    `kproc txn abort --topic T --partition N --start-offset O` ends one. Exit code 1 if there is any.
    """
    with connect(bootstrap) as client:
        found = _hanging(client, topic, int(longer_than * 60_000))
    if output is Format.JSON:
        print_json(found)
    elif found:
        header = [name.upper().replace("_", "-") for name in found[0]]
        print_table(header, [list(row.values()) for row in found], cut=("TOPIC",))
    else:
        print_line("no hanging transaction")
    if found:
        raise typer.Exit(1)


# -- what is asked ---------------------------------------------------------------------------------------------


def _listed(
    client: Client,
    *,
    states: list[str] | None = None,
    producer_ids: list[int] | None = None,
    duration_ms: int = -1,
    pattern: str | None = None,
) -> list[Row]:
    """Return the rows of ListTransactions."""
    from kproc.common.errors import ErrorCode
    from kproc.wire.header import ApiKey

    fields = {
        "state_filters": states or [],
        "producer_id_filters": producer_ids or [],
        "duration_filter": duration_ms,
        "transactional_id_pattern": pattern,
    }

    def request() -> tuple[Row, set[int]]:
        answer = client.call_latest(ApiKey.LIST_TRANSACTIONS, fields)
        return answer, {answer["error_code"]}

    answer = _retry_until_loaded(request)
    if answer["error_code"] == ErrorCode.INVALID_REGULAR_EXPRESSION:
        usage_error(f"--pattern {pattern!r}: no regular expression")
    if answer["error_code"]:
        raise Failure(explain("transactions", answer["error_code"]))
    rows: list[Row] = answer["transaction_states"]
    return rows


def _states(client: Client, ids: list[str]) -> list[Row]:
    """Return the rows of DescribeTransactions."""
    from kproc.wire.header import ApiKey

    def request() -> tuple[list[Row], set[int]]:
        answer = client.call_latest(ApiKey.DESCRIBE_TRANSACTIONS, {"transactional_ids": ids})
        rows: list[Row] = answer["transaction_states"]
        return rows, {row["error_code"] for row in rows}

    return _retry_until_loaded(request)


def _described(client: Client, ids: list[str]) -> list[Row]:
    """Return the rows of DescribeTransactions. Raise a Failure if an id is unknown or has another error."""
    from kproc.common.errors import ErrorCode

    rows = _states(client, ids)
    words = {ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: "unknown transactional id"}
    refusals = [
        explain(row["transactional_id"], row["error_code"], words.get(row["error_code"]))
        for row in rows
        if row["error_code"]
    ]
    if refusals:
        raise Failure("; ".join(refusals))
    return rows


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


def _fence(client: Client, described: Row) -> None:
    """Abort as a new producer of that id would (Admin.fenceProducers of KIP-664), and wait until it is done."""
    from kproc.common.errors import ErrorCode
    from kproc.wire.header import ApiKey

    transactional_id = described["transactional_id"]
    fields = {
        "transactional_id": transactional_id,
        # InitProducerId sets the timeout of the id. Repeat the present one, so that the abort changes nothing else.
        "transaction_timeout": described["transaction_timeout"],
        "producer_id": -1,
        "producer_epoch": -1,
    }

    def request() -> tuple[int, set[int]]:
        code: int = client.call_latest(ApiKey.INIT_PRODUCER_ID, fields)["error_code"]
        return code, {code}

    # KIP-664: an InitProducerId without a producer id fences the present producer. It gets CONCURRENT_TRANSACTIONS
    # until the markers of the abort are written, so repeat it until then.
    code = _retry_until_loaded(request, also={ErrorCode.CONCURRENT_TRANSACTIONS})
    if code == ErrorCode.CONCURRENT_TRANSACTIONS:
        raise Failure(
            f"{transactional_id}: still being aborted after {_WAIT_SECONDS:g} s; "
            f"kproc txn describe shows its partitions"
        )
    if code:
        raise Failure(explain(transactional_id, code))


def _producers(client: Client, partitions: dict[str, list[int]]) -> list[tuple[str, int, Row]]:
    """Return (topic, partition, producer) of each open transaction in these partitions, by DescribeProducers."""
    from kproc.wire.header import ApiKey

    topics = [{"name": name, "partition_indexes": numbers} for name, numbers in partitions.items()]
    answer = client.call_latest(ApiKey.DESCRIBE_PRODUCERS, {"topics": topics})
    found = []
    for topic in answer["topics"]:
        for part in topic["partitions"]:
            name = f"{topic['name']}-{part['partition_index']}"
            if part["error_code"]:
                raise Failure(explain(name, part["error_code"], part["error_message"]))
            found += [
                (str(topic["name"]), int(part["partition_index"]), row)
                for row in part["active_producers"]
                if row["current_txn_start_offset"] >= 0
            ]
    return found


def _open_producer(client: Client, topic: str, partition: int, start_offset: int) -> Row:
    """Return the producer with an open transaction from `start_offset` on. Raise a Failure if there is none."""
    checked_topics(client, [topic])
    found = [
        row
        for _, _, row in _producers(client, {topic: [partition]})
        if row["current_txn_start_offset"] == start_offset
    ]
    if not found:
        raise Failure(f"{topic}-{partition}: no open transaction begins at offset {start_offset}")
    return found[0]


def _write_abort(client: Client, topic: str, partition: int, producer: Row) -> None:
    """End one producer's transaction at one partition by WriteTxnMarkers."""
    from kproc.wire.header import ApiKey

    marker = {
        "producer_id": producer["producer_id"],
        "producer_epoch": producer["producer_epoch"],
        "transaction_result": _ABORT,
        "topics": [{"name": topic, "partition_indexes": [partition]}],
        # The coordinator epoch is -1 before the first marker of a producer.
        "coordinator_epoch": max(0, producer["coordinator_epoch"]),
    }
    answer = client.call_latest(ApiKey.WRITE_TXN_MARKERS, {"markers": [marker]})
    (result,) = answer["markers"][0]["topics"][0]["partitions"]
    if result["error_code"]:
        raise Failure(explain(f"{topic}-{partition}", result["error_code"]))


def _hanging(client: Client, names: list[str] | None, idle_ms: int) -> list[Row]:
    """Return the hanging transactions by the rule of KIP-664.

    Such a transaction is open at a partition, its producer has been silent for `idle_ms`, and no coordinator knows the
    partition as part of it.
    """
    topics = topic_metadata(client, None) if names is None else checked_topics(client, names)
    partitions = {
        str(topic["name"]): [each["partition_index"] for each in topic["partitions"]] for topic in topics
    }
    now_ms = _now_ms()
    candidates = [
        each for each in _producers(client, partitions) if each[2]["last_timestamp"] <= now_ms - idle_ms
    ]
    if not candidates:
        return []
    # Look up the coordinators last and only for the candidates, because ListTransactions asks every coordinator of the
    # broker.
    known = _partitions_of_producers(client, sorted({row["producer_id"] for _, _, row in candidates}))
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


def _partitions_of_producers(client: Client, producer_ids: list[int]) -> set[tuple[int, str, int]]:
    """Return (producer id, topic, partition) of these producers' transactions that the coordinators know."""
    listed = _listed(client, producer_ids=producer_ids)
    if not listed:
        return set()
    return {
        (int(row["producer_id"]), str(each["topic"]), int(number))
        for row in _states(client, [str(row["transactional_id"]) for row in listed])
        # A transactional id with an error has expired since it was listed.
        if not row["error_code"]
        for each in row["topics"]
        for number in each["partitions"]
    }


def _retry_until_loaded(ask: Callable[[], tuple[T, Collection[int]]], also: Collection[int] = ()) -> T:
    """Repeat a request until no error code asks for a retry. Return the last response after _WAIT_SECONDS at most."""
    from kproc.common.errors import ErrorCode

    early = {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, *also}
    for _ in range(round(_WAIT_SECONDS / _STEP_SECONDS)):
        answer, codes = ask()
        if not early.intersection(codes):
            break
        time.sleep(_STEP_SECONDS)
    return answer


def _now_ms() -> int:
    return SystemClock().wall_ms()
