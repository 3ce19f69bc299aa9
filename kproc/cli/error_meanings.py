"""Meanings of Kafka's error names, for messages that end with a bare name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

_LAST_NAME: Final = re.compile(r"\b[A-Z]+(?:_[A-Z]+)+\Z")
MEANINGS: Final[Mapping[str, str]] = {
    "UNKNOWN_SERVER_ERROR": "the broker failed; its log has the reason",
    "OFFSET_OUT_OF_RANGE": "the partition has no record at this offset",
    "CORRUPT_MESSAGE": "a batch is damaged",
    "UNKNOWN_TOPIC_OR_PARTITION": "the topic or partition does not exist",
    "LEADER_NOT_AVAILABLE": "the partition has no leader yet; try again",
    "NOT_LEADER_OR_FOLLOWER": "the partition has moved; try again",
    "REQUEST_TIMED_OUT": "the broker did not finish in time; try again",
    "MESSAGE_TOO_LARGE": "a batch exceeds max.message.bytes",
    "RECORD_LIST_TOO_LARGE": "a batch exceeds the size of a segment",
    "COORDINATOR_LOAD_IN_PROGRESS": "the coordinator reads its log; try again",
    "COORDINATOR_NOT_AVAILABLE": "the coordinator does not run yet; try again",
    "NOT_COORDINATOR": "the coordinator has moved; try again",
    "TOPIC_AUTHORIZATION_FAILED": "no right on the topic; see kproc acl check",
    "GROUP_AUTHORIZATION_FAILED": "no right on the group; see kproc acl check",
    "CLUSTER_AUTHORIZATION_FAILED": "no right on the cluster; see kproc acl check",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": "no right on the transactional id; see kproc acl check",
    "UNSUPPORTED_VERSION": "the broker does not serve this version of the request",
    "TOPIC_ALREADY_EXISTS": "a topic of this name exists",
    "POLICY_VIOLATION": "a policy of the broker forbids it",
    "CONCURRENT_TRANSACTIONS": "the last transaction is still ending; try again",
    "KAFKA_STORAGE_ERROR": "the disk is full or damaged; the broker's log has the reason",
    "SASL_AUTHENTICATION_FAILED": "user name or password is wrong",
    "NON_EMPTY_GROUP": "the group has members; stop them first",
    "GROUP_ID_NOT_FOUND": "the group does not exist",
    "TRANSACTIONAL_ID_NOT_FOUND": "the transactional id does not exist",
    "THROTTLING_QUOTA_EXCEEDED": "a quota is used up; try again later",
    "PRODUCER_FENCED": "a newer producer uses the same transactional id",
    "RESOURCE_NOT_FOUND": "it does not exist",
    "SECURITY_DISABLED": "the broker has no authorizer",
}


def explained(message: str) -> str:
    """Return the message, with the meaning of an error name that it ends with."""
    found = _LAST_NAME.search(message)
    meaning = MEANINGS.get(found[0]) if found is not None else None
    return f"{message} ({meaning})" if meaning else message
