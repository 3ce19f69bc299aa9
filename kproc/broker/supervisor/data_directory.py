"""DataDirectory: creates, locks and identifies the data directory. The supervisor does this once, before it forks."""

from __future__ import annotations

import base64
import logging
import shutil
import uuid
from pathlib import Path
from typing import Final

from kproc.broker.cluster import metadata_files
from kproc.broker.config import Config
from kproc.broker.storage import checkpoints
from kproc.broker.storage.catalog import list_partitions
from kproc.broker.storage.format import FAULTS_DIRECTORY, METADATA_DIRECTORY
from kproc.broker.storage.fs import Fs, StorageFailure
from kproc.broker.storage.offset_checkpoints import check_readable
from kproc.broker.storage.os_fs import OsFs, UnsyncedFs
from kproc.broker.supervisor.directory_lock import DirectoryInUse, DirectoryLock
from kproc.broker.supervisor.import_journal import complete_import
from kproc.broker.supervisor.snapshots import complete_restore
from kproc.common.errors import Corrupt, FatalError

logger = logging.getLogger(__name__)

# Mode of a directory that kproc creates. A directory that exists already keeps its mode.
_MODE: Final = 0o700
# Apache Kafka's file with its Raft state, in the directory of the metadata log. kproc writes no such file.
_QUORUM_STATE: Final = "quorum-state"


def make_fs(config: Config) -> Fs:
    """Return a broker's file system: the real one, for temporary data one without syncs, or one that records syncs."""
    if not config.records_syncs:
        # With kproc.flush=group a test or benchmark wants to wait for real syncs.
        return OsFs() if config.keeps_data or config.waits_for_sync else UnsyncedFs()
    from kproc.broker.faults.power import recording

    return recording(config)


class DataDirectory:
    """An open, locked data directory.

    Opening it creates a missing directory, and completes an interrupted restore or import. Raises FatalError.
    """

    def __init__(self, config: Config, fs: Fs | None = None) -> None:
        self._fs = fs or make_fs(config)
        self.path = Path(config.log_dirs).absolute()
        try:
            str(self.path).encode()
        except UnicodeEncodeError as error:  # Ready file, status and log are UTF-8.
            raise FatalError(f"log.dirs: the name of {str(self.path)!r} is not UTF-8") from error
        try:
            self.path.mkdir(_MODE, parents=True, exist_ok=True)
            self._lock = DirectoryLock(self.path)
        except DirectoryInUse:
            raise FatalError(f"log.dirs: {self.path} is in use by another broker") from None
        except OSError as error:
            reason = "not a directory" if isinstance(error, FileExistsError) else error.strerror
            raise FatalError(f"log.dirs: cannot use {error.filename or self.path}: {reason}") from error
        # Fault rules must not outlive the broker that they were made for. A broker that was killed has not deleted
        # them.
        shutil.rmtree(self.path / FAULTS_DIRECTORY, ignore_errors=True)
        try:
            is_restored = complete_restore(self.path)
            if config.records_syncs:
                from kproc.broker.faults.power import prepare_record

                prepare_record(config, is_restored=is_restored)
        except OSError as error:
            self.close()
            raise FatalError(
                f"log.dirs: cannot restore a snapshot or prepare the record of syncs in {self.path}: {error}"
            ) from error
        except Corrupt as damage:
            self.close()
            raise FatalError(str(damage)) from damage
        try:
            # Partitions of an interrupted import that was completed here.
            self.imported = complete_import(self._fs, self.path)
            self.cluster_id = self._identify(config)
        except (StorageFailure, Corrupt) as error:
            self.close()
            raise FatalError(f"log.dirs: cannot use {self.path}: {error}") from error

    def _identify(self, config: Config) -> str:
        """Return the cluster id in meta.properties. Write the file at the first start.

        Raises Corrupt if the directory belongs to another node or holds Apache Kafka's metadata, or if the file is
        missing beside metadata.
        """
        fs, node_id = self._fs, config.node_id
        if fs.exists(self.path / METADATA_DIRECTORY / _QUORUM_STATE):
            raise Corrupt(
                "its metadata are Apache Kafka's; kproc can import its partitions but not its metadata: see MOVING.md"
            )
        # Check that the checkpoints can be read. Roles read them only after the marker of a clean stop was removed: if
        # that failed, the next start would have to recover every log.
        check_readable(fs, self.path)
        has_metadata = not metadata_files.is_missing(fs, self.path)
        if not has_metadata:
            self._check_partitions_without_metadata(config)
        try:
            meta = checkpoints.read_meta_properties(fs, self.path)
        except Corrupt as error:
            raise Corrupt(f"{error}; {self._lines_of_identity(node_id)}") from error
        if meta is None and has_metadata:
            raise Corrupt(
                f"{checkpoints.META_PROPERTIES_FILE} is missing beside the metadata of a cluster; "
                f"{self._lines_of_identity(node_id)}"
            )
        if meta is None:
            meta = checkpoints.MetaProperties(
                cluster_id=_random_id(), node_id=node_id, directory_id=_random_id()
            )
            checkpoints.write_meta_properties(fs, self.path, meta)
        # A wrong node.id usually means a wrong data directory. With it clients would find other topics than
        # before.
        elif meta.node_id != node_id:
            raise Corrupt(
                f"meta.properties belongs to node.id {meta.node_id}, but this broker's node.id is {node_id}"
            )
        return meta.cluster_id

    def _lines_of_identity(self, node_id: int) -> str:
        """Format the lines with which the user can restore meta.properties, as part of an error message."""
        try:
            cluster_id = metadata_files.read_cluster_id(self._fs, self.path)
        except Corrupt:  # The next start, with meta.properties, reports the damage of the metadata.
            cluster_id = None
        return (
            "restore a copy, or write one of four lines: version=1, "
            f"cluster.id={cluster_id or 'ID'}, node.id={node_id}, directory.id={_random_id()}"
        )

    def _check_partitions_without_metadata(self, config: Config) -> None:
        """Raise Corrupt if there are partitions but no metadata: clients would find no topics and no offsets.

        With kproc.start.without.metadata the broker starts, and the partitions are set aside.
        """
        partitions = list_partitions(self._fs, self.path)
        if not partitions:
            return
        example = partitions[0].path.name
        what = f"the data directory has {len(partitions)} partitions, such as {example}, but no metadata"
        if not config.kproc_start_without_metadata:
            raise Corrupt(
                f"{what}: {METADATA_DIRECTORY} is missing or empty; restore a copy, or start with "
                f"{metadata_files.START_WITHOUT}=true: then every topic is unknown and its files are set aside"
            )
        logger.warning("%s: %s; its partitions will be set aside", self.path, what)

    def remove_clean_marker(self) -> bool:
        """Remove the marker of a clean stop. Return True if it existed.

        Called once, right before the roles that write logs start. A start that fails earlier has changed no log, so it
        must leave the marker for the next start.
        """
        try:
            return checkpoints.remove_clean_shutdown(self._fs, self.path)
        except StorageFailure as error:
            raise FatalError(f"log.dirs: cannot use {self.path}: {error}") from error

    @property
    def lock_fd(self) -> int:
        """The descriptor that keeps the directory locked in every process that inherits it."""
        return self._lock.lock_fd

    def close(self) -> None:
        """Unlock the directory, unless a child still has the lock's descriptor."""
        self._lock.release()


def _random_id() -> str:
    """Return an id like those of Kafka's Uuid.randomUuid: 22 characters of base64 without a leading dash."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        if not text.startswith("-"):
            return text
