"""Checks the rights of the user for dry runs of requests that a broker cannot validate without doing them.

Brokers report the operations that the user may do as bits (KIP-430): bit n stands for operation n.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from kproc.cli.connection import client_security
from kproc.cli.failure import Failure, explain
from kproc.cli.lines import print_note
from kproc.common.errors import ErrorCode

if TYPE_CHECKING:
    from kproc.broker.security.acl import Operation
    from kproc.client import Client

_UNKNOWN: Final = -(2**31)  # The broker did not report the operations.
# Up to this version, DescribeGroups describes a group that does not exist, or is of another protocol, as dead and not
# as an error. Only rows without an error have the operations.
_WITHOUT_MISSING_GROUPS: Final = 5


def topics_without_right(topics: Iterable[Mapping[str, Any]], operation: Operation) -> list[str]:
    """Return an error for each topic on which the user may not do the operation.

    topics: rows of `topic_metadata(..., with_operations=True)`. Rows with an error, or without the operations because
    the broker is old, are skipped.
    """
    return [
        explain(topic["name"], ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        for topic in topics
        if not topic["error_code"] and _is_denied(topic.get("topic_authorized_operations"), operation)
    ]


def groups_without_right(client: Client, names: list[str], operation: Operation) -> list[str]:
    """Return an error for each group on which the user may not do the operation. The groups need not exist.

    Print a note if the broker does not report the operations of a group.
    """
    from kproc.wire.header import ApiKey

    fields = {"groups": names, "include_authorized_operations": True}
    rows = client.call_latest(ApiKey.DESCRIBE_GROUPS, fields, newest=_WITHOUT_MISSING_GROUPS)["groups"]
    known = {row["group_id"]: row.get("authorized_operations") for row in rows if not row["error_code"]}
    if any(known.get(name) in (None, _UNKNOWN) for name in names):
        _print_unchecked_rights_note()
    return [
        explain(name, ErrorCode.GROUP_AUTHORIZATION_FAILED)
        for name in names
        if _is_denied(known.get(name), operation)
    ]


def require_on_transactional_id(client: Client, transactional_id: str) -> None:
    """Raise a Failure if the user may not fence the producer of the transactional id.

    No response reports the operations on transactional ids. Therefore send the InitProducerId that fences, with a
    timeout that is out of range: brokers check the right first, then reject the timeout, and change nothing.
    """
    from kproc.wire.header import ApiKey

    fields = {
        "transactional_id": transactional_id,
        "transaction_timeout": 0,
        "producer_id": -1,
        "producer_epoch": -1,
    }
    code = client.call_latest(ApiKey.INIT_PRODUCER_ID, fields)["error_code"]
    if code != ErrorCode.INVALID_TRANSACTION_TIMEOUT:
        raise Failure(explain(transactional_id, code))


def require_on_cluster(client: Client, *operations: Operation) -> None:
    """Raise a Failure if the user may do none of the operations on the cluster."""
    allowed = _operations_on_cluster(client)
    if all(_is_denied(allowed, operation) for operation in operations):
        from kproc.client.error_texts import name_code

        names = " or ".join(operation.name for operation in operations)
        denied = f"access denied: this needs {names} on the cluster"
        raise Failure(name_code(denied, ErrorCode.CLUSTER_AUTHORIZATION_FAILED))


def print_empty_list_note(client: Client, things: str) -> None:
    """Print a note that an empty list can mean missing rights, if `can_hide_names` says so."""
    if can_hide_names(client):
        print_note(
            f"kproc: no {things} are visible to this user: there are none, or the right DESCRIBE is missing"
        )


def can_hide_names(client: Client) -> bool:
    """Return True if the broker may leave out names from lists, because the user may not describe the cluster.

    Brokers leave out what the user may not describe, without an error. An administrator may describe the cluster, and
    without an authorizer everybody may. The request is only sent if the connection has a login or TLS.
    """
    from kproc.broker.security.acl import Operation

    return client_security() is not None and _is_denied(_operations_on_cluster(client), Operation.DESCRIBE)


def _print_unchecked_rights_note() -> None:
    """Print a note that a dry run did not check the rights, if the connection has a login or TLS."""
    if client_security() is not None:
        print_note("kproc: the dry run did not check whether this user has the right to do it")


def _operations_on_cluster(client: Client) -> int | None:
    """Return the bits of the operations that the user may do on the cluster, or None from a broker before Kafka 2.8."""
    from kproc.wire.header import ApiKey

    if ApiKey.DESCRIBE_CLUSTER not in client.api_versions():
        return None
    answer = client.call_latest(ApiKey.DESCRIBE_CLUSTER, {"include_cluster_authorized_operations": True})
    operations: int = answer["cluster_authorized_operations"]
    return operations


def _is_denied(operations: int | None, operation: Operation) -> bool:
    return operations not in (None, _UNKNOWN) and not operations >> operation & 1
