"""Matching: the names in a request, and whether a fault rule matches it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from kproc.broker.request.dispatch import after_header_tags
from kproc.wire import codec
from kproc.wire.header import ApiKey, first_flexible, kafka_name

if TYPE_CHECKING:
    from kproc.broker.calls.own_operations import FaultRule
    from kproc.broker.request.fetch_session import FetchTarget
    from kproc.broker.request.request import HandlerRequest

Fields = dict[str, Any]
TOPIC_ARRAYS: Final = ("topics", "topic_data", "topic_partitions", "topic_names", "v3_and_below_topics")
"""Names of the arrays of topics in requests."""
PARTITION_ARRAYS: Final = ("partitions", "partition_data", "partition_indexes")
_GROUPS: Final = ("group_id", "groups", "groups_names", "group_ids")
_TRANSACTIONAL_IDS: Final = (
    "transactional_id",
    "transactional_ids",
    "v3_and_below_transactional_id",
)
_COORDINATOR_KEYS: Final = ("key", "coordinator_keys")
KEY_TYPES: Final = (0, 1)
"""Values of FindCoordinator's `key_type` for groups and for transactional ids."""
_GROUP_COORDINATOR, _TRANSACTION_COORDINATOR = KEY_TYPES
_FETCH: Final = int(ApiKey.FETCH)

API_NAMES: Final = {kafka_name(key): int(key) for key in ApiKey}


class RequestNames:
    """The topics, groups and transactional ids that a request names. The request is decoded at the first use."""

    def __init__(self, request: HandlerRequest, body: memoryview) -> None:
        self._request = request
        self._body = body
        self._fields: Fields | None = None

    @property
    def fields(self) -> Fields:
        """The decoded request. Raises ProtocolError if it is malformed."""
        if self._fields is None:
            key, version = self._request.api_key, self._request.api_version
            body = self._body
            if version >= first_flexible(key):
                body = after_header_tags(body)
            self._fields = codec.decode_request(key, version, body)
        return self._fields

    def partitions(self) -> Iterator[tuple[str, int]]:
        """Yield each topic with each of its partitions, and with -1 if the request names the topic only."""
        for row in topic_rows(self.fields):
            name = self.topic_name(row)
            yield from ((name, index) for index in partitions_of(row))
        for target in self.session_targets():
            yield target.find_name(self._request.services.image) or "", target.index

    def session_targets(self) -> list[FetchTarget]:
        """Return the partitions of a Fetch's session. The request names only those that have changed (KIP-227)."""
        if self._request.api_key != _FETCH or not (session_id := self.fields.get("session_id")):
            return []
        return self._request.services.owner.session_cache.targets(session_id)

    def topic_name(self, row: str | Mapping[str, Any]) -> str:
        """Return the name of the topic in a row of a request or response, or the hex digits of an unknown topic id.

        Return "" if the row has neither a name nor an id.
        """
        if isinstance(row, str):
            return row
        name = row.get("name") or row.get("topic") or row.get("topic_name")
        topic_id = row.get("topic_id")
        if name or not topic_id:
            return str(name or "")
        topic = self._request.services.image.topics_by_id.get(topic_id)
        return topic.name if topic is not None else bytes(topic_id).hex()

    def groups(self) -> Iterator[str]:
        """Yield the groups that the request names."""
        yield from groups_in(self.fields)

    def transactional_ids(self) -> Iterator[str]:
        """Yield the transactional ids that the request names."""
        yield from transactional_ids_in(self.fields)


def groups_in(fields: Fields) -> Iterator[str]:
    """Yield the groups that a decoded request names."""
    yield from _named(fields, _GROUPS, _GROUP_COORDINATOR)


def transactional_ids_in(fields: Fields) -> Iterator[str]:
    """Yield the transactional ids that a decoded request names."""
    yield from _named(fields, _TRANSACTIONAL_IDS, _TRANSACTION_COORDINATOR)


