"""DataDirectory: creates, locks and identifies the data directory. The supervisor does this once, before it forks."""

from __future__ import annotations

import base64
import errno
import fcntl
import logging
import os
import uuid
from pathlib import Path
from typing import Final

from kproc.broker.cluster import metadata_log
from kproc.broker.config import Config
from kproc.broker.storage import checkpoints
from kproc.broker.storage.catalog import list_partitions
from kproc.broker.storage.fs import FILE_MODE, Fs, OsFs, StorageFailure
from kproc.broker.storage.offset_checkpoints import check_readable
from kproc.common.errors import Corrupt, FatalError

logger = logging.getLogger(__name__)

LOCK_FILE: Final = ".lock"  # Kafka's name.
# Of a new one; who made it before the start has chosen another.
_MODE: Final = 0o700
# Raft's, beside Apache Kafka's own metadata log. kproc has none.
_QUORUM_STATE: Final = "quorum-state"


class DataDirectory:
    """An open, locked data directory. `lock_fd` is inherited by every role that writes, so that the directory
    stays locked as long as any of them lives (an flock belongs to the open file, a POSIX lock to a process)."""

    def __init__(self, config: Config, fs: Fs | None = None) -> None:
        self._fs = fs or OsFs()
        self.path = Path(config.log_dirs).absolute()
        try:
            str(self.path).encode()
        except UnicodeEncodeError as error:  # Ready file, status and log are UTF-8.
            raise FatalError(f"log.dirs: the name of {str(self.path)!r} is not UTF-8") from error
        try:
            self.path.mkdir(_MODE, parents=True, exist_ok=True)
            self.lock_fd = os.open(self.path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        except OSError as error:
            reason = "not a directory" if isinstance(error, FileExistsError) else error.strerror
            raise FatalError(f"log.dirs: cannot use {error.filename or self.path}: {reason}") from error
        try:
            fcntl.flock(self.lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self.lock_fd)
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise FatalError(f"log.dirs: cannot lock {self.path}: {error.strerror}") from error
            raise FatalError(f"log.dirs: {self.path} is in use by another broker") from None
        try:
            self.cluster_id = self._identify(config)
        except (StorageFailure, Corrupt) as error:
            self.close()
            raise FatalError(f"log.dirs: cannot use {self.path}: {error}") from error

    def _identify(self, config: Config) -> str:
        """Read meta.properties, or write it at the first start. One of another node, or of Kafka, is refused."""
        fs, node_id = self._fs, config.node_id
        if fs.exists(self.path / metadata_log.DIRECTORY_NAME / _QUORUM_STATE):
            raise Corrupt(
                "its metadata are Apache Kafka's; kproc can import its partitions but not its metadata: see MOVING.md"
            )
        # Roles read the checkpoints when they start. By then the marker of a clean stop is gone, and after a start that
        # fails there the next one would recover every log.
        check_readable(fs, self.path)
        has_metadata = not metadata_log.is_missing(fs, self.path)
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
        elif meta.node_id != node_id:
            raise Corrupt(f"meta.properties is of node.id {meta.node_id}, this broker's is {node_id}")
        return meta.cluster_id

    def _lines_of_identity(self, node_id: int) -> str:
        """Format the instructions to restore meta.properties."""
        try:
            cluster_id = metadata_log.read_cluster_id(self._fs, self.path)
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
        what = f"it has {len(partitions)} partitions, such as {partitions[0].path.name}, but no metadata"
        if not config.kproc_start_without_metadata:
            raise Corrupt(
                f"{what}: {metadata_log.DIRECTORY_NAME} is missing or empty; restore a copy, or start with "
                f"{metadata_log.START_WITHOUT}=true: then every topic is unknown and its files are set aside"
            )
        logger.warning("%s: %s; its partitions will be set aside", self.path, what)

    def take_clean_stop(self) -> bool:
        """Return whether the last stop was clean. Called once, right before the roles that write logs start.

        Not earlier: a start that fails before them has changed no log, and leaves the marker to the next one.
        """
        try:
            return checkpoints.take_clean_shutdown(self._fs, self.path)
        except StorageFailure as error:
            raise FatalError(f"log.dirs: cannot use {self.path}: {error}") from error

    def close(self) -> None:
        """Unlock the directory, unless a child still has the lock's descriptor."""
        os.close(self.lock_fd)


def _random_id() -> str:
    """An id as Kafka's StorageTool makes them: 22 characters of base64, none of them a leading dash."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        if not text.startswith("-"):
            return text
