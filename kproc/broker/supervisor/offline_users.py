"""Users of a data directory whose broker is stopped: the first one, who lets the others in, has to come from somewhere.

What `kafka-storage format --add-scram` does for Kafka, and it may be done again at any time.
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
    """The results of these requests, AlterUserScramCredentials with derived keys, on the directory of `config`.

    It is made if it is not there. FatalError if a broker uses it, or it cannot be used.
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
    """Every user of the directory, with the iterations of each mechanism that it has."""

    def look(_log: MetadataLog, image: ClusterImage, _cluster_id: str) -> list[tuple[str, dict[int, int]]]:
        users = image.scram_users
        return [
            (name, {number: each.iterations for number, each in users.of(name).items()})
            for name in users.names()
        ]

    return _with_metadata(config, look, fs or OsFs())


def _with_metadata(config: Config, use: Callable[[MetadataLog, ClusterImage, str], _T], fs: Fs) -> _T:
    """What `use` makes of the directory's metadata, while nobody else can use them."""
    directory = DataDirectory(config, fs)
    try:
        log, image = MetadataLog.open(directory.path, SystemClock(), fs)
        try:
            return use(log, image, directory.cluster_id)
        finally:
            log.close()
    finally:
        directory.close()
