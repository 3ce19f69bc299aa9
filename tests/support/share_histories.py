"""Histories of InFlightRecords: the steps of a test of Kafka's SharePartitionTest, and the window behind them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from kproc.broker.share.partition.in_flight import InFlightRecords, Rules
from kproc.broker.share.partition.messages import AcknowledgeBatch, AcknowledgeType, ShareHolder
from kproc.broker.share.partition.wanted_records import WantedRecords
from kproc.broker.share.state.messages import RecordState, StateBatch
from kproc.common.errors import ErrorCode, KafkaError

AVAILABLE, ACQUIRED = RecordState.AVAILABLE, RecordState.ACQUIRED
ACKNOWLEDGED, ARCHIVED = RecordState.ACKNOWLEDGED, RecordState.ARCHIVED
ACCEPT, RELEASE, REJECT = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT
GAP: Final = 0  # The type by which a client says that an offset has no record.
MEMBERS: Final = {name: ShareHolder("g", name, number, 0) for number, name in enumerate(("ann", "bob"))}
LOCK_MS: Final = 1_000
Ranges = list[tuple[int, int]]
Counts = list[tuple[int, int, int]]  # First and last offset, delivery count.
States = list[tuple[int, int, RecordState, int]]


class Acquire(NamedTuple):
    """A member acquires from batches of a log. `expected` is not compared if it is None."""

    log: Ranges
    expected: Counts | None = None
    limit: int = 500
    is_exact: bool = False
    by: str = "ann"
    size: int = 0  # The batch size of the request.
    aborted: Sequence[tuple[int, int]] = ()


class Acknowledge(NamedTuple):
    """A member acknowledges ranges of offsets. `error`: the code of the expected error."""

    batches: list[tuple[int, int, int | list[int]]]
    by: str = "ann"
    error: ErrorCode | None = None


class LogStart(NamedTuple):
    """Retention or a DeleteRecords moves the start of the log."""

    offset: int


class EndSession(NamedTuple):
    """The session of a member ends."""

    by: str = "ann"


class EndLocks(NamedTuple):
    """All locks end."""


Step = Acquire | Acknowledge | LogStart | EndSession | EndLocks


class History(NamedTuple):
    """The steps of one of Kafka's tests, and the window behind them. `finished`: the deliveryCompleteCount."""

    steps: list[Step]
    start: int
    next_offset: int | None
    states: States | None = None
    finished: int | None = None
    begins: int = 0
    loaded: Sequence[tuple[int, int, RecordState, int]] = ()
    deliveries: int = 5
    locks: int = 200


def _expanded(ranges: Counts) -> list[tuple[int, int]]:
    """Return each offset with its count. Kafka and kproc can divide equal ranges at other places."""
    return [(offset, count) for first, last, count in ranges for offset in range(first, last + 1)]


def _joined(states: list[StateBatch]) -> States:
    found: States = []
    for each in states:
        state, count = RecordState(each.state), each.delivery_count
        first = found.pop()[0] if found and found[-1][2:] == (state, count) else each.first
        found.append((first, each.last, state, count))
    return found


def _acquire(records: InFlightRecords, step: Acquire) -> None:
    offset = records.next_fetch_offset()
    log = [] if offset is None else [each for each in step.log if each[1] >= offset]
    found: Counts = []
    if offset is not None and log:
        wanted = WantedRecords(MEMBERS[step.by], step.limit, step.size, LOCK_MS, step.is_exact)
        acquired = wanted.acquire(records, offset, log, step.aborted)
        found = [(each.first, each.last, each.delivery_count) for each in acquired]
    if step.expected is not None:
        assert _expanded(found) == _expanded(step.expected)


def _acknowledge(records: InFlightRecords, step: Acknowledge) -> None:
    batches = [
        AcknowledgeBatch(first, last, kinds if isinstance(kinds, list) else [kinds])
        for first, last, kinds in step.batches
    ]
    code = None
    try:
        records.commit(records.acknowledge(MEMBERS[step.by], batches, renewed_until_ms=0))
    except KafkaError as error:
        code = error.code
    assert code == step.error


def _run_step(records: InFlightRecords, step: Step) -> None:
    match step:
        case Acquire():
            _acquire(records, step)
        case Acknowledge():
            _acknowledge(records, step)
        case LogStart():
            records.discard_below(step.offset)
        case EndSession():
            records.commit(records.release_holders(lambda holder: holder == MEMBERS[step.by]))
        case EndLocks():
            records.commit(records.expire(LOCK_MS))


def check_histories(histories: dict[str, History]) -> None:
    """Run the steps of all histories, and compare the windows behind them. The output names the history."""
    for name, history in histories.items():
        print(name)
        loaded = [StateBatch(*each) for each in history.loaded]
        records = InFlightRecords(history.begins, Rules(history.deliveries, history.locks), loaded)
        for step in history.steps:
            _run_step(records, step)
        assert (records.start_offset, records.next_fetch_offset()) == (history.start, history.next_offset)
        if history.states is not None:
            assert _joined(records.states()) == history.states
        if history.finished is not None:
            assert records.to_persist([]).finished_count == history.finished


def fives(first: int, count: int) -> Ranges:
    """Return consecutive batches of 5 records."""
    return [(first + 5 * number, first + 5 * number + 4) for number in range(count)]
