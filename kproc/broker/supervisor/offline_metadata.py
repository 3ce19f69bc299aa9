"""Reads and changes the metadata in the data directory of a stopped broker, without starting a role.

The first SCRAM user has to be created without a login. Kafka has `kafka-storage format --add-scram` for this, which
works once. These functions can be used at any time. `kproc dev --topic` creates its topics here, so that they exist
when the first client connects.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from kproc.broker.cluster import features
from kproc.broker.cluster.controller import ControllerState, do_at_once
from kproc.broker.cluster.image import ClusterImage
from kproc.broker.cluster.metadata_log import MetadataLog
from kproc.broker.config import Config, ConfigError
from kproc.broker.storage.fs import Fs
from kproc.broker.storage.os_fs import OsFs
from kproc.broker.supervisor.data_directory import DataDirectory
from kproc.common.clock import SystemClock

Row = dict[str, Any]


def change_metadata(config: Config, operations: Sequence[tuple[str, Row]], fs: Fs | None = None) -> list[Row]:
    """Apply operations of the controller to the data directory of `config`, and return the replies.

    operations: (name, body) of each.

    Creates the directory if it does not exist. Raises FatalError if a broker uses the directory or it cannot be opened.
    With kproc.emulate.release this process is limited to the features of that release from then on.
    """
    if config.kproc_emulate_release:
        from kproc.broker.request.releases import load_releases

        # A new cluster gets the highest supported feature levels. Restrict them first, because an emulated release does
        # not start with levels above its own.
        features.restrict(load_releases()[config.kproc_emulate_release].features)
    with _open_metadata(config, fs or OsFs()) as (log, image, cluster_id):
        state = ControllerState(config, image, SystemClock())
        # For a new directory, write the records with which a broker's first start begins.
        do_at_once(state, log, image, "register_cluster", {"cluster_id": cluster_id})
        return [do_at_once(state, log, image, op, body) for op, body in operations]


def read_metadata(config: Config, fs: Fs | None = None) -> ClusterImage:
    """Return the metadata in the data directory of a stopped broker. Raises like `change_metadata`."""
    with _open_metadata(config, fs or OsFs()) as (_log, image, _cluster_id):
        return image


def create_topics(config: Config, partitions: Mapping[str, int], fs: Fs | None = None) -> None:
    """Create topics with these numbers of partitions.

    The data directory must be new, because partition directories that already have the topics' names are not moved
    away. Raises ConfigError if a topic is rejected.
    """
    topics = [
        {
            "name": name,
            "num_partitions": count,
            "replication_factor": -1,
            "assignments": [],
            "configs": [],
        }
        for name, count in partitions.items()
    ]
    [reply] = change_metadata(config, [("create_topics", {"topics": topics, "validate_only": False})], fs)
    for row in reply["topics"]:
        if row["error_code"]:
            raise ConfigError(f"--topic {row['name']}: {row['error_message']}")


@contextmanager
def _open_metadata(config: Config, fs: Fs) -> Iterator[tuple[MetadataLog, ClusterImage, str]]:
    """Lock the data directory, and open its metadata."""
    directory = DataDirectory(config, fs)
    try:
        log, image = MetadataLog.open(directory.path, SystemClock(), fs)
        try:
            yield log, image, directory.cluster_id
        finally:
            log.close()
    finally:
        directory.close()


def alter_users(config: Config, bodies: list[Row], fs: Fs | None = None) -> list[Row]:
    """Apply AlterUserScramCredentials requests with derived keys to the data directory of `config`.

    Creates the directory if it does not exist. Returns the rows of the results. Raises FatalError if a broker uses the
    directory or it cannot be opened.
    """
    replies = change_metadata(config, [("alter_user_scram_credentials", body) for body in bodies], fs)
    return [row for reply in replies for row in reply["results"]]


def users_of(config: Config, fs: Fs | None = None) -> list[tuple[str, dict[int, int]]]:
    """Return each SCRAM user in the data directory as (name, {mechanism number: iterations})."""
    users = read_metadata(config, fs).scram_users
    return [
        (name, {number: each.iterations for number, each in users.of(name).items()}) for name in users.names()
    ]
