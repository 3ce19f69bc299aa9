"""BrokerTopic: the records of a topic of a broker for tests, read without a client library.

Reads the log as it is when the reading starts, by ListOffsets and Fetch over one connection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from kproc.common.reading import EARLIEST, LATEST, READ_COMMITTED, READ_UNCOMMITTED
from kproc.embedded.process import RequestFailed

if TYPE_CHECKING:
    from kproc.client import Client

Isolation = Literal["read_committed", "read_uncommitted"]
_LEVELS: Final = {"read_committed": READ_COMMITTED, "read_uncommitted": READ_UNCOMMITTED}
_FETCH_BYTES: Final = 4 << 20
_TIMEOUT_MS: Final = 30_000


class TopicRecord(NamedTuple):
    """One record of a topic."""

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class TooManyRecords(RuntimeError):
    """A topic has more records than `limit`."""


class BrokerTopic:
    """One topic of a broker. connect: opens a new connection to the broker."""

    def __init__(self, connect: Callable[[], Client], name: str) -> None:
        self._connect = connect
        self.name = name

    def __repr__(self) -> str:
        return f"<topic {self.name!r}>"

    def records(
        self,
        partitions: Sequence[int] | None = None,
        *,
        isolation: Isolation = "read_committed",
        limit: int = 10_000,
    ) -> list[TopicRecord]:
        """Return the records that the topic has now, by partition and offset.

        partitions: those to read; by default all.
        isolation: "read_committed" leaves out records of open and aborted transactions, as Kafka's consumers can.
        limit: the most records to return.

        Raises TooManyRecords if there are more, ValueError for an unknown isolation, and RuntimeError with the
        broker's reason, such as a missing topic.
        """
        if isolation not in _LEVELS:
            raise ValueError(f"unknown isolation {isolation!r}: use {' or '.join(_LEVELS)}")
        level = _LEVELS[isolation]
        found: list[TopicRecord] = []
        with self._connect() as client:
            client.timeout_ms = _TIMEOUT_MS
            numbers = self._partitions(client) if partitions is None else list(partitions)
            starts = self._offsets(client, numbers, EARLIEST, level)
            ends = self._offsets(client, numbers, LATEST, level)
            for number in numbers:
                for record in self._read(client, number, (starts[number], ends[number]), level):
                    found.append(record)
                    if len(found) > limit:
                        raise TooManyRecords(
                            f"topic {self.name!r} has more than {limit} records: raise limit or choose partitions"
                        )
        return found

    def _partitions(self, client: Client) -> list[int]:
        from kproc.wire.header import ApiKey

        fields = {"topics": [{"topic_id": None, "name": self.name}], "allow_auto_topic_creation": False}
        [topic] = client.call_latest(ApiKey.METADATA, fields)["topics"]
        self._check(topic["error_code"])
        return sorted(row["partition_index"] for row in topic["partitions"])

    def _offsets(self, client: Client, numbers: list[int], timestamp: int, level: int) -> dict[int, int]:
        from kproc.client.requests import list_offsets_fields
        from kproc.wire.header import ApiKey

        wanted = {(self.name, number): timestamp for number in numbers}
        fields = list_offsets_fields(wanted, isolation=level, timeout_ms=_TIMEOUT_MS)
        rows = [
            row
            for topic in client.call_latest(ApiKey.LIST_OFFSETS, fields)["topics"]
            for row in topic["partitions"]
        ]
        for row in rows:
            self._check(row["error_code"], row["partition_index"])
        return {row["partition_index"]: row["offset"] for row in rows}

    def _read(
        self, client: Client, number: int, offsets: tuple[int, int], level: int
    ) -> Iterator[TopicRecord]:
        """Yield the visible records of partition `number` from offsets[0] to before offsets[1].

        level: the isolation level.
        """
        from kproc.client.requests import FetchLimits, fetch_fields
        from kproc.wire.header import ApiKey

        offset, end = offsets
        limits = FetchLimits(_FETCH_BYTES, min_bytes=0, wait_ms=0)
        while offset < end:
            fields = fetch_fields((self.name, number), offset, limits, isolation=level)
            [topic] = client.call_latest(ApiKey.FETCH, fields)["responses"]
            [row] = topic["partitions"]
            self._check(row["error_code"], number)
            next_offset = offset
            for batch, is_hidden in _visible_batches(row, level):
                next_offset = batch.next_offset
                if not is_hidden:
                    for record in batch.records():
                        if offset <= record.offset < end:
                            yield _as_topic_record(number, record)
            if next_offset <= offset:
                raise RuntimeError(
                    f"topic {self.name!r}, partition {number}: the broker returned no batch at offset {offset}, "
                    f"although the partition has readable offsets up to {end}"
                )
            offset = next_offset

    def _check(self, code: int, partition: int | None = None) -> None:
        from kproc.client import error_text

        if code:
            where = "" if partition is None else f", partition {partition}"
            raise RequestFailed(code, f"topic {self.name!r}{where}: {error_text(code)}")


class _FetchedBatch(NamedTuple):
    """A complete record batch in a Fetch response."""

    content: bytes
    next_offset: int

    def records(self) -> Iterator[Any]:
        """Yield the decoded records."""
        from kproc.wire.record_batch import walk_batch

        return walk_batch(self.content)


def _visible_batches(row: dict[str, Any], level: int) -> Iterator[tuple[_FetchedBatch, bool]]:
    """Yield (batch, is_hidden) for each complete batch. Consumers do not see the records of a hidden batch.

    Batches of markers are hidden, and with read_committed those of aborted transactions.

    A Fetch with read_committed lists the aborted transactions of its range: each hides the batches of its producer from
    its first offset on, up to the marker that ends it (KIP-98).
    """
    from kproc.wire.batch_header import HEADER_BYTES
    from kproc.wire.record_batch import parse_header

    content: bytes = row["records"] or b""
    waiting = sorted(
        (each["first_offset"], each["producer_id"])
        for each in (row.get("aborted_transactions") or ())
        if level == READ_COMMITTED
    )
    aborted: set[int] = set()
    position = 0
    while position + HEADER_BYTES <= len(content):
        header = parse_header(content, position)
        if position + header.total_bytes > len(content):
            return  # The last batch of a Fetch may be incomplete.
        batch = _FetchedBatch(content[position : position + header.total_bytes], header.last_offset + 1)
        position += header.total_bytes
        while waiting and waiting[0][0] <= header.last_offset:
            aborted.add(waiting.pop(0)[1])
        yield batch, header.is_control or (header.is_transactional and header.producer_id in aborted)
        if header.is_control:
            aborted.discard(header.producer_id)


def _as_topic_record(number: int, record: Any) -> TopicRecord:
    return TopicRecord(
        number, record.offset, record.timestamp_ms, record.key, record.value, tuple(record.headers)
    )
