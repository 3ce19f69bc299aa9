"""Changes SCRAM users in the data directory of a stopped broker, because the first user cannot log in to be created.

`kafka-storage format --add-scram` does this for Kafka. Here it can be repeated at any time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from kproc.broker.cluster.controller import ControllerState, do_at_once
from kproc.broker.cluster.image import ClusterImage
from kproc.broker.cluster.metadata_log import MetadataLog
from kproc.broker.config import Config
from kproc.broker.storage.fs import Fs, OsFs
from kproc.broker.supervisor.data_directory import DataDirectory
from kproc.common.clock import SystemClock

Row = dict[str, Any]
_T = TypeVar("_T")


def alter_users(config: Config, bodies: list[Row], fs: Fs | None = None) -> list[Row]:
    """Apply AlterUserScramCredentials requests with derived keys to the data directory of `config`.

    Creates the directory if it does not exist. Returns the rows of the results. Raises FatalError if a broker uses the
    directory or it cannot be opened.
    """

    def alter(log: MetadataLog, image: ClusterImage, cluster_id: str) -> list[Row]:
        state = ControllerState(config, image, SystemClock())
        results: list[Row] = []
        # A new directory gets the records that its first start would write first.
        requests = [("register_cluster", {"cluster_id": cluster_id})]
        requests += [("alter_user_scram_credentials", body) for body in bodies]
        for op, body in requests:
            results += do_at_once(state, log, image, op, body).get("results", [])
        return results

    return _with_metadata(config, alter, fs or OsFs())


def users_of(config: Config, fs: Fs | None = None) -> list[tuple[str, dict[int, int]]]:
    """Return every user of the directory, with the iterations of each of its mechanisms."""

    def read_users(
        _log: MetadataLog, image: ClusterImage, _cluster_id: str
    ) -> list[tuple[str, dict[int, int]]]:
        users = image.scram_users
        return [
            (name, {number: each.iterations for number, each in users.of(name).items()})
            for name in users.names()
        ]

    return _with_metadata(config, read_users, fs or OsFs())


def _with_metadata(config: Config, use: Callable[[MetadataLog, ClusterImage, str], _T], fs: Fs) -> _T:
    """Lock the data directory, open its metadata and return the result of `use` on them."""
    directory = DataDirectory(config, fs)
    try:
        log, image = MetadataLog.open(directory.path, SystemClock(), fs)
        try:
            return use(log, image, directory.cluster_id)
        finally:
            log.close()
    finally:
        directory.close()
