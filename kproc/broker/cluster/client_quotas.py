"""Client quotas (KIP-546, KIP-599, KIP-612): limits by user, client id or address.

An entity is a user, a client id, both, or an address. The name None stands for all entities without a quota of their
own. `ClientQuotas` is the part of the image with the quotas. `QuotaChanges` turns AlterClientQuotas into records, with
the error messages of Kafka's controller. Unlike Kafka it rejects NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Set
from typing import Any, Final

from kproc.broker.cluster import records as r
from kproc.broker.cluster.host_names import RESOLVABLE, needs_lookup
from kproc.broker.config.values import INT_MAX, LONG_MAX
from kproc.common.errors import ErrorCode, KafkaError

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"
PRODUCER_BYTE_RATE: Final = "producer_byte_rate"
CONSUMER_BYTE_RATE: Final = "consumer_byte_rate"
REQUEST_PERCENTAGE: Final = "request_percentage"
CONTROLLER_MUTATION_RATE: Final = "controller_mutation_rate"
CONNECTION_CREATION_RATE: Final = "connection_creation_rate"
# The largest value of each key. None allows any positive number, also a fraction.
_CLIENT_KEYS: Final[Mapping[str, int | None]] = {
    PRODUCER_BYTE_RATE: LONG_MAX,
    CONSUMER_BYTE_RATE: LONG_MAX,
    REQUEST_PERCENTAGE: None,
    CONTROLLER_MUTATION_RATE: None,
}
_IP_KEYS: Final[Mapping[str, int | None]] = {CONNECTION_CREATION_RATE: INT_MAX}
# Limit in ns on the time that one use of a quota charges: 31 years. A quota can be as small as 1e-300, and the time
# would overflow.
LASTING_NS: Final = 1e18
# As in Kafka, a double that is this close to an integer counts as one.
_EPSILON: Final = 1e-6

Entity = tuple[tuple[str, str | None], ...]
"""(type, name) pairs sorted by type, each type once."""
Reply = dict[str, Any]
Row = dict[str, Any]


class ClientQuotas:
    """All client quotas at one version of the metadata. Only the image changes them."""

    __slots__ = ("_entities", "version")

    def __init__(self) -> None:
        self._entities: dict[Entity, dict[str, float]] = {}
        # Every change increments it, so that callers can validate cached look-ups.
        self.version = 0

    def __eq__(self, other: object) -> bool:
        """Return True if the quotas are equal. The versions may differ."""
        return isinstance(other, ClientQuotas) and self._entities == other._entities

    __hash__ = None  # type: ignore[assignment]  # It changes.

    def set(self, entity: Entity, key: str, value: float | None) -> None:
        """Set a quota. The value None removes it."""
        quotas = self._entities.setdefault(entity, {})
        if value is None:
            quotas.pop(key, None)
        else:
            quotas[key] = value
        # An entity without quotas must not stay, or DescribeClientQuotas (KIP-546) would list it with no values.
        if not quotas:
            del self._entities[entity]
        self.version += 1

    def of(self, entity: Entity) -> Mapping[str, float]:
        """Return the quotas that are set for exactly this entity, {} if there are none. Defaults are other entities."""
        return self._entities.get(entity, {})

    def entities(self) -> Iterator[tuple[Entity, Mapping[str, float]]]:
        return iter(self._entities.items())

    def in_force(self, user: str, client_id: str, key: str) -> tuple[Entity, float] | None:
        """Return the entity whose quota applies to a client, and the quota. None means no limit.

        The precedence is that of Kafka's ClientQuotaManager.DefaultQuotaCallback.
        """
        # KIP-55: an entity with the client's own user comes before any other, because a client can choose its
        # client id, but not its authenticated user.
        for entity in (
            ((CLIENT_ID, client_id), (USER, user)),
            ((CLIENT_ID, None), (USER, user)),
            ((USER, user),),
            ((CLIENT_ID, client_id), (USER, None)),
            ((CLIENT_ID, None), (USER, None)),
            ((USER, None),),
            ((CLIENT_ID, client_id),),
            ((CLIENT_ID, None),),
        ):
            value = self.of(entity).get(key)
            if value is not None:
                return entity, value
        return None

    def account_of(self, user: str, client_id: str, key: str) -> tuple[tuple[str, str], float] | None:
        """Return the (user, client id) whose clients share the quota of this client, and the quota. None: no limit.

        An empty user or client id means that all users or client ids share the quota.
        """
        found = self.in_force(user, client_id, key)
        if found is None:
            return None
        entity, limit = found
        kinds = [kind for kind, _ in entity]
        return (user if USER in kinds else "", client_id if CLIENT_ID in kinds else ""), limit

    def ip_rates(self) -> dict[str, float]:
        """Return connection_creation_rate by address or host name. "" is the default of all addresses."""
        return {
            entity[0][1] or "": quotas[CONNECTION_CREATION_RATE]
            for entity, quotas in self._entities.items()
            if CONNECTION_CREATION_RATE in quotas
        }

    def records(self) -> Iterator[r.ClientQuotaSet]:
        """Yield the metadata records that rebuild these quotas, for a snapshot."""
        for entity, quotas in self._entities.items():
            for key, value in quotas.items():
                yield r.ClientQuotaSet(entity, key, value)

    def describe(
        self, components: list[Row], *, strict: bool
    ) -> Iterator[tuple[Entity, Mapping[str, float]] | None]:
        """Yield the entities that match a filter of DescribeClientQuotas, and None for each other entity.

        strict: match only entities that have no type besides those of the filter. Raises KafkaError for an invalid
        filter.
        """
        exact, specified = _parse_filter(components)
        return (
            (entity, quotas) if _is_meant(dict(entity), exact, specified, strict=strict) else None
            # Copy the items, because the caller lists them over several duty cycles, and a delta may change the
            # dictionary between two of them.
            for entity, quotas in list(self._entities.items())
        )


def _is_meant(names: dict[str, Any], exact: dict[str, Any], specified: Set[str], *, strict: bool) -> bool:
    # KIP-546: a strict filter excludes entities with further types, such as (user, client id) for a filter of users.
    if strict and len(names) != len(exact) + len(specified):
        return False
    return all(kind in names and names[kind] == name for kind, name in exact.items()) and all(
        kind in names for kind in specified
    )


class QuotaChanges:
    """Validates AlterClientQuotas against an image's quotas, and returns the records to write. Has no state."""

    __slots__ = ("_quotas",)

    def __init__(self, quotas: Callable[[], ClientQuotas]) -> None:
        self._quotas = quotas

    def alter(self, body: Row) -> tuple[Reply, list[r.Record]]:
        """Handle AlterClientQuotas. Each entry succeeds or fails as a whole and independently of the others.

        The field RESOLVABLE of the body has the hosts in the request that were resolved.
        """
        resolvable = frozenset(body.get(RESOLVABLE, ()))
        entries: list[Row] = []
        records: list[r.Record] = []
        seen: set[Entity] = set()
        for entry in body["entries"]:
            code, message = ErrorCode.NONE, None
            # As in Kafka: if a type is named twice, the last one counts, and the answer shows that one.
            names = {row["entity_type"]: row["entity_name"] for row in entry["entity"]}
            try:
                records += self._alter_one(names, entry["ops"], seen, resolvable)
            except KafkaError as error:
                code, message = error.code, error.message
            entity = [{"entity_type": kind, "entity_name": name} for kind, name in names.items()]
            entries.append({"error_code": int(code), "error_message": message, "entity": entity})
        return {"entries": entries}, [] if body["validate_only"] else records

    def _alter_one(
        self, names: Mapping[str, str | None], ops: list[Row], seen: set[Entity], resolvable: Set[str]
    ) -> list[r.Record]:
        entity = _parse_entity(names)
        # As in Kafka, reject the second of two entries for one entity, because entries have no order.
        if entity in seen:
            raise _invalid(f"Ignoring duplicate entity {_shown(entity)}")
        seen.add(entity)
        host = names.get(IP)
        # As in ClientQuotaControlManager, a host name must resolve, because a quota without an address would
        # limit nobody.
        if host is not None and host not in resolvable and needs_lookup(host):
            raise _invalid(f"{host} is not a valid IP or resolvable host.")
        keys = _IP_KEYS if IP in names else _CLIENT_KEYS
        before, given = self._quotas().of(entity), set()
        records: list[r.Record] = []
        for op in ops:
            key, value = op["key"], None if op["remove"] else op["value"]
            # Two values of one key have no order, so neither of them can be the right one.
            if key in given:
                raise _invalid(f"Ignoring duplicate entity {_shown(entity)}")
            given.add(key)
            if value is not None:
                _check_value(keys, key, value)
            # Write no record for an unchanged quota. Otherwise a tool that sets the same quotas again and again fills
            # the log.
            if before.get(key) != value:
                records.append(r.ClientQuotaSet(entity, key, value))
        return records


