"""Requests that are encoded once and sent many times, so that a measurement contains little work of the client."""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct
from typing import Any, Final

from kproc.client import ApiError, Client, ClientError, error_text
from kproc.common.clock import SystemClock
from kproc.common.errors import ErrorCode, ProtocolError
from kproc.wire import codec
from kproc.wire.batch_header import (
    BATCH_LENGTH,
    HEADER,
    HEADER_BYTES,
    MAGIC_AT,
    RECORD_COUNT,
    last_offset_of,
)
from kproc.wire.header import ApiKey
from kproc.wire.record_batch import LOG_OVERHEAD_BYTES, MAGIC, encode_batch
from kproc.wire.records import Record

ACKS: Final = {"all": -1, "1": 1, "0": 0}
_CORRELATION: Final = Struct(">i")
_CORRELATION_AT: Final = 8  # After the frame's length, the API key and the API's version.
_CORRELATION_MASK: Final = 0x7FFF_FFFF
_PRODUCE_TIMEOUT_MS: Final = 30_000
_PRODUCE_BEFORE_KIP_890: Final = 11


class FixedRequest:
    """One request on one connection. Each send changes only the correlation id in the encoded frame."""

    def __init__(self, client: Client, api_key: ApiKey, version: int, fields: Mapping[str, Any]) -> None:
        self._client = client
        self._api_key = api_key
        self._version = version
        self._frame = bytearray(codec.encode_request(api_key, version, 0, client.client_id, fields))
        self.number = 0
        """Correlation id of the last request that was sent. 0 before the first."""

    def send(self) -> None:
        """Send the request. Raises ClientError."""
        self.number = (self.number + 1) & _CORRELATION_MASK
        self._frame[_CORRELATION_AT : _CORRELATION_AT + 4] = _CORRELATION.pack(self.number)
        self._client.send_bytes(memoryview(self._frame))

    def receive(self) -> bytes:
        """Return the response's frame without its length. Raises ClientError."""
        frame = self._client.receive_frame()
        (number,) = _CORRELATION.unpack_from(frame)
        if number != self.number:
            raise ClientError(
                f"{self._client.address} answered correlation id {number}, but {self.number} was due"
            )
        return frame

    def decode(self, frame: bytes) -> dict[str, Any]:
        """Return the fields of a response. Raises ClientError."""
        try:
            return codec.decode_response(self._api_key, self._version, frame)[1]
        except ProtocolError as error:
            raise ClientError(
                f"{self._client.address} sent an answer that cannot be read: {error}"
            ) from error


def equal_records(count: int, value: bytes) -> bytes:
    """Return one batch of `count` records with this value, stamped with the present time."""
    now_ms = SystemClock().wall_ms()
    return bytes(encode_batch([Record(None, value, now_ms)] * count))


def produce_request(
    client: Client, topic: str, partition: int, batch: bytes, acks: int, transactional_id: str | None = None
) -> FixedRequest:
    """Return a request that produces one batch."""
    fields = {
        "transactional_id": transactional_id,
        "acks": acks,
        "timeout": _PRODUCE_TIMEOUT_MS,
        "topic_data": [{"name": topic, "partition_data": [{"index": partition, "records": batch}]}],
    }
    # Transactions use a version below 12, because from v12 on a Produce adds its partition to the transaction
    # (KIP-890), and each commit raises the producer epoch.
    newest = _PRODUCE_BEFORE_KIP_890 if transactional_id is not None else None
    return FixedRequest(client, ApiKey.PRODUCE, client.negotiate(ApiKey.PRODUCE, newest=newest), fields)


def base_offset(answer: Mapping[str, Any]) -> int:
    """Return the base offset in the response to a Produce of one batch. Raises ApiError."""
    (topic,) = answer["responses"]
    (row,) = topic["partition_responses"]
    if row["error_code"]:
        where = f"{topic['name']}-{row['index']}"
        raise ApiError(row["error_code"], f"Produce to {where}: {_why(row['error_code'])}")
    offset: int = row["base_offset"]
    return offset


def fetched_records(answer: Mapping[str, Any]) -> bytes:
    """Return the record batches in the response to a Fetch of one partition. Raises ApiError."""
    if answer["error_code"]:
        raise ApiError(answer["error_code"], f"Fetch: {_why(answer['error_code'])}")
    if not answer["responses"]:
        return b""
    topic = answer["responses"][0]
    (row,) = topic["partitions"]
    if row["error_code"]:
        where = f"{topic['topic']}-{row['partition_index']}"
        raise ApiError(row["error_code"], f"Fetch of {where}: {_why(row['error_code'])}")
    return row["records"] or b""


def _why(code: int) -> str:
    text = error_text(code)
    is_other = code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    return f"{text}; give the address of the broker that leads it" if is_other else text


def count_records(batches: bytes, offset: int) -> tuple[int, int]:
    """Return the number of records in the whole batches of a Fetch, and the offset after the last one.

    offset: where the Fetch began, and the offset to return if there is no whole batch.

    Raises ClientError for batches from before Kafka 0.11.
    """
    count, position, size = 0, 0, len(batches)
    unpack = HEADER.unpack_from
    while position + HEADER_BYTES <= size:
        if batches[position + MAGIC_AT] != MAGIC:
            raise ClientError(f"the batch at offset {offset} has a format from before Kafka 0.11")
        header = unpack(batches, position)
        following = position + LOG_OVERHEAD_BYTES + header[BATCH_LENGTH]
        # A Fetch response can end with an incomplete batch, which the next Fetch returns whole. Do not count it.
        if not position < following <= size:
            break
        count += header[RECORD_COUNT]
        offset = last_offset_of(header) + 1
        position = following
    return count, offset