def _named(fields: Fields, names: tuple[str, ...], coordinator: int) -> Iterator[str]:
    # FindCoordinator names a group or a transactional id. Its version 0 knows groups only.
    if fields.get("key_type", _GROUP_COORDINATOR) == coordinator:
        names = (*names, *_COORDINATOR_KEYS)
    for name in names:
        value = fields.get(name)
        for row in value if isinstance(value, list) else (value,):
            found = row.get("group_id") if isinstance(row, dict) else row
            if isinstance(found, str):
                yield found
    for row in fields.get("transactions") or ():
        if "transactional_id" in names:
            yield row["transactional_id"]


def topic_rows(fields: Fields) -> Iterator[str | Mapping[str, Any]]:
    """Yield the rows of a decoded request that name topics, at any depth."""
    yield from _rows_of(fields, TOPIC_ARRAYS)


def partitions_of(row: str | Mapping[str, Any]) -> Iterator[int]:
    """Yield the partition numbers in a row of a topic, or -1 if it has none."""
    array = None
    if not isinstance(row, str):
        array = next((row[name] for name in PARTITION_ARRAYS if isinstance(row.get(name), list)), None)
    if array is None:
        yield -1
        return
    for each in array:
        yield partition_number(each)


def partition_number(row: int | Mapping[str, Any]) -> int:
    """Return the partition number of a row: the row itself or its field. -1 if it has no such field."""
    if isinstance(row, int):
        return row
    return next((int(row[name]) for name in ("partition_index", "partition", "index") if name in row), -1)


def _rows_of(fields: Mapping[str, Any], names: tuple[str, ...]) -> Iterator[str | Mapping[str, Any]]:
    """Yield the rows of the arrays with these names, at any depth."""
    for name, value in fields.items():
        if not isinstance(value, list):
            continue
        if name in names:
            yield from value
        else:
            for row in value:
                if isinstance(row, dict):
                    yield from _rows_of(row, names)


def matches_name(pattern: str | None, names: Iterable[str]) -> bool:
    """Return True if one of `names` equals the pattern, or begins with the text before the pattern's final `*`.

    The pattern None matches everything, also if there are no names.
    """
    if pattern is None:
        return True
    if pattern.endswith("*"):
        return any(name.startswith(pattern[:-1]) for name in names)
    return any(name == pattern for name in names)


def client_id_of(request: HandlerRequest) -> str:
    return (request.client_id_bytes or b"").decode("utf-8", "replace")


class Matcher:
    """Decides whether a rule matches a request. The cheap conditions come first, before the request is decoded."""

    def __init__(self, rule: FaultRule) -> None:
        self._rule = rule
        self._api_keys = frozenset(API_NAMES[name] for name in rule.apis)
        self.names_topic = rule.topic is not None or rule.partition is not None

    def matches(self, request: HandlerRequest, names: RequestNames) -> bool:
        """Return True if the rule matches the request. Raises ProtocolError if the request is malformed."""
        rule = self._rule
        if self._api_keys and request.api_key not in self._api_keys:
            return False
        if rule.versions is not None and not rule.versions[0] <= request.api_version <= rule.versions[1]:
            return False
        if rule.client is not None and not matches_name(rule.client, (client_id_of(request),)):
            return False
        if rule.user is not None:
            principal = request.principal
            if not matches_name(rule.user, (str(principal), principal.name)):
                return False
        return (
            (not self.names_topic or any(self.wants(*each) for each in names.partitions()))
            and (rule.group is None or matches_name(rule.group, names.groups()))
            and (
                rule.transactional_id is None
                or matches_name(rule.transactional_id, names.transactional_ids())
            )
        )

    def wants(self, topic: str, partition: int) -> bool:
        """Return True if the rule is about this partition, or about all partitions of all topics."""
        rule = self._rule
        return matches_name(rule.topic, (topic,)) and rule.partition in (None, partition)
