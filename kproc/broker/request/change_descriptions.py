"""Descriptions of the changes that requests make, for the change log: one function for each API that changes something.

A function finds the changed items in the request and its response. Only the items that fit into the line are formatted.
Nothing that it returns has a secret: no passwords, no HMACs, and `[hidden]` for settings that are passwords.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from kproc.broker.calls.own_operations import (
    CreateSnapshot,
    DeleteSnapshot,
    KillClient,
    MoveTime,
    OwnOperation,
    Rebalance,
    RestoreSnapshot,
    Scale,
)
from kproc.broker.cluster.delegation_tokens import LOG_ONLY
from kproc.broker.config.settings import is_secret
from kproc.broker.config.values import HIDDEN, without_url_secrets
from kproc.broker.security.acl import Operation, PatternType, Permission, ResourceType
from kproc.common.bounded import short_name
from kproc.common.printable import printable
from kproc.wire.header import ApiKey
from kproc.wire.primitives import ZERO_UUID

Fields = Mapping[str, Any]

_VALUE_MAX: Final = 100
# At most this many settings of one topic or broker are formatted, because a request can have thousands.
_SETTINGS_MAX: Final = 50
_RESOURCES: Final = {2: "topic", 4: "broker", 8: "loggers of broker", 16: "client metrics", 32: "group"}
_BROKER: Final = 4
_SET, _DELETE, _APPEND, _SUBTRACT = range(4)
_SIGNS: Final = {_SET: "=", _APPEND: "+=", _SUBTRACT: "-="}
_ENTITIES: Final = {"user": "user", "client-id": "client", "ip": "address"}
_MECHANISMS: Final = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}


class Described(NamedTuple):
    """The effect of a request for the change log: a phrase (`did`), the changed items, and a function to format one.

    A request can have 100,000 items, so only those that fit into the line are formatted.
    """

    did: str
    items: Iterable[Any]
    format_item: Callable[[Any], str]


# Maps (request, response) to the description of the change, or to None if the request is no administrative change.
Describe = Callable[[Fields, Fields], Described | None]
CHANGES: Final[dict[int, Describe]] = {}
"""By API key, for each API that changes something: the function that describes the change."""


def shown(name: str) -> str:
    """Format a name that a client chose: printable and not too long."""
    return printable(short_name(name))


def _describes(key: ApiKey) -> Callable[[Describe], Describe]:
    def register(describe: Describe) -> Describe:
        CHANGES[int(key)] = describe
        return describe

    return register


def succeeded(rows: Iterable[Fields], name: str = "name") -> dict[str, Fields]:
    """Return the rows of a response that have no error, by the value of the field that `name` names."""
    return {row[name]: row for row in rows if not row["error_code"]}


# -- topics ----------------------------------------------------------------------------------------------------


@_describes(ApiKey.CREATE_TOPICS)
def _created_topics(request: Fields, response: Fields) -> Described:
    created = succeeded(response["topics"])

    def format_topic(topic: Fields) -> str:
        # A client that may not describe the topic gets -1 as the number of partitions.
        count = max(
            created[topic["name"]]["num_partitions"], topic["num_partitions"], len(topic["assignments"])
        )
        facts = [f"{count} partition{'' if count == 1 else 's'}"] if count > 0 else []
        facts += _format_settings(topic["configs"])
        return f"{shown(topic['name'])} ({', '.join(facts)})" if facts else shown(topic["name"])

    topics = (topic for topic in request["topics"] if topic["name"] in created)
    return Described("created topics", topics, format_topic)


@_describes(ApiKey.DELETE_TOPICS)
def _deleted_topics(_request: Fields, response: Fields) -> Described:
    return Described("deleted topics", succeeded(response["responses"]), shown)


@_describes(ApiKey.CREATE_PARTITIONS)
def _created_partitions(request: Fields, response: Fields) -> Described:
    grown = succeeded(response["results"])
    topics = (topic for topic in request["topics"] if topic["name"] in grown)
    return Described(
        "added partitions to topics", topics, lambda topic: f"{shown(topic['name'])} (now {topic['count']})"
    )


@_describes(ApiKey.DELETE_RECORDS)
def _deleted_records(_request: Fields, response: Fields) -> Described:
    return Described(
        "deleted records of partitions",
        _partitions(response["topics"]),
        lambda each: f"{_partition_name(each)} (before {each[1]['low_watermark']})",
    )


Partition = tuple[str, Fields]
"""A topic's name, and the row of one of its partitions."""


