"""The judge of transactions in an image, after the broker that opens it has ended the open ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from kproc.broker.storage.log import Log
from kproc.broker.transaction.state import IDLE, State
from kproc.common.errors import ErrorCode, KafkaError
from kproc.wire.record_batch import BatchHeader, decode_records, parse_header
from kproc.wire.transaction_marker import control_type
from tests.powerloss.scene import NAMES, Scene, Violation
from tests.powerloss.transactions import (
    GROUP_TOPIC,
    PARTITIONS,
    STATE_TOPIC,
    TIMEOUT_MS,
    Client,
    Transaction,
    partition_for,
)

_ROUNDS_MAX: Final = 60
_ROUND_MS: Final = 60
_CLEANUP_MS: Final = 10_000  # How often transactions whose timeout is over are looked for.
Content = tuple[bytes | None, bytes | None]


def judge_transactions(broker: Scene, clients: list[Client]) -> set[tuple[str, int]]:
    """All or nothing of each, as it was answered; nothing hangs, and offsets went with their transactions.

    The transactions that are committed: from now on they are.
    """
    _work_until(broker, "the markers that are owed are not sent", lambda: not _in_state(broker, _PREPARED))
    broker.clock.advance_ms(TIMEOUT_MS + _CLEANUP_MS + 1)
    _work_until(broker, "a transaction does not end", lambda: not _in_state(broker, set(State) - IDLE))
    visible = {name: _committed(name, _log_of(broker, name)) for name in NAMES}
    committed = set()
    for client in clients:
        _judge_epoch(broker, client)
        numbers = [each.number for each in client.history if _is_committed(each, visible)]
        _judge_offset(broker, client, max(numbers, default=None))
        committed.update((client.name, number) for number in numbers)
    return committed


_PREPARED: Final = {State.PREPARE_COMMIT, State.PREPARE_ABORT}


def _in_state(broker: Scene, states: set[State] | frozenset[State]) -> list[str]:
    """The ids in one of them; all, so to say, while a coordinator is not loaded."""
    found = []
    for partition in broker.image.topics_by_name[STATE_TOPIC].partitions:
        runtime = broker.handlers[partition.owner].coordinators
        try:
            coordinator: Any = runtime.by_topic[STATE_TOPIC].coordinator(partition.index)
        except KafkaError as error:
            found.append(str(error))
            continue
        found += [
            each.transactional_id for each in coordinator.overviews() if each.transaction.state in states
        ]
    return found


def _work_until(broker: Scene, otherwise: str, is_so: Any) -> None:
    for _ in range(_ROUNDS_MAX):
        for handler in broker.handlers:
            while handler.deltas:
                broker.hear(handler)
            handler.coordinators.work(broker.clock.now_ns())
            broker.transactions.deliver(broker)
            handler.coordinators.flush()
            handler.sync()
            handler.sync()
        if is_so():
            return
        broker.clock.advance_ms(_ROUND_MS)
    raise Violation(otherwise)


def _log_of(broker: Scene, name: str) -> Log:
    partition = broker.image.topics_by_name[name].partitions[0]
    return broker.handlers[partition.owner].partitions.get(name, partition).log


def _batches(log: Log) -> Iterator[tuple[BatchHeader, bytes]]:
    offset = log.state.start_offset
    while offset < log.state.end_offset:
        data, position = log.reader.read_bytes(offset, 1 << 20), 0
        while position + 12 <= len(data):
            end = position + 12 + int.from_bytes(data[position + 8 : position + 12], "big")
            if end > len(data):
                break
            header = parse_header(data, position)
            yield header, bytes(data[position:end])
            offset, position = header.last_offset + 1, end


def _committed(name: str, log: Log) -> set[Content]:
    """The records of committed transactions, by their markers; the index must say the same."""
    if log.state.last_stable_offset != log.state.end_offset:
        raise Violation(
            f"{name}: a transaction hangs: {log.state.last_stable_offset} of {log.state.end_offset} is stable"
        )
    ends: dict[int, list[tuple[int, bool]]] = {}  # By producer: offset of each marker, and whether it aborts.
    data: list[tuple[BatchHeader, bytes]] = []
    for header, batch in _batches(log):
        if header.is_control:
            (record,) = decode_records(batch)
            ends.setdefault(header.producer_id, []).append((header.base_offset, not control_type(record)))
        elif header.is_transactional:
            data.append((header, batch))
    index = log.reader.aborted_transactions(log.state.start_offset, log.state.end_offset)
    committed: set[Content] = set()
    for header, batch in data:
        end, is_abort = next(each for each in ends[header.producer_id] if each[0] > header.base_offset)
        in_index = any(
            row.producer_id == header.producer_id and row.first_offset <= header.base_offset < row.last_offset
            for row in index
        )
        if is_abort != in_index:
            raise Violation(
                f"{name}: the marker at {end} aborts: {is_abort}, the transaction index: {in_index}"
            )
        if not is_abort:
            committed.update((record.key, record.value) for record in decode_records(batch))
    return committed


def _is_committed(transaction: Transaction, visible: dict[str, set[Content]]) -> bool:
    """Return True if all records of it are visible. Raise Violation if the answers said something else."""
    name = f"transaction {transaction.number} of {transaction.client}"
    wanted = {(topic, each) for topic, contents in transaction.contents.items() for each in contents}
    seen = {(topic, each) for topic, each in wanted if each in visible[topic]}
    if seen and (not transaction.is_commit_sent or transaction.outcome is False):
        raise Violation(f"{name} was not committed, and {len(seen)} of its records are visible")
    if seen and seen != wanted:
        raise Violation(f"{name} is torn: {len(seen)} of {len(wanted)} records are visible")
    if transaction.outcome and not seen:
        raise Violation(f"{name} was committed, and is not visible")
    return bool(seen)


def _judge_epoch(broker: Scene, client: Client) -> None:
    """Nobody else gets what it was given: its producer id and epoch are known, or later ones."""
    index = partition_for(client.name, PARTITIONS)
    partition = broker.image.topics_by_name[STATE_TOPIC].partitions[index]
    runtime = broker.handlers[partition.owner].coordinators
    found = runtime.by_topic[STATE_TOPIC].coordinator(index).describe(client.name)  # type: ignore[attr-defined]
    now = (-1, -1) if found is None else (found.transaction.producer_id, found.transaction.epoch)
    if now < client.granted:
        raise Violation(f"{client.name} was given {client.granted}, its coordinator knows {now}")


def _judge_offset(broker: Scene, client: Client, last: int | None) -> None:
    """The group's offset is that of the client's last committed transaction."""
    index = partition_for(client.group, PARTITIONS)
    partition = broker.image.topics_by_name[GROUP_TOPIC].partitions[index]
    handler = broker.handlers[partition.owner]
    for _ in range(_ROUNDS_MAX):
        try:
            coordinator = handler.coordinators.by_topic[GROUP_TOPIC].coordinator(index)
            break
        except KafkaError as error:
            if error.code != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                raise Violation(f"group {client.group} has no coordinator: {error}") from error
            handler.coordinators.work(broker.clock.now_ns())
    found = coordinator.offsets.get(client.group, client.topics[0], 0)
    if (found.offset if found is not None else None) != last:
        raise Violation(f"group {client.group} is at {found}, its last committed transaction at {last}")
    if coordinator.offsets.pending.has_group(client.group):
        raise Violation(f"group {client.group} has offsets that are pending for ever")
