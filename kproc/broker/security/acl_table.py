"""AclTable: every rule at one version of the metadata, found by its id, by a filter, or by what it covers.

Part of each process's image. It changes only between two requests, by whole deltas, so that a decision never sees half
of a change. Only who decides needs the index, so it is built when the first decision asks for it, and kept from then
on: an added or removed rule costs the same whether there are ten rules or ten thousand.
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
    """The rules. Only the image writes it."""

    __slots__ = ("_by_id", "_ids", "_index", "version")

    def __init__(self) -> None:
        self._by_id: dict[bytes, Acl] = {}
        self._ids: dict[Acl, bytes] = {}
        self._index: AclIndex | None = None
        # Grows with each change, so that a cached decision can be checked.
        self.version = 0

    def __eq__(self, other: object) -> bool:
        """Whether the rules are equal; the number of changes that led to them does not matter."""
        return isinstance(other, AclTable) and self._by_id == other._by_id

    __hash__ = None  # type: ignore[assignment]  # It changes.

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Acl]:
        return iter(self._ids)

    def __contains__(self, acl: Acl) -> bool:
        return acl in self._ids

    def has_id(self, acl_id: bytes) -> bool:
        return acl_id in self._by_id

    def id_of(self, acl: Acl) -> bytes:
        """The id of a rule that is there."""
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
        """The rules that a filter means, in the order of `scan`."""
        return [acl for acl in self.scan(wanted) if acl is not None]

    def scan(self, wanted: AclFilter) -> Iterator[Acl | None]:
        """Yield None for each rule while it is compared with a filter, then the rules that the filter means.

        They are sorted by type, name and kind of pattern, then in Kafka's order. Rules that are added or removed
        meanwhile do not count.
        """
        only = wanted.as_acl()
        if only is not None:
            yield only if only in self._ids else None
            return
        meant = (acl if wanted.matches(acl) else None for acl in list(self._ids))
        yield from sort_by_steps(meant, key=_place)

    @property
    def index(self) -> AclIndex:
        """The same rules, as decisions look for them."""
        if self._index is None:
            self._index = AclIndex()
            for acl in self._ids:
                self._index.add(acl)
        return self._index


class AclIndex:
    """Rules by type and exact name of their pattern, and by type and principal.

    The prefixes that cover a name are found by cutting the name to each length that some prefix of the type has.
    """

    __slots__ = ("_lengths", "_literal", "_of_principals", "_prefixed")

    def __init__(self) -> None:
        self._literal: dict[tuple[ResourceType, str], dict[tuple[str, str], list[Acl]]] = {}
        self._prefixed: dict[tuple[ResourceType, str], dict[tuple[str, str], list[Acl]]] = {}
        # How many prefixes of a type have each length.
        self._lengths: dict[ResourceType, Counter[int]] = {}
        self._of_principals: dict[tuple[ResourceType, str], dict[Acl, None]] = {}

    def add(self, acl: Acl) -> None:
        key = acl.resource_type, acl.resource_name
        patterns = self._patterns(acl)
        if key not in patterns:
            patterns[key] = {}
            if patterns is self._prefixed:
                self._lengths.setdefault(acl.resource_type, Counter())[len(acl.resource_name)] += 1
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
                if not lengths[len(acl.resource_name)]:
                    del lengths[len(acl.resource_name)]
        of_principal = self._of_principals[acl.resource_type, acl.principal]
        del of_principal[acl]
        if not of_principal:
            del self._of_principals[acl.resource_type, acl.principal]

    def covering(self, resource_type: ResourceType, name: str) -> list[Bucket]:
        """The patterns that cover a resource, as Kafka visits them: its name, prefixes from the longest, then `*`."""
        found: list[Bucket | None] = [self._literal.get((resource_type, name))]
        lengths = self._lengths.get(resource_type)
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
        """All rules of a type that hold for a principal, by its name or as anybody."""
        own = self._of_principals.get((resource_type, principal), {})
        if principal == ANYBODY:
            return list(own)
        return [*own, *self._of_principals.get((resource_type, ANYBODY), ())]

    def _patterns(self, acl: Acl) -> dict[tuple[ResourceType, str], dict[tuple[str, str], list[Acl]]]:
        return self._prefixed if acl.pattern_type == PatternType.PREFIXED else self._literal


def rules_in(bucket: Bucket, principal: str, host: str) -> list[Acl]:
    """The rules of a pattern that hold for a client, in Kafka's order."""
    hosts = (host,) if host == ANY_NAME else (host, ANY_NAME)
    principals = (principal,) if principal == ANYBODY else (principal, ANYBODY)
    lists = [found for who in principals for at in hosts if (found := bucket.get((who, at)))]
    if len(lists) <= 1:
        return lists[0] if lists else []
    return sorted((acl for rules in lists for acl in rules), key=_order)
