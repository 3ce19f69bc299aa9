"""What an opening of a log finds in its directory: its own topic's files or another's, and how much of them holds."""

from __future__ import annotations

import logging
from pathlib import Path

from kproc.errors import Corrupt
from kproc.storage.catalog import describe_topic_id
from kproc.storage.format import SNAPSHOT_SUFFIX, segment_file_name
from kproc.storage.fs import Fs
from kproc.storage.leader_epochs import LeaderEpochs
from kproc.storage.log_config import LogConfig
from kproc.storage.producer_state import ProducerTable
from kproc.storage.recovery import Loaded, TrustedEnd, load
from kproc.storage.segment import LogSegment
from kproc.storage.segment_files import holds_records

logger = logging.getLogger(__name__)


class OtherTopic(Corrupt):
    """The directory holds records that are not known to be the topic's: they have another topic id, or none."""

    def __init__(self, message: str, topic_id: bytes | None) -> None:
        super().__init__(message)
        self.topic_id = topic_id


def check_topic(fs: Fs, directory: Path, found: bytes | None, topic_id: bytes, *, is_trusted: bool) -> None:
    """Raise OtherTopic for files that are not known to be of this topic, by the topic id that was found.

    A power loss takes partition.metadata only if no sync of the records has ever succeeded.
    """
    if found != topic_id and (found is not None or (not is_trusted and holds_records(fs, directory))):
        raise OtherTopic(
            f"it has {describe_topic_id(found)}, and the topic of its name has {describe_topic_id(topic_id)}",
            found,
        )


def load_from(
    fs: Fs,
    directory: Path,
    config: LogConfig,
    *,
    now_ms: int,
    recovery_point: int,
    start_offset: int,
    clean: bool,
    trusted: TrustedEnd | None,
) -> Loaded | None:
    """What the directory holds; None if it is nothing, or ends before the log's start, whereupon it is removed."""
    loaded = load(
        fs, directory, config, now_ms=now_ms, recovery_point=recovery_point, clean=clean, trusted=trusted
    )
    if loaded is None or start_offset <= loaded.end_offset:
        return loaded
    logger.warning("log=discarded directory=%s end=%d start=%d", directory, loaded.end_offset, start_offset)
    _discard(fs, directory, loaded)
    return None


def begin(fs: Fs, directory: Path, start_offset: int, *, now_ms: int) -> Loaded:
    """An empty log that begins at an offset."""
    segments = [LogSegment.create(fs, directory, start_offset, now_ms=now_ms)]
    producers = ProducerTable(start_offset)
    return Loaded(segments, LeaderEpochs(), producers, snapshots=[], end_offset=start_offset, rebuilt=[])


def _discard(fs: Fs, directory: Path, loaded: Loaded) -> None:
    """Remove all segments and snapshots: a power loss took the records that the log's start refers to."""
    for segment in loaded.segments:
        segment.close()
        for doomed in segment.mark_deleted():
            fs.unlink(doomed)
    for offset in loaded.snapshots:
        fs.unlink(directory / segment_file_name(offset, SNAPSHOT_SUFFIX))
