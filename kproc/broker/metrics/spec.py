"""Every number that a role counts, declared once.

The order fixes the word in the shared slab and the key in `kproc status`. Append; never reorder or reuse an entry. A
role stores its whole row (slab.py) about ten times a second, so a hot loop counts in a plain list and pays nothing for
publishing a metric.
"""

from __future__ import annotations

import enum
import zlib
from typing import Final, NamedTuple


class MetricKind(enum.Enum):
    """The kind of a metric. Readers sum both kinds over several roles, but only a counter has a rate."""

    COUNTER = "counter"
    GAUGE = "gauge"


_COUNTER: Final = MetricKind.COUNTER
_GAUGE: Final = MetricKind.GAUGE


class Metric(NamedTuple):
    """One declared number: `name` is its key, `unit` what it counts, `doc` the sentence that users read."""

    name: str
    kind: MetricKind
    unit: str
    doc: str


_THROTTLE_TEXT: Final = "For how long they were to wait: time / count is Kafka's average throttle-time."
METRICS: Final = (
    Metric("heartbeat_ns", _GAUGE, "ns", "Monotonic time of the role's last duty cycle that stored its row."),
    Metric("duty_cycles", _COUNTER, "cycles", "Rounds of do_work()."),
    Metric("wakeups_rescued", _COUNTER, "wake-ups", "Work found only by a timeout: must stay 0."),
    Metric("connections", _GAUGE, "connections", "Open client connections of a Processor."),
    Metric("connections_accepted", _COUNTER, "connections", "Sockets an Acceptor or a Processor took."),
    Metric("connections_closed", _COUNTER, "connections", "Client connections a Processor closed."),
    Metric("connections_refused", _COUNTER, "connections", "Sockets a Processor had no descriptor for."),
    Metric("requests", _COUNTER, "requests", "Requests a Processor handed on, or a Handler took."),
    Metric("responses", _COUNTER, "responses", "Responses a Processor delivered."),
    Metric("bytes_in", _COUNTER, "bytes", "Bytes received from clients."),
    Metric("bytes_out", _COUNTER, "bytes", "Bytes sent to clients, file ranges included."),
    Metric("requests_inflight", _GAUGE, "requests", "Requests of a Processor that wait for their answer."),
    Metric(
        "reads_stalled",
        _COUNTER,
        "reads",
        "Reads put off because a ring or arena was full: backpressure.",
    ),
    Metric(
        "malformed",
        _COUNTER,
        "connections",
        "Connections closed because their bytes were not Kafka's protocol.",
    ),
    Metric("ring_fill_bytes", _GAUGE, "bytes", "Bytes that wait in the rings a role produces to."),
    Metric("ring_capacity_bytes", _GAUGE, "bytes", "Capacity of the rings a role produces to."),
    Metric("overflow", _GAUGE, "records", "Answers kept aside because a ring was full."),
    Metric("parked", _GAUGE, "requests", "Requests that wait in a Handler's purgatory."),
    Metric("batches_appended", _COUNTER, "batches", "Record batches appended to logs."),
    Metric("bytes_appended", _COUNTER, "bytes", "Bytes appended to logs."),
    Metric(
        "append_calls",
        _COUNTER,
        "calls",
        "Log appends: batches_appended / append_calls is the grouping reached.",
    ),
    Metric("syncs", _COUNTER, "calls", "fdatasync rounds of a Handler's sync thread."),
    Metric(
        "forwarded",
        _COUNTER,
        "requests",
        "Parts of requests a Handler passed to the owner of a partition.",
    ),
    Metric("logs_open", _GAUGE, "partitions", "Partition logs a Handler has open."),
    Metric(
        "contained_failures",
        _COUNTER,
        "failures",
        "Mistakes of kproc that ended one request or timer: 0.",
    ),
    Metric("compactions", _COUNTER, "logs", "Compactions of a log that were finished."),
    Metric("compaction_io_bytes", _COUNTER, "bytes", "Bytes that compaction read and wrote."),
    Metric("compaction_bytes_freed", _COUNTER, "bytes", "Bytes by which swapped segments became smaller."),
    Metric("compaction_records_read", _COUNTER, "records", "Records whose keys compaction noted."),
    Metric("compaction_swaps_refused", _COUNTER, "swaps", "Compacted segments that their owner refused."),
    Metric("compaction_swap_us_max", _GAUGE, "us", "Longest swap of segments in a Handler's loop."),
    Metric("compaction_dirty_percent_max", _GAUGE, "%", "Dirty share of the dirtiest compacted topic's log."),
    Metric("compaction_last_run_ms", _GAUGE, "ms", "Wall time of the last finished compaction; 0: none."),
    Metric("connections_moved", _COUNTER, "connections", "Connections a Processor gave to another one."),
    Metric(
        "acceptor_blocked_ns",
        _COUNTER,
        "ns",
        "Time that an Acceptor let a connection wait for a Processor, a rate or a place.",
    ),
    Metric("connections_rejected", _COUNTER, "connections", "Sockets closed for max.connections.per.ip."),
    Metric(
        "connections_throttled",
        _COUNTER,
        "connections",
        "Sockets parked, then closed, for the connection_creation_rate of their address.",
    ),
    Metric("connections_parked", _GAUGE, "connections", "Throttled sockets that wait to be closed."),
    Metric(
        "connection_rate_events",
        _COUNTER,
        "connections",
        "Connections that count for the broker's max.connection.creation.rate.",
    ),
    Metric("accept_throttle_ns", _COUNTER, "ns", "Waits that creation rates imposed on an Acceptor."),
    Metric(
        "accept_throttles",
        _COUNTER,
        "connections",
        "Connections of such waits: time / count is Kafka's average.",
    ),
    Metric(
        "address_throttle_ns",
        _COUNTER,
        "ns",
        "For how long connections_throttled were parked: time / count is Kafka's average.",
    ),
    Metric(
        "slept_ns", _COUNTER, "ns", "Time that a role waited for work; stored together with heartbeat_ns."
    ),
    Metric(
        "ring_records",
        _GAUGE,
        "records",
        "Requests that no Handler has taken, of a Processor; answers that no Processor has taken, of a Handler.",
    ),
    Metric("connections_expired", _COUNTER, "connections", "Closed for connections.max.idle.ms."),
    Metric(
        "empty_cycles",
        _COUNTER,
        "cycles",
        "Duty cycles for a timer that was due and gave nothing to do: a role that spins.",
    ),
    Metric(
        "slow_frames_closed",
        _COUNTER,
        "connections",
        "Closed because their request arrived too slowly or held memory that other clients waited for.",
    ),
    Metric("writes_without_room", _COUNTER, "writes", "Writes that the disk had no room for: it is full."),
    Metric("room_wanted_bytes", _GAUGE, "bytes", "What the last of writes_without_room was to write."),
    Metric(
        "hanging_transactions",
        _GAUGE,
        "transactions",
        "Open in a partition 5 minutes and transaction.max.timeout.ms after their last record: must be 0.",
    ),
    Metric("tls_handshakes", _COUNTER, "connections", "TLS handshakes that a Processor finished."),
    Metric(
        "authentications_failed",
        _COUNTER,
        "connections",
        "Connections closed because their TLS handshake failed, or nobody is known by what they said.",
    ),
    Metric("late_transaction_partitions", _GAUGE, "partitions", "Partitions with hanging_transactions."),
    Metric("transactions_empty", _GAUGE, "ids", "Transactional ids without a transaction so far."),
    Metric("transactions_ongoing", _GAUGE, "ids", "Transactional ids with an open transaction."),
    Metric("transactions_prepare_commit", _GAUGE, "ids", "Commits that are decided, not in all logs yet."),
    Metric("transactions_prepare_abort", _GAUGE, "ids", "Aborts that are decided, not in all logs yet."),
    Metric("transactions_complete_commit", _GAUGE, "ids", "Transactional ids that committed last."),
    Metric("transactions_complete_abort", _GAUGE, "ids", "Transactional ids that aborted last."),
    Metric(
        "transactions_unmarked",
        _GAUGE,
        "transactions",
        "Ended, and the owner of a partition was away or could not write that: it is asked again.",
    ),
    Metric(
        "transactions_unfinished",
        _GAUGE,
        "transactions",
        "In all logs, and their last state could not be written: it is written again.",
    ),
    Metric("transaction_loads", _GAUGE, "loads", "Loads of coordinators of transactions in the last 30 s."),
    Metric("transaction_load_us", _GAUGE, "us", "Time that the transaction_loads took together."),
    Metric("transaction_load_us_max", _GAUGE, "us", "Time that the longest of transaction_loads took."),
    Metric("produce_throttles", _COUNTER, "requests", "Produce requests above a producer_byte_rate."),
    Metric("produce_throttle_ms", _COUNTER, "ms", _THROTTLE_TEXT),
    Metric("fetch_throttles", _COUNTER, "requests", "Fetch requests above a consumer_byte_rate."),
    Metric("fetch_throttle_ms", _COUNTER, "ms", _THROTTLE_TEXT),
    Metric("request_throttles", _COUNTER, "requests", "Requests above a request_percentage."),
    Metric("request_throttle_ms", _COUNTER, "ms", _THROTTLE_TEXT),
    Metric("mutation_throttles", _COUNTER, "requests", "Requests above a controller_mutation_rate."),
    Metric("mutation_throttle_ms", _COUNTER, "ms", _THROTTLE_TEXT),
    Metric("logins", _COUNTER, "logins", "SASL: clients that have logged in."),
    Metric("logins_failed", _COUNTER, "logins", "SASL: clients that could not log in, or did not in time."),
    Metric("sessions_prolonged", _COUNTER, "logins", "SASL: sessions prolonged by another login (KIP-368)."),
    Metric("sessions_not_prolonged", _COUNTER, "logins", "SASL: such logins that failed."),
    Metric(
        "sessions_killed",
        _COUNTER,
        "connections",
        "SASL: closed for a request after their session's end.",
    ),
    Metric(
        "slow_readers_closed",
        _COUNTER,
        "connections",
        "Closed because unread answers, or large requests that waited in a Handler, took too much memory.",
    ),
    Metric(
        "compaction_uncleanable_partitions",
        _GAUGE,
        "partitions",
        "Partitions that are not compacted until the next start, because a batch cannot be read.",
    ),
    Metric(
        "compaction_uncleanable_bytes",
        _GAUGE,
        "bytes",
        "Log sizes of the partitions that are not compacted, when that was found.",
    ),
    Metric(
        "certificates_expired",
        _COUNTER,
        "connections",
        "Closed because their client's certificate expired while they were open.",
    ),
    Metric(
        "consumer_group_rebalances",
        _COUNTER,
        "rebalances",
        "Groups of the consumer protocol: how often a group's epoch rose.",
    ),
    Metric(
        "share_state_writes",
        _COUNTER,
        "records",
        "Records that changed the stored state of a share partition.",
    ),
    Metric(
        "share_group_rebalances",
        _COUNTER,
        "rebalances",
        "Share groups: how often a group's epoch rose.",
    ),
    Metric(
        "streams_group_rebalances",
        _COUNTER,
        "rebalances",
        "Streams groups: how often a group's epoch rose.",
    ),
    Metric("share_sessions", _GAUGE, "sessions", "Open share sessions of members of share groups."),
    Metric("share_session_partitions", _GAUGE, "partitions", "Partitions of all open share sessions."),
    Metric("share_partitions", _GAUGE, "partitions", "Share partitions in the memory of their owners."),
    Metric(
        "share_ranges_in_flight",
        _GAUGE,
        "ranges",
        "Ranges of records in flight of share groups that have different states.",
    ),
    Metric("share_records_accepted", _COUNTER, "records", "Records that members of share groups accepted."),
    Metric("share_records_released", _COUNTER, "records", "Records that members of share groups released."),
    Metric("share_records_rejected", _COUNTER, "records", "Records that members of share groups rejected."),
    Metric("share_locks_expired", _COUNTER, "records", "Records whose acquisition lock has ended."),
    Metric("share_dead_letters", _COUNTER, "records", "Records of share groups written as dead letters."),
    Metric(
        "share_dead_letters_lost",
        _COUNTER,
        "records",
        "Records of share groups that could not be written as dead letters. The log says why.",
    ),
    Metric(
        "long_garbage_collections",
        _COUNTER,
        "collections",
        "Garbage collections of a role that took longer than 50 ms. All its clients waited.",
    ),
)
SLOT: Final = {metric.name: slot for slot, metric in enumerate(METRICS)}
# The slab's header has this checksum, so that a process with another table of metrics rejects the slab.
SPEC_CRC: Final = zlib.crc32(repr(METRICS).encode())
assert len(SLOT) == len(METRICS), "two metrics share a name"
