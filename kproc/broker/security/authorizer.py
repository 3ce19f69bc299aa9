"""StandardAuthorizer: decides whether a client may do an operation, by the ACLs in the metadata. The name is Kafka's.

The order is Kafka's: super users may do everything. A DENY that covers the resource overrides every ALLOW. Without a
matching rule, `allow.everyone.if.no.acl.found` decides about resources that no rule covers, for any principal; other
operations are denied. An ALLOW of READ, WRITE, DELETE or ALTER allows DESCRIBE, and ALTER_CONFIGS allows
DESCRIBE_CONFIGS. A DENY of them denies only itself. Hosts are compared as text.

Decisions are cached until the rules change. The audit log gets each decision, also those from the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from time import monotonic_ns
from typing import Final

from kproc.broker.config import Config
from kproc.broker.config.authorizer_settings import principals_in
from kproc.broker.security import audit
from kproc.broker.security.acl import (
    ANY_NAME,
    CLUSTER_NAME,
    Acl,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from kproc.broker.security.acl_table import AclTable, rules_in
from kproc.broker.security.principal import Identity

# Maximum number of cached decisions. A full cache is emptied, because a new decision costs only microseconds.
CACHED_MAX: Final = 8192
# Clients choose the names of resources. Longer names than topics can have are not cached, because they would make the
# cache large.
_CACHED_NAME_MAX: Final = 249
# Kafka checks the access to a resource with this name to find out whether a client may do the operation on all
# resources.
HARDCODED_NAME: Final = "hardcode"

Access = tuple[Identity, Operation, ResourceType, str]
"""The client, its operation, and the type and name of the resource. A plain tuple, because it is a key of the cache."""


class Verdict:
    """A decision with the rule that led to it."""

    __slots__ = ("acl", "is_allowed", "rule")

    def __init__(self, is_allowed: bool, rule: str, acl: Acl | None = None) -> None:
        self.is_allowed = is_allowed
        self.rule = rule
        self.acl = acl

    def __str__(self) -> str:
        """Format the rule as Kafka's audit log does."""
        return self.rule if self.acl is None else f"MatchingAcl(acl={self.acl})"


SUPER_USER: Final = Verdict(True, "SuperUser")
DEFAULT_ALLOW: Final = Verdict(True, "DefaultAllow")
DEFAULT_DENY: Final = Verdict(False, "DefaultDeny")
_MATCHING_ACL: Final = "MatchingAcl"


def decide(
    acls: AclTable,
    principal: str,
    host: str,
    operation: Operation,
    resource_type: ResourceType,
    name: str,
) -> Verdict | None:
    """Decide by the ACLs alone. Return None if no ACL covers the resource."""
    allowed_by: Acl | None = None
    covering = acls.index.covering(resource_type, name)
    for bucket in covering:
        for acl in rules_in(bucket, principal, host):
            if not acl.speaks_of(host, operation):
                continue
            # As in Kafka, a DENY wins over every ALLOW. So an ALLOW counts only after all rules were checked.
            if acl.permission == Permission.DENY:
                return Verdict(False, _MATCHING_ACL, acl)
            allowed_by = acl
    if allowed_by is not None:
        return Verdict(True, _MATCHING_ACL, allowed_by)
    # allow.everyone.if.no.acl.found applies only to a resource that no rule covers at all.
    return DEFAULT_DENY if covering else None


def decide_for_any(
    acls: AclTable, principal: str, host: str, operation: Operation, resource_type: ResourceType
) -> bool:
    """Return True if the rules allow an operation on at least one resource of a type.

    As in Kafka, an ALLOW counts unless a DENY of the same literal, of one of its prefixes or of everything covers it.
    """
    allowed: list[Acl] = []
    denied: set[tuple[PatternType, str]] = set()
    for acl in acls.index.rules_for(resource_type, principal):
        if acl.host not in (host, ANY_NAME) or acl.operation not in (operation, Operation.ALL):
            continue
        if acl.permission == Permission.ALLOW:
            allowed.append(acl)
        else:
            denied.add((acl.pattern_type, acl.resource_name))
    # No ALLOW can count, because this DENY covers every resource of the type.
    if (PatternType.LITERAL, ANY_NAME) in denied:
        return False
    # As in Authorizer.authorizeByResourceType() (KIP-679), an ALLOW counts unless a DENY covers all resources that it
    # allows.
    prefixes = tuple(name for pattern, name in denied if pattern == PatternType.PREFIXED)
    return any(
        (acl.pattern_type == PatternType.LITERAL and acl.resource_name == ANY_NAME)
        or not (
            acl.resource_name.startswith(prefixes)
            or (
                acl.pattern_type == PatternType.LITERAL and (PatternType.LITERAL, acl.resource_name) in denied
            )
        )
        for acl in allowed
    )


