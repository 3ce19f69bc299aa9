"""A connection of commands to a broker that exists only as a table of partitions and groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from kproc.client.own_operations import OperationFields
from kproc.common.errors import ErrorCode
from kproc.common.reading import EARLIEST, LATEST, MAX_TIMESTAMP, READ_COMMITTED
from kproc.wire.header import ApiKey
from kproc.wire.record_batch import encode_batch
from kproc.wire.records import Record

NOW_MS = 1_800_000_000_000
DEFAULT_CONFIGS = {"cleanup.policy": "delete", "retention.ms": "604800000", "retention.bytes": "-1"}


class StoppedClock:
    """Takes the place of SystemClock in commands, so that ages are exact on a busy machine."""

    def wall_ms(self) -> int:
        return NOW_MS


@dataclass
class ScriptedLog:
    """One partition: the times of its records in ms, and its attributes."""

    times: list[int] = field(default_factory=list)
    start: int = 0
    stable: int | None = None
    error: ErrorCode = ErrorCode.NONE
    value: bytes = b"v"

    @property
    def end(self) -> int:
        return len(self.times)

    @property
    def size(self) -> int:
        return 100 * (self.end - self.start)


@dataclass
class ScriptedGroup:
    """One group: its committed offsets by partition."""

    offsets: dict[tuple[str, int], int] = field(default_factory=dict)
    members: int = 0
    type: str = "classic"
    error: ErrorCode = ErrorCode.NONE


class ScriptedClient:
    """Answers as a broker would. `requests` counts what was sent, `denied` are API keys without the right."""

    address = "broker:9092"
    peer = ("192.0.2.1", 9092)

    def __init__(self) -> None:
        self.logs: dict[tuple[str, int], ScriptedLog] = {}
        self.configs: dict[str, dict[str, str]] = {}
        self.groups: dict[str, ScriptedGroup] = {}
        self.internal: set[str] = set()
        self.denied: set[ApiKey] = set()
        self.unserved: set[ApiKey] = set()
        self.traffic: list[list[dict[str, Any]]] = []
        self.requests: list[ApiKey] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def close(self) -> None:
        pass

    def api_versions(self) -> dict[int, tuple[int, int]]:
        return {int(key): (0, 99) for key in ApiKey if key not in self.unserved}

    def operate(self, op: str) -> dict[str, Any]:
        if op == "ping":
            return {}
        if op == "topics":
            return OperationFields(topics=[OperationFields(row) for row in self.traffic.pop(0)], silent=[])
        assert op == "logs"
        topics = [
            {"name": name, "partitions": [[at, *self._survey(self.logs[name, at])] for at in each]}
            for name, each in self._numbers().items()
        ]
        offline = [
            {"topic": topic, "partition": number, "reason": "damaged"}
            for (topic, number), log in self.logs.items()
            if log.error
        ]
        return {"topics": topics, "offline": {"count": len(offline), "first": offline}}

    def _survey(self, log: ScriptedLog) -> tuple[int, int, int]:
        times = log.times[log.start :]
        return log.size, max(times, default=-1), times[0] if times else -1

    def call_latest(
        self, key: ApiKey, fields: Mapping[str, Any], *, newest: int | None = None
    ) -> dict[str, Any]:
        self.requests.append(key)
        return getattr(self, f"_{key.name.lower()}")(fields)

    def _numbers(self) -> dict[str, list[int]]:
        numbers: dict[str, list[int]] = {}
        for topic, index in self.logs:
            numbers.setdefault(topic, []).append(index)
        return numbers

    def _metadata(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        numbers = self._numbers()
        names = numbers if fields["topics"] is None else [row["name"] for row in fields["topics"]]
        return {
            "topics": [
                {
                    "name": name,
                    "topic_id": b"\1" * 16,
                    "error_code": 0 if name in numbers else int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
                    "is_internal": name in self.internal,
                    "partitions": [
                        {"partition_index": index, "leader_id": 1, "leader_epoch": 0}
                        for index in numbers.get(name, ())
                    ],
                }
                for name in names
            ]
        }

    def _describe_cluster(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        assert fields["include_cluster_authorized_operations"]
        return {"cluster_authorized_operations": 0 if ApiKey.DESCRIBE_CLUSTER in self.denied else -1}

    def _describe_log_dirs(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        if ApiKey.DESCRIBE_LOG_DIRS in self.denied:
            return {"error_code": int(ErrorCode.CLUSTER_AUTHORIZATION_FAILED), "results": []}
        wanted = self._numbers()
        if fields["topics"] is not None:
            wanted = {row["topic"]: row["partitions"] for row in fields["topics"]}
        topics = [
            {
                "name": name,
                "partitions": [
                    {
                        "partition_index": at,
                        "partition_size": self.logs[name, at].size,
                        "is_future_key": False,
                    }
                    for at in each
                ],
            }
            for name, each in wanted.items()
        ]
        return {"error_code": 0, "results": [{"error_code": 0, "topics": topics}]}

    def _describe_configs(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        results = []
        for row in fields["resources"]:
            own = self.configs.get(row["resource_name"], {})
            keys = row["configuration_keys"]
            values = {name: (value, 5) for name, value in DEFAULT_CONFIGS.items()}
            values |= {name: (value, 1) for name, value in own.items()}
            results.append(
                {
                    "resource_name": row["resource_name"],
                    "error_code": 0,
                    "configs": [
                        {"name": name, "value": value, "config_source": source}
                        for name, (value, source) in values.items()
                        if keys is None or name in keys
                    ],
                }
            )
        if ApiKey.DESCRIBE_CONFIGS in self.denied:
            for each in results:
                each |= {"error_code": int(ErrorCode.TOPIC_AUTHORIZATION_FAILED), "configs": []}
        return {"results": results}

    def _list_offsets(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        topics = []
        for topic in fields["topics"]:
            rows = []
            for row in topic["partitions"]:
                log = self.logs.get((topic["name"], row["partition_index"]))
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if log is None else log.error
                found = (-1, -1)
                if log is not None and not code:
                    found = self._find(log, row["timestamp"], fields["isolation_level"])
                rows.append(
                    {
                        "partition_index": row["partition_index"],
                        "error_code": int(code),
                        "offset": found[0],
                        "timestamp": found[1],
                    }
                )
            topics.append({"name": topic["name"], "partitions": rows})
        return {"topics": topics}

    def _find(self, log: ScriptedLog, time: int, isolation: int) -> tuple[int, int]:
        if time == LATEST:
            is_committed = isolation == READ_COMMITTED and log.stable is not None
            return (log.stable if is_committed and log.stable is not None else log.end), -1
        if time == EARLIEST:
            return log.start, -1
        left = range(log.start, log.end)
        if time == MAX_TIMESTAMP:
            at = max(left, key=lambda each: log.times[each], default=-1)
        else:
            at = next((each for each in left if log.times[each] >= time), -1)
        return at, (log.times[at] if at >= 0 else -1)

    def _describe_producers(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        is_denied = ApiKey.DESCRIBE_PRODUCERS in self.denied
        return {
            "topics": [
                {
                    "name": topic["name"],
                    "partitions": [
                        {
                            "partition_index": index,
                            "error_code": int(ErrorCode.TOPIC_AUTHORIZATION_FAILED) if is_denied else 0,
                            "active_producers": [
                                {"producer_id": 7, "producer_epoch": 0, "current_txn_start_offset": 1}
                            ],
                        }
                        for index in topic["partition_indexes"]
                    ],
                }
                for topic in fields["topics"]
            ]
        }

    def _consumer_group_describe(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        rows = [
            {"group_id": name, "error_code": 0, "members": [{}] * self.groups[name].members}
            for name in fields["group_ids"]
        ]
        return {"groups": rows}

    def _list_groups(self, _fields: Mapping[str, Any]) -> dict[str, Any]:
        rows = [
            {
                "group_id": name,
                "group_state": "Stable" if group.members else "Empty",
                "group_type": group.type,
                "protocol_type": "consumer",
            }
            for name, group in self.groups.items()
        ]
        return {"error_code": 0, "groups": rows}

    def _describe_groups(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        rows = [
            {
                "group_id": name,
                "error_code": int(self.groups[name].error)
                if self.groups[name].type == "classic"
                else int(ErrorCode.GROUP_ID_NOT_FOUND),
                "group_state": "Stable",
                "members": [{}] * self.groups[name].members,
            }
            for name in fields["groups"]
        ]
        return {"groups": rows}

    def _offset_fetch(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        answers = []
        for row in fields["groups"]:
            group = self.groups[row["group_id"]]
            topics: dict[str, list[dict[str, Any]]] = {}
            for (topic, index), offset in group.offsets.items():
                topics.setdefault(topic, []).append(
                    {"partition_index": index, "committed_offset": offset, "error_code": 0}
                )
            answers.append(
                {
                    "group_id": row["group_id"],
                    "error_code": int(group.error),
                    "topics": []
                    if group.error
                    else [{"name": name, "partitions": each} for name, each in topics.items()],
                }
            )
        return {"groups": answers}

    def _fetch(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Batches of one record each. As in Kafka only the first batch of a response may exceed the limits."""
        responses = []
        is_first = True
        for topic in fields["topics"]:
            rows = []
            for row in topic["partitions"]:
                log, offset = self.logs[topic["topic"], row["partition"]], row["fetch_offset"]
                code, content = int(log.error), b""
                if ApiKey.FETCH in self.denied:
                    code = int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
                elif not log.start <= offset <= log.end:
                    code = int(ErrorCode.OFFSET_OUT_OF_RANGE)
                elif offset < log.end:
                    batch = encode_batch([Record(None, log.value, log.times[offset])], base_offset=offset)
                    if is_first or len(batch) <= row["partition_max_bytes"]:
                        content, is_first = batch, False
                rows.append({"partition_index": row["partition"], "error_code": code, "records": content})
            responses.append({"topic": topic["topic"], "partitions": rows})
        return {"responses": responses}
