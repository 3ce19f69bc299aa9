"""AclTable: all ACLs at one version of the metadata, with look-ups by id, by filter and by resource.

The table is part of each process's image. It changes only between two requests and by whole deltas, so that a decision
never sees half of a change. Only processes that decide need the index, so the first decision builds it. Later changes
update it, so that an added or removed rule costs the same with ten rules as with ten thousand.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Iterator, Mapping
from operator import attrgetter
from typing import Final

from kproc.broker.security.acl import ANY_NAME, ANYBODY, Acl, AclFilter, PatternType, ResourceType
from kproc.common.step_sort import sort_by_steps

_order: Final = attrgetter("order")
_place: Final = attrgetter("resource_type", "resource_name", "pattern_type", "order")

Bucket = Mapping[tuple[str, str], list[Acl]]
"""The rules of one resource pattern by (principal, host), each list in Kafka's order."""


class AclTable:
    """All ACL rules of one version of the metadata. Only the image may change them."""

    __slots__ = ("_by_id", "_ids", "_index", "version")

    def __init__(self) -> None:
        self._by_id: dict[bytes, Acl] = {}
        self._ids: dict[Acl, bytes] = {}
        self._index: AclIndex | None = None
        # Grows with each change, so that the authorizer discards the decisions that it cached for the old rules.
        self.version = 0

    def __eq__(self, other: object) -> bool:
        """Return True if the rules are equal. The versions may differ."""
        return isinstance(other, AclTable) and self._by_id == other._by_id

    __hash__ = None  # type: ignore[assignment]  # Mutable.

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Acl]:
        return iter(self._ids)

    def __contains__(self, acl: Acl) -> bool:
        return acl in self._ids

    def has_id(self, acl_id: bytes) -> bool:
        return acl_id in self._by_id

    def id_of(self, acl: Acl) -> bytes:
        """Return the id of an existing rule. Raises KeyError."""
        return self._ids[acl]

    def items(self) -> Iterator[tuple[bytes, Acl]]:
        return iter(self._by_id.items())

    def add(self, acl_id: bytes, acl: Acl) -> None:
        self._by_id[acl_id] = acl
        self._ids[acl] = acl_id
        if self._index is not None:
            self._index.add(acl)
        self.version += 1

    def remove(self, acl_id: bytes) -> None:
        acl = self._by_id.pop(acl_id)
        del self._ids[acl]
        if self._index is not None:
            self._index.remove(acl)
        self.version += 1

    def matching(self, wanted: AclFilter) -> list[Acl]:
        """Return all rules that match a filter, in the order of `scan`."""
        return [acl for acl in self.scan(wanted) if acl is not None]

    def scan(self, wanted: AclFilter) -> Iterator[Acl | None]:
        """Yield None for each rule that is compared with the filter, then the rules that match.

        The Nones let the caller pause a long scan. The rules are sorted by type, name and kind of pattern, then in
        Kafka's order. Changes during the scan have no effect on it.
        """
        only = wanted.as_acl()
        # A filter without wildcards matches at most one rule, which the dict finds without a scan.
        if only is not None:
            yield only if only in self._ids else None
            return
        meant = (acl if wanted.matches(acl) else None for acl in list(self._ids))
        yield from sort_by_steps(meant, key=_place)

    @property
    def index(self) -> AclIndex:
        """The index for decisions. The first access builds it."""
        # Build the index at the first decision, because the cleaner, and usually the controller, never decide.
        if self._index is None:
            self._index = AclIndex()
            for acl in self._ids:
                self._index.add(acl)
        return self._index


