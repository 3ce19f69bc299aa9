"""Texts of Kafka's error codes for users: what has happened and what to do, followed by the code's name.

Every message about a code that reaches a user comes from `error_text`. A bare name, such as NOT_COORDINATOR, tells
nothing to somebody who does not know Kafka's source, but it finds the answer in a search.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kproc.common.errors import ErrorCode, KafkaError

MEANINGS: Final[Mapping[str, str]] = {
    "UNKNOWN_SERVER_ERROR": "the broker failed; its log has the reason",
    "NONE": "no error",
    "OFFSET_OUT_OF_RANGE": "the partition has no record at this offset",
    "CORRUPT_MESSAGE": "a batch is damaged",
    "UNKNOWN_TOPIC_OR_PARTITION": "the topic or partition does not exist",
    "INVALID_FETCH_SIZE": "the requested size is invalid",
    "LEADER_NOT_AVAILABLE": "the partition has no leader yet; try again",
    "NOT_LEADER_OR_FOLLOWER": "this broker does not lead the partition; try again",
    "REQUEST_TIMED_OUT": "the broker did not finish in time; try again",
    "BROKER_NOT_AVAILABLE": "the broker is not available; try again",
    "REPLICA_NOT_AVAILABLE": "the partition's files are not available on this broker; try again",
    "MESSAGE_TOO_LARGE": "a batch exceeds max.message.bytes",
    "STALE_CONTROLLER_EPOCH": "the controller has changed; try again",
    "OFFSET_METADATA_TOO_LARGE": "the text beside a committed offset exceeds offset.metadata.max.bytes",
    "NETWORK_EXCEPTION": "the broker lost a connection; try again",
    "COORDINATOR_LOAD_IN_PROGRESS": "the coordinator is still loading its log; try again",
    "COORDINATOR_NOT_AVAILABLE": "the coordinator is not running yet; try again",
    "NOT_COORDINATOR": "this broker is not the coordinator; try again",
    "INVALID_TOPIC_EXCEPTION": "the name of the topic is not valid",
    "RECORD_LIST_TOO_LARGE": "a batch exceeds segment.bytes",
    "NOT_ENOUGH_REPLICAS": "fewer replicas are in sync than min.insync.replicas; start the other brokers",
    "NOT_ENOUGH_REPLICAS_AFTER_APPEND": "the records were written to fewer replicas than min.insync.replicas",
    "INVALID_REQUIRED_ACKS": "acks must be -1 (all), 0 or 1",
    "ILLEGAL_GENERATION": "the group has rebalanced since; try again",
    "INCONSISTENT_GROUP_PROTOCOL": "the group's members use another protocol or no common assignor",
    "INVALID_GROUP_ID": "the id of the group is not valid",
    "UNKNOWN_MEMBER_ID": "the group does not have this member",
    "INVALID_SESSION_TIMEOUT": "the session timeout is outside of the broker's limits",
    "REBALANCE_IN_PROGRESS": "the group is rebalancing; try again",
    "INVALID_COMMIT_OFFSET_SIZE": "the offset is too large, or offsets have reached kproc.group.offsets.max.bytes",
    "TOPIC_AUTHORIZATION_FAILED": "no right on the topic; see kproc acl check",
    "GROUP_AUTHORIZATION_FAILED": "no right on the group; see kproc acl check",
    "CLUSTER_AUTHORIZATION_FAILED": "no right on the cluster; see kproc acl check",
    "INVALID_TIMESTAMP": "a record's timestamp is too far from the broker's clock",
    "UNSUPPORTED_SASL_MECHANISM": "the listener does not offer this SASL mechanism",
    "ILLEGAL_SASL_STATE": "the listener does not expect a login now",
    "UNSUPPORTED_VERSION": "the broker does not serve this version of the request",
    "TOPIC_ALREADY_EXISTS": "a topic of this name exists",
    "INVALID_PARTITIONS": "the number of partitions is not valid",
    "INVALID_REPLICATION_FACTOR": "the replication factor exceeds the number of brokers",
    "INVALID_REPLICA_ASSIGNMENT": "the assignment of replicas to brokers is not valid",
    "INVALID_CONFIG": "a setting or its value is not valid",
    "NOT_CONTROLLER": "this broker is not the controller; ask another broker",
    "INVALID_REQUEST": "the broker rejects the request as invalid",
    "UNSUPPORTED_FOR_MESSAGE_FORMAT": "the format of the stored messages does not support this",
    "POLICY_VIOLATION": "a limit or a setting of the broker forbids it; its log may name the limit",
    "OUT_OF_ORDER_SEQUENCE_NUMBER": "batches of the producer are missing before this one",
    "DUPLICATE_SEQUENCE_NUMBER": "the batch was sent before",
    "INVALID_PRODUCER_EPOCH": "a newer producer has replaced this one",
    "INVALID_TXN_STATE": "the transaction is not in a state that allows this",
    "INVALID_PRODUCER_ID_MAPPING": "the transactional id belongs to another producer id now",
    "INVALID_TRANSACTION_TIMEOUT": "the timeout of the transaction exceeds transaction.max.timeout.ms",
    "CONCURRENT_TRANSACTIONS": "the last transaction is still ending; try again",
    "TRANSACTION_COORDINATOR_FENCED": "another coordinator has taken over the transaction",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": "no right on the transactional id; see kproc acl check",
    "SECURITY_DISABLED": "the broker has no authorizer; set authorizer.class.name",
    "OPERATION_NOT_ATTEMPTED": "the broker did not try it, because another part of the request failed",
    "KAFKA_STORAGE_ERROR": "the disk is full or damaged; the broker's log has the reason",
    "LOG_DIR_NOT_FOUND": "the broker does not have this data directory",
    "SASL_AUTHENTICATION_FAILED": "the login failed: user name, password or token is wrong",
    "UNKNOWN_PRODUCER_ID": "the partition does not know the producer any more",
    "REASSIGNMENT_IN_PROGRESS": "the partitions are being reassigned; try again",
    "DELEGATION_TOKEN_AUTH_DISABLED": "the broker has no delegation tokens; set delegation.token.secret.key",
    "DELEGATION_TOKEN_NOT_FOUND": "the delegation token does not exist",
    "DELEGATION_TOKEN_OWNER_MISMATCH": "the delegation token belongs to another user",
    "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED": "delegation tokens need a login by another way than a token",
    "DELEGATION_TOKEN_AUTHORIZATION_FAILED": "no right on the delegation token",
    "DELEGATION_TOKEN_EXPIRED": "the delegation token has expired",
    "INVALID_PRINCIPAL_TYPE": "the broker supports only principals of type User",
    "NON_EMPTY_GROUP": "the group has members; stop them first",
    "GROUP_ID_NOT_FOUND": "the group does not exist",
    "FETCH_SESSION_ID_NOT_FOUND": "the broker has ended the fetch session; try again",
    "INVALID_FETCH_SESSION_EPOCH": "the fetch session is out of step; try again",
    "LISTENER_NOT_FOUND": "the leader does not have this listener",
    "TOPIC_DELETION_DISABLED": "the broker forbids deletions; set delete.topic.enable=true",
    "FENCED_LEADER_EPOCH": "the partition's leader has changed; try again",
    "UNKNOWN_LEADER_EPOCH": "the broker does not know the partition's newest leader yet; try again",
    "UNSUPPORTED_COMPRESSION_TYPE": "the broker does not support this compression here",
    "STALE_BROKER_EPOCH": "the broker was started again; try again",
    "OFFSET_NOT_AVAILABLE": "the partition's new leader does not know the end of the log yet; try again",
    "MEMBER_ID_REQUIRED": "the member must join again with the id that it got",
    "PREFERRED_LEADER_NOT_AVAILABLE": "the preferred leader is not available",
    "GROUP_MAX_SIZE_REACHED": "the group has group.max.size members, or kproc.group.members.max.bytes is used",
    "FENCED_INSTANCE_ID": "another member uses the same group.instance.id",
    "ELIGIBLE_LEADERS_NOT_AVAILABLE": "no broker may become the leader",
    "ELECTION_NOT_NEEDED": "the partition has the right leader already",
    "NO_REASSIGNMENT_IN_PROGRESS": "no reassignment is in progress",
    "GROUP_SUBSCRIBED_TO_TOPIC": "the group consumes the topic; stop its consumers first",
    "INVALID_RECORD": "the broker rejects a record as invalid",
    "UNSTABLE_OFFSET_COMMIT": "a transaction that has not ended holds the offset; try again",
    "THROTTLING_QUOTA_EXCEEDED": "a quota is used up; try again later",
    "PRODUCER_FENCED": "a newer producer uses the same transactional id",
    "RESOURCE_NOT_FOUND": "it does not exist",
    "DUPLICATE_RESOURCE": "the request names it twice",
    "UNACCEPTABLE_CREDENTIAL": "the broker does not accept this password, mechanism or user name",
    "INCONSISTENT_VOTER_SET": "the controllers disagree on who votes",
    "INVALID_UPDATE_VERSION": "the update has a wrong version",
    "FEATURE_UPDATE_FAILED": "the broker cannot change the feature",
    "PRINCIPAL_DESERIALIZATION_FAILURE": "the broker cannot read the forwarded principal",
    "SNAPSHOT_NOT_FOUND": "the snapshot of the metadata does not exist",
    "POSITION_OUT_OF_RANGE": "the position is beyond the end of the snapshot",
    "UNKNOWN_TOPIC_ID": "no topic has this id; try again",
    "DUPLICATE_BROKER_REGISTRATION": "another broker uses the same node.id",
    "BROKER_ID_NOT_REGISTERED": "no broker has this id",
    "INCONSISTENT_TOPIC_ID": "the topic was deleted and created again; try again",
    "INCONSISTENT_CLUSTER_ID": "the broker belongs to another cluster",
    "TRANSACTIONAL_ID_NOT_FOUND": "the transactional id does not exist",
    "FETCH_SESSION_TOPIC_ID_ERROR": "the fetch session mixes names and ids of topics; try again",
    "INELIGIBLE_REPLICA": "the replica may not join the others",
    "NEW_LEADER_ELECTED": "the partition has a new leader; try again",
    "OFFSET_MOVED_TO_TIERED_STORAGE": "the records of this offset are in tiered storage",
    "FENCED_MEMBER_EPOCH": "the group has removed this member; it must join again",
    "UNRELEASED_INSTANCE_ID": "another member still uses the same group.instance.id",
    "UNSUPPORTED_ASSIGNOR": "the broker does not have this assignor",
    "STALE_MEMBER_EPOCH": "the member's epoch is out of date; try again",
    "MISMATCHED_ENDPOINT_TYPE": "the address belongs to a controller instead of a broker, or the other way round",
    "UNSUPPORTED_ENDPOINT_TYPE": "the broker does not support this type of endpoint",
    "UNKNOWN_CONTROLLER_ID": "no controller has this id",
    "UNKNOWN_SUBSCRIPTION_ID": "the broker has other metrics subscriptions now; try again",
    "TELEMETRY_TOO_LARGE": "the metrics exceed telemetry.max.bytes",
    "INVALID_REGISTRATION": "the controller rejects the broker's registration",
    "TRANSACTION_ABORTABLE": "the transaction failed; abort it and begin anew",
    "INVALID_RECORD_STATE": "the record is not in a state that allows this",
    "SHARE_SESSION_NOT_FOUND": "the broker has ended the share session; try again",
    "INVALID_SHARE_SESSION_EPOCH": "the share session is out of step; try again",
    "FENCED_STATE_EPOCH": "the share coordinator has changed; try again",
    "INVALID_VOTER_KEY": "the voter's key is wrong",
    "DUPLICATE_VOTER": "the voter is in the set already",
    "VOTER_NOT_FOUND": "the voter is not in the set",
    "INVALID_REGULAR_EXPRESSION": "the regular expression is not valid",
    "REBOOTSTRAP_REQUIRED": "the client must connect to its bootstrap servers again",
    "STREAMS_INVALID_TOPOLOGY": "the topology of the streams application is not valid",
    "STREAMS_INVALID_TOPOLOGY_EPOCH": "the epoch of the streams topology is not valid",
    "STREAMS_TOPOLOGY_FENCED": "a newer streams topology has replaced this one",
    "SHARE_SESSION_LIMIT_REACHED": "the broker has as many share sessions as it allows; try again later",
    "GROUP_DELETION_FAILED": "the group could not be deleted",
    "STREAMS_TOPOLOGY_DESCRIPTION_UPDATE_FAILED": "the description of the streams topology could not be stored",
    "CONTROLLER_ID_NOT_REGISTERED": "no controller with this id is registered",
}


def error_text(code: int) -> str:
    """Return what an error code means and what to do, with Kafka's name of the code in parentheses."""
    try:
        name = ErrorCode(code).name
    except ValueError:
        return f"error {code}, which this version of kproc does not know"
    return f"{MEANINGS[name]} ({name})"


def name_code(message: str, code: int) -> str:
    """Append Kafka's name of the error code in parentheses. A code without a name leaves the message unchanged."""
    try:
        name = ErrorCode(code).name
    except ValueError:
        return message
    return f"{message.rstrip('.')} ({name})"


def failure_text(error: KafkaError) -> str:
    """Return the text of an error that kproc's own code has raised: its message, or the meaning of its code."""
    return f"{error.message} ({error.code.name})" if error.message else error_text(error.code)
