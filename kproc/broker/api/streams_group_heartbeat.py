"""StreamsGroupHeartbeat (key 88), versions 0-1 (KIP-1071).

By this request a member of a Kafka Streams application joins its group, stays in it, reports its tasks and leaves. The
response has the member's epoch, its tasks unless the member knows them, and statuses of the group. The rules are in
streams/group.py. If internal topics of the topology do not exist, the broker creates them before it responds
(streams_internal_topics.py).

Differs from Kafka: a topology has at most 1,000 topics and 20,000 tasks, and its subtopology ids at most 249 bytes. A
member that waits for tasks or for internal topics is told to send its next heartbeat after 0.5 s, and not after the
group's interval.

Versions: v1 acceptable recovery lag, status MISSING_CLIENT_TAGS.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from kproc.broker.api.member_requests import check_text, client_id_of, invalid_request
from kproc.broker.api.streams_internal_topics import create_internal_topics
from kproc.broker.cluster.features import streams_version
from kproc.broker.cluster.internal_topics import INTERNAL_TOPICS
from kproc.broker.cluster.topic_names import problem_with
from kproc.broker.coordinator.member_phase import JOIN_EPOCH, STATIC_LEAVE_EPOCH
from kproc.broker.peers.coordinator_call import Fields
from kproc.broker.peers.group_call import GROUPS
from kproc.broker.request.registry import api
from kproc.broker.request.rights import denied_topics, on_group
from kproc.broker.security.acl import Operation
from kproc.broker.streams.configured_topology import TASKS_MAX
from kproc.broker.streams.messages import (
    StreamsHeartbeat,
    StreamsHeartbeatReply,
    StreamsHeartbeatResult,
    TaskOffsets,
)
from kproc.broker.streams.records import Endpoint, read_tasks
from kproc.broker.streams.tasks import MemberTasks, TaskSet, partitions_by_subtopology
from kproc.broker.streams.topology import KeyValue, Topology, reject_invalid_topology
from kproc.common.conversion import converter
from kproc.common.errors import ErrorCode, KafkaError
from kproc.wire.header import ApiKey

if TYPE_CHECKING:
    from kproc.broker.group.coordinator import GroupCoordinator
    from kproc.broker.request.context import RequestContext

_KNOWS_MISSING_TAGS_SINCE: Final = 1
_NO_TIMEOUT: Final = -1
# Limit in bytes for the names and configs of a topology. They are stored in one record, which must fit into a batch of
# `__consumer_offsets`.
TOPOLOGY_BYTES_MAX: Final = 900_000
# Kafka's defaults. Both are only for members that restore warm-up tasks, which no assignor of Kafka 4.4 assigns.
_TASK_OFFSET_INTERVAL_MS: Final = 60_000
_ACCEPTABLE_RECOVERY_LAG: Final = 10_000
# A member can own all tasks of a group, and report two offsets of each of them. The other rows are those of a topology.
_ROWS_MAX: Final = 3 * TASKS_MAX + 10_000
_ROLES: Final = ("active_tasks", "standby_tasks", "warmup_tasks")

_topology_of: Final = converter(Topology)
_HEARTBEAT: Final = GROUPS.operation("streams_group_heartbeat", StreamsHeartbeat, StreamsHeartbeatResult)


@api(
    ApiKey.STREAMS_GROUP_HEARTBEAT,
    versions=(0, 1),
    needs=(on_group(Operation.READ),),
    rows_max=_ROWS_MAX,
)
def handle_streams_group_heartbeat(context: RequestContext, request: Fields) -> None:
    check_enabled(context)
    topology = None
    if request["topology"] is not None:
        topology = _topology_of(request["topology"])
        _check_topics(context, topology)
    _validate(request, topology)

    group_id, creations = request["group_id"], context.services.owner.topic_creations

    def on_done(outcome: StreamsHeartbeatResult | int) -> None:
        if isinstance(outcome, int):
            outcome = StreamsHeartbeatResult(error_code=outcome)
        missing = creations.remember(group_id, outcome.missing_hash, outcome.missing_topics)
        if missing:
            create_internal_topics(context, msgspec.structs.replace(outcome, missing_topics=missing), respond)
        else:
            respond(outcome)

    def respond(result: StreamsHeartbeatResult) -> None:
        # As in Kafka, the acceptable recovery lag of version 0 is 0, the field's default.
        context.reply(_fields_of(result, knows_lag=context.api_version > 0))

    heartbeat = _heartbeat_of(context, request, topology, creations.known_hash(group_id))
    _HEARTBEAT.send_one(context, group_id, heartbeat, on_done)


def check_enabled(context: RequestContext) -> None:
    """Raise UNSUPPORTED_VERSION unless the cluster has streams groups (feature streams.version)."""
    if streams_version(context.services.image) < 1:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION,
            "The cluster's feature streams.version is 0; streams groups need at least 1.",
        )


def _check_topics(context: RequestContext, topology: Topology) -> None:
    """Reject a topology with internal topics of Kafka, invalid names or topics that the client may not describe."""
    names = dict.fromkeys(
        name
        for each in topology.subtopologies
        for name in (
            *each.source_topics,
            *each.repartition_sink_topics,
            *(topic.name for topic in each.repartition_source_topics),
            *(topic.name for topic in each.state_changelog_topics),
        )
    )
    # KIP-1071: a task that reads or writes an internal topic would work on the coordinators' own records.
    internal = [name for name in names if name in INTERNAL_TOPICS]
    if internal:
        raise KafkaError(
            ErrorCode.STREAMS_INVALID_TOPOLOGY,
            f"Use of Kafka internal topics {','.join(internal)} in a Kafka Streams topology is prohibited.",
        )
    invalid = [name for name in names if problem_with(name)]
    if invalid:
        raise KafkaError(
            ErrorCode.STREAMS_INVALID_TOPOLOGY, f"Topic names {','.join(invalid)} are not valid topic names."
        )
    if denied_topics(context, Operation.DESCRIBE, names):
        raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)


def _validate(request: Fields, topology: Topology | None) -> None:
    """Reject an invalid request before the group is looked up, as Kafka's GroupCoordinatorService does."""
    if topology is not None and any(each.source_topic_regex for each in topology.subtopologies):
        raise invalid_request("Regular expressions for source topics are not supported yet.")
    for name, label in (("member_id", "MemberId"), ("group_id", "GroupId")):
        check_text(request[name], label)
    for name, label in (("instance_id", "InstanceId"), ("rack_id", "RackId")):
        check_text(request[name], label)
    epoch = request["member_epoch"]
    if epoch == JOIN_EPOCH:
        _validate_join(request, topology)
    elif epoch == STATIC_LEAVE_EPOCH and request["instance_id"] is None:
        raise invalid_request("InstanceId can't be null.")
    elif epoch < STATIC_LEAVE_EPOCH:
        raise invalid_request(f"MemberEpoch is {epoch}, but must be greater than or equal to -2.")
    tasks = [request[role] for role in _ROLES]
    # Null means "not changed". A report of some roles only would be ambiguous, because a task may have
    # changed its role.
    if any(each is not None for each in tasks) and any(each is None for each in tasks):
        raise invalid_request("If one task-type is non-null, all must be non-null.")
    # KIP-1071: the topology belongs to the group. A new one comes with a restart of the application, and so
    # with a join.
    if epoch != JOIN_EPOCH and topology is not None:
        raise invalid_request("Topology can only be provided when (re-)joining.")


