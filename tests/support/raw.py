"""Raw requests on a socket: what no well-behaved client would send, and answers field by field.

A connection is a plain blocking socket with a deadline; the wire package is the only part of kproc used here.
Everything that a client library would do for us (retries, metadata, sessions) is left out on purpose.
"""

from __future__ import annotations

import itertools
import socket
import struct
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

from kproc.wire import codec
from kproc.wire.header import ApiKey
from kproc.wire.record_batch import decode_records, encode_batch, parse_header
from kproc.wire.records import Record
from tests.support.wait import PATIENCE_SECONDS, wait_until

CLIENT_ID = "raw-test"
NO_TOPIC_ID = bytes(16)
Fields = dict[str, Any]


class Closed(Exception):
    """The broker closed the connection."""


def address_of(bootstrap: str) -> tuple[str, int]:
    """Return the host and the port of `host:port`."""
    host, _, port = bootstrap.rpartition(":")
    return host, int(port)


class RawConnection:
    """One connection: send, receive, call."""

    def __init__(self, bootstrap: str, *, timeout: float = PATIENCE_SECONDS, source: str = "") -> None:
        self.socket = socket.create_connection(
            address_of(bootstrap), timeout, (source, 0) if source else None
        )
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._correlation_ids = itertools.count(1)

    def __enter__(self) -> RawConnection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()

    def call(self, api_key: ApiKey, version: int, fields: Mapping[str, Any]) -> Fields:
        """Send one request and return its answer."""
        correlation_id = self.send(api_key, version, fields)
        got, answer = self.receive(api_key, version)
        assert got == correlation_id, (got, correlation_id)
        return answer

    def send(self, api_key: ApiKey, version: int, fields: Mapping[str, Any]) -> int:
        """Send one request; its correlation id."""
        correlation_id = next(self._correlation_ids)
        self.send_bytes(codec.encode_request(api_key, version, correlation_id, CLIENT_ID, dict(fields)))
        return correlation_id

    def receive(self, api_key: ApiKey, version: int) -> tuple[int, Fields]:
        """The next answer, taken for one of that API and version: (correlation id, fields)."""
        return codec.decode_response(api_key, version, self.receive_frame())

    def send_bytes(self, data: bytes) -> None:
        """Send anything at all; Closed when the broker has closed the connection."""
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError) as problem:
            raise Closed from problem

    def receive_frame(self) -> bytes:
        """The next frame without its length; Closed at the end of the stream."""
        (length,) = struct.unpack(">i", self._receive_exactly(4))
        return self._receive_exactly(length)

    def _receive_exactly(self, count: int) -> bytes:
        buffer = bytearray(count)
        view = memoryview(buffer)
        filled = 0
        while filled < count:
            try:
                received = self.socket.recv_into(view[filled:])
            except ConnectionResetError as problem:
                raise Closed from problem
            if not received:
                raise Closed
            filled += received
        return bytes(buffer)

    def is_closed_by_broker(self, seconds: float = PATIENCE_SECONDS) -> bool:
        """Return True if the broker closes the connection within that time and sends nothing before."""
        self.socket.settimeout(seconds)
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True
        except TimeoutError:
            return False
        finally:
            self.socket.settimeout(PATIENCE_SECONDS)


def batch(*values: bytes, timestamp_ms: int = 1_700_000_000_000, **more: Any) -> bytes:
    """A record batch of these values; `more` goes to encode_batch."""
    records = [Record(b"k%d" % number, value, timestamp_ms + number) for number, value in enumerate(values)]
    return bytes(encode_batch(records, **more))


def split_batches(records: bytes | None) -> list[bytes]:
    """The whole batches of a fetched records field; a cut last one is left out, as a consumer does."""
    whole: list[bytes] = []
    rest = bytes(records or b"")
    while len(rest) >= 12:
        size = 12 + struct.unpack_from(">i", rest, 8)[0]
        if size > len(rest):
            break
        whole.append(rest[:size])
        rest = rest[size:]
    return whole


def values_of(records: bytes | None) -> list[tuple[int, bytes | None]]:
    """(offset, value) of every record of a fetched records field."""
    return [(row.offset, row.value) for one in split_batches(records) for row in decode_records(one)]


def offset_behind(records: bytes | None, position: int) -> int:
    """Where a consumer goes on that was at `position`: behind the last whole batch, which may hold no record."""
    batches = split_batches(records)
    return parse_header(batches[-1]).last_offset + 1 if batches else position


