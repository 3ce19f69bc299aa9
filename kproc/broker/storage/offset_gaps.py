"""Fills the gaps between a log's segments with empty batches, while no broker uses the files.

Kafka's cleaner drops the last batches of a segment if newer records replace all of their keys. The segment then ends
below the next one's base offset. kproc's cleaner keeps an empty batch there, because log_end.py takes a segment that
ends too early for one that has lost records. Imported files get such an empty batch, too. Without it the log would look
damaged when cleanup.policy becomes delete.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from kproc.broker.storage.batch_scan import BadBatch, walk_headers
from kproc.broker.storage.compaction_records import emptied
from kproc.broker.storage.format import INT32_MAX, LOG_SUFFIX, segment_file_name
from kproc.broker.storage.fs import Fs
from kproc.broker.storage.segment_files import segment_bases
from kproc.wire.batch_header import LEADER_EPOCH, last_offset_of
from kproc.wire.record_batch import MAGIC, NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, NO_TIMESTAMP


def fill_offset_gaps(fs: Fs, directory: Path) -> int:
    """Append an empty batch to each segment that ends below the next one's base, and sync it. Return their number.

    A damaged segment stays as it is, so that the opening of the log reports it. Raises StorageFailure.
    """
    filled = epoch = 0
    for base, following in pairwise(segment_bases(fs, directory)):
        descriptor = fs.open(directory / segment_file_name(base, LOG_SUFFIX))
        try:
            size = fs.facts(descriptor).st_size
            end_offset = base
            for _, header in walk_headers(fs, descriptor, 0, size):
                end_offset, epoch = last_offset_of(header) + 1, header[LEADER_EPOCH]
            # Skip a gap that reaches beyond the 32-bit offsets of the segment's index.
            if end_offset < following <= base + INT32_MAX:
                fs.write(descriptor, [_empty_batch(end_offset, following, epoch)], position=size)
                fs.sync(descriptor)
                filled += 1
        # Do not change a damaged segment, because only the opening of the log knows which bytes were synced.
        except BadBatch:
            continue
        finally:
            fs.close(descriptor)
    return filled


def _empty_batch(first: int, following: int, epoch: int) -> bytes:
    """Encode a batch without records that has the offsets from `first` to before `following`."""
    delta = following - first - 1
    no_producer = (NO_PRODUCER_ID, NO_PRODUCER_EPOCH, NO_SEQUENCE)
    return emptied((first, 0, epoch, MAGIC, 0, 0, delta, NO_TIMESTAMP, NO_TIMESTAMP, *no_producer, 0))
