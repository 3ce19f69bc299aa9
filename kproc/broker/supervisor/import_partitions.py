"""Imports the files of another broker's partitions into existing topics of a stopped broker's data directory.

The topics must exist, with the intended settings. Internal topics that do not exist are created with as many partitions
as the highest imported partition requires. Each partition is copied to a temporary name beside the partitions and
synced. Then all are renamed into place (import_journal.py). The source is only read. In the copy, messages of formats 0
and 1 are converted, and gaps between segments are filled. Index files are not copied: the next start builds them and
checks every batch, because the marker of a clean stop is removed first.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from kproc.broker.cluster.controller import ControllerState, do_at_once
from kproc.broker.cluster.image import ClusterImage
from kproc.broker.cluster.internal_topics import (
    COORDINATOR_TOPICS,
    GROUP_METADATA_TOPIC,
    SHARE_STATE_TOPIC,
    TRANSACTION_STATE_TOPIC,
)
from kproc.broker.cluster.metadata_files import is_missing
from kproc.broker.cluster.metadata_log import MetadataLog
from kproc.broker.config import Config
from kproc.broker.storage import checkpoints
from kproc.broker.storage.convert_log import convert_partition
from kproc.broker.storage.format import (
    DELETE_DIRECTORY_SUFFIX,
    LOG_SUFFIX,
    METADATA_DIRECTORY,
    SNAPSHOT_SUFFIX,
    STRAY_DIRECTORY_SUFFIX,
    TXN_INDEX_SUFFIX,
    parse_partition_directory_name,
    parse_segment_file_name,
    parse_set_aside_directory_name,
)
from kproc.broker.storage.fs import Fs, sync_directory
from kproc.broker.storage.leader_epochs import LeaderEpochs
from kproc.broker.storage.log_start import write_start
from kproc.broker.storage.offset_checkpoints import discard_offsets
from kproc.broker.storage.offset_gaps import fill_offset_gaps
from kproc.broker.storage.os_fs import OsFs
from kproc.broker.storage.segment_files import segment_bases
from kproc.broker.supervisor.data_directory import DataDirectory
from kproc.broker.supervisor.directory_lock import DirectoryInUse, locked_directory
from kproc.broker.supervisor.import_journal import complete_import, copy_path, remove_copies, write_journal
from kproc.common.clock import SystemClock
from kproc.common.errors import Corrupt, FatalError

logger = logging.getLogger(__name__)

_COPIED: Final = (LOG_SUFFIX, SNAPSHOT_SUFFIX, TXN_INDEX_SUFFIX)
# Suffixes of Kafka's files during a compaction. After a clean stop of Kafka no such file exists.
_UNFINISHED: Final = (".swap", ".cleaned")
_COUNT_SETTINGS: Final = {
    GROUP_METADATA_TOPIC: "offsets.topic.num.partitions",
    TRANSACTION_STATE_TOPIC: "transaction.state.log.num.partitions",
    SHARE_STATE_TOPIC: "share.coordinator.state.topic.num.partitions",
}
_COPY_BYTES: Final = 1 << 20


class ImportedPartition(NamedTuple):
    """An imported partition: its source, and the numbers of its segments and converted records."""

    source: Path
    topic: str
    partition: int
    segments: int
    converted_records: int


class _ImportSource(NamedTuple):
    path: Path
    topic: str
    partition: int

    @property
    def name(self) -> str:
        """The name of the partition's directory."""
        return f"{self.topic}-{self.partition}"


def import_partitions(
    config: Config, paths: Sequence[Path], fs: Fs | None = None, *, dry_run: bool = False
) -> list[ImportedPartition]:
    """Import directories of partitions, or all partitions of a data directory, into the data directory of `config`.

    Everything is checked before the first file is copied. If opening the data directory has completed an interrupted
    import of these partitions, return them and copy nothing. Raises FatalError, Corrupt and StorageFailure.

    dry_run: only check, and return the partitions that would be imported.
    """
    fs = fs or OsFs()
    # In a dry run reject a directory without metadata, because opening it would create the metadata.
    if dry_run and is_missing(fs, Path(config.log_dirs)):
        raise FatalError(
            f"{config.log_dirs} is not the data directory of a broker; start the broker once to create it"
        )
    with ExitStack() as stack:
        directory = DataDirectory(config, fs)
        stack.callback(directory.close)
        log, image = MetadataLog.open(directory.path, SystemClock(), fs)
        stack.callback(log.close)
        sources = [source for path in paths for source in _sources(fs, path.absolute())]
        if sources and {each.name for each in sources} <= set(directory.imported):
            return [_planned(fs, source) for source in sources]
        for data in {source.path.parent for source in sources} - {directory.path}:
            stack.enter_context(_unused(data))
        if not dry_run:
            _create_internal_topics(config, log, image, directory.cluster_id, sources)
        _check_all(fs, directory.path, image, sources)
        if dry_run:
            return [_planned(fs, source) for source in sources]
        return _import_all(fs, directory.path, image, sources)


