"""DescribeLogDirs (key 35), versions 1-5 (KIP-113).

It shows the only directory with the sizes on the disk. The cleaner reads them, because there may be many files, and a
Handler must not wait for them.

Versions: v2 flexible; v3 an error of the whole response; v4 total and usable bytes (KIP-827); v5 IsCordoned (KIP-1066),
which is always false.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any

from kproc.broker.calls.calls import Lost
from kproc.broker.calls.cleaner_calls import DESCRIBE_LOG_DIR, LogDirRequest, LogDirUsage
from kproc.broker.cluster.image import ClusterImage
from kproc.broker.request import division
from kproc.broker.request.division import rows_at
from kproc.broker.request.registry import api
from kproc.broker.request.rights import on_cluster
from kproc.broker.security.acl import Operation
from kproc.common.errors import ErrorCode
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.broker.request.context import RequestContext

Wanted = list[tuple[str, list[int]]]


@api(
    ApiKey.DESCRIBE_LOG_DIRS,
    versions=(1, 5),
    needs=(on_cluster(Operation.DESCRIBE),),
    rows=(rows_at("topics.partitions", "results.topics.partitions", shared=1),),
)
def handle_describe_log_dirs(context: RequestContext, request: dict[str, Any]) -> None:
    image = context.services.image
    # Divide a request for all topics here. The usual division counts the rows of the request, and this request has
    # none.
    if request["topics"] is None and _has_many(image):
        context.divide(
            lambda: {
                "topics": [{"topic": name, "partitions": rows} for name, rows in _all(context.services.image)]
            }
        )
        return
    # KIP-113: null stands for all partitions of the directory, an empty list for none.
    wanted = _all(image) if request["topics"] is None else _requested(image, request["topics"])

    def on_reply(reply: LogDirUsage | Lost) -> None:
        if isinstance(reply, Lost):
            # The cleaner has died. Clients retry REQUEST_TIMED_OUT, and its successor can answer.
            context.reply(error_response(request, ErrorCode.REQUEST_TIMED_OUT, None))
        else:
            context.reply(_answer(wanted, reply))

    context.services.peers.ask_cleaner(DESCRIBE_LOG_DIR, LogDirRequest(wanted), on_reply)


def error_response(_request: dict[str, Any], code: int, _message: str | None) -> dict[str, Any]:
    return {"error_code": int(code), "results": []}


def _has_many(image: ClusterImage) -> bool:
    """Return True if there are more partitions than a slice may have."""
    count = accumulate(len(topic.partitions) for topic in image.topics_by_name.values())
    return any(sum_ > division.SLICE_ROWS for sum_ in count)


def _all(image: ClusterImage) -> Wanted:
    return [(topic.name, list(range(len(topic.partitions)))) for topic in image.topics_by_name.values()]


def _requested(image: ClusterImage, topics: list[dict[str, Any]]) -> Wanted:
    """Return the requested partitions that exist. As in Kafka, skip the others without an error."""
    wanted = []
    for row in topics:
        indexes = [
            index
            for index in dict.fromkeys(row["partitions"])
            if image.partition(row["topic"], index) is not None
        ]
        if indexes:
            wanted.append((row["topic"], indexes))
    return wanted


def _answer(wanted: Wanted, usage: LogDirUsage) -> dict[str, Any]:
    rows = [
        {
            "name": name,
            "partitions": [
                # KIP-113: a lag and a future replica exist only while a replica moves to another directory. There is
                # only one directory.
                {"partition_index": index, "partition_size": size, "offset_lag": 0, "is_future_key": False}
                for index, size in zip(indexes, sizes, strict=True)
            ],
        }
        for (name, indexes), sizes in zip(wanted, usage.sizes, strict=True)
    ]
    directory = {
        "error_code": int(ErrorCode.NONE),
        "log_dir": usage.log_dir,
        "topics": rows,
        "total_bytes": usage.total_bytes,
        "usable_bytes": usage.usable_bytes,
        "is_cordoned": False,
    }
    return {"error_code": int(ErrorCode.NONE), "results": [directory]}
