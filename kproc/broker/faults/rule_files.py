"""RuleFiles: the fault rules of a broker and their counters, as files that all Handlers share.

`log.dirs/.faults/` holds for each rule `N.rule` (JSON) and `N.count`, and `N.lease` with the id of the connection
whose end removes the rule. Leases are files, so that they outlive the Handler that added the rule.

Each matching request appends one byte to `N.count`, and the position behind that byte is the request's number. The
kernel orders the appends of all processes and threads, so that each number is given once in the whole broker. No
Handler waits for another one, and a Handler that is killed or paused holds no lock. A Handler that starts reads the
rules from here.

The supervisor removes the directory at each start, because rules end with the broker.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from kproc.broker.calls.own_operations import FaultRule
from kproc.broker.storage.format import FAULT_RULE_SUFFIX, FAULTS_DIRECTORY

RULES_MAX: Final = 100
"""Maximum number of rules at a time. A rule about requests holds a descriptor in each Handler, for its counter."""
_IDS: Final = "ids"
_LEASE_SUFFIX: Final = ".lease"
_MODE: Final = 0o700
_FILE_MODE: Final = 0o600
_decode_rule = msgspec.json.Decoder(FaultRule).decode


class RuleFiles:
    """The directory of one broker's fault rules."""

    def __init__(self, log_dirs: str) -> None:
        self._path = Path(log_dirs).absolute() / FAULTS_DIRECTORY

    def add(self, rule: FaultRule, connection_id: int) -> int:
        """Store a rule that ends with a connection, and return its id. Ids are not used again until the next start.

        Raises OSError if the rule cannot be stored.
        """
        self._path.mkdir(_MODE, exist_ok=True)
        ids = Counter(self._path / _IDS)
        try:
            rule_id = ids.next()
        finally:
            ids.close()
        Counter(self._path / f"{rule_id}.count").close()
        (self._path / f"{rule_id}{_LEASE_SUFFIX}").write_text(str(connection_id))
        # Rename a complete file into place, because a Handler that starts may read the directory at any time.
        temporary = self._path / f"{rule_id}.new"
        temporary.write_bytes(msgspec.json.encode(rule))
        temporary.rename(self._path / f"{rule_id}{FAULT_RULE_SUFFIX}")
        return rule_id

    def remove(self, rule_id: int) -> bool:
        """Remove a rule. Return False if it does not exist."""
        try:
            (self._path / f"{rule_id}{FAULT_RULE_SUFFIX}").unlink()
        except FileNotFoundError:
            # Another Handler has removed the rule.
            return False
        for suffix in (".count", _LEASE_SUFFIX):
            (self._path / f"{rule_id}{suffix}").unlink(missing_ok=True)
        return True

    def keep(self, rule_id: int) -> None:
        """Let a rule outlive the connection with whose end it would be removed."""
        (self._path / f"{rule_id}{_LEASE_SUFFIX}").unlink(missing_ok=True)

    def leased_by(self, connection_ids: Collection[int]) -> list[int]:
        """Return the ids of the rules that end with one of these connections."""
        return [
            rule_id for rule_id, connection_id in self.leases().items() if connection_id in connection_ids
        ]

    def leases(self) -> dict[int, int]:
        """Return the id of the connection with which each rule ends, by the rule's id."""
        found = {}
        for rule_id in self.ids():
            # A rule whose lease is damaged ends like a rule without one: by its removal, or with the broker.
            with suppress(FileNotFoundError, ValueError):
                found[rule_id] = int((self._path / f"{rule_id}{_LEASE_SUFFIX}").read_text())
        return found

    def ids(self) -> list[int]:
        """Return the ids of all rules, in the order in which they were added."""
        try:
            names = os.listdir(self._path)
        except FileNotFoundError:
            return []
        stems = (name.removesuffix(FAULT_RULE_SUFFIX) for name in names if name.endswith(FAULT_RULE_SUFFIX))
        return sorted(int(stem) for stem in stems if stem.isdecimal())

    def read(self) -> dict[int, FaultRule]:
        """Return the rules by id, in the order in which they were added. Skip those that were removed meanwhile."""
        found = {}
        for rule_id in self.ids():
            # Skip rules that another Handler has removed since `ids()`, and damaged files. Neither may keep a Handler
            # from starting. msgspec raises UnicodeDecodeError for text that is not UTF-8.
            with suppress(FileNotFoundError, msgspec.DecodeError, UnicodeDecodeError):
                found[rule_id] = _decode_rule((self._path / f"{rule_id}{FAULT_RULE_SUFFIX}").read_bytes())
        return found

    def counter(self, rule_id: int) -> Counter:
        """Open the counter of a rule. Raises FileNotFoundError if the rule was removed."""
        return Counter(self._path / f"{rule_id}.count", may_create=False)

    def matches(self, rule_id: int) -> int:
        """Return the number of requests, or writes and syncs, that a rule has matched; 0 if the rule was removed."""
        try:
            return (self._path / f"{rule_id}.count").stat().st_size
        except FileNotFoundError:
            return 0


class Counter:
    """A file whose size is a number. Processes and threads increment it without a lock."""

    def __init__(self, path: Path, *, may_create: bool = True) -> None:
        flags = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | (os.O_CREAT if may_create else 0)
        self._fd = os.open(path, flags, _FILE_MODE)

    def next(self) -> int:
        """Increment the number and return it. Each caller gets another number."""
        # The write sets this descriptor's position to the end of its own byte, however many others append.
        os.write(self._fd, b"\1")
        return os.lseek(self._fd, 0, os.SEEK_CUR)

    def close(self) -> None:
        os.close(self._fd)
