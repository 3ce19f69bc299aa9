"""Validates batches that are not plain, before they are appended, and finds the reason to reject one.

The hot loop of `Log.append` recognises a plain batch by itself (one unpack, one CRC, a few comparisons). This module
checks all other batches: those of logs whose records must be decoded (records_inside.py), transactional batches,
markers, batches that need a new segment, and every invalid batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NoReturn

from kproc.broker.storage.log_config import LogConfig
from kproc.broker.storage.records_inside import reject_misdated, validate_inside
from kproc.common.errors import ErrorCode, KafkaError
from kproc.wire.batch_header import HEADER_BYTES
from kproc.wire.record_batch import (
    CODEC_MASK,
    CONTROL,
    LOG_APPEND_TIME,
    BatchHeader,
    check_base_offset,
    check_batch,
    check_from_client,
    check_one_batch,
    decode_records,
    parse_header,
)
from kproc.wire.record_check import check_small
from kproc.wire.transaction_marker import (
    ControlType,
    control_type,
    coordinator_epoch_of,
    read_end_transaction,
)

if TYPE_CHECKING:
    from kproc.broker.storage.inspection import InspectionBudget

# Origin of a client's batch in a request without a transactional id.
CLIENT: Final = "client"
# Origin of a client's batch in a request with a transactional id.
TRANSACTION: Final = "transaction"
# As TRANSACTION, but the transaction's coordinator has confirmed that the partition is part of it (KIP-890).
CONFIRMED: Final = "confirmed"
# Origin of batches of coordinators, and of transaction markers.
COORDINATOR: Final = "coordinator"


def examine(
    view: memoryview,
    config: LogConfig,
    *,
    origin: str,
    now_ms: int,
    inspection: InspectionBudget | None = None,
) -> tuple[memoryview, BatchHeader]:
    """Validate a batch. Return (the batch to store, its header). Raises KafkaError with Kafka's code if it is rejected.

    The result is the given view, unless the topic has another codec. Batches of the origin "coordinator" come from the
    broker itself: they may be markers, and only their size is checked.
    """
    # As in Kafka, check the size before the content of the batch.
    if len(view) > config.max_message_bytes:
        _reject_large(view, config)
    if origin is COORDINATOR:
        header = parse_header(view)
    else:
        header = _check_client_header(view, config, origin)
        if config.looks_inside:
            view, header = validate_inside(view, header, config, now_ms=now_ms, inspection=inspection)
            # Check the size again, because another codec may have made the batch larger.
            _check_size(view, config)
        else:
            # Check the timestamps without reading records, because the header has the largest timestamp.
            latest = now_ms + config.timestamp_after_max_ms
            is_misdated = header.max_timestamp > latest or header.base_timestamp > latest
            if is_misdated and not config.is_append_time:
                reject_misdated(view, header, config, now_ms)
            check_small(header.codec, view[HEADER_BYTES:], header.record_count)
    # Check the size of a segment last, because recompression may have made the batch smaller.
    if len(view) > config.segment_bytes:
        raise KafkaError(
            ErrorCode.RECORD_LIST_TOO_LARGE,
            f"batch of {len(view)} bytes is larger than segment.bytes={config.segment_bytes}",
        )
    return view, header


def _check_client_header(view: memoryview, config: LogConfig, origin: str) -> BatchHeader:
    """Return the header of a client's batch. Raise KafkaError if it has a field that no client may set."""
    header = check_batch(view)
    # Reject a transactional batch of a request without a transactional id: the right to an id is checked by the id in
    # the request, and this request has none.
    if header.is_transactional and origin == CLIENT and not config.takes_transactions:
        raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    # Only coordinators write control batches. A client that could write them would end transactions of other clients
    # (KIP-98).
    check_from_client(header)
    if header.attributes & LOG_APPEND_TIME:
        raise KafkaError(
            ErrorCode.INVALID_TIMESTAMP, "a producer cannot set the timestamp type LogAppendTime"
        )
    return header


def _reject_large(view: memoryview, config: LogConfig) -> NoReturn:
    """Raise KafkaError for data that are larger than a batch may be."""
    # With magic 2 only one batch per partition is allowed (KIP-98). Report several batches rather than their total
    # size.
    check_one_batch(view)
    check_base_offset(int.from_bytes(view[:8], "big"))
    raise _too_large(view, config)


def _check_size(view: memoryview, config: LogConfig) -> None:
    if len(view) > config.max_message_bytes:
        raise _too_large(view, config)


def _too_large(view: memoryview, config: LogConfig) -> KafkaError:
    return KafkaError(
        ErrorCode.MESSAGE_TOO_LARGE,
        f"batch of {len(view)} bytes is larger than max.message.bytes={config.max_message_bytes}",
    )


def read_marker(view: memoryview, attributes: int) -> tuple[bool, int] | None:
    """Return (is abort, coordinator epoch) of a batch that ends a transaction, or None for any other batch.

    Control batches of other types (a Raft leader change), and those that compaction has emptied, end no transaction.
    """
    if not attributes & CONTROL:
        return None
    found = None if attributes & CODEC_MASK else read_end_transaction(view)
    if found is not None:
        return found
    if parse_header(view).record_count != 1:  # A control batch of Kafka has exactly one record.
        return None
    records = decode_records(view)
    if control_type(records[0]) not in (ControlType.ABORT, ControlType.COMMIT):
        return None
    return control_type(records[0]) == ControlType.ABORT, coordinator_epoch_of(records[0])
