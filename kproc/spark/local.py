"""Find the leader's segment files on this task's host, so that the task reads them directly instead of by Fetch.

`kproc.data.dir` is a path, `none`, or `auto`. With `auto` the task asks a leader on a loopback address for its data
directory, once for each Python process. A kproc broker responds; Apache Kafka closes that connection. If the broker
has an authorizer, `auto` does not read its files, because they bypass the access control lists. The user must then give
the path.

A directory is used only if its cluster id and node id are the leader's, and if the partition has the topic's id. This
rejects the loopback address of another container, a copy of the directory, and an older topic of the same name. With a
path from the user a wrong directory is an error. With `auto` the task falls back to Fetch.
"""

from __future__ import annotations

import ipaddress
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kproc.broker.storage.checkpoints import read_meta_properties, read_partition_metadata
from kproc.broker.storage.os_fs import OsFs
from kproc.client import Client, ClientError
from kproc.common.errors import Corrupt
from kproc.spark.brokers import Cluster, cluster_of
from kproc.spark.offsets import TopicPartition
from kproc.wire.header import ApiKey
from kproc.wire.primitives import ZERO_UUID

if TYPE_CHECKING:
    from kproc.spark.log_files import PartitionFiles
    from kproc.spark.options import SourceOptions

AUTO: Final = "auto"
NONE: Final = "none"
_ASK_MS: Final = 2_000

logger = logging.getLogger(__name__)
_found: dict[tuple[int, str, str, int], Path | None] = {}


class WrongDirectory(Exception):
    """`kproc.data.dir` is not the data directory of the broker that leads the partition to read."""


def local_files(
    options: SourceOptions, partition: TopicPartition, planned_id: bytes | None = None
) -> PartitionFiles | None:
    """Return the partition's files, or None if the task must use Fetch.

    planned_id: the topic's id when the range was planned, so that files of a later topic of the same name are not read.

    Raises WrongDirectory if the user's path is not the leader's data directory.
    """
    if options.data_directory == NONE:
        return None
    cluster = cluster_of(options.bootstrap, options.connecting)
    try:
        directory = _data_directory(options.data_directory, cluster, partition)
        if directory is None:
            return None
        topic = cluster.metadata([partition.topic]).get(partition.topic)
    # Fall back to Fetch, which retries and reports the error if it persists.
    except ClientError as error:
        logger.debug("cannot locate the log files of %s, so this task uses Fetch: %s", partition, error)
        return None
    where = directory / str(partition)
    try:
        topic_id = read_partition_metadata(OsFs(), where)
    except (OSError, Corrupt) as error:
        # The partition's directory is not readable on this host, or its partition.metadata is damaged: use Fetch.
        logger.debug("cannot read the log files of %s, so this task uses Fetch: %s", partition, error)
        return None
    # Compare topic ids: if the topic was deleted and created again, the directory of the old topic has the same name.
    if topic is None or topic_id is None or topic_id != topic.topic_id or topic_id == ZERO_UUID:
        return None
    if planned_id is not None and planned_id != topic_id:
        return None
    from kproc.spark.log_files import PartitionFiles

    return PartitionFiles(where, partition.topic, partition.partition)


def _data_directory(wanted: str, cluster: Cluster, partition: TopicPartition) -> Path | None:
    """Return the leader's data directory, or None if the task must use Fetch. Cached per process and node."""
    node = cluster.leader(partition)
    key = (os.getpid(), cluster.bootstrap, wanted, node)
    if key not in _found:
        _found[key] = (
            _directory_by_status(cluster, node) if wanted == AUTO else _validated(Path(wanted), cluster, node)
        )
    return _found[key]


def _directory_by_status(cluster: Cluster, node: int) -> Path | None:
    host, port = cluster.address(node)
    if not _is_loopback(host):
        return None
    # Use a new connection: a broker that is not kproc closes it, and the connection for Fetch must stay open.
    try:
        security = cluster.connecting.security
        with Client.connect(host, port, timeout_ms=_ASK_MS, security=security) as client:
            status = client.operate("status")
        if status.get("authorizer"):
            logger.debug(
                "node %d has an authorizer, which reading its files would bypass: fetching instead", node
            )
            return None
        directory = Path(str(status["data"]))
        return _validated(directory, cluster, node)
    except (ClientError, KeyError, WrongDirectory) as error:
        # The broker is not kproc, rejects the operation, or its directory is not on this host: use Fetch.
        logger.debug("fetching records of node %d instead of reading its files: %s", node, error)
        return None


def _validated(directory: Path, cluster: Cluster, node: int) -> Path:
    """Return the directory if it is the node's data directory. Raise WrongDirectory otherwise."""
    fields = {"topics": [], "allow_auto_topic_creation": False}
    # Compare cluster id and node id, because two brokers on one host can have topics of the same name.
    theirs = cluster.call(ApiKey.METADATA, fields)["cluster_id"]
    try:
        ours = read_meta_properties(OsFs(), directory)
    except (OSError, Corrupt) as error:
        raise WrongDirectory(f"kproc.data.dir {directory} cannot be read: {error}") from None
    if ours is None:
        raise WrongDirectory(f"kproc.data.dir {directory} is not a data directory: it has no meta.properties")
    if (ours.cluster_id, ours.node_id) != (theirs, node):
        raise WrongDirectory(
            f"kproc.data.dir {directory} is of node {ours.node_id} in cluster {ours.cluster_id}, "
            f"but the leader is node {node} in cluster {theirs}"
        )
    return directory


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