def _partitions(topics: Iterable[Fields], name: str = "name") -> Iterator[Partition]:
    """Yield the partitions in a response that have no error."""
    return ((topic[name], row) for topic in topics for row in topic["partitions"] if not row["error_code"])


def _partition_name(partition: Partition) -> str:
    return f"{shown(partition[0])}-{partition[1]['partition_index']}"


# -- groups and transactions -----------------------------------------------------------------------------------


@_describes(ApiKey.DELETE_GROUPS)
def _deleted_groups(_request: Fields, response: Fields) -> Described:
    return Described("deleted groups", succeeded(response["results"], "group_id"), shown)


@_describes(ApiKey.ALTER_SHARE_GROUP_OFFSETS)
def _altered_share_offsets(request: Fields, response: Fields) -> Described:
    did = f"set start offsets of share group {shown(request['group_id'])}"
    return Described(did, _partitions(response["responses"], "topic_name"), _partition_name)


@_describes(ApiKey.DELETE_SHARE_GROUP_OFFSETS)
def _deleted_share_offsets(request: Fields, response: Fields) -> Described:
    did = f"deleted start offsets of share group {shown(request['group_id'])}"
    return Described(did, succeeded(response["responses"], "topic_name"), shown)


@_describes(ApiKey.OFFSET_DELETE)
def _deleted_offsets(request: Fields, response: Fields) -> Described:
    did = f"deleted committed offsets of group {shown(request['group_id'])}"
    return Described(did, _partitions(response["topics"]), _partition_name)


@_describes(ApiKey.OFFSET_COMMIT)
def _moved_offsets(request: Fields, response: Fields) -> Described | None:
    # A member commits its own progress, which is no administrative change. A commit without a member comes from
    # kafka-consumer-groups, `kproc group seek` or a consumer with manually assigned partitions.
    if request["member_id"] or request["generation_id_or_member_epoch"] >= 0:
        return None
    # The response has the rows of the request in the same order.
    rows = (
        (topic, row)
        for topic, answered in zip(request["topics"], response["topics"], strict=True)
        for row, outcome in zip(topic["partitions"], answered["partitions"], strict=True)
        if not outcome["error_code"]
    )

    def format_row(found: tuple[Fields, Fields]) -> str:
        topic, row = found
        name = shown(topic["name"]) if "name" in topic else topic["topic_id"].hex()
        return f"{name}-{row['partition_index']} (to {row['committed_offset']})"

    return Described(f"set committed offsets of group {shown(request['group_id'])}", rows, format_row)


@_describes(ApiKey.WRITE_TXN_MARKERS)
def _ended_transactions(request: Fields, response: Fields) -> Described:
    # The response has the markers of the request in the same order.
    rows = (
        (marker, each)
        for marker, answered in zip(request["markers"], response["markers"], strict=True)
        for each in _partitions(answered["topics"])
    )

    def format_row(found: tuple[Fields, Partition]) -> str:
        marker, partition = found
        result = "commit" if marker["transaction_result"] else "abort"
        return f"{_partition_name(partition)} ({result} of producer {marker['producer_id']})"

    return Described("wrote transaction markers to partitions", rows, format_row)


@_describes(ApiKey.INITIALIZE_SHARE_GROUP_STATE)
def _initialized_states(request: Fields, response: Fields) -> Described:
    return _changed_states("initialized", request, response)


@_describes(ApiKey.WRITE_SHARE_GROUP_STATE)
def _written_states(request: Fields, response: Fields) -> Described:
    return _changed_states("wrote", request, response)


@_describes(ApiKey.DELETE_SHARE_GROUP_STATE)
def _deleted_states(request: Fields, response: Fields) -> Described:
    return _changed_states("deleted", request, response)