def _parse_entity(names: Mapping[str, str | None]) -> Entity:
    for kind, name in names.items():
        if kind not in (USER, CLIENT_ID, IP):
            raise _invalid(f"Unhandled client quota entity type: {kind}")
        if name == "":
            raise _invalid(f"Empty {kind} not supported")
    if not names:
        raise _invalid("Invalid empty client quota entity")
    # KIP-612: quotas of addresses limit connections, before a client has a user or a client id.
    if IP in names and len(names) > 1:
        raise _invalid(
            "Invalid quota entity combination, IP entity shouldnot be combined with User or ClientId"
        )
    return tuple(sorted(names.items(), key=lambda pair: pair[0]))


def _shown(entity: Entity) -> str:
    names = ", ".join(f"{kind}={'null' if name is None else name}" for kind, name in entity)
    return f"ClientQuotaEntity(entries={{{names}}})"


def _check_value(keys: Mapping[str, int | None], key: str, value: float) -> None:
    if key not in keys:
        raise _invalid(f"Invalid configuration key {key}")
    # Kafka accepts NaN. No rate is above NaN, so the quota would be stored and would limit nobody.
    if not math.isfinite(value):
        raise _invalid(f"Quota {key} must be a finite number")
    # A quota of 0 would stop the client for ever. Kafka removes a quota with the flag `remove`, not with 0.
    if value <= 0:
        raise _invalid(f"Quota {key} must be greater than 0")
    largest = keys[key]
    if largest is None:
        return
    if value > largest:
        raise _invalid(
            f"Proposed value for {key} is too large for {'an INT' if largest == INT_MAX else 'a LONG'}."
        )
    whole = int(value + _EPSILON)
    if abs(whole - value) > _EPSILON:
        raise _invalid(f"{key} cannot be a fractional value.")
    if not whole:
        # Kafka accepts values this close to 0. They are mistakes, and at 1e-300 no throttle time could be computed.
        raise _invalid(f"Quota {key} must be greater than 0")


