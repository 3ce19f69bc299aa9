"""A broker of a few lines whose refusals are scripted: what a producer makes of them is the test.

It keeps sequences as Kafka does: the newest batches of each producer are remembered and a repeated one is answered
with DUPLICATE_SEQUENCE_NUMBER's meaning (the offset it has), a gap with OUT_OF_ORDER_SEQUENCE_NUMBER, and a
producer that it has never seen may start anywhere.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kproc.common.errors import ErrorCode
from kproc.wire import codec
from kproc.wire.header import ApiKey, parse_request_header
from kproc.wire.record_batch import check_batch, decode_records
from kproc.wire.records import Record
from tests.support.frame_server import FrameServer

REMEMBERED_BATCHES = 5
HANG_UP_BEFORE = "hang up before"
HANG_UP_AFTER = "hang up after"
SILENCE = "stored, and no answer"
Verdict = ErrorCode | str | None


@dataclass
class Log:
    """One partition."""

    records: list[Record] = field(default_factory=list)
    # (producer id, epoch) -> newest (first sequence, last sequence, base offset)
    producers: dict[tuple[int, int], list[tuple[int, int, int]]] = field(default_factory=dict)

    def append(self, batch: bytes) -> tuple[int, int]:
        """(error code, base offset), as Kafka answers."""
        header = check_batch(batch)
        offset = len(self.records)
        if header.producer_id >= 0:
            key = (header.producer_id, header.producer_epoch)
            known = self.producers.setdefault(key, [])
            for first, last, stored_at in known:
                if (first, last) == (header.base_sequence, header.last_sequence):
                    return 0, stored_at
            if known and header.base_sequence != known[-1][1] + 1:
                return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
            known.append((header.base_sequence, header.last_sequence, offset))
            del known[:-REMEMBERED_BATCHES]
        self.records += decode_records(batch)
        return 0, offset


class ScriptedBroker(FrameServer):
    """One node with one topic. `verdict(topic, partition, batch)` is asked about every batch that comes."""

    def __init__(self, topic: str, partitions: int, verdict: Callable[[str, int, bytes], Verdict]) -> None:
        super().__init__()
        self.topic = topic
        self.logs = [Log() for _ in range(partitions)]
        self.producer_ids = 0
        self.requests: list[list[tuple[int, bytes]]] = []
        self.transactional_ids: list[str | None] = []
        self._verdict = verdict
        self._lock = threading.Lock()

    def handle(self, frame: bytes) -> bytes | None:
        header, position = parse_request_header(frame)
        fields = codec.decode_request(header.api_key, header.api_version, frame[position:])
        with self._lock:
            answer = self._answer(header.api_key, fields)
        if answer is None:
            return None
        if not answer or fields.get("acks") == 0:
            return b""
        return codec.encode_response(header.api_key, header.api_version, header.correlation_id, answer)

    def _answer(self, api_key: int, fields: dict[str, Any]) -> dict[str, Any] | None:
        match api_key:
            case ApiKey.API_VERSIONS:
                served = {ApiKey.PRODUCE: 12, ApiKey.METADATA: 12, ApiKey.API_VERSIONS: 3}
                served[ApiKey.INIT_PRODUCER_ID] = 4
                rows = [
                    {"api_key": int(key), "min_version": 0, "max_version": newest}
                    for key, newest in served.items()
                ]
                return {"error_code": 0, "api_keys": rows}
            case ApiKey.METADATA:
                return self._metadata(fields)
            case ApiKey.INIT_PRODUCER_ID:
                self.producer_ids += 1
                return {"error_code": 0, "producer_id": self.producer_ids, "producer_epoch": 0}
            case ApiKey.PRODUCE:
                return self._produce(fields)
        raise AssertionError(f"API key {api_key}")

    def _metadata(self, fields: dict[str, Any]) -> dict[str, Any]:
        host, _, port = self.bootstrap.rpartition(":")
        partitions = [
            {
                "error_code": 0,
                "partition_index": index,
                "leader_id": 1,
                "replica_nodes": [1],
                "isr_nodes": [1],
            }
            for index in range(len(self.logs))
        ]
        topics = [
            {"error_code": 0, "name": row["name"], "is_internal": False, "partitions": partitions}
            if row["name"] == self.topic
            else {"error_code": 3, "name": row["name"], "is_internal": False, "partitions": []}
            for row in fields["topics"]
        ]
        return {"brokers": [{"node_id": 1, "host": host, "port": int(port)}], "topics": topics}

    def _produce(self, fields: dict[str, Any]) -> dict[str, Any] | None:
        rows = []
        hang_up = is_silent = False
        self.requests.append([])
        self.transactional_ids.append(fields["transactional_id"])
        for topic in fields["topic_data"]:
            assert topic["name"] == self.topic
            for each in topic["partition_data"]:
                index, batch = each["index"], bytes(each["records"])
                self.requests[-1].append((index, batch))
                verdict = self._verdict(self.topic, index, batch)
                if verdict == HANG_UP_BEFORE:
                    return None
                hang_up |= verdict == HANG_UP_AFTER
                is_silent |= verdict == SILENCE
                if isinstance(verdict, ErrorCode):
                    code, offset = int(verdict), -1
                else:
                    code, offset = self.logs[index].append(batch)
                rows.append({"index": index, "error_code": code, "base_offset": offset})
        if hang_up:
            return None
        return {} if is_silent else {"responses": [{"name": self.topic, "partition_responses": rows}]}
