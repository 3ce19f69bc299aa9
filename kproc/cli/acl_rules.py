"""The requests of `kproc acl` to a broker, and the formatting of access rules as tables and sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kproc.cli.common import Failure
from kproc.cli.config_requests import broker_settings
from kproc.cli.failure import explain
from kproc.cli.tables import fits, print_count, print_table
from kproc.common.errors import ErrorCode

if TYPE_CHECKING:
    from kproc.broker.security.acl import Acl, AclFilter, Operation, ResourceType
    from kproc.broker.security.authorizer import Verdict
    from kproc.client import Client


_HEADER = ("RESOURCE", "NAME", "PATTERN", "PRINCIPAL", "HOST", "OPERATION", "PERMISSION")
_CUT = ("NAME", "PRINCIPAL")
_ORDER = ("resource_type", "resource_name", "pattern_type", "principal", "host")


def _refused(code: int, message: str | None, what: str = "rules") -> Failure:
    words: dict[int, str] = {
        ErrorCode.SECURITY_DISABLED: "the broker has no authorizer: everybody may do everything",
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "access denied: this needs ALTER or DESCRIBE on the cluster",
    }
    return Failure(explain(what, code, words.get(code, message)))


def create(client: Client, rules: Sequence[Acl]) -> None:
    """Create access rules (ACLs). If the broker rejects some, raise a Failure for the first. The others are created."""
    from kproc.wire.header import ApiKey

    creations = [
        {
            "resource_type": int(rule.resource_type),
            "resource_name": rule.resource_name,
            "resource_pattern_type": int(rule.pattern_type),
            "principal": rule.principal,
            "host": rule.host,
            "operation": int(rule.operation),
            "permission_type": int(rule.permission),
        }
        for rule in rules
    ]
    results = client.call_latest(ApiKey.CREATE_ACLS, {"creations": creations})["results"]
    for rule, result in zip(rules, results, strict=True):
        if result["error_code"]:
            raise _refused(result["error_code"], result["error_message"], row_of(rule)["rule"])


def _wire(wanted: AclFilter) -> dict[str, Any]:
    return {
        "resource_type_filter": int(wanted.resource_type),
        "resource_name_filter": wanted.resource_name,
        "pattern_type_filter": int(wanted.pattern_type),
        "principal_filter": wanted.principal,
        "host_filter": wanted.host,
        "operation": int(wanted.operation),
        "permission_type": int(wanted.permission),
    }


def describe(client: Client, wanted: AclFilter) -> list[Acl]:
    """Return the rules that match a filter. Raise a Failure if the broker has no authorizer or denies the request."""
    found = _describe_if_authorizer(client, wanted)
    if found is None:
        raise _refused(ErrorCode.SECURITY_DISABLED, None)
    return found


def _describe_if_authorizer(client: Client, wanted: AclFilter) -> list[Acl] | None:
    """Return the rules that match a filter, or None if the broker has no authorizer."""
    from kproc.broker.cluster.acls import acl_of
    from kproc.wire.header import ApiKey

    answer = client.call_latest(ApiKey.DESCRIBE_ACLS, _wire(wanted))
    if answer["error_code"] == ErrorCode.SECURITY_DISABLED:
        return None
    if answer["error_code"]:
        raise _refused(answer["error_code"], answer["error_message"])
    return [acl_of(resource | acl) for resource in answer["resources"] for acl in resource["acls"]]


def delete(client: Client, filters: Sequence[AclFilter]) -> list[Acl]:
    """Delete the rules that match any of the filters, and return them."""
    from kproc.broker.cluster.acls import acl_of
    from kproc.wire.header import ApiKey

    answer = client.call_latest(ApiKey.DELETE_ACLS, {"filters": [_wire(each) for each in filters]})
    for result in answer["filter_results"]:
        if result["error_code"]:
            raise _refused(result["error_code"], result["error_message"])
    return [acl_of(row) for result in answer["filter_results"] for row in result["matching_acls"]]


def check_access(
    client: Client, principal: str, host: str, operation: Operation, kind: ResourceType, name: str
) -> dict[str, Any]:
    """Return the decision that the broker's authorizer would make and its reason, from its rules and settings."""
    verdict, why = _verdict(client, principal, host, operation, kind, name)
    return {
        "principal": principal,
        "operation": operation.name,
        "resource_type": kind.name,
        "resource_name": name,
        "host": host,
        "allowed": verdict.is_allowed,
        "acl": row_of(verdict.acl) if verdict.acl is not None else None,
        "why": why,
    }