class RawClient(RawConnection):
    """The requests that the tests send most, one partition at a time."""

    def topic_id(self, name: str) -> bytes:
        """The topic's id, 16 bytes."""
        return bytes(self.describe_topic(name)["topic_id"])

    def describe_topic(self, name: str, version: int = 12) -> Fields:
        """The topic's row of a Metadata answer; never creates it."""
        answer = self.call(
            ApiKey.METADATA,
            version,
            {"topics": [{"name": name, "topic_id": NO_TOPIC_ID}], "allow_auto_topic_creation": False},
        )
        return dict(answer["topics"][0])

    def create_topic(
        self, name: str, *, partitions: int = 1, configs: Mapping[str, str] | None = None
    ) -> bytes:
        """Create it, wait until it can be used; its id."""
        answer = self.call(
            ApiKey.CREATE_TOPICS, 7, create_topics_fields(name, partitions=partitions, configs=configs)
        )
        row = answer["topics"][0]
        assert row["error_code"] == 0, row

        def is_led() -> bool:
            # Kafka shows a leader in Metadata a moment before that leader serves the partition.
            wanted = list_offsets_fields(name, [(index, -1) for index in range(partitions)])
            rows = self.call(ApiKey.LIST_OFFSETS, 9, wanted)["topics"][0]["partitions"]
            return all(part["error_code"] == 0 for part in rows)

        wait_until(is_led, what=f"{name} is served")
        return bytes(row["topic_id"])

    def delete_topic(self, name: str) -> None:
        """Delete a topic by its name."""
        fields = {"topic_names": [name], "timeout": 10_000}
        (row,) = self.call(ApiKey.DELETE_TOPICS, 5, fields)["responses"]
        assert row["error_code"] == 0, row

    def delete_records(self, topic: str, offset: int, *, partition: int = 0) -> None:
        """Move a partition's log start to `offset`."""
        rows = [{"name": topic, "partitions": [{"partition_index": partition, "offset": offset}]}]
        (answer,) = self.call(ApiKey.DELETE_RECORDS, 2, {"topics": rows, "timeout": 10_000})["topics"]
        (row,) = answer["partitions"]
        assert (row["error_code"], row["low_watermark"]) == (0, offset), row

    def produce(
        self,
        topic: str,
        records: bytes | None,
        *,
        partition: int = 0,
        acks: int = -1,
        version: int = 9,
        topic_id: bytes = NO_TOPIC_ID,
    ) -> Fields:
        """Produce to one partition; its row of the answer, with `error_code` and `base_offset`."""
        fields = produce_fields([(topic, topic_id, [(partition, records)])], acks=acks)
        answer = self.call(ApiKey.PRODUCE, version, fields)
        return dict(answer["responses"][0]["partition_responses"][0])

    def fetch(
        self,
        topic: str,
        offset: int,
        *,
        partition: int = 0,
        version: int = 12,
        topic_id: bytes = NO_TOPIC_ID,
        **more: Any,
    ) -> Fields:
        """Fetch one partition; that partition's row of the answer, with `error_code` and `records`."""
        answer = self.call(
            ApiKey.FETCH, version, fetch_fields([(topic, topic_id, [(partition, offset)])], **more)
        )
        assert answer.get("error_code", 0) == 0, answer
        return dict(answer["responses"][0]["partitions"][0])

    def list_offset(self, topic: str, timestamp: int, *, partition: int = 0, version: int = 9) -> Fields:
        """That partition's row of a ListOffsets answer."""
        answer = self.call(ApiKey.LIST_OFFSETS, version, list_offsets_fields(topic, [(partition, timestamp)]))
        return dict(answer["topics"][0]["partitions"][0])

    def end_offset(self, topic: str, *, partition: int = 0) -> int:
        """The log end."""
        return int(self.list_offset(topic, -1, partition=partition)["offset"])


def produce_fields(
    topics: Iterable[tuple[str, bytes, Sequence[tuple[int, bytes | None]]]],
    *,
    acks: int = -1,
    timeout_ms: int = 10_000,
) -> Fields:
    """The fields of a Produce request: (name, id, [(partition, records)])."""
    rows = [
        {
            "name": name,
            "topic_id": topic_id,
            "partition_data": [{"index": index, "records": records} for index, records in partitions],
        }
        for name, topic_id, partitions in topics
    ]
    return {"transactional_id": None, "acks": acks, "timeout": timeout_ms, "topic_data": rows}


def fetch_fields(
    topics: Iterable[tuple[str, bytes, Sequence[tuple[int, int]]]],
    *,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 50_000_000,
    partition_max_bytes: int = 1_000_000,
    session: tuple[int, int] = (0, -1),
    forgotten: Iterable[tuple[str, bytes, Sequence[int]]] = (),
    current_leader_epoch: int = -1,
) -> Fields:
    """The fields of a Fetch request: (name, id, [(partition, offset)]); without a session by default."""
    rows = [
        {
            "topic": name,
            "topic_id": topic_id,
            "partitions": [
                {
                    "partition": index,
                    "current_leader_epoch": current_leader_epoch,
                    "fetch_offset": offset,
                    "last_fetched_epoch": -1,
                    "log_start_offset": -1,
                    "partition_max_bytes": partition_max_bytes,
                }
                for index, offset in partitions
            ],
        }
        for name, topic_id, partitions in topics
    ]
    return {
        "replica_id": -1,
        "max_wait": max_wait_ms,
        "min_bytes": min_bytes,
        "max_bytes": max_bytes,
        "isolation_level": 0,
        "session_id": session[0],
        "session_epoch": session[1],
        "topics": rows,
        "forgotten_topics_data": [
            {"topic": name, "topic_id": topic_id, "partitions": list(indexes)}
            for name, topic_id, indexes in forgotten
        ],
        "rack_id": "",
    }


def list_offsets_fields(topic: str, partitions: Iterable[tuple[int, int]]) -> Fields:
    """The fields of a ListOffsets request: (partition, timestamp)."""
    rows = [
        {"partition_index": index, "current_leader_epoch": -1, "timestamp": timestamp}
        for index, timestamp in partitions
    ]
    return {
        "replica_id": -1,
        "isolation_level": 0,
        "timeout": 5_000,
        "topics": [{"name": topic, "partitions": rows}],
    }


def create_topics_fields(
    name: str,
    *,
    partitions: int = 1,
    replication: int = 1,
    configs: Mapping[str, str] | None = None,
    validate_only: bool = False,
) -> Fields:
    """The fields of a CreateTopics request for one topic."""
    row = {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": replication,
        "assignments": [],
        "configs": [{"name": key, "value": value} for key, value in (configs or {}).items()],
    }
    return {"topics": [row], "timeout": 10_000, "validate_only": validate_only}
