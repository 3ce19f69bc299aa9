"""Access control lists as metadata: their records, and the changes by CreateAcls and DeleteAcls.

Errors have Kafka's codes and messages. Differences from Kafka: in a request the code 0 closes the connection in Kafka,
and the code ANY in CreateAcls fails all of its rules with UNKNOWN_SERVER_ERROR. Here only that rule fails, with
INVALID_REQUEST. Rules are listed in sorted order instead of a hash table's order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby
from operator import attrgetter
from typing import Any, Final

from kproc.broker.cluster import records as r
from kproc.broker.security.acl import (
    CLUSTER_NAME,
    Acl,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from kproc.broker.security.acl_table import AclTable
from kproc.common.errors import ErrorCode, KafkaError

# Kafka's limit on the rules that one request removes. Here a rule counts once for each filter that matches it.
REMOVED_MAX: Final = 10_000
# Limit on the comparisons of rules with filters in one request. This many take half a second.
LOOKS_MAX: Final = 1_000_000

_pattern_of: Final = attrgetter("resource_type", "resource_name", "pattern_type")

Reply = dict[str, Any]
Row = dict[str, Any]


def acl_in(record: r.AclAdded) -> Acl:
    """Return the ACL rule that a record of the metadata log adds."""
    return Acl(
        ResourceType(record.resource_type),
        record.resource_name,
        PatternType(record.pattern_type),
        record.principal,
        record.host,
        Operation(record.operation),
        Permission(record.permission),
    )


def acl_records(acls: AclTable) -> Iterator[r.AclAdded]:
    """Return the metadata records that rebuild all ACL rules, for a snapshot."""
    # A snapshot keeps the ids of the rules, because a later AclRemoved names a rule by its id.
    return (_record(acl_id, acl) for acl_id, acl in acls.items())


def _record(acl_id: bytes, acl: Acl) -> r.AclAdded:
    return r.AclAdded(
        acl_id,
        int(acl.resource_type),
        acl.resource_name,
        int(acl.pattern_type),
        acl.principal,
        acl.host,
        int(acl.operation),
        int(acl.permission),
    )


def filter_in(row: Row) -> AclFilter:
    """Return the filter in a DescribeAcls request, or in one entry of DeleteAcls."""
    return AclFilter(
        ResourceType(row["resource_type_filter"]),
        row["resource_name_filter"],
        PatternType(row["pattern_type_filter"]),
        row["principal_filter"],
        row["host_filter"],
        Operation(row["operation"]),
        Permission(row["permission_type"]),
    )


def by_pattern(acls: list[Acl]) -> list[Row]:
    """Return the resources of a DescribeAcls response. `acls` must be sorted by resource pattern."""
    return [
        {
            "resource_type": int(kind),
            "resource_name": name,
            "pattern_type": int(how),
            "acls": [_entry(acl) for acl in rules],
        }
        for (kind, name, how), rules in groupby(acls, key=_pattern_of)
    ]


def _entry(acl: Acl) -> Row:
    return {
        "principal": acl.principal,
        "host": acl.host,
        "operation": int(acl.operation),
        "permission_type": int(acl.permission),
    }


class AclChanges:
    """Validates CreateAcls and DeleteAcls against an image's rules, and returns the records to write. Has no state."""

    __slots__ = ("_acls", "_new_id")

    def __init__(self, acls: Callable[[], AclTable], new_id: Callable[[], bytes]) -> None:
        self._acls = acls
        self._new_id = new_id

    def create(self, body: Row) -> tuple[Reply, list[r.Record]]:
        """Handle CreateAcls. Each rule succeeds or fails by itself. An existing rule succeeds without a record."""
        acls = self._acls()
        results: list[Row] = []
        added: dict[Acl, None] = {}
        for row in body["creations"]:
            code, message = ErrorCode.NONE, ""
            try:
                acl = _checked(row)
            except KafkaError as error:
                code, message = error.code, error.message or ""
            else:
                # As in Kafka, a rule that exists already succeeds without a second copy, so that a retried request
                # changes nothing.
                if acl not in acls:
                    added[acl] = None
            results.append({"error_code": int(code), "error_message": message})
        return {"results": results}, [_record(self._unused_id(acls), acl) for acl in added]

    def delete(self, body: Row) -> tuple[Reply, list[r.Record]]:
        """Handle DeleteAcls. Remove the rules that match any filter, in one commit.

        A rule that matches two filters is in both results. Raises KafkaError for the whole request if it is too large.
        """
        acls = self._acls()
        results: list[Row] = []
        removed: dict[Acl, None] = {}
        found_count = looks = 0
        for row in body["filters"]:
            code, message, found = ErrorCode.NONE, None, []
            try:
                wanted = _checked_filter(row)
                # Count the comparisons before they are made. A filter without wildcards is one look-up, and any other
                # one is compared with every rule.
                looks += len(acls) if wanted.as_acl() is None else 1
                if looks <= LOOKS_MAX:
                    found = acls.matching(wanted)
            except KafkaError as error:
                code, message = error.code, error.message
            # Collect the rules in a dict, because a rule that matches two filters is removed once, but reported for
            # both, as in Kafka.
            removed.update(dict.fromkeys(found))
            found_count += len(found)
            if looks > LOOKS_MAX:
                raise KafkaError(
                    ErrorCode.POLICY_VIOLATION,
                    f"{len(body['filters'])} filters are too many at once while there are {len(acls)} acls. "
                    f"The limit is {LOOKS_MAX} comparisons of a filter with an acl.",
                )
            if found_count > REMOVED_MAX:
                raise _invalid(f"Cannot remove more than {REMOVED_MAX} acls in a single delete operation.")
            results.append(
                {
                    "error_code": int(code),
                    "error_message": message,
                    "matching_acls": [_matching(acl) for acl in found],
                }
            )
        return {"filter_results": results}, [r.AclRemoved(acls.id_of(acl)) for acl in removed]

    def _unused_id(self, acls: AclTable) -> bytes:
        # The id is the rule's key in the metadata log, so a second rule with it would replace the first.
        while acls.has_id(acl_id := self._new_id()):
            pass
        return acl_id