def _changed_states(did: str, request: Fields, response: Fields) -> Described:
    places = (
        (topic["topic_id"] or ZERO_UUID, row["partition"])
        for topic in response["results"]
        for row in topic["partitions"]
        if not row["error_code"]
    )
    did = f"{did} states of share group {shown(request['group_id'])} for partitions"
    return Described(did, places, lambda place: f"{place[0].hex()}-{place[1]}")


# -- settings and quotas ---------------------------------------------------------------------------------------


@_describes(ApiKey.INCREMENTAL_ALTER_CONFIGS)
def _changed_settings(request: Fields, response: Fields) -> Described:
    return _altered("changed settings", request, response)


@_describes(ApiKey.ALTER_CONFIGS)
def _replaced_settings(request: Fields, response: Fields) -> Described:
    return _altered("replaced settings", request, response)


def _altered(did: str, request: Fields, response: Fields) -> Described:
    # The response has the resources of the request in the same order.
    pairs = zip(request["resources"], response["responses"], strict=True)
    return Described(
        did, (resource for resource, outcome in pairs if not outcome["error_code"]), _format_resource
    )


def _format_resource(resource: Fields) -> str:
    kind = resource["resource_type"]
    name = shown(resource["resource_name"]) or "(all)"
    settings = _format_settings(resource["configs"], is_broker=kind == _BROKER)
    return f"{_RESOURCES.get(kind, kind)} {name}: {' '.join(settings)}"


def _format_settings(rows: Sequence[Fields], *, is_broker: bool = False) -> list[str]:
    texts = [_format_setting(row, is_broker=is_broker) for row in rows[:_SETTINGS_MAX]]
    more = len(rows) - len(texts)
    return [*texts, f"and {more} more"] if more > 0 else texts


def _format_setting(row: Fields, *, is_broker: bool = False) -> str:
    name, operation, value = row["name"], row.get("config_operation", _SET), row["value"]
    if operation == _DELETE or value is None:
        return f"{shown(name)} unset"
    # Hide the secrets of a URL before the value is cut. They are recognised by the @ behind them, which the cut may
    # remove.
    value = HIDDEN if is_secret(name, if_unknown=is_broker) else without_url_secrets(value)
    if len(value) > _VALUE_MAX:
        value = f"{value[:_VALUE_MAX]}..."
    return f"{shown(name)}{_SIGNS.get(operation, '=')}{printable(value)}"


@_describes(ApiKey.ALTER_CLIENT_QUOTAS)
def _changed_quotas(request: Fields, response: Fields) -> Described:
    # The response has the entries of the request in the same order.
    pairs = zip(request["entries"], response["entries"], strict=True)
    return Described(
        "changed quotas", (entry for entry, outcome in pairs if not outcome["error_code"]), _format_quotas
    )


def _format_quotas(entry: Fields) -> str:
    owners = (_format_entity(part["entity_type"], part["entity_name"]) for part in entry["entity"])
    quotas = (
        f"{shown(op['key'])} unset" if op["remove"] else f"{shown(op['key'])}={op['value']:.15g}"
        for op in entry["ops"]
    )
    return f"{' and '.join(owners)}: {' '.join(quotas)}"


def _format_entity(kind: str, name: str | None) -> str:
    word = _ENTITIES.get(kind, shown(kind))
    return f"every {word}" if name is None else f"{word} {shown(name)}"


@_describes(ApiKey.UPDATE_FEATURES)
def _changed_features(request: Fields, _response: Fields) -> Described:
    # UpdateFeatures applies all updates of a request or none. A response with an error never gets here.
    return Described(
        "changed features",
        request["feature_updates"],
        lambda wish: f"{shown(wish['feature'])}={wish['max_version_level']}",
    )


# -- rights and users ------------------------------------------------------------------------------------------


@_describes(ApiKey.CREATE_ACLS)
def _added_rules(request: Fields, response: Fields) -> Described:
    pairs = zip(request["creations"], response["results"], strict=True)
    return Described("added ACLs", (row for row, outcome in pairs if not outcome["error_code"]), _format_rule)