def _import_all(
    fs: Fs, data: Path, image: ClusterImage, sources: Sequence[_ImportSource]
) -> list[ImportedPartition]:
    """Copy checked partitions into the data directory, and return what was imported.

    No partition gets its final name before all of them are copied.
    """
    names = [source.name for source in sources]
    try:
        copies = [_copy_partition(fs, data, image, source) for source in sources]
        # Remove the marker of a clean stop before the journal is written. Otherwise a crash could leave an imported log
        # that counts as cleanly closed and is opened without a check.
        checkpoints.remove_clean_shutdown(fs, data)
        # Discard the target's checkpointed offsets, which belong to the replaced files. Otherwise an imported log that
        # ends below its recovery point would be rejected.
        discard_offsets(
            fs,
            data,
            {(image.topics_by_name[source.topic].topic_id, source.partition) for source in sources},
            {topic_id: topic.name for topic_id, topic in image.topics_by_id.items()},
        )
        write_journal(fs, data, names)
    except BaseException:
        # The import failed, for example because the disk is full. Remove the copies, so that it can be repeated.
        remove_copies(fs, data, names)
        raise
    # From the journal on a crash cannot undo the import: the next start renames the copies that are left.
    complete_import(fs, data)
    return copies


def _planned(fs: Fs, source: _ImportSource) -> ImportedPartition:
    """Return the result that an import of a partition would have."""
    segments = len(segment_bases(fs, source.path))
    converted = convert_partition(fs, source.path, dry_run=True)
    return ImportedPartition(*source, segments, converted.records)


def _sources(fs: Fs, path: Path) -> list[_ImportSource]:
    """Return the partition directory at `path`, or all partition directories in it.

    Raise FatalError if there is none.
    """
    if not path.is_dir():
        raise FatalError(f"{path}: no such directory")
    parsed = parse_partition_directory_name(path.name) or parse_set_aside_directory_name(
        path.name, STRAY_DIRECTORY_SUFFIX
    )
    # A directory that was set aside or renamed for deletion can be imported, so that an operator can get its
    # records back.
    parsed = parsed or parse_set_aside_directory_name(path.name, DELETE_DIRECTORY_SUFFIX)
    if parsed is not None:
        return [_ImportSource(path, *parsed)]
    found = []
    for name in sorted(fs.list_directory(path)):
        parsed = parse_partition_directory_name(name)
        if parsed is not None and name != METADATA_DIRECTORY and segment_bases(fs, path / name):
            found.append(_ImportSource(path / name, *parsed))
    if not found:
        raise FatalError(
            f"{path}: expected a partition's directory, such as orders-0, or a directory that contains some"
        )
    return found


@contextmanager
def _unused(data: Path) -> Iterator[None]:
    """Lock a source's data directory while the context lasts. Raise FatalError if a broker has locked it."""
    try:
        with locked_directory(data):
            yield
    except DirectoryInUse as error:
        raise FatalError(f"{data} is in use by a broker: stop it first") from error


def _create_internal_topics(
    config: Config, log: MetadataLog, image: ClusterImage, cluster_id: str, sources: Sequence[_ImportSource]
) -> None:
    """Create the imported internal topics that the broker lacks, with as many partitions as the source has.

    The count must be equal, because the partition of a group or transactional id is the hash of the id modulo this
    count. Raises FatalError if a topic cannot be created.
    """
    for name in sorted(COORDINATOR_TOPICS & {source.topic for source in sources}):
        if image.topic(name) is not None:
            continue
        count = 1 + max(source.partition for source in sources if source.topic == name)
        wanted = Config.build(
            {"log.dirs": config.log_dirs, "node.id": config.node_id, _COUNT_SETTINGS[name]: count}
        )
        state = ControllerState(wanted, image, SystemClock())
        do_at_once(state, log, image, "register_cluster", {"cluster_id": cluster_id})
        reply = do_at_once(state, log, image, "auto_create_topics", {"names": [name]})
        (row,) = reply["topics"]
        if row["error_code"]:
            raise FatalError(f"cannot create the internal topic {name}: {row['error_message']}")


def _check_named_once(sources: Sequence[_ImportSource]) -> None:
    paths: dict[tuple[str, int], Path] = {}
    for source in sources:
        other = paths.setdefault((source.topic, source.partition), source.path)
        # A partition can have its directory and one that was set aside. Their records must not be mixed.
        if other is not source.path:
            raise FatalError(f"{other} and {source.path} both belong to {source.name}: import one of them")


def _check_partition_counts(image: ClusterImage, sources: Sequence[_ImportSource]) -> None:
    """Raise FatalError if several imported partitions of an internal topic are not all partitions of the target.

    A single imported partition is permitted.
    """
    for name in sorted(COORDINATOR_TOPICS & {source.topic for source in sources}):
        found = {source.partition for source in sources if source.topic == name}
        count = len(image.topics_by_name[name].partitions)
        if len(found) > 1 and found != set(range(count)):
            raise FatalError(
                f"{name} has {count} partitions here, but {len(found)} are imported: groups and transactions would be "
                "searched in the wrong partitions; import into a new data directory"
            )


