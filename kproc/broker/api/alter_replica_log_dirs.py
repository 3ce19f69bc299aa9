"""AlterReplicaLogDirs (key 34), versions 1-2 (KIP-113): move partitions to the only directory, where they are already.

A partition that is named several times is moved once, to the last directory. Any other path gets LOG_DIR_NOT_FOUND, as
in Kafka. A name that is longer than 255 characters with the suffix of a moving directory (`-0.<32 digits>-future`) gets
INVALID_TOPIC_EXCEPTION.

Versions: v2 flexible.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kproc.broker.cluster.image import ClusterImage
from kproc.broker.request.division import divide, rows_at
from kproc.broker.request.registry import api
from kproc.broker.request.rights import on_cluster
from kproc.broker.security.acl import Operation
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.broker.request.context import RequestContext

_ROWS = rows_at("dirs.topics.partitions", "results.partitions")
_STEP_ROWS = 2_000
# Kafka names the directory of a replica that moves TOPIC-PARTITION.UNIQUEID-future, with an id of 32 digits. A file
# name has at most 255 characters.
_NAME_CHARACTERS_MAX = 255 - len(".-future") - 32


def _prepare(_context: RequestContext, request: dict[str, Any]) -> Iterator[None]:
    return _name_once(request)


def _name_once(request: dict[str, Any]) -> Iterator[None]:
    """Keep the last directory of each partition, because a slice of a divided request does not see the other slices.

    A request that is not divided does not need this: `handle_alter_replica_log_dirs` answers each partition once.
    """
    last: dict[str, dict[int, str]] = {}
    for part in divide(request, _ROWS):
        for directory in part.fields["dirs"]:
            for topic in directory["topics"]:
                paths = last.setdefault(topic["name"], {})
                paths.update(dict.fromkeys(topic["partitions"], directory["path"]))
        yield
    dirs: list[dict[str, Any]] = []
    left = _STEP_ROWS
    for name, paths in last.items():
        by_path: dict[str, list[int]] = {}
        for index, path in paths.items():
            by_path.setdefault(path, []).append(index)
            # Count partitions and not topics, because one topic may have all the partitions of a request.
            left -= 1
            if not left:
                left = _STEP_ROWS
                yield
        dirs += [
            {"path": path, "topics": [{"name": name, "partitions": rows}]} for path, rows in by_path.items()
        ]
    request["dirs"] = dirs


@api(
    ApiKey.ALTER_REPLICA_LOG_DIRS,
    versions=(1, 2),
    needs=(on_cluster(Operation.ALTER),),
    prepare=_prepare,
    rows=(_ROWS,),
)
def handle_alter_replica_log_dirs(context: RequestContext, request: dict[str, Any]) -> dict[str, Any]:
    image = context.services.image
    # The paths of a request are absolute (KIP-113), but log.dirs may be relative to the directory where the broker was
    # started.
    ours = str(Path(context.services.config.log_dirs).absolute())
    # Error codes by topic and partition, because the response does not show directories.
    codes: dict[str, dict[int, int]] = {}
    for directory in request["dirs"]:
        for topic in directory["topics"]:
            for index in topic["partitions"]:
                code = _code(image, topic["name"], index, is_there=directory["path"] == ours)
                codes.setdefault(topic["name"], {})[index] = int(code)
    return _answer(codes)


def error_response(request: dict[str, Any], code: int, _message: str | None) -> dict[str, Any]:
    codes: dict[str, dict[int, int]] = {}
    for directory in request["dirs"]:
        for topic in directory["topics"]:
            codes.setdefault(topic["name"], {}).update(dict.fromkeys(topic["partitions"], code))
    return _answer(codes)


def _code(image: ClusterImage, name: str, index: int, *, is_there: bool) -> ErrorCode:
    # As in ReplicaManager.alterReplicaLogDirs, the length is checked before the directory (KAFKA-4893).
    if len(f"{name}-{index}") > _NAME_CHARACTERS_MAX:
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    # As in ReplicaManager.alterReplicaLogDirs, the directory is checked before the partition: KIP-113 lets a
    # client choose the directory of a partition before it exists.
    if not is_there:
        return ErrorCode.LOG_DIR_NOT_FOUND
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if image.partition(name, index) is None else ErrorCode.NONE


def _answer(codes: dict[str, dict[int, int]]) -> dict[str, Any]:
    return {
        "results": [
            {
                "topic_name": name,
                "partitions": [
                    {"partition_index": index, "error_code": code} for index, code in rows.items()
                ],
            }
            for name, rows in codes.items()
        ]
    }
