"""Settings of transactions and of the topic that stores their states. Rows of settings.py's table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kproc.broker.config.values import INT, SIZE, at_least, setting

# Default of the limit of memory that transactional ids may take in a Handler.
TRANSACTIONAL_IDS_BYTES_MAX: Final = 128 << 20


@dataclass(frozen=True, init=False, repr=False, eq=False)
class TransactionSettings:
    """Settings of transactions: timeouts, expiry, and the topic of transactional ids."""

    transaction_max_timeout_ms: int = setting(
        INT, 900_000, "Longest transaction.timeout.ms that a producer may request.", at_least(1)
    )
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = setting(
        INT,
        10_000,
        "Interval in ms at which transactions are aborted if their timeout has expired.",
        at_least(1),
    )
    transactional_id_expiration_ms: int = setting(
        INT, 604_800_000, "Time in ms without use after which a transactional id is removed.", at_least(1)
    )
    kproc_transactional_ids_max_bytes: int = setting(
        SIZE,
        TRANSACTIONAL_IDS_BYTES_MAX,
        "Memory that transactional ids may take in a Handler. An id takes 1 KiB, and each partition of its transaction "
        "200 bytes. Beyond it, new ids and transactions of more than 100 partitions are rejected with "
        "POLICY_VIOLATION.",
        at_least(1 << 20),
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = setting(
        INT,
        3_600_000,
        "Interval in ms at which transactional ids are removed that have expired.",
        at_least(1),
    )
    transaction_state_log_num_partitions: int = setting(
        INT, 50, "Number of partitions with which __transaction_state is created.", at_least(1)
    )
    transaction_state_log_segment_bytes: int = setting(
        INT, 104_857_600, "segment.bytes with which __transaction_state is created.", at_least(1 << 20)
    )
    add_partitions_to_txn_retry_backoff_max_ms: int = setting(
        INT,
        100,
        "Maximum time in ms that adding a partition waits while the producer's last transaction ends.",
        at_least(0),
    )