def _check_all(fs: Fs, data: Path, image: ClusterImage, sources: Sequence[_ImportSource]) -> None:
    """Raise FatalError if one of the partitions cannot be imported into the data directory `data`."""
    _check_named_once(sources)
    # Do not check partitions of missing internal topics. They are missing only in a dry run, and a real import creates
    # these topics to fit.
    checked = [each for each in sources if each.topic not in COORDINATOR_TOPICS or image.topic(each.topic)]
    _check_partition_counts(image, checked)
    for source in checked:
        _check(fs, data, image, source)


def _check(fs: Fs, data: Path, image: ClusterImage, source: _ImportSource) -> None:
    topic = image.topic(source.topic)
    if topic is None:
        raise FatalError(
            f"{source.path}: topic {source.topic} does not exist; start the broker and create it with its settings"
        )
    if source.partition >= len(topic.partitions):
        raise FatalError(
            f"{source.path}: topic {source.topic} has {len(topic.partitions)} partitions; it needs at least "
            f"{source.partition + 1}"
        )
    # Reject files of an unfinished compaction: only their own broker's recovery can decide if they replace segments.
    unfinished = [each for each in fs.list_directory(source.path) if each.endswith(_UNFINISHED)]
    if unfinished:
        raise FatalError(
            f"{source.path}: {unfinished[0]} is left over from a compaction; start the broker of that directory "
            "and stop it cleanly"
        )
    target = data / source.name
    if not fs.exists(target):
        return
    for base in segment_bases(fs, target):
        facts = fs.facts_at(target / f"{base:020d}{LOG_SUFFIX}")
        # A new partition has one empty segment at offset 0. Anything else shows that offsets were already assigned.
        if base or facts is None or facts.st_size:
            raise FatalError(f"{target} has or had records of its own: import into a new topic")


def _copy_partition(fs: Fs, data: Path, image: ClusterImage, source: _ImportSource) -> ImportedPartition:
    copy = copy_path(data, source.name)
    fs.remove_tree(copy)  # Left by an import that was killed.
    fs.make_directory(copy)
    segments = 0
    for name in sorted(fs.list_directory(source.path)):
        suffix = name[name.rfind(".") :]
        if name != checkpoints.LEADER_EPOCH_FILE and (
            suffix not in _COPIED or parse_segment_file_name(name, suffix) is None
        ):
            continue
        segments += suffix == LOG_SUFFIX
        _copy(fs, source.path / name, copy / name)
    converted = convert_partition(fs, copy)
    if filled := fill_offset_gaps(fs, copy):
        logger.warning(
            "%s has %d gaps between segments, now filled with empty batches: compaction by Kafka leaves gaps, "
            "and so does a missing file",
            source.path, filled,
        )  # fmt: skip
    _record_start(fs, source.path, copy)
    topic = image.topics_by_name[source.topic]
    checkpoints.write_partition_metadata(fs, copy, topic.topic_id)
    _sync(fs, copy / checkpoints.PARTITION_METADATA_FILE)
    # The journal follows only after this sync. Otherwise a power loss could leave a journal with incomplete
    # copies.
    sync_directory(fs, copy)
    return ImportedPartition(source.path, source.topic, source.partition, segments, converted.records)


def _record_start(fs: Fs, source: Path, copy: Path) -> None:
    """Let the copy's leader epochs begin at its first segment. Log a warning if earlier records are missing."""
    bases = segment_bases(fs, copy)
    try:
        epochs = LeaderEpochs(checkpoints.read_leader_epochs(fs, copy) or ())
    except Corrupt:
        return  # The next start rebuilds the file from the batches.
    recorded = epochs.first_offset
    if not bases or recorded is None or recorded >= bases[0]:
        return
    logger.warning(
        "%s begins at offset %d, but its %s begins at %d: records in between were deleted, or files are missing",
        source, bases[0], checkpoints.LEADER_EPOCH_FILE, recorded,
    )  # fmt: skip
    epochs.truncate_to(bases[0])
    write_start(fs, copy, epochs, durable=True)


def _copy(fs: Fs, source: Path, target: Path) -> None:
    reading = fs.open(source, writable=False)
    try:
        writing = fs.open(target, create=True)
        try:
            position = 0
            while content := fs.read(reading, _COPY_BYTES, position=position):
                fs.write(writing, [content], position=position)
                position += len(content)
            fs.sync(writing)
        finally:
            fs.close(writing)
    finally:
        fs.close(reading)


def _sync(fs: Fs, path: Path) -> None:
    descriptor = fs.open(path)
    try:
        fs.sync(descriptor)
    finally:
        fs.close(descriptor)