class AclIndex:
    """Index of ACLs by type and exact name of the pattern, and by type and principal.

    To find the prefixes that cover a name, look up the beginning of the name at each length that any prefix has.
    """

    __slots__ = ("_lengths", "_literal", "_of_principals", "_prefixed")

    def __init__(self) -> None:
        self._literal: dict[tuple[ResourceType, str], dict[tuple[str, str], list[Acl]]] = {}
        self._prefixed: dict[tuple[ResourceType, str], dict[tuple[str, str], list[Acl]]] = {}
        # The number of prefixes of each length, by type. A length without prefixes is skipped in look-ups.
        self._lengths: dict[ResourceType, Counter[int]] = {}
        self._of_principals: dict[tuple[ResourceType, str], dict[Acl, None]] = {}

    def add(self, acl: Acl) -> None:
        key = acl.resource_type, acl.resource_name
        patterns = self._patterns(acl)
        # Count a prefix once, however many rules it has, because the count says how many prefixes of this length exist.
        if key not in patterns:
            patterns[key] = {}
            if patterns is self._prefixed:
                self._lengths.setdefault(acl.resource_type, Counter())[len(acl.resource_name)] += 1
        # Kafka's audit log names the first rule that decides, so the rules are kept in its order.
        insort(patterns[key].setdefault((acl.principal, acl.host), []), acl, key=_order)
        self._of_principals.setdefault((acl.resource_type, acl.principal), {})[acl] = None

    def remove(self, acl: Acl) -> None:
        key = acl.resource_type, acl.resource_name
        patterns = self._patterns(acl)
        rules = patterns[key][acl.principal, acl.host]
        rules.remove(acl)
        if not rules:
            del patterns[key][acl.principal, acl.host]
        if not patterns[key]:
            del patterns[key]
            if patterns is self._prefixed:
                lengths = self._lengths[acl.resource_type]
                lengths[len(acl.resource_name)] -= 1
                # Remove a length without prefixes, because covering() makes one look-up for each length.
                if not lengths[len(acl.resource_name)]:
                    del lengths[len(acl.resource_name)]
        of_principal = self._of_principals[acl.resource_type, acl.principal]
        del of_principal[acl]
        if not of_principal:
            del self._of_principals[acl.resource_type, acl.principal]

    def covering(self, resource_type: ResourceType, name: str) -> list[Bucket]:
        """Return the rules of each pattern that covers a resource, in Kafka's order of patterns.

        The order is: the rules of the exact name, then the prefixes with the longest first, then `*`.
        """
        found: list[Bucket | None] = [self._literal.get((resource_type, name))]
        lengths = self._lengths.get(resource_type)
        # KAFKA-14265: do not stop at a prefix that does not match, because a shorter prefix can match.
        if lengths:
            size = len(name)
            found += [
                self._prefixed.get((resource_type, name[:length]))
                for length in sorted(lengths, reverse=True)
                if length <= size
            ]
        if name != ANY_NAME:
            found.append(self._literal.get((resource_type, ANY_NAME)))
        return [bucket for bucket in found if bucket is not None]

    def rules_for(self, resource_type: ResourceType, principal: str) -> list[Acl]:
        """Return all rules of a type for a principal, including those for every principal."""
        own = self._of_principals.get((resource_type, principal), {})
        if principal == ANYBODY:
            return list(own)
        return [*own, *self._of_principals.get((resource_type, ANYBODY), ())]

    def _patterns(self, acl: Acl) -> dict[tuple[ResourceType, str], dict[tuple[str, str], list[Acl]]]:
        return self._prefixed if acl.pattern_type == PatternType.PREFIXED else self._literal


def rules_in(bucket: Bucket, principal: str, host: str) -> list[Acl]:
    """Return the rules of one pattern for a client's principal and host, in the order in which Kafka tries them."""
    hosts = (host,) if host == ANY_NAME else (host, ANY_NAME)
    principals = (principal,) if principal == ANYBODY else (principal, ANYBODY)
    lists = [found for who in principals for at in hosts if (found := bucket.get((who, at)))]
    # Return a single list as it is, because it is sorted already. Usually one of the four look-ups finds something.
    if len(lists) <= 1:
        return lists[0] if lists else []
    return sorted((acl for rules in lists for acl in rules), key=_order)
