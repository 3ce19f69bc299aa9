"""RecordingFs: a file system that records what a power loss would leave, so that a test can lose the power.

A broker for tests with kproc.faults.power.directory writes through it in every role. A file is on the disk as its last
sync left it, a name as the last sync of any directory found it. Nothing else survives: a disk may keep more of what was
not synced, but no broker can rely on that. The directory is on the same file system as log.dirs:

    names.json     path, inode and kind of each entry of log.dirs at the last sync of a directory
    contents/N     a copy of the file with inode N at its last sync
    inodes/N       a link to that file, so that the kernel gives its number to no other file
    lock           held by each call that changes names or records, so that all roles see one order of changes
    lose           if this file exists, the next start returns log.dirs to the record

The record outlives a restart of the broker: what was not synced before it is lost afterwards, too.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from kproc.broker.config.own_settings import LOSE_POWER_FILE
from kproc.broker.storage.format import is_state_directory_name
from kproc.broker.storage.fs import Fs
from kproc.broker.storage.os_fs import DIRECTORY_MODE, FILE_MODE, OsFs
from kproc.common.errors import Corrupt

if TYPE_CHECKING:
    from kproc.broker.config import Config

_NAMES: Final = "names.json"
_LOCK: Final = "lock"


class _NamedFile(msgspec.Struct, array_like=True):
    """The name of a file or directory below log.dirs. Parents come before their children."""

    path: str
    inode: int
    is_directory: bool


_decode_entries = msgspec.json.Decoder(list[_NamedFile]).decode


def recording(config: Config) -> Fs:
    """Return the file system of a broker that records its syncs."""
    # A cast, because RecordingFs delegates by __getattr__, which a type checker cannot follow.
    return cast(Fs, RecordingFs(OsFs(), SyncRecord(config)))


def prepare_record(config: Config, *, is_restored: bool) -> None:
    """Return log.dirs to the record if the power was lost, and start a record unless one exists.

    is_restored: log.dirs was replaced by a snapshot, which counts as synced. Called at each start, before roles run.
    Raises OSError, and Corrupt if the power was lost and the record is damaged.
    """
    record = SyncRecord(config)
    lose = record.directory / LOSE_POWER_FILE
    if lose.exists():
        record.restore_files()
        lose.unlink()
    # Continue the existing record, because a restart of the broker syncs nothing.
    elif record.exists and not is_restored:
        return
    record.start()


class SyncRecord:
    """The record of one broker: the names and contents that its syncs have brought to the disk."""

    def __init__(self, config: Config) -> None:
        self.directory = Path(config.kproc_faults_power_directory)
        self._data = Path(config.log_dirs).absolute()
        self._names = self.directory / _NAMES
        self._contents = self.directory / "contents"
        self._inodes = self.directory / "inodes"

    @property
    def exists(self) -> bool:
        return self._names.exists()

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the record's lock until the context ends, so that no other thread or process changes names or records.

        The kernel releases the lock of a role that is killed.
        """
        # A descriptor of its own for each call, because threads with the same one would share the lock.
        descriptor = os.open(self.directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def start(self) -> None:
        """Start a record. All files count as synced."""
        for directory in (self._contents, self._inodes):
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir(DIRECTORY_MODE, parents=True)
        with self.locked():
            self.add_names()

    def add_file(self, path: Path) -> None:
        """Reserve the inode of a new file. The caller holds the lock."""
        # link(2): the second name keeps the inode in use after the file's deletion. Otherwise the kernel
        # would give its number to another file.
        os.link(path, self._inodes / str(os.stat(path).st_ino))

    def add_content(self, source: str | Path, inode: int) -> None:
        """Copy a file that was synced, with its times and extended attributes. The caller holds the lock."""
        # Rename a complete copy into place, because the role can be killed during the copy.
        part = self.directory / "part"
        shutil.copy2(source, part)
        part.rename(self._contents / str(inode))

    def add_names(self) -> None:
        """Record the names below log.dirs. The caller holds the lock."""
        entries = list(self._entries())
        for entry in entries:
            # Add files that did not go through RecordingFs: the supervisor creates some before there is a record.
            if not entry.is_directory and not (self._inodes / str(entry.inode)).exists():
                self.add_file(self._data / entry.path)
                self.add_content(self._data / entry.path, entry.inode)
        part = self.directory / f"{_NAMES}.part"
        part.write_bytes(msgspec.json.encode(entries))
        part.rename(self._names)
        self._discard_all_but({entry.inode for entry in entries})

    def _entries(self) -> Iterator[_NamedFile]:
        """Yield the entries of log.dirs, without the lock, the fault rules and other files that are not its state."""
        for parent, directories, files in os.walk(self._data):
            if Path(parent) == self._data:
                directories[:] = [name for name in directories if is_state_directory_name(name)]
                files = [name for name in files if not name.startswith(".")]
            for names, is_directory in ((directories, True), (files, False)):
                for name in names:
                    path = Path(parent, name)
                    # The files of a request log do not go through RecordingFs, and can be deleted meanwhile.
                    with contextlib.suppress(FileNotFoundError):
                        yield _NamedFile(
                            str(path.relative_to(self._data)), os.stat(path).st_ino, is_directory
                        )

    def _discard_all_but(self, inodes: set[int]) -> None:
        """Discard the files that have no name any more, neither in the record nor in log.dirs."""
        for link in self._inodes.iterdir():
            # st_nlink 1: log.dirs has no name of the file. A file whose name is not synced yet has one, and
            # must stay.
            if int(link.name) not in inodes and link.stat().st_nlink == 1:
                link.unlink()
                (self._contents / link.name).unlink(missing_ok=True)

    def restore_files(self) -> None:
        """Replace the entries of log.dirs by those of the record. A file that was never synced becomes empty.

        Raises Corrupt before it changes anything if the record is damaged.
        """
        entries = self._read_names()
        for path in self._data.iterdir():
            if path.is_dir() and not path.is_symlink():
                if is_state_directory_name(path.name):
                    shutil.rmtree(path)
            elif not path.name.startswith("."):
                path.unlink()
        for entry in entries:
            path, content = self._data / entry.path, self._contents / str(entry.inode)
            if entry.is_directory:
                path.mkdir(DIRECTORY_MODE)
            elif content.exists():
                shutil.copy2(content, path)
            else:
                path.touch(FILE_MODE)

    def _read_names(self) -> list[_NamedFile]:
        try:
            return _decode_entries(self._names.read_bytes())
        # msgspec raises UnicodeDecodeError, which is no MsgspecError, for a string that is not UTF-8.
        except (msgspec.DecodeError, UnicodeDecodeError) as damage:
            raise Corrupt(
                f"{self._names}: the record of synced files is damaged ({damage}); remove {self.directory} to start "
                "with the present data"
            ) from damage


class RecordingFs:
    """An Fs that calls another one, and records what its syncs have brought to the disk."""

    def __init__(self, fs: Fs, record: SyncRecord) -> None:
        self._fs = fs
        self._record = record

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fs, name)

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> int:
        """Open a file by the wrapped Fs, and return its descriptor. Reserve the inode of a new file in the record."""
        # The open of an existing file changes no name, so other roles need not be excluded.
        if not create:
            return self._fs.open(path, writable=writable)
        with self._record.locked():
            descriptor = self._fs.open(path, create=True, writable=writable)
            self._record.add_file(path)
        return descriptor

    def make_directory(self, path: Path) -> bool:
        """Create a directory by the wrapped Fs while the record is locked."""
        with self._record.locked():
            return self._fs.make_directory(path)

    def rename(self, source: Path, target: Path) -> bool:
        """Rename a file by the wrapped Fs while the record is locked."""
        with self._record.locked():
            return self._fs.rename(source, target)

    def unlink(self, path: Path) -> bool:
        """Remove a file by the wrapped Fs while the record is locked."""
        with self._record.locked():
            return self._fs.unlink(path)

    def remove_tree(self, path: Path) -> None:
        """Remove a directory by the wrapped Fs while the record is locked."""
        with self._record.locked():
            self._fs.remove_tree(path)

    def sync(self, descriptor: int) -> None:
        """Sync by the wrapped Fs. Record the file's content, or the names if it is a directory."""
        self._fs.sync(descriptor)
        info = os.fstat(descriptor)
        with self._record.locked():
            # fsync(2): the sync of a file does not bring its name to the disk. That needs a sync of the
            # directory.
            if stat.S_ISDIR(info.st_mode):
                self._record.add_names()
            else:
                self._record.add_content(f"/proc/self/fd/{descriptor}", info.st_ino)