def _check_filter_type(kind: str, before: Set[str]) -> None:
    """Raise KafkaError for an entity type that is invalid or in a component before it."""
    if not kind:
        raise _invalid("Invalid empty entity type.")
    # As in Kafka's ClientQuotasImage: each type occurs once, because two names of one type match no entity.
    if kind in before:
        raise _invalid(f"Entity type {kind} cannot appear more than once in the filter.")
    # UNSUPPORTED_VERSION and not INVALID_REQUEST, because the type can be one of a newer Kafka.
    if kind not in (USER, CLIENT_ID, IP):
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {kind}")


def _parse_filter(components: list[Row]) -> tuple[dict[str, str | None], set[str]]:
    """Parse the components of a filter.

    Return (names that must match, by entity type; entity types that must be present with any name). The name None
    stands for the default entity of its type. Raises KafkaError for an invalid filter.
    """
    exact: dict[str, str | None] = {}
    specified: set[str] = set()
    for row in components:
        kind, match_type, match = row["entity_type"], row["match_type"], row["match"]
        _check_filter_type(kind, exact.keys() | specified)
        # KIP-546: 0 matches one name, 1 the default entity, 2 every entity that has the type.
        if match_type == 0:
            if match is None:
                raise _invalid("Request specified MATCH_TYPE_EXACT, but set match string to null.")
            exact[kind] = match
        elif match_type in (1, 2):
            name = "MATCH_TYPE_DEFAULT" if match_type == 1 else "MATCH_TYPE_SPECIFIED"
            if match is not None:
                raise _invalid(f"Request specified {name}, but also specified a match string.")
            if match_type == 1:
                exact[kind] = None
            else:
                specified.add(kind)
        else:
            raise _invalid(f"Unknown match type {match_type}")
    kinds = exact.keys() | specified
    if IP in kinds and len(kinds) > 1:
        raise _invalid(
            "Invalid entity filter component combination. IP filter component should not be used with "
            "user or clientId filter component."
        )
    return exact, specified


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)
