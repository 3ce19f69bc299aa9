"""read_range: the work of a task. It reads one range of one partition and decodes it into Arrow batches.

The task ends when it has read past the range's end. The last offset of the range need not have a record, because
compaction, aborted transactions and their markers leave gaps. If a Fetch returns no records before the end for
`kafkaConsumer.pollTimeoutMs`, the task reports them as lost.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from kproc.client.requests import FetchLimits
from kproc.common.clock import NS_PER_MS, SystemClock
from kproc.common.reading import EARLIEST
from kproc.spark.brokers import Fetched, OffsetOutOfRange, UnknownTopic, cluster_of
from kproc.spark.local import local_files
from kproc.spark.look_up import DataLoss
from kproc.spark.offsets import Range
from kproc.spark.options import SourceOptions

if TYPE_CHECKING:
    import pyarrow as pa

    from kproc.spark.decode import Decoder
    from kproc.spark.log_files import PartitionFiles

logger = logging.getLogger(__name__)


def read_range(
    options: SourceOptions, columns: Sequence[str], wanted: Range, topic_id: bytes | None = None
) -> Iterator[pa.RecordBatch]:
    """Return the records of the range as Arrow batches with these columns.

    `topic_id` is the topic's id when the range was planned. Records of a later topic of the same name are not read:
    they count as a loss.
    """
    return _Task(options, columns, wanted, topic_id).run()


class _Task:
    """The state of a task that reads one range."""

    def __init__(
        self, options: SourceOptions, columns: Sequence[str], wanted: Range, topic_id: bytes | None
    ) -> None:
        self._options = options
        self._columns = columns
        self._wanted = wanted
        self._topic_id = topic_id
        self._cluster = cluster_of(options.bootstrap, options.connecting)
        self._clock = SystemClock()

    def run(self) -> Iterator[pa.RecordBatch]:
        moved_ns = self._clock.now_ns()
        offset = self._wanted.start
        files = local_files(self._options, self._wanted.partition, self._topic_id)
        if files is not None:
            # Begin at the log's start offset at least: the files can contain deleted records below it, which a Fetch
            # does not return.
            offset = self._from_log_start(offset)
        decoder = self._decoder(offset)
        if files is not None and not decoder.is_done:
            yield from self._read_files(files, decoder)
            offset = decoder.next_offset
        while not decoder.is_done and offset < self._wanted.end:
            try:
                fetched = self._fetch(offset)
            except OffsetOutOfRange as error:
                yield from decoder.flush()
                offset = self._after_loss(error.offset)
                # A batch at the log's start can contain deleted records below it. The new decoder leaves these out.
                decoder = self._decoder(offset)
                continue
            except UnknownTopic as error:
                self._report(str(error))
                break
            yield from decoder.feed(fetched.records, fetched.aborted)
            if decoder.next_offset > offset:
                offset, moved_ns = decoder.next_offset, self._clock.now_ns()
            elif self._clock.now_ns() - moved_ns > self._options.poll_ms * NS_PER_MS:
                self._report(
                    f"{self._wanted.partition} returned no records at offset {offset} for {self._options.poll_ms} ms, "
                    f"its log ends at {fetched.high_watermark}, and the read was planned up to {self._wanted.end}"
                )
                break
        yield from decoder.flush()

    def _read_files(self, files: PartitionFiles, decoder: Decoder) -> Iterator[pa.RecordBatch]:
        """Yield the records of this task's offset range from the segment files of the leader, which is on this host.

        If a file cannot be read or the files end before the range, log it and return. The caller then fetches the rest
        from the broker, from `decoder.next_offset` on.
        """
        from kproc.spark.log_files import OffsetGone
        from kproc.spark.segment_directory import HalfReplaced

        try:
            yield from files.read(decoder, isolation=self._options.isolation)
        except (OffsetGone, HalfReplaced, OSError) as error:
            logger.info(
                "%s: reading the rest by Fetch instead of from files: %s", self._wanted.partition, error
            )

    def _from_log_start(self, offset: int) -> int:
        partition = self._wanted.partition
        try:
            log_start = self._cluster.list_offsets({partition: EARLIEST})[partition]
        except UnknownTopic as error:
            self._report(str(error))
            return self._wanted.end
        if offset >= log_start:
            return offset
        self._report(f"offset {offset} of {partition} is gone, its log starts at {log_start}")
        return log_start

    def _decoder(self, start: int) -> Decoder:
        # Import the decoder here, because it imports numpy and pyarrow, which only a task with records needs.
        from kproc.spark.decode import Decoder

        topic, partition = self._wanted.partition
        return Decoder(
            self._columns,
            topic,
            partition,
            start,
            max(start, self._wanted.end),
            isolation=self._options.isolation,
            check_crcs=self._options.check_crcs,
        )

    def _fetch(self, offset: int) -> Fetched:
        options = self._options
        return self._cluster.fetch(
            self._wanted.partition,
            offset,
            FetchLimits(options.fetch_bytes, options.fetch_min_bytes, options.fetch_wait_ms),
            isolation=options.isolation,
            topic_id=self._topic_id,
        )

    def _after_loss(self, offset: int) -> int:
        """Report the loss after OFFSET_OUT_OF_RANGE, and return the offset to continue at."""
        # Request the log's start, because the error does not contain it.
        log_start = self._from_log_start(offset)
        if log_start > offset:
            return log_start
        self._report(f"offset {offset} of {self._wanted.partition} is above the end of its log")
        return self._wanted.end

    def _report(self, text: str) -> None:
        if self._options.fail_on_data_loss:
            raise DataLoss(
                f"{text}; {self._wanted.start} up to {self._wanted.end} were to be read. "
                "With failOnDataLoss=false the query goes on without those records"
            )
        logger.warning("records are lost, and the query goes on because of failOnDataLoss=false: %s", text)
