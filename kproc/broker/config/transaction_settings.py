"""Transactions, and the topic that stores their states. Rows of settings.py's table."""

from __future__ import annotations

from dataclasses import dataclass

from kproc.broker.config.values import INT, at_least, setting


@dataclass(frozen=True, init=False, repr=False, eq=False)
class TransactionSettings:
    """Timeouts, expiry, and the topic of transactional ids."""

    transaction_max_timeout_ms: int = setting(
        INT, 900_000, "Longest transaction.timeout.ms that a producer may ask for.", at_least(1)
    )
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = setting(
        INT, 10_000, "How often transactions whose timeout is over are looked for, and aborted.", at_least(1)
    )
    transactional_id_expiration_ms: int = setting(
        INT, 604_800_000, "A transactional id that was unused for this long is forgotten.", at_least(1)
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = setting(
        INT, 3_600_000, "How often such transactional ids are looked for.", at_least(1)
    )
    transaction_state_log_num_partitions: int = setting(
        INT, 50, "Partitions of __transaction_state, when it is made.", at_least(1)
    )
    transaction_state_log_segment_bytes: int = setting(
        INT, 104_857_600, "segment.bytes of __transaction_state, when it is made.", at_least(1 << 20)
    )
    add_partitions_to_txn_retry_backoff_max_ms: int = setting(
        INT, 100, "How long a partition of the next transaction waits for the end of the last.", at_least(0)
    )
