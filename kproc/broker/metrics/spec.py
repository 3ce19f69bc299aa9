"""Every number that a role counts, declared once.

The order fixes the word in the shared slab and the key in `kproc status`. Append; never reorder or reuse an entry. A
role stores its whole row (slab.py) about ten times a second, so a hot loop counts in a plain list and pays nothing for
publishing a metric.
"""

from __future__ import annotations

import enum
import zlib
from typing import Final, NamedTuple


class Kind(enum.Enum):
    """The kind of a metric. Readers sum both kinds over several roles, but only a counter has a rate."""

    COUNTER = "counter"
    GAUGE = "gauge"


class Metric(NamedTuple):
    """One declared number: `name` is its key, `unit` what it counts, `doc` the sentence that users read."""

    name: str
    kind: Kind
    unit: str
    doc: str


_THROTTLE_TEXT: Final = "For how long they were to wait: time / count is Kafka's average throttle-time."
METRICS: Final = (
    Metric(
        "heartbeat_ns", Kind.GAUGE, "ns", "Monotonic time of the role's last duty cycle that stored its row."
    ),
    Metric("duty_cycles", Kind.COUNTER, "cycles", "Rounds of do_work()."),
    Metric("wakeups_rescued", Kind.COUNTER, "wake-ups", "Work found only by a timeout: must stay 0."),
    Metric("connections", Kind.GAUGE, "connections", "Open client connections of a Processor."),
    Metric("connections_accepted", Kind.COUNTER, "connections", "Sockets an Acceptor or a Processor took."),
    Metric("connections_closed", Kind.COUNTER, "connections", "Client connections a Processor closed."),
    Metric("connections_refused", Kind.COUNTER, "connections", "Sockets a Processor had no descriptor for."),
    Metric("requests", Kind.COUNTER, "requests", "Requests a Processor handed on, or a Handler took."),
    Metric("responses", Kind.COUNTER, "responses", "Responses a Processor delivered."),
    Metric("bytes_in", Kind.COUNTER, "bytes", "Bytes received from clients."),
    Metric("bytes_out", Kind.COUNTER, "bytes", "Bytes sent to clients, file ranges included."),
    Metric(
        "requests_inflight", Kind.GAUGE, "requests", "Requests of a Processor that wait for their answer."
    ),
    Metric(
        "reads_stalled",
        Kind.COUNTER,
        "reads",
        "Reads put off because a ring or arena was full: backpressure.",
    ),
    Metric(
        "malformed",
        Kind.COUNTER,
        "connections",
        "Connections closed because their bytes were not Kafka's protocol.",
    ),
    Metric("ring_fill_bytes", Kind.GAUGE, "bytes", "Bytes that wait in the rings a role produces to."),
    Metric("ring_capacity_bytes", Kind.GAUGE, "bytes", "Capacity of the rings a role produces to."),
    Metric("overflow", Kind.GAUGE, "records", "Answers kept aside because a ring was full."),
    Metric("parked", Kind.GAUGE, "requests", "Requests that wait in a Handler's purgatory."),
    Metric("batches_appended", Kind.COUNTER, "batches", "Record batches appended to logs."),
    Metric("bytes_appended", Kind.COUNTER, "bytes", "Bytes appended to logs."),
    Metric(
        "append_calls",
        Kind.COUNTER,
        "calls",
        "Log appends: batches_appended / append_calls is the grouping reached.",
    ),
    Metric("syncs", Kind.COUNTER, "calls", "fdatasync rounds of a Handler's sync thread."),
    Metric(
        "forwarded",
        Kind.COUNTER,
        "requests",
        "Parts of requests a Handler passed to the owner of a partition.",
    ),
    Metric("logs_open", Kind.GAUGE, "partitions", "Partition logs a Handler has open."),
    Metric(
        "contained_failures",
        Kind.COUNTER,
        "failures",
        "Mistakes of kproc that ended one request or timer: 0.",
    ),
    Metric("compactions", Kind.COUNTER, "logs", "Compactions of a log that were finished."),
    Metric("compaction_io_bytes", Kind.COUNTER, "bytes", "Bytes that compaction read and wrote."),
    Metric(
        "compaction_bytes_freed", Kind.COUNTER, "bytes", "Bytes by which swapped segments became smaller."
    ),
    Metric("compaction_records_read", Kind.COUNTER, "records", "Records whose keys compaction noted."),
    Metric("compaction_swaps_refused", Kind.COUNTER, "swaps", "Compacted segments that their owner refused."),
    Metric("compaction_swap_us_max", Kind.GAUGE, "us", "Longest swap of segments in a Handler's loop."),
    Metric(
        "compaction_dirty_percent_max", Kind.GAUGE, "%", "Dirty share of the dirtiest compacted topic's log."
    ),
    Metric("compaction_last_run_ms", Kind.GAUGE, "ms", "Wall time of the last finished compaction; 0: none."),
    Metric("connections_moved", Kind.COUNTER, "connections", "Connections a Processor gave to another one."),
    Metric(
        "acceptor_blocked_ns",
        Kind.COUNTER,
        "ns",
        "Time that an Acceptor let a connection wait for a Processor, a rate or a place.",
    ),
    Metric("connections_rejected", Kind.COUNTER, "connections", "Sockets closed for max.connections.per.ip."),
    Metric(
        "connections_throttled",
        Kind.COUNTER,
        "connections",
        "Sockets parked, then closed, for the connection_creation_rate of their address.",
    ),
    Metric("connections_parked", Kind.GAUGE, "connections", "Throttled sockets that wait to be closed."),
    Metric(
        "connection_rate_events",
        Kind.COUNTER,
        "connections",
        "Connections that count for the broker's max.connection.creation.rate.",
    ),
    Metric("accept_throttle_ns", Kind.COUNTER, "ns", "Waits that creation rates imposed on an Acceptor."),
    Metric(
        "accept_throttles",
        Kind.COUNTER,
        "connections",
        "Connections of such waits: time / count is Kafka's average.",
    ),
    Metric(
        "address_throttle_ns",
        Kind.COUNTER,
        "ns",
        "For how long connections_throttled were parked: time / count is Kafka's average.",
    ),
    Metric(
        "slept_ns", Kind.COUNTER, "ns", "Time that a role waited for work; stored together with heartbeat_ns."
    ),
    Metric(
        "ring_records",
        Kind.GAUGE,
        "records",
        "Requests that no Handler has taken, of a Processor; answers that no Processor has taken, of a Handler.",
    ),
    Metric("connections_expired", Kind.COUNTER, "connections", "Closed for connections.max.idle.ms."),
    Metric(
        "empty_cycles",
        Kind.COUNTER,
        "cycles",
        "Duty cycles for a timer that was due and gave nothing to do: a role that spins.",
    ),
    Metric(
        "slow_frames_closed",
        Kind.COUNTER,
        "connections",
        "Closed because their request arrived too slowly or held memory that other clients waited for.",
    ),
    Metric(
        "writes_without_room", Kind.COUNTER, "writes", "Writes that the disk had no room for: it is full."
    ),
    Metric("room_wanted_bytes", Kind.GAUGE, "bytes", "What the last of writes_without_room was to write."),
    Metric(
        "hanging_transactions",
        Kind.GAUGE,
        "transactions",
        "Open in a partition 5 minutes and transaction.max.timeout.ms after their last record: must be 0.",
    ),
    Metric("tls_handshakes", Kind.COUNTER, "connections", "TLS handshakes that a Processor finished."),
    Metric(
        "authentications_failed",
        Kind.COUNTER,
        "connections",
        "Connections closed because their TLS handshake failed, or nobody is known by what they said.",
    ),
    Metric("late_transaction_partitions", Kind.GAUGE, "partitions", "Partitions with hanging_transactions."),
    Metric("transactions_empty", Kind.GAUGE, "ids", "Transactional ids without a transaction so far."),
    Metric("transactions_ongoing", Kind.GAUGE, "ids", "Transactional ids with an open transaction."),
    Metric(
        "transactions_prepare_commit", Kind.GAUGE, "ids", "Commits that are decided, not in all logs yet."
    ),
    Metric("transactions_prepare_abort", Kind.GAUGE, "ids", "Aborts that are decided, not in all logs yet."),
    Metric("transactions_complete_commit", Kind.GAUGE, "ids", "Transactional ids that committed last."),
    Metric("transactions_complete_abort", Kind.GAUGE, "ids", "Transactional ids that aborted last."),
    Metric(
        "transactions_unmarked",
        Kind.GAUGE,
        "transactions",
        "Ended, and the owner of a partition was away or could not write that: it is asked again.",
    ),
    Metric(
        "transactions_unfinished",
        Kind.GAUGE,
        "transactions",
        "In all logs, and their last state could not be written: it is written again.",
    ),
    Metric(
        "transaction_loads", Kind.GAUGE, "loads", "Loads of coordinators of transactions in the last 30 s."
    ),
    Metric("transaction_load_us", Kind.GAUGE, "us", "Time that the transaction_loads took together."),
    Metric("transaction_load_us_max", Kind.GAUGE, "us", "Time that the longest of transaction_loads took."),
    Metric("produce_throttles", Kind.COUNTER, "requests", "Produce requests above a producer_byte_rate."),
    Metric("produce_throttle_ms", Kind.COUNTER, "ms", _THROTTLE_TEXT),
    Metric("fetch_throttles", Kind.COUNTER, "requests", "Fetch requests above a consumer_byte_rate."),
    Metric("fetch_throttle_ms", Kind.COUNTER, "ms", _THROTTLE_TEXT),
    Metric("request_throttles", Kind.COUNTER, "requests", "Requests above a request_percentage."),
    Metric("request_throttle_ms", Kind.COUNTER, "ms", _THROTTLE_TEXT),
    Metric("mutation_throttles", Kind.COUNTER, "requests", "Requests above a controller_mutation_rate."),
    Metric("mutation_throttle_ms", Kind.COUNTER, "ms", _THROTTLE_TEXT),
    Metric("logins", Kind.COUNTER, "logins", "SASL: clients that have logged in."),
    Metric(
        "logins_failed", Kind.COUNTER, "logins", "SASL: clients that could not log in, or did not in time."
    ),
    Metric(
        "sessions_prolonged", Kind.COUNTER, "logins", "SASL: sessions prolonged by another login (KIP-368)."
    ),
    Metric("sessions_not_prolonged", Kind.COUNTER, "logins", "SASL: such logins that failed."),
    Metric(
        "sessions_killed",
        Kind.COUNTER,
        "connections",
        "SASL: closed for a request after their session's end.",
    ),
    Metric(
        "slow_readers_closed",
        Kind.COUNTER,
        "connections",
        "Closed because unread answers, or large requests that waited in a Handler, took too much memory.",
    ),
    Metric(
        "compaction_uncleanable_partitions",
        Kind.GAUGE,
        "partitions",
        "Partitions that are not compacted until the next start, because a batch cannot be read.",
    ),
    Metric(
        "compaction_uncleanable_bytes",
        Kind.GAUGE,
        "bytes",
        "Log sizes of the partitions that are not compacted, when that was found.",
    ),
    Metric(
        "certificates_expired",
        Kind.COUNTER,
        "connections",
        "Closed because their client's certificate expired while they were open.",
    ),
)
SLOT: Final = {metric.name: slot for slot, metric in enumerate(METRICS)}
# The slab's header has it, so that a process with another table of metrics rejects the slab.
SPEC_CRC: Final = zlib.crc32(repr(METRICS).encode())
assert len(SLOT) == len(METRICS), "two metrics share a name"