def _validate_join(request: Fields, topology: Topology | None) -> None:
    if request["rebalance_timeout"] == _NO_TIMEOUT:
        raise invalid_request("RebalanceTimeoutMs must be provided in first request.")
    for role, label in zip(_ROLES, ("ActiveTasks", "StandbyTasks", "WarmupTasks"), strict=True):
        # A member that joins owns no tasks, and says so. None would mean that nothing has changed.
        if request[role] is None or request[role]:
            raise invalid_request(f"{label} must be empty when (re-)joining.")
    if topology is None:
        raise invalid_request("Topology must be non-null when (re-)joining.")
    if topology.epoch < 0:
        raise invalid_request(f"The topology's epoch is {topology.epoch}, but must be at least 0.")
    reject_invalid_topology(topology)
    # The size of the JSON is a limit for that of the record. Both have names and configs in UTF-8, and JSON is never
    # shorter.
    size = len(msgspec.json.encode(topology))
    if size > TOPOLOGY_BYTES_MAX:
        raise KafkaError(
            ErrorCode.STREAMS_INVALID_TOPOLOGY,
            f"The topology has {size} bytes. At most {TOPOLOGY_BYTES_MAX} are possible.",
        )


def _heartbeat_of(
    context: RequestContext, request: Fields, topology: Topology | None, missing_hash: int
) -> StreamsHeartbeat:
    tasks = [request[role] for role in _ROLES]
    endpoint, tags = request["user_endpoint"], request["client_tags"]
    client_id = client_id_of(context)
    return StreamsHeartbeat(
        member_id=request["member_id"],
        member_epoch=request["member_epoch"],
        instance_id=request["instance_id"],
        rack_id=request["rack_id"],
        rebalance_timeout_ms=request["rebalance_timeout"],
        topology=topology,
        owned=None if None in tasks else MemberTasks(*map(read_tasks, tasks)),
        process_id=request["process_id"],
        endpoint=None if endpoint is None else Endpoint(**endpoint),
        # As in Kafka, the last of several tags with the same key counts.
        client_tags=None if tags is None else tuple(KeyValue(**each) for each in _by_key(tags).values()),
        task_offsets=_offsets_of(request["task_offsets"]),
        task_end_offsets=_offsets_of(request["task_end_offsets"]),
        is_shutdown=request["shutdown_application"],
        endpoint_epoch=request["endpoint_information_epoch"],
        missing_hash=missing_hash,
        knows_missing_tags=context.api_version >= _KNOWS_MISSING_TAGS_SINCE,
        client_id=client_id,
        client_host=context.client_host,
    )