@_describes(ApiKey.DELETE_ACLS)
def _deleted_rules(_request: Fields, response: Fields) -> Described:
    rows = (row for answered in response["filter_results"] for row in answered["matching_acls"])
    return Described("deleted ACLs", (row for row in rows if not row["error_code"]), _format_rule)


def _format_rule(row: Fields) -> str:
    """Format a rule in a request of CreateAcls or in a response of DeleteAcls."""
    pattern = PatternType(row["resource_pattern_type" if "resource_pattern_type" in row else "pattern_type"])
    return (
        f"{Permission(row['permission_type']).name} {shown(row['principal'])} {Operation(row['operation']).name} "
        f"on {ResourceType(row['resource_type']).name}:{pattern.name}:{shown(row['resource_name'])} "
        f"from {shown(row['host'])}"
    )


@_describes(ApiKey.ALTER_USER_SCRAM_CREDENTIALS)
def _changed_users(request: Fields, response: Fields) -> Described:
    changed = succeeded(response["results"], "user")
    rows = (
        (row, did)
        for did, rows in (("deleted", request["deletions"]), ("set", request["upsertions"]))
        for row in rows
        if row["name"] in changed
    )

    def format_row(found: tuple[Fields, str]) -> str:
        row, did = found
        return f"{shown(row['name'])} ({did} {_MECHANISMS.get(row['mechanism'], row['mechanism'])})"

    return Described("changed users", rows, format_row)


@_describes(ApiKey.CREATE_DELEGATION_TOKEN)
def _created_token(_request: Fields, response: Fields) -> Described:
    owner = f"{response['principal_type']}:{response['principal_name']}"
    text = f"{shown(response['token_id'])} of {shown(owner)}"
    return Described("created delegation tokens", [text], str)


@_describes(ApiKey.RENEW_DELEGATION_TOKEN)
def _renewed_token(_request: Fields, response: Fields) -> Described:
    return Described("renewed delegation tokens", [response], _format_token)


@_describes(ApiKey.EXPIRE_DELEGATION_TOKEN)
def _expired_token(_request: Fields, response: Fields) -> Described:
    return Described("changed the end of delegation tokens", [response], _format_token)


def _format_token(response: Fields) -> str:
    return f"{shown(response[LOG_ONLY])} (until {response['expiry_timestamp']})"


# -- kproc's own operations ------------------------------------------------------------------------------------


def described_operation(operation: OwnOperation, result: Fields) -> Described | None:
    """Describe one of kproc's own operations that has succeeded. Return None if the operation changes nothing."""
    # A request with a ticket only polls whether an earlier change is done, so it is no change of its own.
    if isinstance(operation, Scale) and operation.ticket is None:
        counts = {"processors": operation.processors, "handlers": operation.handlers}
        texts = [f"{name}={count}" for name, count in counts.items() if count is not None]
        return Described("changed the number of processes", texts, str)
    if isinstance(operation, Rebalance):
        return Described(
            "moved connections",
            result["moves"],
            lambda move: f"{move['connections']} from {move['from']} to {move['to']}",
        )
    if isinstance(operation, KillClient) and result["is_killed"]:
        return Described("closed connections", [operation.id], shown)
    if isinstance(operation, CreateSnapshot):
        return Described("created snapshots", [result["snapshot"]], str)
    if isinstance(operation, DeleteSnapshot):
        return Described("deleted snapshots", [operation.snapshot], str)
    if isinstance(operation, MoveTime) and operation.action != "show":
        text = f"advance by {operation.ms} ms" if operation.action == "advance" else operation.action
        state = "frozen, " if result["is_frozen"] else ""
        return Described("moved the time", [f"{text} ({state}{result['lead_ms']} ms ahead)"], str)
    return None


def described_request(operation: OwnOperation) -> Described | None:
    """Describe an operation that ends this role before it can answer. Return None for any other operation."""
    if isinstance(operation, RestoreSnapshot):
        return Described("requested a restore", [operation.snapshot or "the empty state"], str)
    return None