class StandardAuthorizer:
    """Kafka's authorizer, one per Handler.

    `acls` returns the AclTable of the current image, which can change between two calls. `api_name` returns Kafka's
    name of an API key, for the audit log.
    """

    __slots__ = (
        "_acls",
        "_any_cache",
        "_api_name",
        "_cache",
        "_default",
        "_now_ns",
        "_rates",
        "_super_users",
        "_table",
        "_version",
        "generation",
    )

    def __init__(
        self,
        acls: Callable[[], AclTable],
        *,
        super_users: Iterable[str] = (),
        allow_everyone: bool = False,
        api_name: Callable[[int], str] = str,
        now_ns: Callable[[], int] = monotonic_ns,
    ) -> None:
        self._acls = acls
        self._now_ns = now_ns
        self._rates = audit.AuditRates()
        self._super_users = frozenset(super_users)
        self._default = DEFAULT_ALLOW if allow_everyone else DEFAULT_DENY
        self._api_name = api_name
        self._table = acls()
        self._version = self._table.version
        self._cache: dict[Access, Verdict] = {}
        self._any_cache: dict[tuple[Identity, Operation, ResourceType], bool] = {}
        # Grows whenever decisions may have changed. Other caches, such as those of the fast paths, store it with their
        # decisions.
        self.generation = 0

    def is_allowed(
        self,
        access: Access,
        *,
        api_key: int,
        is_question: bool = False,
        count: int = 1,
    ) -> bool:
        """Return True if the client may do the operation on a resource, and write the audit log (audit.py).

        `count` is the number of times that the request names the resource.
        """
        verdict = self.verdict(access)
        level = audit.level_of(verdict.is_allowed, is_question)
        if audit.audit_logger.isEnabledFor(level):
            self._log(level, access, verdict, api_key, count)
        return verdict.is_allowed

    def is_allowed_for_any(
        self, client: Identity, operation: Operation, resource: ResourceType, *, api_key: int
    ) -> bool:
        """Return True if the client may do the operation on some resource of the type, which need not exist.

        Also write the audit log (audit.py).
        """
        access = client, operation, resource, HARDCODED_NAME
        verdict = self.verdict(access)
        level = audit.level_of(verdict.is_allowed, not verdict.is_allowed)
        if audit.audit_logger.isEnabledFor(level):
            self._log(level, access, verdict, api_key, 0)
        if verdict.is_allowed:
            return True
        key = client, operation, resource
        found = self._any_cache.get(key)
        if found is None:
            found = decide_for_any(self._table, str(client.principal), host_of(client), operation, resource)
            # Clear the whole cache. Tracking the order of use would cost more at each look-up than a rare refill.
            if len(self._any_cache) >= CACHED_MAX:
                self._any_cache.clear()
            self._any_cache[key] = found
        return found

    def verdict(self, access: Access) -> Verdict:
        """Return the decision and its rule, from the cache if the rules have not changed."""
        table = self._acls()
        # The image replaces the table after a snapshot, and changes it in place after a delta.
        if table is not self._table or table.version != self._version:
            self._clear_caches(table)
        found = self._cache.get(access)
        if found is not None:
            return found
        client, operation, resource, name = access
        principal = str(client.principal)
        if principal in self._super_users:
            found = SUPER_USER
        else:
            found = decide(table, principal, host_of(client), operation, resource, name) or self._default
        # A client chooses the names in its requests, so long names must not fill the cache.
        if len(name) <= _CACHED_NAME_MAX:
            if len(self._cache) >= CACHED_MAX:
                self._cache.clear()
            self._cache[access] = found
        return found

    def report_suppressed(self, now_ns: int) -> None:
        """Log the number of decisions without a line of their own. Called by the role's tick."""
        self._rates.report_suppressed(now_ns)

    def _log(self, level: int, access: Access, verdict: Verdict, api_key: int, count: int) -> None:
        # Clients cause these lines, so the rate is limited. Otherwise a client could fill the disk.
        if not self._rates.has_room(level, self._now_ns()):
            return
        client, operation, resource, name = access
        line = audit.message(
            audit.AuditRecord(
                str(client.principal),
                host_of(client),
                operation,
                resource,
                name,
                is_allowed=verdict.is_allowed,
                request=self._api_name(api_key),
                rule=str(verdict),
                reference_count=count,
            )
        )
        audit.audit_logger.log(level, "%s", line)

    def _clear_caches(self, table: AclTable) -> None:
        self._table = table
        self._version = table.version
        self._cache.clear()
        self._any_cache.clear()
        # Fast paths compare this generation with the one of their decision. Otherwise a revoked right would still work
        # for a repeated request.
        self.generation += 1


def make_authorizer(
    config: Config,
    acls: Callable[[], AclTable],
    api_name: Callable[[int], str],
    now_ns: Callable[[], int] = monotonic_ns,
) -> StandardAuthorizer | None:
    """Create the configured authorizer. Return None if every client may do everything."""
    if not config.authorizer_class_name:
        return None
    return StandardAuthorizer(
        acls,
        super_users=principals_in(config.super_users),
        allow_everyone=config.allow_everyone_if_no_acl_found,
        api_name=api_name,
        now_ns=now_ns,
    )


def host_of(client: Identity) -> str:
    """Return the client's address as rules name it, without the slash of Java's text form."""
    return client.host.removeprefix("/")


def locks_everybody_out(config: Config, acls: AclTable) -> bool:
    """Return True if no client could add an ACL, because nobody may ALTER the cluster.

    That is so with an authorizer, if no super user, no rule and no allow.everyone.if.no.acl.found permits it.
    """
    if not config.authorizer_class_name or principals_in(config.super_users):
        return False
    covering = acls.index.covering(ResourceType.CLUSTER, CLUSTER_NAME)
    # Without a rule about the cluster, allow.everyone.if.no.acl.found decides.
    if not covering:
        return not config.allow_everyone_if_no_acl_found
    decisions = (
        decide(acls, principal, host, Operation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME)
        for bucket in covering
        for principal, host in bucket
    )
    return not any(each is not None and each.is_allowed for each in decisions)