def _verdict(
    client: Client, principal: str, host: str, operation: Operation, kind: ResourceType, name: str
) -> tuple[Verdict, str]:
    from kproc.broker.config.authorizer_settings import principals_in
    from kproc.broker.security.acl import AclFilter, Operation, PatternType, Permission
    from kproc.broker.security.acl_table import AclTable
    from kproc.broker.security.authorizer import DEFAULT_ALLOW, DEFAULT_DENY, SUPER_USER, decide

    wanted = AclFilter(kind, name, PatternType.MATCH, None, None, Operation.ANY, Permission.ANY)
    covering = _describe_if_authorizer(client, wanted)
    if covering is None:
        return DEFAULT_ALLOW, "the broker has no authorizer"
    # Check super users first, as the authorizer does, because no rule can deny them anything.
    settings = broker_settings(client, ["super.users", "allow.everyone.if.no.acl.found"])
    if principal in principals_in(settings.get("super.users", "")):
        return SUPER_USER, "it is one of super.users"
    rules = AclTable()
    for number, rule in enumerate(covering):
        rules.add(number.to_bytes(4, "big"), rule)
    is_open = settings.get("allow.everyone.if.no.acl.found") == "true"
    default = DEFAULT_ALLOW if is_open else DEFAULT_DENY
    verdict = decide(rules, principal, host, operation, kind, name) or default
    if verdict.acl is not None:
        return verdict, str(row_of(verdict.acl)["rule"])
    if verdict is DEFAULT_ALLOW:
        return verdict, "no rule covers it, and allow.everyone.if.no.acl.found is true"
    return verdict, "no rule allows it" if covering else "no rule covers it"


def row_of(rule: Acl) -> dict[str, Any]:
    """Return a dict of the rule's fields and the rule as a sentence."""
    from kproc.broker.security.acl import ANY_NAME, PatternType

    kind = in_words(rule.resource_type.name)
    if rule.pattern_type == PatternType.PREFIXED:
        what = f"{kind}s that begin with {rule.resource_name}"
    elif rule.resource_name == ANY_NAME:
        what = f"every {kind}"
    else:
        what = f"{kind} {rule.resource_name}"
    at = "any host" if rule.host == ANY_NAME else rule.host
    return {
        "resource_type": rule.resource_type.name,
        "resource_name": rule.resource_name,
        "pattern_type": rule.pattern_type.name,
        "principal": rule.principal,
        "host": rule.host,
        "operation": rule.operation.name,
        "permission": rule.permission.name,
        "rule": f"{rule.permission.name} {rule.principal} {rule.operation.name} on {what} from {at}",
    }


def print_rules(rows: list[dict[str, Any]]) -> None:
    """Print a table of rules by resource and principal.

    On a narrow terminal the table has fewer columns, so that names are shown whole.
    """
    rows = sorted(rows, key=lambda row: [row[name] for name in _ORDER])
    table = [list(row.values())[: len(_HEADER)] for row in rows]
    if fits(_HEADER, table, cut=_CUT):
        print_table(_HEADER, table, cut=_CUT)
    else:
        print_table(
            ("RESOURCE", "PRINCIPAL", "HOST", "RULE"), map(_in_short, rows), cut=("RESOURCE", "PRINCIPAL")
        )
    print_count(len(rows), "rule")


def _in_short(row: dict[str, Any]) -> list[str]:
    """Return the cells of a rule for a narrow table.

    A prefixed resource is shown as `topic orders-*`, as Kafka does.
    """
    name = f"{row['resource_name']}{'*' if row['pattern_type'] == 'PREFIXED' else ''}"
    resource = f"{in_words(row['resource_type'])} {name}"
    return [resource, row["principal"], row["host"], f"{row['permission']} {row['operation']}"]


def in_words(kind: str) -> str:
    """Format a resource type as words for a sentence."""
    return kind.lower().replace("_", " ")
