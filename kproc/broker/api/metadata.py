"""Metadata (key 3), versions 0-13.

It shows one broker, which leads everything, with the address of the client's listener. So a client in a container
network and a client on the host each get an address that they can reach. Of the internal topics, Metadata creates only
those of coordinators.

Differs from Kafka: if auto.create.topics.enable and the request allow it, a missing topic is created, and the request
waits for it. Kafka answers UNKNOWN_TOPIC_OR_PARTITION first, and the client retries.

Versions: v0 an empty list stands for all topics, from v1 on null does; v4 clients may forbid the creation; v5 offline
replicas; v7 leader epochs (KIP-320); v8 authorized operations (KIP-430), those of the cluster until v10; v10 topic ids
(KIP-516); v12 topics by id; v13 an error of the whole response.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any, Final

from kproc.broker.calls.calls import Lost
from kproc.broker.calls.controller_calls import CHANGE, Change, Changed
from kproc.broker.cluster.image import ClusterImage, PartitionImage, TopicImage
from kproc.broker.cluster.internal_topics import COORDINATOR_TOPICS, INTERNAL_TOPICS
from kproc.broker.cluster.topic_changes import NO_TOPIC_ID
from kproc.broker.cluster.topic_names import CLUSTER_METADATA_TOPIC, problem_with
from kproc.broker.peers.controller_call import RECORDS_MAX, with_client
from kproc.broker.request import division
from kproc.broker.request.authorized_operations import NOT_TOLD, operations_on, operations_on_cluster
from kproc.broker.request.division import rows_at
from kproc.broker.request.registry import api
from kproc.broker.request.rights import denied, denied_topics, has_on_cluster
from kproc.broker.security.acl import Operation, ResourceType
from kproc.common.errors import ErrorCode, KafkaError
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.broker.request.context import RequestContext

# Version 10 added topic ids, but Kafka looks topics up by them only from version 12 on.
_BY_ID_SINCE: Final = 12
# In version 0 an empty list means all topics.
_NULL_MEANS_ALL_SINCE: Final = 1
# Codes of a created topic that are not reported. A topic above the client's quota stays unknown, and clients retry.
_LATER: Final = (ErrorCode.NONE, ErrorCode.THROTTLING_QUOTA_EXCEEDED)

Fields = dict[str, Any]
# Marks a topic that the client has not named. It is skipped if the client may not see it, or if it was deleted before
# its slice is handled.
_LISTED: Final = "listed"
# The field of the topics that were looked up, if they have too many partitions for one step. No client sends it. Each
# has `topic`, which is its image or its error row, and `partitions`, the indexes to describe.
_FOUND: Final = "found"


def _prepare(context: RequestContext, request: Fields) -> None:
    """Reject ids, and topics without a name, in a version that finds topics only by name.

    As in Kafka, ignore names in a request with ids of a later version.
    """
    wanted: list[Fields] = request["topics"] or []
    has_ids = any(topic.get("topic_id", NO_TOPIC_ID) != NO_TOPIC_ID for topic in wanted)
    if has_ids and context.api_version >= _BY_ID_SINCE:
        request["topics"] = [topic for topic in wanted if topic["topic_id"] != NO_TOPIC_ID]
    # KIP-516: v10 and v11 have the field for an id, but their brokers did not look topics up by it. Kafka
    # rejects a request that relies on it.
    elif has_ids or any(topic["name"] is None for topic in wanted):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"A Metadata request below version {_BY_ID_SINCE} must have the topics' names, not their ids.",
        )


@api(
    ApiKey.METADATA,
    versions=(0, 13),
    prepare=_prepare,
    rows=(
        rows_at(f"{_FOUND}.partitions", "topics.partitions"),
        rows_at("topics", "topics.partitions"),
    ),
)
def handle_metadata(context: RequestContext, request: Fields) -> Fields | None:
    if _FOUND in request:
        return _answer(context, request, request[_FOUND])
    wanted: list[Fields] | None = request["topics"]
    if wanted is None or (not wanted and context.api_version < _NULL_MEANS_ALL_SINCE):
        return _describe_all(context, request)
    hidden = _not_to_be_seen(context, wanted)
    absent = _absent(context, request, wanted, hidden)
    refused = _not_to_be_created(context, absent)
    missing = [name for name in absent if name not in refused and _is_creatable(name)]
    if not missing:
        return _describe(context, request, _find_topics(context, wanted, hidden, refused, {}))

    def on_reply(reply: Changed | Lost) -> None:
        # If the controller could not create anything, the topics stay unknown, and clients retry.
        created = reply.fields.get("topics", ()) if isinstance(reply, Changed) else ()
        context.services.change_log.log_created_topics(context, created)
        errors = {row["name"]: row["error_code"] for row in created if row["error_code"] not in _LATER}
        answer = _describe(context, request, _find_topics(context, wanted, hidden, refused, errors))
        if answer is not None:
            context.reply(answer)

    # Create at most RECORDS_MAX topics at once. The others stay unknown, and clients retry.
    body = with_client(context, {"names": missing[:RECORDS_MAX]}, strict_since=0)
    context.ask_controller(CHANGE, Change("auto_create_topics", body), on_reply)
    return None


def _describe_all(context: RequestContext, request: Fields) -> Fields | None:
    """Return the answer for all topics that the client may see. Divide the request if there are many; return None."""
    topics = context.services.image.topics_by_name
    # All topics are described in slices, so that a cluster of 10,000 topics does not stop the Handler's other clients.
    if len(topics) > division.SLICE_ROWS:
        context.divide(
            lambda: {
                **request,
                "topics": [{"name": name, _LISTED: True} for name in context.services.image.topics_by_name],
                # A topic that was deleted between two slices must not be created again by a request that asked for all
                # topics.
                "allow_auto_topic_creation": False,
            }
        )
        return None
    hidden = denied(context, Operation.DESCRIBE, ResourceType.TOPIC, topics, is_question=True)
    return _describe(context, request, [topic for name, topic in topics.items() if name not in hidden])


def error_response(request: Fields, code: int, _message: str | None) -> Fields:
    rows = [
        topic_error(topic.get("name") or "", topic.get("topic_id", NO_TOPIC_ID), code)
        for topic in request["topics"] or []
    ]
    for found in request.get(_FOUND, ()):
        topic: TopicImage | Fields = found["topic"]
        if isinstance(topic, TopicImage):
            rows.append(topic_error(topic.name, topic.topic_id, code))
        else:
            rows.append(topic_error(topic["name"], topic["topic_id"], code))
    return {"brokers": [], "cluster_id": None, "controller_id": -1, "topics": rows, "error_code": int(code)}


def _not_to_be_seen(context: RequestContext, wanted: list[Fields]) -> Collection[str]:
    """Return the names of topics that the client may not describe, existing or not."""
    image = context.services.image
    topics = (image.topic_by_id(topic.get("topic_id", NO_TOPIC_ID)) or topic["name"] for topic in wanted)
    names = (topic.name if isinstance(topic, TopicImage) else topic for topic in topics)
    is_question = bool(wanted) and _LISTED in wanted[0]
    return denied(
        context,
        Operation.DESCRIBE,
        ResourceType.TOPIC,
        (name for name in names if name is not None),
        is_question=is_question,
    )


def _absent(
    context: RequestContext, request: Fields, wanted: list[Fields], hidden: Collection[str]
) -> list[str]:
    """Return the names of requested topics that do not exist, or [] if this request may not create topics.

    Leaves out `hidden` names, which the client may not describe.
    """
    allowed = request.get("allow_auto_topic_creation", True)
    if not allowed or not context.services.config.auto_create_topics_enable:
        return []
    known = context.services.image.topics_by_name
    names = dict.fromkeys(
        topic["name"] for topic in wanted if topic.get("topic_id", NO_TOPIC_ID) == NO_TOPIC_ID
    )
    return [name for name in names if name not in known and name not in hidden]


def _not_to_be_created(context: RequestContext, names: list[str]) -> Collection[str]:
    if not names or has_on_cluster(context, Operation.CREATE):
        return ()
    return denied_topics(context, Operation.CREATE, names)


def _is_creatable(name: str) -> bool:
    """Return True if Metadata may create a topic of this name. Of internal topics, only those with coordinators."""
    if name in INTERNAL_TOPICS:
        return name in COORDINATOR_TOPICS
    return name != CLUSTER_METADATA_TOPIC and problem_with(name) is None


def _find_topics(
    context: RequestContext,
    wanted: list[Fields],
    hidden: Collection[str],
    refused: Collection[str],
    creation_errors: dict[str, int],
) -> list[TopicImage | Fields]:
    """Return each requested topic once: its image, or an error row.

    The row of a topic that the client may not see does not reveal whether it exists. Ids are no secret, but the names
    behind them are.
    """
    image = context.services.image
    found: dict[str | bytes, TopicImage | Fields] = {}
    for topic in wanted:
        name, topic_id = topic["name"], topic.get("topic_id", NO_TOPIC_ID)
        if topic_id != NO_TOPIC_ID:
            found[topic_id] = _by_id(image, topic_id, hidden)
        elif topic.get(_LISTED) and (name in hidden or image.topic(name) is None):
            continue
        elif name in hidden or name in refused:
            is_internal = name in refused and name in INTERNAL_TOPICS
            row = topic_error(name, NO_TOPIC_ID, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            found[name] = {**row, "is_internal": is_internal}
        else:
            found[name] = _by_name(image, name, creation_errors)
    return list(found.values())


def _by_id(image: ClusterImage, topic_id: bytes, hidden: Collection[str]) -> TopicImage | Fields:
    topic = image.topic_by_id(topic_id)
    if topic is None:
        return topic_error(None, topic_id, ErrorCode.UNKNOWN_TOPIC_ID)
    if topic.name in hidden:
        return topic_error(None, topic_id, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    return topic


def _by_name(image: ClusterImage, name: str, creation_errors: dict[str, int]) -> TopicImage | Fields:
    topic = image.topic(name)
    if topic is not None:
        return topic
    if problem_with(name) is not None:
        return topic_error(name, NO_TOPIC_ID, ErrorCode.INVALID_TOPIC_EXCEPTION)
    code = creation_errors.get(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return topic_error(name, NO_TOPIC_ID, code)


def topic_error(name: str | None, topic_id: bytes, code: int) -> Fields:
    return {
        "error_code": int(code),
        "name": name,
        "topic_id": topic_id,
        "is_internal": name in INTERNAL_TOPICS,
        "partitions": [],
        "topic_authorized_operations": NOT_TOLD,
    }


def _describe(context: RequestContext, request: Fields, topics: list[TopicImage | Fields]) -> Fields | None:
    """Return the answer. If the topics have too many partitions for one step, divide the request and return None."""
    count = sum(len(topic.partitions) for topic in topics if isinstance(topic, TopicImage))
    if count > division.SLICE_ROWS:
        context.divide(lambda: {**request, "topics": [], _FOUND: [_all_of(topic) for topic in topics]})
        return None
    return _answer(context, request, [_all_of(topic) for topic in topics])


def _all_of(topic: TopicImage | Fields) -> Fields:
    """Return an element of the field _FOUND with all partitions of a topic."""
    count = len(topic.partitions) if isinstance(topic, TopicImage) else 0
    return {"topic": topic, "partitions": range(count)}


def _row_of(found: Fields, node_id: int) -> Fields:
    topic: TopicImage | Fields = found["topic"]
    if not isinstance(topic, TopicImage):
        return topic
    return topic_row(topic, (topic.partitions[index] for index in found["partitions"]), node_id)


def _answer(context: RequestContext, request: Fields, found: list[Fields]) -> Fields:
    node_id = context.services.config.node_id
    rows = [_row_of(each, node_id) for each in found]
    if request.get("include_topic_authorized_operations", False):
        for row in rows:
            # As in Kafka, the name of a topic that does not exist has authorized operations, too.
            if row["name"] is not None and row["error_code"] != ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                operations = operations_on(context, ResourceType.TOPIC, row["name"])
                row["topic_authorized_operations"] = operations
    answer: Fields = {
        "brokers": [
            {
                "node_id": node_id,
                "host": context.advertised_host,
                "port": context.advertised_port,
                "rack": None,
            }
        ],
        "cluster_id": context.services.image.cluster_id,
        "controller_id": node_id,
        "topics": rows,
        "error_code": int(ErrorCode.NONE),
    }
    # Only versions 8 to 10 have this field.
    if request.get("include_cluster_authorized_operations", False):
        answer["cluster_authorized_operations"] = operations_on_cluster(context)
    return answer


def topic_row(topic: TopicImage, partitions: Iterable[PartitionImage], node_id: int) -> Fields:
    """Return the row of a topic with some of its partitions. DescribeTopicPartitions uses it, too."""
    replicas = [node_id]
    return {
        "error_code": int(ErrorCode.NONE),
        "name": topic.name,
        "topic_id": topic.topic_id,
        "is_internal": topic.is_internal,
        "partitions": [
            {
                "error_code": int(ErrorCode.NONE),
                "partition_index": partition.index,
                "leader_id": node_id,
                "leader_epoch": partition.leader_epoch,
                "replica_nodes": replicas,
                "isr_nodes": replicas,
                "offline_replicas": [],
            }
            for partition in partitions
        ],
        "topic_authorized_operations": NOT_TOLD,
    }
