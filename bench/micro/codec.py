"""Requests and answers, bytes to fields and back.

    body --decode--> fields        fields --encode--> frame        by hand (wire/hot.py), by schemas (wire/codec.py)

The question: what does the codec cost of a Produce, a Fetch and a Metadata, and what does writing the two hot ones by
hand save?
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from bench.timing import Benchmark, main
from kproc.wire import codec, hot
from kproc.wire.header import ApiKey
from kproc.wire.record_batch import encode_batch
from kproc.wire.records import Record

_PRODUCE, _FETCH, _METADATA = 9, 12, 12
_BATCH = bytes(encode_batch([Record(None, bytes(100), 1_700_000_000_000)]))
_CLIENT = "bench"
_PRODUCE_FIELDS: dict[str, Any] = {
    "transactional_id": None,
    "acks": 1,
    "timeout": 10_000,
    "topic_data": [{"name": "orders", "partition_data": [{"index": 3, "records": _BATCH}]}],
}
_FETCH_FIELDS: dict[str, Any] = {
    "replica_id": -1,
    "max_wait": 500,
    "min_bytes": 1,
    "max_bytes": 1 << 20,
    "isolation_level": 0,
    "session_id": 0,
    "session_epoch": -1,
    "topics": [
        {
            "topic": "orders",
            "partitions": [{"partition": 3, "fetch_offset": 7, "partition_max_bytes": 1 << 20}],
        }
    ],
    "forgotten_topics_data": [],
    "rack_id": "",
}
_METADATA_FIELDS: dict[str, Any] = {"topics": [{"topic_id": bytes(16), "name": "orders"}]}
_METADATA_ANSWER: dict[str, Any] = {
    "throttle_time": 0,
    "brokers": [{"node_id": 1, "host": "localhost", "port": 9092, "rack": None}],
    "cluster_id": "k",
    "controller_id": 1,
    "topics": [
        {
            "error_code": 0,
            "name": "orders",
            "topic_id": bytes(range(16)),
            "is_internal": False,
            "partitions": [
                {
                    "error_code": 0,
                    "partition_index": index,
                    "leader_id": 1,
                    "leader_epoch": 0,
                    "replica_nodes": [1],
                    "isr_nodes": [1],
                    "offline_replicas": [],
                }
                for index in range(8)
            ],
            "topic_authorized_operations": -1,
        }
    ],
}


def body_of(key: ApiKey, version: int, fields: dict[str, Any]) -> memoryview:
    """A request as a Handler sees it, behind the header."""
    frame = codec.encode_request(key, version, 1, _CLIENT, fields)
    return memoryview(frame)[4 + 8 + 2 + len(_CLIENT) + 1 :]  # length, header, client id, no tags


def calling(call: Callable[[], Any], check: Callable[[Any], bool]) -> Benchmark:
    """A benchmark: one loop is one call; what the last one gave is looked at."""

    def run(loops: int) -> float:
        started = time.perf_counter()
        for _ in range(loops):
            result = call()
        took = time.perf_counter() - started
        assert check(result), result
        return took

    return run


def _benchmarks() -> dict[str, Benchmark]:
    produce = body_of(ApiKey.PRODUCE, _PRODUCE, _PRODUCE_FIELDS)
    fetch = body_of(ApiKey.FETCH, _FETCH, _FETCH_FIELDS)
    metadata = body_of(ApiKey.METADATA, _METADATA, _METADATA_FIELDS)
    results = [("orders", None, [hot.FetchPartitionResult(3, 0, 8, 8, 0, None, [_BATCH])])]
    answer = codec.encode_response(ApiKey.METADATA, _METADATA, 1, _METADATA_ANSWER)
    return {
        "Produce request, by hand": calling(
            lambda: hot.decode_produce(_PRODUCE, produce),
            lambda got: got.topics[0].partitions[0][1] == _BATCH,
        ),
        "Produce request, by schemas": calling(
            lambda: codec.decode_request(ApiKey.PRODUCE, _PRODUCE, produce),
            lambda got: got["topic_data"][0]["partition_data"][0]["records"] == _BATCH,
        ),
        "Produce answer, by hand": calling(
            lambda: hot.encode_produce_response(
                _PRODUCE, 1, [("orders", None, [(3, 0, 7, -1, 0, None, ())])]
            ),
            lambda got: _row(codec.decode_response(ApiKey.PRODUCE, _PRODUCE, got[4:]))["base_offset"] == 7,
        ),
        "Fetch request, by hand": calling(
            lambda: hot.decode_fetch(_FETCH, fetch), lambda got: got.topics[0][2][0].fetch_offset == 7
        ),
        "Fetch request, by schemas": calling(
            lambda: codec.decode_request(ApiKey.FETCH, _FETCH, fetch),
            lambda got: got["topics"][0]["partitions"][0]["fetch_offset"] == 7,
        ),
        "Fetch answer, by hand": calling(
            lambda: hot.encode_fetch_response(_FETCH, 1, 0, 0, 0, results),
            lambda got: _BATCH in b"".join(got),
        ),
        "Metadata request": calling(
            lambda: codec.decode_request(ApiKey.METADATA, _METADATA, metadata),
            lambda got: got["topics"][0]["name"] == "orders",
        ),
        "Metadata answer, 8 partitions": calling(
            lambda: codec.encode_response(ApiKey.METADATA, _METADATA, 1, _METADATA_ANSWER),
            lambda got: got == answer,
        ),
    }


def _row(decoded: tuple[int, dict[str, Any]]) -> dict[str, Any]:
    return decoded[1]["responses"][0]["partition_responses"][0]


if __name__ == "__main__":
    raise SystemExit(main("bench.micro.codec", __doc__, _benchmarks()))
