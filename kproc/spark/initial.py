"""File with the initial offsets of a query: `checkpointState=<directory>`.

Spark's checkpoint does not store the initial offsets. If Spark restarts before it has planned the first batch, it asks
for them again, and `startingOffsets=latest` would then skip the records in between. Once the first batch is planned,
the document with its end also has its start (`offsets.py`), and the file is no longer needed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any, Self

from kproc.common.json_bytes import parse_json
from kproc.spark.offsets import from_json
from kproc.spark.option_values import OptionError
from kproc.spark.options import SourceOptions


class InitialOffsets:
    """The file with the offsets at which a query began (option checkpointState).

    The process that plans the query writes it once for each source.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def of(cls, options: SourceOptions) -> Self | None:
        """Return the file of this source, or None without the option checkpointState.

        `sourceName` distinguishes the sources of one query. By default a hash of the subscription does.
        """
        if options.checkpoint_state is None:
            return None
        if "://" in options.checkpoint_state:
            raise OptionError("checkpointState must be a directory of the driver's host, not a URL")
        name = options.source_name
        if name is None:
            described = f"{options.subscription.kind.value} {options.subscription}"
            # Use a hash, because a subscription can be longer than a file name may be.
            name = "source-" + hashlib.sha256(described.encode()).hexdigest()[:12]
        elif not re.fullmatch(r"[\w.-]+", name):
            raise OptionError(
                f"sourceName must consist of letters, digits, dots, dashes and underscores, not {name!r}"
            )
        return cls(Path(options.checkpoint_state) / f"{name}.initial.json")

    def load(self) -> dict[str, Any] | None:
        """Return the saved document of offsets, or None without a file. Raise OptionError if the file is damaged."""
        try:
            text = self.path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise OptionError(f"checkpointState: cannot read {self.path}: {error.strerror}") from error
        try:
            document: dict[str, Any] = parse_json(text)
            from_json(document)
            return document
        except ValueError as error:
            raise OptionError(
                f"checkpointState: {self.path} is damaged ({error}); remove it to start from startingOffsets"
            ) from error

    def save(self, document: dict[str, Any]) -> None:
        """Write the document atomically and sync it, because a query that has begun must find it after a crash."""
        beside = self.path.with_suffix(f".{os.getpid()}.tmp")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(beside, "w", encoding="utf-8") as file:
                json.dump(document, file)
                file.flush()
                os.fsync(file.fileno())
            # Sync the file before the rename: the rename can reach the disk before the data, and a crash would leave an
            # empty file. The rename is atomic, so that a reader never sees half a document.
            beside.replace(self.path)
            # Sync the directory, too: a power loss could otherwise take the new name away (fsync(2)).
            directory = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)
        except OSError as error:
            raise OptionError(f"checkpointState: cannot write {self.path}: {error.strerror}") from error
