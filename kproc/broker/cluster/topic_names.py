"""Checks topic names by Kafka's rules. Errors have Kafka's messages, because scripts and tests compare them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from kproc.common.errors import ErrorCode, KafkaError

CLUSTER_METADATA_TOPIC: Final = "__cluster_metadata"
# Kafka's limit. A file name holds 255 bytes, and 6 of them must remain for the dash and the partition's number.
NAME_LENGTH_MAX: Final = 249
_ALLOWED: Final = re.compile(r"[a-zA-Z0-9._-]+")


def problem_with(name: str) -> str | None:
    """Return Kafka's error text for an invalid topic name, or None if the name is valid."""
    if not name:
        return "Topic name is invalid: the empty string is not allowed"
    # The name is part of a directory's name, and `.-0` would be harmless. Kafka's Topic.validate rejects both for the
    # tools that use the bare name.
    if name in (".", ".."):
        return f"Topic name is invalid: '{name}' is not allowed"
    if len(name) > NAME_LENGTH_MAX:
        return (
            f"Topic name is invalid: the length of '{name}' is longer than the max allowed length "
            f"{NAME_LENGTH_MAX}"
        )
    if not _ALLOWED.fullmatch(name):
        return (
            f"Topic name is invalid: '{name}' contains one or more characters other than ASCII "
            "alphanumerics, '.', '_' and '-'"
        )
    return None


def check_name(name: str) -> None:
    """Raise KafkaError(INVALID_TOPIC_EXCEPTION) for a name that no topic can have."""
    if problem := problem_with(name):
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)


def check_new_name(name: str, names_by_collision_key: Mapping[str, str]) -> None:
    """Raise KafkaError if a new topic cannot have this name: by `check_name`, or because it collides with another one.

    Two names that differ only in '.' and '_' collide, because metric names replace '.' by '_'. The metadata topic's
    name is reserved, because its log has the directory `__cluster_metadata-0`.
    """
    check_name(name)
    if name == CLUSTER_METADATA_TOPIC:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"Creation of internal topic {CLUSTER_METADATA_TOPIC} is prohibited."
        )
    other = names_by_collision_key.get(collision_key(name))
    if other is not None:
        raise KafkaError(
            ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{name}' collides with existing topic: {other}"
        )


def collision_key(name: str) -> str:
    """Return a key that is equal for two names that must not exist side by side."""
    return name.replace(".", "_")