def _by_key(tags: list[Fields]) -> dict[str, Fields]:
    return {tag["key"]: tag for tag in tags}


def _offsets_of(rows: list[Fields] | None) -> TaskOffsets | None:
    if rows is None:
        return None
    return tuple(((row["subtopology_id"], row["partition"]), row["offset"]) for row in rows)


# -- the response ------------------------------------------------------------------------------------------------


def _fields_of(result: StreamsHeartbeatResult, *, knows_lag: bool) -> Fields:
    tasks = result.tasks
    roles = (None, None, None) if tasks is None else (tasks.active, tasks.standby, tasks.warmup)
    # A member that leaves, or that is rejected, gets no intervals. It gets the default of the lag, which depends on the
    # version.
    stays = result.error_code == ErrorCode.NONE and result.member_epoch >= JOIN_EPOCH
    return {
        "error_code": int(result.error_code),
        "error_message": result.error_message,
        "member_id": result.member_id,
        "member_epoch": result.member_epoch,
        "heartbeat_interval": result.heartbeat_interval_ms,
        "task_offset_interval": _TASK_OFFSET_INTERVAL_MS if stays else 0,
        **({"acceptable_recovery_lag": _ACCEPTABLE_RECOVERY_LAG} if stays and knows_lag else {}),
        "status": [{"status_code": each.code, "status_detail": each.detail} for each in result.statuses],
        **{
            role: None if found is None else task_rows(found)
            for role, found in zip(_ROLES, roles, strict=True)
        },
        "endpoint_information_epoch": result.endpoint_epoch,
        "partitions_by_user_endpoint": None
        if result.endpoints is None
        else [
            {
                "user_endpoint": msgspec.structs.asdict(each.endpoint),
                "active_partitions": _topic_rows(each.active),
                "standby_partitions": _topic_rows(each.standby),
            }
            for each in result.endpoints
        ],
    }


def task_rows(tasks: TaskSet) -> list[Fields]:
    """Return tasks as messages have them: the partitions of each subtopology."""
    return [
        {"subtopology_id": each_id, "partitions": partitions}
        for each_id, partitions in partitions_by_subtopology(tasks).items()
    ]


def _topic_rows(topics: tuple[tuple[str, tuple[int, ...]], ...]) -> list[dict[str, Any]]:
    return [{"topic": topic, "partitions": list(partitions)} for topic, partitions in topics]


def error_response(_request: Fields, code: int, message: str | None) -> Fields:
    return _fields_of(StreamsHeartbeatResult(error_code=int(code), error_message=message), knows_lag=False)


@_HEARTBEAT.handler
def _heartbeat(
    coordinator: GroupCoordinator,
    group_id: str,
    request: StreamsHeartbeat,
    on_outcome: StreamsHeartbeatReply,
) -> None:
    coordinator.handle_heartbeat(
        group_id,
        lambda: coordinator.streams.heartbeat(group_id, request),
        on_outcome,
        lambda code: StreamsHeartbeatResult(error_code=code),
    )
