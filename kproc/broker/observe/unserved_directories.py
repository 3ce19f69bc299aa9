"""UnservedDirectories: partitions' directories in the data directory that no topic serves.

They were set aside (storage/set_aside.py), or belong to no topic and the cleaner will set them aside, or cannot be
read, or Kafka left them while it moved a partition between disks. The controller lists them; `kproc status` and `kproc
doctor` show them with the reason.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from kproc.broker.cluster.image import ClusterImage
from kproc.broker.storage.catalog import describe_topic_id, list_partitions, read_topic_id
from kproc.broker.storage.format import FUTURE_DIRECTORY_SUFFIX, parse_set_aside_directory_name
from kproc.broker.storage.fs import Fs, StorageFailure
from kproc.broker.storage.set_aside import list_deleted, list_set_aside

SHOWN_MAX: Final = 20


class UnservedDirectories:
    """The partition directories that no topic serves, with the reasons, for the status.

    Lists them again when the data directory or the metadata have changed.
    """

    def __init__(self, fs: Fs, directory: Path, image: Callable[[], ClusterImage | None]) -> None:
        self._fs = fs
        self._directory = directory
        self._image = image
        self._listed_at: tuple[int, int] | None = None
        self._reasons: dict[str, str] = {}  # By name.

    def describe(self) -> dict[str, Any]:
        """Return the number of these directories, and the first SHOWN_MAX by name with the reasons."""
        self._refresh()
        return {
            "count": len(self._reasons),
            "first": [
                {"directory": name, "reason": self._reasons[name]}
                for name in sorted(self._reasons)[:SHOWN_MAX]
            ],
        }

    def _refresh(self) -> None:
        image = self._image()
        try:
            facts = self._fs.facts_at(self._directory)
            at = (0 if facts is None else facts.st_mtime_ns, 0 if image is None else image.version)
            if at != self._listed_at:
                self._reasons = self._list(image)
                self._listed_at = at
        except StorageFailure as failure:
            # Show the failure in place of the list, and list the directories again at the next call.
            self._reasons, self._listed_at = {self._directory.name: str(failure)}, None

    def _list(self, image: ClusterImage | None) -> dict[str, str]:
        reasons = {each.path.name: each.reason for each in list_set_aside(self._fs, self._directory)}
        for name in self._fs.list_directory(self._directory):
            if parse_set_aside_directory_name(name, FUTURE_DIRECTORY_SUFFIX) is not None:
                reasons[name] = (
                    "Apache Kafka was moving this partition to another disk; kproc does not use such copies"
                )
        for path in list_deleted(self._fs, self._directory) if image is not None else ():
            if image is not None and read_topic_id(self._fs, path) in image.topics_by_id:
                reasons[path.name] = (
                    "it was renamed for a deletion that the metadata, restored from an older copy, do not record"
                )
        # Right after a role's start there are no metadata, and the existing partitions are unknown.
        if image is not None and image.version:
            for each in list_partitions(
                self._fs,
                self._directory,
                skip=lambda topic, index: image.partition(topic, index) is not None,
            ):
                reasons[each.path.name] = each.problem or (
                    f"no topic has this partition; it has {describe_topic_id(each.topic_id)}; "
                    "it will be set aside within minutes"
                )
        return reasons
