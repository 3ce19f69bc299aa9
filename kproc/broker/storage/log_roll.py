"""Limits of the active segment: the batches that it may still get, and the time when the log rolls to a new segment.

A log rolls by size, by time, by the number of index entries, and when an offset no longer fits an index, as Kafka's
LogSegment.shouldRoll.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from zlib import crc32

from kproc.broker.storage.format import INT32_MAX
from kproc.wire.primitives import INT64_MAX

if TYPE_CHECKING:
    from kproc.broker.storage.log_state import LogState

AppendLimits = tuple[int, int, int, int, int, int, bool]
"""Largest plain batch in bytes; segment.bytes; largest offset of the segment; timestamp after which it rolls; largest
distance in ms of a timestamp from now; bytes between index entries; True for LogAppendTime.

A plain tuple, because every append unpacks it.
"""

# A roll time below every timestamp, which means: roll before the next batch.
_ROLL_NOW: Final = -INT64_MAX - 2


def find_limits(state: LogState, now_ms: int) -> AppendLimits:
    """Return the limits that batches for the active segment must keep.

    Cache the limits in the state, unless they depend on the clock.
    """
    segment, config = state.active, state.config
    roll_after, after_max_ms = _roll_after(state, now_ms), config.timestamp_after_max_ms
    # With LogAppendTime compare the clock with the roll time, because the batch gets the clock's time.
    if config.is_append_time:
        roll_after, after_max_ms = _ROLL_NOW if now_ms > roll_after else INT64_MAX, INT64_MAX
    # In a paused log no batch is plain, so that each one goes to LogAppender._examine(), which makes it wait.
    is_paused = state.inspection is not None and state in state.inspection.paused
    plain_bytes = 0 if is_paused else config.plain_bytes
    limits = (
        plain_bytes, config.segment_bytes, segment.base_offset + INT32_MAX, roll_after, after_max_ms,
        config.index_interval_bytes, config.is_append_time,
    )  # fmt: skip
    # Cache the limits unless they depend on the clock, as with LogAppendTime or without a timestamp of the first
    # batch.
    if not config.is_append_time and (segment.first_timestamp or 0) > 0:
        state.limits = limits
    return limits


def _roll_after(state: LogState, now_ms: int) -> int:
    """Return the timestamp in ms beyond which a batch needs a new segment. INT64_MAX: none does.

    segment.ms counts from the first batch's timestamp to the new batch's. The clock is used only if records have no
    timestamps.
    """
    segment, config = state.active, state.config
    first = segment.first_timestamp
    # An empty segment never rolls.
    if first is None and (first := segment.load_first_timestamp()) is None:
        return INT64_MAX
    wait_ms = config.roll_ms - _jitter_ms(state) if config.segment_jitter_ms else config.roll_ms
    if segment.is_index_full(config.segment_index_bytes):
        return _ROLL_NOW
    if first >= 0:
        return first + wait_ms
    return _ROLL_NOW if now_ms - segment.created_ms > wait_ms else INT64_MAX


def _jitter_ms(state: LogState) -> int:
    """Return how many ms earlier the active segment rolls, so that logs created together do not all roll at once.

    The number is a hash of the segment's identity, so that it is the same after a restart.
    """
    most = max(1, min(state.config.segment_jitter_ms, state.config.roll_ms))
    return crc32(b"%b/%d/%d" % (state.topic_id, state.partition, state.active.base_offset)) % most