def acl_of(row: Row, pattern_type: str = "pattern_type") -> Acl:
    """Return the ACL rule in a row. `pattern_type`: the name of that field, which differs in requests and responses."""
    return Acl(
        ResourceType(row["resource_type"]),
        row["resource_name"],
        PatternType(row[pattern_type]),
        row["principal"],
        row["host"],
        Operation(row["operation"]),
        Permission(row["permission_type"]),
    )


def _checked(row: Row) -> Acl:
    """Return the rule in a row of CreateAcls. Raise KafkaError(INVALID_REQUEST) with the reason if it is invalid."""
    acl = acl_of(row, "resource_pattern_type")
    # The checks, their order and their words are those of Kafka's AclControlManager.validateNewAcl. Only the first
    # error is reported.
    if acl.resource_type == ResourceType.CLUSTER and acl.resource_name != CLUSTER_NAME:
        raise _invalid(f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}")
    if not acl.resource_name:
        raise _invalid("Invalid empty resource name")
    if acl.resource_type in (ResourceType.UNKNOWN, ResourceType.ANY):
        raise _invalid(f"Invalid resourceType {acl.resource_type.name}")
    # ANY and MATCH are for filters only (KIP-290). A stored rule needs one certain meaning.
    if acl.pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        raise _invalid(f"Invalid patternType {acl.pattern_type.name}")
    if acl.operation in (Operation.UNKNOWN, Operation.ANY):
        raise _invalid(f"Invalid operation {acl.operation.name}")
    if acl.permission not in (Permission.DENY, Permission.ALLOW):
        raise _invalid(f"Invalid permissionType {acl.permission.name}")
    # A principal is Type:name (SecurityUtils.parseKafkaPrincipal). A rule without a type would match nobody.
    if ":" not in acl.principal:
        raise _invalid(
            f"Could not parse principal from `{acl.principal}` (no colon is present separating the principal type "
            f"from the principal name)"
        )
    return acl


def _checked_filter(row: Row) -> AclFilter:
    wanted = filter_in(row)
    # UNKNOWN is the code of a newer client's value. A deletion by a filter that is only half understood could remove
    # too much.
    if wanted.resource_type == ResourceType.UNKNOWN or wanted.pattern_type == PatternType.UNKNOWN:
        raise _invalid("Unknown patternFilter.")
    if wanted.operation == Operation.UNKNOWN or wanted.permission == Permission.UNKNOWN:
        raise _invalid("Unknown entryFilter.")
    return wanted


def _matching(acl: Acl) -> Row:
    return {
        "error_code": int(ErrorCode.NONE),
        "error_message": None,
        "resource_type": int(acl.resource_type),
        "resource_name": acl.resource_name,
        "pattern_type": int(acl.pattern_type),
        **_entry(acl),
    }


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)
