"""CommandClient: a client that checks the types in the answers to kproc's own operations.

Any process can listen at a port and answer anything. Client reports fields that are missing, and CommandClient those
that have another type, so that commands use the values without checks. Fields that no command computes with have no
type here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final, TypedDict

import msgspec

from kproc.client import Client, ClientError
from kproc.client.own_operations import OperationFields
from kproc.common.conversion import converter

# A time in ms since 1970, or -1 if it is unknown. The maximum is the end of 9999, the last year of Python's dates.
Date = Annotated[int, msgspec.Meta(ge=-1, le=253_402_300_799_999)]


class _MonitorLine(TypedDict, total=False):
    time_ms: Date
    api: str
    topics: list[str]
    others: list[str]
    more: int
    user: str
    client: str
    address: str
    request_bytes: int
    response_bytes: int
    took_us: int
    outcome: str
    error: str


class _Monitor(TypedDict, total=False):
    lines: list[_MonitorLine]
    lost: int
    silent: list[int]


class _ConnectionFields(TypedDict, total=False):
    id: str
    processor: int
    listener_name: str
    address: str
    port: int
    principal: str | None
    client_id: str
    software_name: str
    software_version: str
    age_ms: int
    idle_ms: int
    requests: int
    inflight: int
    state: str
    bytes_in: int
    bytes_out: int
    unsent_parts: int
    throttled_ms: dict[str, int]


class _Clients(TypedDict, total=False):
    clients: list[_ConnectionFields]


class _TopicTrafficFields(TypedDict, total=False):
    name: str
    bytes_in: int
    records_in: int
    bytes_out: int


class _TopicsFields(TypedDict, total=False):
    topics: list[_TopicTrafficFields]


class _OfflinePartition(TypedDict, total=False):
    topic: str
    partition: int
    handler: int
    reason: str


class _Offline(TypedDict, total=False):
    count: int
    first: list[_OfflinePartition]


class _TopicLogs(TypedDict, total=False):
    name: str
    # Of each log: partition number, bytes, time of the last write, and timestamp of the first record (both in ms).
    # A producer chooses the timestamp, so it may be any int.
    partitions: list[tuple[int, int, Date, int]]


class _Logs(TypedDict, total=False):
    topics: list[_TopicLogs]
    offline: _Offline


class _ShareRecords(TypedDict, total=False):
    topic: str
    partition: int
    in_flight: int
    acquired: int
    # Pairs of a delivery count and the number of records that have it.
    deliveries: list[tuple[int, int]]


class _ShareRecordsFields(TypedDict, total=False):
    partitions: list[_ShareRecords]


class _RuleFields(TypedDict, total=False):
    action: str
    apis: list[str]
    ranges: dict[str, tuple[int, int] | None]
    versions: tuple[int, int]
    error: str
    ms: int
    closes: bool
    bytes_sent: int
    free_bytes: int
    times: int
    after: int
    every: int
    probability: float
    seed: int


class _FaultRow(TypedDict, total=False):
    id: int
    matches: int
    hits: int
    rule: _RuleFields


class _FaultRows(TypedDict, total=False):
    rules: list[_FaultRow]


class _Time(TypedDict, total=False):
    now_ms: Date
    lead_ms: int
    is_frozen: bool


_Step = TypedDict("_Step", {"what": str, "from": int, "to": int, "took_ms": int}, total=False)
_Move = TypedDict("_Move", {"from": int, "to": int, "connections": int}, total=False)


class _ScaleFields(TypedDict, total=False):
    is_done: bool
    ticket: str
    steps: list[_Step]
    counts: dict[str, int]


class _Moves(TypedDict, total=False):
    moves: list[_Move]


class _KillClientFields(TypedDict, total=False):
    is_killed: bool


class _ProcessFields(TypedDict, total=False):
    role: str
    index: int
    pid: int
    start_ticks: int | None
    state: str
    restarts: int
    hung_ms: int
    pool: str
    cpu_percent: float
    cpu_seconds: float
    idle_percent: float | None
    pss_bytes: int
    connections: int
    requests_per_s: float
    requests_total: int
    ring_fill: float
    queue_depth: int
    parked: int
    heartbeat_age_ms: int | None
    counters: dict[str, int]


class _ApiFields(TypedDict, total=False):
    request: str
    requests_total: int
    versions: dict[str, int]
    errors_total: int
    errors: dict[str, int]
    timed: int
    times: dict[str, dict[str, float]]
    total_time_buckets: list[tuple[int, int]]


class _Listener(TypedDict, total=False):
    bound: str
    advertised: str


class _Certificate(TypedDict, total=False):
    subject: str
    expires_ms: Date


class _Disk(TypedDict, total=False):
    is_full: bool


class _UncleanablePartition(TypedDict, total=False):
    topic: str
    partition: int
    reason: str


class _UncleanableFields(TypedDict, total=False):
    count: int
    first: list[_UncleanablePartition]


class _UnservedDirectory(TypedDict, total=False):
    directory: str
    reason: str


class _Unserved(TypedDict, total=False):
    count: int
    first: list[_UnservedDirectory]


class _LastReload(TypedDict, total=False):
    at_ms: Date
    problem: str | None


class _Network(TypedDict, total=False):
    acceptor_blocked: dict[str, float | None]


class _StatusFields(TypedDict, total=False):
    cluster_id: str
    data: str
    transport: str
    flush: str
    uptime_ms: int
    listeners: dict[str, _Listener]
    control: str | None
    metrics: str | None
    problem: str | None
    last_reload: _LastReload | None
    disk: _Disk
    certificates: dict[str, _Certificate]
    processes: list[_ProcessFields]
    shared_memory_unmapped_bytes: int
    # None while the broker starts, because it does not know its topics until the metadata is loaded.
    topics: int | None
    partitions: int | None
    internal_topics: int | None
    internal_partitions: int | None
    offline: _Offline | None
    uncleanable: _UncleanableFields | None
    unserved_directories: _Unserved
    transactions: dict[str, int]
    network: _Network
    apis: list[_ApiFields]


_CONVERTERS: Final[dict[str, Callable[[Any], Any]]] = {
    "add-fault": converter(_FaultRow),
    "clients": converter(_Clients),
    "kill-client": converter(_KillClientFields),
    "list-faults": converter(_FaultRows),
    "logs": converter(_Logs),
    "monitor": converter(_Monitor),
    "move-time": converter(_Time),
    "plan-rebalance": converter(_Moves),
    "rebalance": converter(_Moves),
    "remove-fault": converter(_FaultRows),
    "scale": converter(_ScaleFields),
    "share-records": converter(_ShareRecordsFields),
    "status": converter(_StatusFields),
    "topics": converter(_TopicsFields),
}
"""By operation: the function that checks the types in its result. Commands read no results of other operations."""


class CommandClient(Client):
    """A client that raises ClientError, which commands print as one line, for an answer with values of wrong types."""

    def operate(self, op: str, **arguments: Any) -> OperationFields:
        """Run an operation as Client does. Raise ClientError also if a value of the result has a wrong type."""
        result = super().operate(op, **arguments)
        convert = _CONVERTERS.get(op)
        if convert is not None:
            try:
                # The converted copy lacks the fields without a type, so it is not used.
                convert(result)
            except msgspec.ValidationError as error:
                raise ClientError(
                    f"the broker's answer to {op!r} has a wrong value: {error}: it runs another version of kproc or is "
                    "not a kproc broker"
                ) from None
        return result
