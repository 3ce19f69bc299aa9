"""Checks at the opening of a log: its directory must belong to the topic, and no synced records may be missing."""

from __future__ import annotations

from pathlib import Path

from kproc.broker.storage import checkpoints
from kproc.broker.storage.catalog import describe_topic_id
from kproc.broker.storage.directory_names import WAY_OUT_OF_LOSS
from kproc.broker.storage.fs import Fs
from kproc.broker.storage.last_stop import LastStop
from kproc.broker.storage.leader_epochs import LeaderEpochs
from kproc.broker.storage.log_config import LogConfig
from kproc.broker.storage.producer_state import ProducerTable
from kproc.broker.storage.recovery import Loaded, load
from kproc.broker.storage.segment import LogSegment
from kproc.broker.storage.segment_files import holds_records, holds_synced_records
from kproc.common.errors import Corrupt


class OtherTopic(Corrupt):
    """The directory belongs to another topic id, or it has records but no topic id."""

    def __init__(self, message: str, topic_id: bytes | None) -> None:
        super().__init__(message)
        self.topic_id = topic_id


def check_topic(
    fs: Fs, directory: Path, found: bytes | None, topic_id: bytes, *, is_trusted: bool, recovery_point: int
) -> None:
    """Raise OtherTopic unless the directory's topic id shows that its files belong to this topic.

    found: the id in partition.metadata, None without the file. is_trusted: only the log's owner died, and not the host.
    recovery_point: offsets below it were synced.

    A power loss removes partition.metadata only before the first sync of the log. After that the file was damaged or
    removed outside the broker, and the records belong to the topic: raise Corrupt.
    """
    # A directory without partition.metadata belongs to the topic if only its owner died (`is_trusted`), or if it is
    # empty because of a crash between its creation and the first sync.
    if found == topic_id or (found is None and (is_trusted or not holds_records(fs, directory))):
        return
    # Records that a sync has confirmed belong to this topic. Do not set them aside because a small file is lost.
    if found is None and (recovery_point or holds_synced_records(fs, directory)):
        raise Corrupt(
            f"{directory / checkpoints.PARTITION_METADATA_FILE} is missing or damaged beside synced records; restore "
            f"it (topic_id: {checkpoints.uuid_text(topic_id)}) and restart the broker"
        )
    raise OtherTopic(
        f"the directory has {describe_topic_id(found)}, but the topic of this name has {describe_topic_id(topic_id)}",
        found,
    )


class EndsBelowStart(Corrupt):
    """The log ends below its start: a power loss removed records that a DeleteRecords had deleted already."""


def check_not_lost(directory: Path, end_offset: int | None, *, confirmed: int, start_offset: int) -> None:
    """Raise Corrupt if the log ends below `confirmed`: files were removed or truncated outside the broker.

    `end_offset` is None if the directory or its segments are missing. An end below the log's start is no loss: the
    deletion of all segments can reach the disk before the new segment's name does.
    """
    # Nothing is missing if the log reaches the confirmed end, or if a DeleteRecords has deleted all confirmed records.
    if confirmed <= start_offset or (end_offset is not None and confirmed <= end_offset):
        return
    found = "has no segment" if end_offset is None else f"ends at offset {end_offset}"
    raise Corrupt(f"{directory} {found}, but records below offset {confirmed} were stored: {WAY_OUT_OF_LOSS}")


def load_from(fs: Fs, directory: Path, config: LogConfig, last: LastStop, *, now_ms: int) -> Loaded | None:
    """Load the directory's segments, or return None if the directory has no segment.

    Raises EndsBelowStart, Corrupt and StorageFailure.
    """
    loaded = load(fs, directory, config, last, now_ms=now_ms)
    end_offset, start_offset = None if loaded is None else loaded.end_offset, last.effective_start
    try:
        check_not_lost(directory, end_offset, confirmed=last.confirmed_end, start_offset=start_offset)
        # DeleteRecords syncs the start before it answers, but records of acks=1 may never have been synced. So a power
        # loss can leave a log that ends below its start.
        if end_offset is not None and end_offset < start_offset:
            raise EndsBelowStart(
                f"the log ends at offset {end_offset}, but a DeleteRecords has moved its start to {start_offset}"
            )
    except Corrupt:
        for segment in loaded.segments if loaded is not None else ():
            segment.close()
        raise
    return loaded


def create_empty(fs: Fs, directory: Path, start_offset: int, *, now_ms: int) -> Loaded:
    """Create an empty log that begins at `start_offset`."""
    segments = [LogSegment.create(fs, directory, start_offset, now_ms=now_ms)]
    producers = ProducerTable(start_offset)
    return Loaded(segments, LeaderEpochs(), producers, snapshots=[], end_offset=start_offset, rebuilt=[])
